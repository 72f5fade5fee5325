import type { History } from "../api/types";
import "./charts.css";

type Point = History["points"][number];
// From below, in the order and the colours of the bars of states.
const LAYERS = ["done", "skipped", "cancelled", "dead", "leased", "ready", "delayed", "waiting"] as const;

/** How many items were in which state over time, small and without axes; times without a sample stay empty. */
export function StateStrip({ points, label, width = 300, height = 28 }: { points: readonly Point[]; label: string; width?: number; height?: number }) {
  const sums = points.map((point) => LAYERS.map((state) => point[state] ?? 0));
  const most = Math.max(1, ...sums.map((sum) => sum.reduce((all, each) => all + each, 0)));
  const step = width / Math.max(1, points.length);
  const path = (layer: number): string =>
    sums
      .map((sum, i) => {
        const below = sum.slice(0, layer).reduce((all, each) => all + each, 0);
        const thick = ((sum[layer] ?? 0) / most) * height;
        if (thick === 0) return "";
        const y = height - (below / most) * height;
        return `M${(i * step).toFixed(2)} ${y.toFixed(2)}h${step.toFixed(2)}v${(-thick).toFixed(2)}h${(-step).toFixed(2)}z`;
      })
      .join("");
  return (
    <svg class="sparkline" role="img" aria-label={label} width="100%" height={height} preserveAspectRatio="none" viewBox={`0 0 ${width} ${height}`}>
      <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} class="sparkline-base" />
      {LAYERS.map((state, layer) => <path key={state} d={path(layer)} fill={`var(--fill-${state})`} shape-rendering="crispEdges" />)}
    </svg>
  );
}
