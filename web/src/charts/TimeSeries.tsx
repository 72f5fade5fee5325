import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { Frame, type Twin } from "./Frame";
import {
  greatest,
  groupMarks,
  lastKnown,
  layers,
  middleOf,
  type Mark,
  nextKnown,
  type Series,
  tableRows,
  thickest,
  type Value,
  withGaps,
} from "./series";
import { resolveColors, useThemeVersion, useWidth } from "./theme";
import { clockTime, dayAndTime } from "./times";

const AXIS_WIDTH = 56;
const RIGHT = 20;
const TOP = 10;
const FLAG_ROOM = 100;
const LEAST_AREA = 4;
// Labels have minutes, so a shorter step would repeat them.
const TIME_STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

export interface TimeSeriesProps {
  /** A question or its answer: "How long do items wait?" */
  title: string;
  answer?: ComponentChildren;
  /** When steps begin, in seconds since 1970, ascending; all series have a value for each. */
  at: number[];
  series: Series[];
  /** Seconds between two points; a longer distance is a gap. */
  step: number;
  /** The time of the run, in seconds since 1970: of the first and the last step only a part is in it. */
  began?: number;
  until?: number;
  kind?: "lines" | "stacked";
  format: (value: number) => string;
  /** Steps of the vertical axis; for durations and whole numbers. */
  steps?: number[];
  marks?: Mark[];
  /** Charts with the same name share their cursor. */
  sync?: string;
  height?: number;
  /** What is written when there is nothing to draw. */
  empty?: string;
}

/** Lines or stacked areas over time, with gaps, marks of changes, a shared cursor and a table twin. */
export function TimeSeries(props: TimeSeriesProps) {
  const { kind = "lines", format, height = 200, marks = [] } = props;
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const [cursor, setCursor] = useState<number | null>(null);
  const [spoken, setSpoken] = useState("");
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const width = useWidth(host);
  const theme = useThemeVersion();

  const data = useMemo(() => withGaps(props.at, props.series, props.step), [props.at, props.series, props.step]);
  const shown = useMemo(() => data.series.filter((one) => !hidden.has(one.key)), [data, hidden]);
  const heights = useMemo<Value[][]>(
    () => (kind === "stacked" ? layers(shown) : shown.map((one) => one.values)),
    [shown, kind],
  );
  // Of a young run there is no area to draw yet: its few points are bars.
  const few = kind === "stacked" && data.at.filter((_, i) => data.series.some((one) => one.values[i] != null)).length < LEAST_AREA;
  // A point stands for all of its step: it is in the middle of what the run has of it, and a bar covers the step. So
  // marks are where they are in the step.
  const step = Math.max(1, props.step);
  const from = data.at[0] ?? 0;
  const to = (data.at[data.at.length - 1] ?? 0) + step;
  const places = useMemo(
    () => data.at.map((at) => middleOf(at, step, few ? undefined : props.began, few ? undefined : props.until)),
    [data, step, few, props.began, props.until],
  );
  const last = lastKnown(data.series);
  const empty = last < 0;
  // What the drawing hooks read: they outlive a render.
  const latest = useRef({ places, shown, heights, format, from, to });
  latest.current = { places, shown, heights, format, from, to };

  const shape = `${kind}|${few}|${shown.map((one) => `${one.key}:${one.color}:${one.dash?.join() ?? ""}`).join("|")}`;
  useEffect(() => {
    const element = host.current;
    if (!element || width === 0 || empty) return;
    const colors = resolveColors(element, ["text", "muted", "grid", "surface", ...shown.map((s) => s.color)]);
    const drawn = new uPlot(
      plotOptions({ width, height, colors, shown, kind, sync: props.sync, steps: props.steps, few, latest, setCursor }),
      plotData(places, heights, kind),
      element,
    );
    plot.current = drawn;
    return () => {
      drawn.destroy();
      plot.current = null;
    };
    // The data and the size are followed below, without a new plot.
  }, [shape, theme, width === 0, empty, props.sync, height]);

  useEffect(() => {
    plot.current?.setData(plotData(places, heights, kind));
  }, [places, heights]);
  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);

  const x = (at: number) => AXIS_WIDTH + ((at - from) / Math.max(1, to - from)) * (width - AXIS_WIDTH - RIGHT);
  const flags = width > 0 && !empty ? groupMarks(marks, x, width - RIGHT, FLAG_ROOM) : [];
  const index = cursor !== null && cursor < data.at.length ? cursor : last;

  const say = (i: number) => {
    const at = data.at[i];
    if (at === undefined) return;
    const values = shown.map((one) => `${one.label} ${text(one.values[i], format)}`);
    setSpoken(`${clockTime(at)}: ${values.join(", ")}`);
  };
  const moveTo = (i: number) => {
    const drawn = plot.current;
    const at = places[i];
    if (!drawn || at === undefined) return;
    const left = drawn.valToPos(at, "x");
    drawn.setCursor({ left, top: 10 });
    if (props.sync) {
      uPlot.sync(props.sync).pub("mousemove", drawn, left, 10, drawn.over.clientWidth, drawn.over.clientHeight, i);
    }
    setCursor(i);
    say(i);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== event.currentTarget) return;
    const here = cursor ?? last;
    const moves: Record<string, () => number> = {
      ArrowLeft: () => nextKnown(data.series, here, -1),
      ArrowRight: () => nextKnown(data.series, here, 1),
      PageDown: () => nextKnown(data.series, Math.max(0, here - 10), -1),
      PageUp: () => nextKnown(data.series, Math.min(data.at.length - 1, here + 10), 1),
      Home: () => nextKnown(data.series, -1, 1),
      End: () => last,
    };
    const move = moves[event.key];
    if (move) {
      event.preventDefault();
      moveTo(move());
    } else if (event.key === "Escape") {
      plot.current?.setCursor({ left: -10, top: -10 });
      setCursor(null);
    }
  };

  const toggle = (key: string) => {
    const next = new Set(hidden);
    if (next.has(key)) next.delete(key);
    else if (next.size < data.series.length - 1) next.add(key);
    setHidden(next);
  };

  const twin = (): Twin => ({
    head: ["Time", ...props.series.map((one) => one.label), ...(marks.length ? ["Changes"] : [])],
    rows: tableRows(props.at, props.series).map((row) => [
      dayAndTime(row.at),
      ...row.values.map((value) => text(value, format)),
      ...(marks.length ? [marksAt(marks, row.at, props.step)] : []),
    ]),
  });

  return (
    <Frame title={props.title} answer={props.answer} twin={twin} height={height + 34}>
      <ul class="chart-legend">
        <li class="chart-when num">{index >= 0 ? clockTime(data.at[index] ?? 0) : ""}</li>
        {data.series.map((one) => (
          <li key={one.key}>
            <button type="button" aria-pressed={!hidden.has(one.key)} onClick={() => toggle(one.key)}>
              <Swatch color={one.color} dash={one.dash} area={kind === "stacked"} />
              <span class="chart-name">{one.label}</span>
              <span class="chart-value num">{hidden.has(one.key) ? "hidden" : text(one.values[index], format)}</span>
            </button>
          </li>
        ))}
      </ul>
      <div class="chart-plot" style={{ height: `${height}px` }}>
        <div
          class="chart-canvas"
          ref={host}
          role="group"
          aria-roledescription="chart"
          aria-label={`${props.title} Arrow keys move through time.`}
          tabIndex={empty ? undefined : 0}
          onKeyDown={onKeyDown}
          onBlur={() => setSpoken("")}
        />
        {empty ? <p class="chart-empty">{props.empty ?? "There is nothing to show yet."}</p> : null}
        {flags.map((group) => (
          <Flag key={group.marks[0]!.at} x={group.x} marks={group.marks} flip={group.flip} />
        ))}
      </div>
      <p class="visually-hidden" aria-live="polite">
        {spoken}
      </p>
    </Frame>
  );
}

