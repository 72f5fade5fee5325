import { useRef, useState } from "preact/hooks";

import { Frame, type Twin } from "./Frame";

export interface MatrixCell {
  state: string;
  text: string;
}

export interface MatrixRow {
  key: string;
  label: string;
  state: string;
  /** One cell per column; null: it was never used there. */
  cells: (MatrixCell | null)[];
}

const SYMBOLS: Record<string, string> = { good: "✓", blocked: "✕", banned: "✕", watched: "!", resting: "z", trial: "?" };

/** Rows against columns with a symbol per cell; the cell with the focus is written out below. Arrow keys move. */
export function Matrix(props: {
  title: string;
  answer?: string;
  corner: string;
  columns: string[];
  rows: MatrixRow[];
  onRow: (key: string) => void;
}) {
  const { columns, rows } = props;
  const [at, setAt] = useState<[number, number]>([0, 0]);
  const [said, setSaid] = useState("");
  const body = useRef<HTMLTableSectionElement>(null);
  const textOf = (row: number, column: number) => {
    const cell = rows[row]?.cells[column];
    return `${rows[row]?.label ?? ""} at ${columns[column] ?? ""}: ${cell?.text ?? "not used"}`;
  };
  const move = (row: number, column: number) => {
    const to: [number, number] = [
      Math.max(0, Math.min(rows.length - 1, row)),
      Math.max(0, Math.min(columns.length - 1, column)),
    ];
    setAt(to);
    body.current?.querySelector<HTMLElement>(`[data-at="${to[0]}:${to[1]}"]`)?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const [row, column] = at;
    const moves: Record<string, [number, number]> = {
      ArrowDown: [row + 1, column],
      ArrowUp: [row - 1, column],
      ArrowRight: [row, column + 1],
      ArrowLeft: [row, column - 1],
      Home: [row, 0],
      End: [row, columns.length - 1],
    };
    const to = moves[event.key];
    if (!to || (event.target as HTMLElement).dataset["at"] === undefined) return;
    event.preventDefault();
    move(...to);
  };

  const twin = (): Twin => ({
    head: [props.corner, ...columns],
    rows: rows.map((row) => [row.label, ...row.cells.map((cell) => cell?.text ?? "–")]),
  });

  return (
    <Frame title={props.title} answer={props.answer} twin={twin} height={Math.min(560, rows.length * 26 + 180)}>
      <div class="matrix-view" tabIndex={-1}>
        <table class="matrix" role="grid" aria-label={props.title} onKeyDown={onKeyDown}>
          <thead>
            <tr>
              <th scope="col" class="matrix-corner">
                {props.corner}
              </th>
              {columns.map((column, i) => (
                <th scope="col" key={column} class={at[1] === i && said ? "here" : ""} title={column}>
                  <span class="matrix-column">{column}</span>
                </th>
              ))}
            </tr>
          </thead>
          <tbody ref={body}>
            {rows.map((row, r) => (
              <tr key={row.key}>
                <th scope="row" class={at[0] === r && said ? "here" : ""}>
                  <button type="button" class="matrix-row clip" onClick={() => props.onRow(row.key)} title={row.label}>
                    <span class={`cell-symbol ${row.state}`} aria-label={row.state}>
                      {SYMBOLS[row.state] ?? "·"}
                    </span>
                    {row.label}
                  </button>
                </th>
                {row.cells.map((cell, c) => (
                  <td
                    key={c}
                    data-at={`${r}:${c}`}
                    role="gridcell"
                    tabIndex={at[0] === r && at[1] === c ? 0 : -1}
                    class={cell ? `cell ${cell.state}` : "cell unused"}
                    aria-label={textOf(r, c)}
                    onFocus={() => {
                      setAt([r, c]);
                      setSaid(textOf(r, c));
                    }}
                    onPointerEnter={() => {
                      setAt([r, c]);
                      setSaid(textOf(r, c));
                    }}
                  >
                    {cell ? (SYMBOLS[cell.state] ?? "·") : ""}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="matrix-foot">
        <p>{said || <span class="muted">Point at a cell, or use the arrow keys, to read it.</span>}</p>
        <ul class="matrix-key" aria-label="Key">
          <li><span class="cell-symbol good">✓</span>works</li>
          <li><span class="cell-symbol watched">!</span>was blocked, still used</li>
          <li><span class="cell-symbol blocked">✕</span>kept from this host</li>
          <li><span class="cell-symbol unused" />not used</li>
        </ul>
      </div>
    </Frame>
  );
}
