import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";

import "./charts.css";

/** The same figures as a chart, for readers of tables. */
export interface Twin {
  head: string[];
  rows: (string | number)[][];
}

/**
 * The frame of every chart: a question or an answer as its title, the chart, and a table twin behind a button. The
 * table takes the place of the chart and has its height, so that nothing else moves.
 */
export function Frame(props: {
  title: string;
  answer?: ComponentChildren;
  twin: () => Twin;
  height?: number;
  tools?: ComponentChildren;
  children: ComponentChildren;
}) {
  const [asTable, setAsTable] = useState(false);
  const heading = useId();
  return (
    <section class="chart" aria-labelledby={heading}>
      <header class="chart-head">
        <div class="chart-titles">
          <h2 class="chart-title" id={heading}>
            {props.title}
          </h2>
          {props.answer ? <p class="chart-answer">{props.answer}</p> : null}
        </div>
        <div class="chart-tools">
          {props.tools}
          <button type="button" class="chart-twin-switch" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
            {asTable ? "Show as chart" : "Show as table"}
          </button>
        </div>
      </header>
      {asTable ? (
        <TwinTable twin={props.twin()} label={props.title} height={props.height} />
      ) : (
        props.children
      )}
    </section>
  );
}

function TwinTable({ twin, label, height }: { twin: Twin; label: string; height: number | undefined }) {
  return (
    <div
      class="chart-twin"
      role="region"
      aria-label={`${label} (table)`}
      tabIndex={0}
      style={height === undefined ? undefined : { height: `${height}px` }}
    >
      <table>
        <thead>
          <tr>
            {twin.head.map((name) => (
              <th scope="col" key={name}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {twin.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) =>
                column === 0 ? (
                  <th scope="row" key={column}>
                    {cell}
                  </th>
                ) : (
                  <td key={column}>{cell}</td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
      {twin.rows.length === 0 ? <p class="chart-empty">There is nothing to show yet.</p> : null}
    </div>
  );
}
