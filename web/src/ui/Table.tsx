import type { ComponentChildren } from "preact";
import { setQuery, useLocation } from "../router/router";
import { Button } from "./Button";
import { count as formatCount } from "./format";

export interface Column<Row> {
  key: string;
  head: ComponentChildren;
  /** The head in words, for narrow screens; needed where `head` is no text. */
  label?: string;
  cell: (row: Row) => ComponentChildren;
  /** Figures stand at the end, in tabular digits. */
  end?: boolean;
  /** A CSS width; columns without one share the rest. The layout is fixed: rows that change never move columns. */
  width?: string;
  /** Takes a line of its own on narrow screens, as the first column does. */
  wide?: boolean;
  /** Hidden below this width of the window, in pixels. */
  from?: 720 | 1100;
}

interface TableProps<Row> {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  rowKey: (row: Row) => string | number;
  /** Old rows while newer ones are on their way. */
  stale?: boolean;
  empty?: ComponentChildren;
  rowClass?: (row: Row) => string;
}

/** A table with a fixed layout; on narrow screens each row is a block of labelled values. */
export function Table<Row>({ label, columns, rows, rowKey, stale, empty, rowClass }: TableProps<Row>) {
  if (rows.length === 0 && empty) return <>{empty}</>;
  return (
    <div class="table-box">
      <table class={`table ${stale ? "stale" : ""}`} aria-busy={stale || undefined}>
        <caption class="visually-hidden">{label}</caption>
        <colgroup>
          {columns.map((column) => (
            <col key={column.key} class={column.from ? `from-${column.from}` : ""} style={column.width ? { width: column.width } : undefined} />
          ))}
        </colgroup>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key} scope="col" class={`${column.end ? "end" : ""} ${column.from ? `from-${column.from}` : ""}`}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)} class={rowClass?.(row)}>
              {columns.map((column) => (
                <td
                  key={column.key}
                  class={`${column.end ? "end" : ""} ${column.wide ? "cell-wide" : ""} ${column.from ? `from-${column.from}` : ""}`}
                  data-label={column.label ?? (typeof column.head === "string" ? column.head : undefined)}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// Keyset pages know only the next cursor; this is how a page finds back to the one before it.
const cursorBefore = new Map<string, string>();

interface PagerProps {
  cursor: string | null;
  shown: number;
  /** "10,000+ items" */
  total?: ComponentChildren;
  /** The name of the cursor in the URL, when a page has more than one list. */
  name?: string;
}

/** Previous and next page of a keyset list; the cursor is in the URL. */
export function Pager({ cursor, shown, total, name = "cursor" }: PagerProps) {
  const { path, query } = useLocation();
  const here = query.get(name) ?? "";
  const before = cursorBefore.get(`${path} ${here}`);
  if (cursor === null && here === "") {
    return <div class="pager muted small">{total ?? `${formatCount(shown)} shown`}</div>;
  }
  return (
    <nav class="pager" aria-label="Pages">
      <span class="muted small grow">{total ?? `${formatCount(shown)} shown`}</span>
      {here !== "" && <Button small kind="quiet" onClick={() => setQuery({ [name]: null })}>First page</Button>}
      <Button small disabled={here === "" || before === undefined} onClick={() => setQuery({ [name]: before ?? null })}>Previous</Button>
      <Button
        small
        disabled={cursor === null}
        onClick={() => {
          cursorBefore.set(`${path} ${cursor}`, here);
          setQuery({ [name]: cursor });
        }}
      >
        Next
      </Button>
    </nav>
  );
}
