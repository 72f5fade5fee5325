import { count, percent } from "../ui/format";
import "./charts.css";

export interface Part {
  key: string;
  label: string;
  value: number;
  color: string;
  href?: string;
}

/**
 * One bar of parts, with a legend that has every figure: the legend is the table twin. A part that is not zero is at
 * least two pixels wide.
 */
export function StackedBar(props: {
  label: string;
  parts: Part[];
  format?: (value: number) => string;
  legend?: boolean;
  height?: number;
}) {
  const { format = count, legend = true, height = 12 } = props;
  const parts = props.parts.filter((part) => part.value > 0);
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const words = parts.map((part) => `${part.label} ${format(part.value)}`).join(", ");
  return (
    <div class="stacked-bar">
      <div
        class="stacked-bar-track"
        role="img"
        aria-label={`${props.label}: ${words || "nothing"}`}
        style={{ height: `${height}px` }}
      >
        {parts.map((part) => (
          <span
            key={part.key}
            class="stacked-bar-part"
            title={`${part.label}: ${format(part.value)} (${percent(part.value / total)})`}
            style={{ flexGrow: part.value / total, background: `var(--${part.color})` }}
          />
        ))}
      </div>
      {legend ? (
        <ul class="stacked-bar-legend">
          {parts.map((part) => (
            <li key={part.key}>
              <span class="swatch" style={{ background: `var(--${part.color})` }} aria-hidden="true" />
              {part.href ? <a href={part.href}>{part.label}</a> : <span>{part.label}</span>}
              <span class="num strong">{format(part.value)}</span>
              <span class="num muted">{percent(part.value / total)}</span>
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}