function text(value: Value | undefined, format: (value: number) => string): string {
  return value == null ? "–" : format(value);
}

function marksAt(marks: Mark[], at: number, step: number): string {
  return marks
    .filter((mark) => mark.at >= at && mark.at < at + step)
    .map((mark) => mark.text)
    .join("; ");
}

/** A piece of the line or the area, so that the legend is readable without colour. */
function Swatch({ color, dash, area }: { color: string; dash: number[] | undefined; area: boolean }) {
  return (
    <svg class="chart-swatch" width="18" height="10" aria-hidden="true" style={{ color: `var(--${color})` }}>
      {area ? (
        <rect x="3" y="0" width="12" height="10" rx="2" fill="currentColor" />
      ) : (
        <line x1="0" y1="5" x2="18" y2="5" stroke="currentColor" stroke-width="2" stroke-dasharray={dash?.join(" ")} />
      )}
    </svg>
  );
}

/** A labelled vertical line where something was changed. */
function Flag({ x, marks, flip }: { x: number; marks: Mark[]; flip: boolean }) {
  const label = marks.length === 1 ? marks[0]!.label : `${marks.length} changes`;
  return (
    <div class={flip ? "chart-flag flip" : "chart-flag"} style={{ left: `${x}px` }}>
      <button type="button" class="chart-flag-label">
        {label}
        <span class="chart-flag-list">
          {marks.map((mark) => (
            <span key={`${mark.at} ${mark.text}`}>
              <span class="num">{clockTime(mark.at)}</span> {mark.text}
            </span>
          ))}
        </span>
      </button>
    </div>
  );
}

interface PlotContext {
  width: number;
  height: number;
  colors: Record<string, string>;
  shown: Series[];
  kind: "lines" | "stacked";
  sync: string | undefined;
  steps: number[] | undefined;
  /** Points are bars. */
  few: boolean;
  latest: { current: { places: number[]; heights: Value[][]; shown: Series[]; format: (value: number) => string; from: number; to: number } };
  setCursor: (index: number | null) => void;
}

