import "./charts.css";

/** A small trend without axes: bars of counts or a line. `label` says in words what it shows. */
export function Sparkline(props: {
  values: (number | null)[];
  label: string;
  kind?: "bars" | "line";
  color?: string;
  width?: number;
  height?: number;
  /** As wide as its place; `width` is then only the unit of its drawing. */
  stretch?: boolean;
}) {
  const { values, kind = "bars", color = "series-1", width = 120, height = 24 } = props;
  const most = Math.max(1e-9, ...values.map((value) => value ?? 0));
  const step = width / Math.max(1, values.length);
  const y = (value: number) => height - 1 - (value / most) * (height - 2);
  return (
    <svg
      class="sparkline"
      role="img"
      aria-label={props.label}
      width={props.stretch ? "100%" : width}
      height={height}
      preserveAspectRatio={props.stretch ? "none" : undefined}
      viewBox={`0 0 ${width} ${height}`}
      style={{ color: `var(--${color})` }}
    >
      <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} class="sparkline-base" />
      {kind === "bars" ? (
        values.map((value, i) =>
          value ? (
            <rect
              key={i}
              x={i * step}
              y={Math.min(height - 2, y(value))}
              width={Math.max(1, step - (step > 3 ? 1 : 0))}
              height={Math.max(2, height - y(value))}
              fill="currentColor"
            />
          ) : null,
        )
      ) : (
        <path d={linePath(values, step, y)} fill="none" stroke="currentColor" stroke-width="1.5" />
      )}
    </svg>
  );
}

/** The path of a line that is interrupted where values are null. */
export function linePath(values: (number | null)[], step: number, y: (value: number) => number): string {
  let path = "";
  let open = false;
  values.forEach((value, i) => {
    if (value == null) {
      open = false;
      return;
    }
    path += `${open ? "L" : "M"}${(i * step + step / 2).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  });
  return path;
}