/** uPlot draws series in order: the highest layer of a stack first, so that each lower one covers its foot. */
function plotData(places: number[], heights: Value[][], kind: "lines" | "stacked"): uPlot.AlignedData {
  return [places, ...(kind === "stacked" ? [...heights].reverse() : heights)];
}

function plotOptions(context: PlotContext): uPlot.Options {
  const { colors, shown, kind, latest } = context;
  const grid = { stroke: colors["grid"]!, width: 1 };
  const font = "12px system-ui, sans-serif";
  const ordered = kind === "stacked" ? [...shown].reverse() : shown;
  return {
    width: context.width,
    height: context.height,
    padding: [TOP, RIGHT, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { size: 6, show: kind === "lines" },
      ...(context.sync ? { sync: { key: context.sync, setSeries: false } } : {}),
    },
    scales: {
      x: { time: true, range: () => [latest.current.from, latest.current.to] },
      y: { range: () => [0, greatest(latest.current.heights) * 1.06 || 1] },
    },
    axes: [
      {
        stroke: colors["muted"]!,
        font,
        size: 28,
        gap: 4,
        space: 70,
        incrs: TIME_STEPS,
        grid: { show: false },
        ticks: { stroke: colors["grid"]!, width: 1, size: 4 },
        values: (_, splits) => axisTimes(splits),
      },
      {
        stroke: colors["muted"]!,
        font,
        size: AXIS_WIDTH,
        gap: 6,
        space: 28,
        grid,
        ticks: { show: false },
        border: { show: false },
        values: (_, splits) => splits.map((value) => latest.current.format(value)),
        ...(context.steps ? { incrs: context.steps } : {}),
      },
    ],
    series: [
      {},
      ...ordered.map((one): uPlot.Series => {
        const color = colors[one.color]!;
        return kind === "stacked"
          ? { label: one.label, stroke: colors["surface"]!, width: 1, fill: color, points: { show: false }, ...(context.few ? { paths: uPlot.paths.bars!({ size: [0.96] }) } : {}) }
          : {
              label: one.label,
              stroke: color,
              width: 1.75,
              ...(one.dash ? { dash: one.dash } : {}),
              points: { show: true, size: 6, fill: color, filter: (u, series) => lonely(u.data[series] as Value[]) },
            };
      }),
    ],
    hooks: {
      setCursor: [(u) => context.setCursor(u.cursor.idx ?? null)],
      ...(kind === "stacked" ? { draw: [(u) => writeNames(u, colors, latest.current)] } : {}),
    },
  };
}

/** Points without a neighbour: no line shows them. */
function lonely(values: Value[]): number[] {
  const found: number[] = [];
  for (let i = 0; i < values.length; i++) {
    if (values[i] != null && values[i - 1] == null && values[i + 1] == null) found.push(i);
  }
  return found;
}

/** Writes the names of layers into them where they are thick enough: no need to match colours with the legend. */
function writeNames(u: uPlot, colors: Record<string, string>, latest: PlotContext["latest"]["current"]): void {
  const { heights, shown, places } = latest;
  const ratio = uPlot.pxRatio;
  const top = u.scales["y"]?.max ?? 0;
  if (top <= 0 || places.length < 8) return;
  const room = (18 / (u.bbox.height / ratio)) * top;
  const perPoint = u.bbox.width / ratio / places.length;
  u.ctx.save();
  u.ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  // A rim of the surface's colour keeps the text readable on every fill.
  u.ctx.fillStyle = colors["text"]!;
  u.ctx.strokeStyle = colors["surface"]!;
  u.ctx.lineWidth = 3 * ratio;
  u.ctx.lineJoin = "round";
  u.ctx.textAlign = "center";
  u.ctx.textBaseline = "middle";
  shown.forEach((one, layer) => {
    const lower = layer > 0 ? heights[layer - 1]! : null;
    const upper = heights[layer]!;
    const wide = u.ctx.measureText(one.label).width / ratio + 12;
    const point = thickest(lower, upper, room, Math.max(2, Math.ceil(wide / perPoint / 2)));
    if (point === null) return;
    const middle = ((lower?.[point] ?? 0) + upper[point]!) / 2;
    const place: [number, number] = [u.valToPos(places[point]!, "x", true), u.valToPos(middle, "y", true)];
    u.ctx.strokeText(one.label, ...place);
    u.ctx.fillText(one.label, ...place);
  });
  u.ctx.restore();
}

/** Times of the axis: the day is written where it begins. */
function axisTimes(splits: number[]): string[] {
  const day = (at: number) => new Date(at * 1000).toDateString();
  const whole = splits.every((at) => new Date(at * 1000).getHours() === 0);
  return splits.map((at, i) => {
    const changed = i > 0 && day(at) !== day(splits[i - 1]!);
    const date = new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
    if (whole) return date;
    return changed ? `${clockTime(at, false)}\n${date}` : clockTime(at, false);
  });
}
