// Series of a run's history, as GET runs/RUN/history answers it.
import { type History, ITEM_STATES } from "../api/types";
import { type Mark, seconds, type Series, type Value } from "./series";
import { LEAST_SECONDS } from "./times";

export interface Columns {
  at: number[];
  series: Series[];
}

const times = (points: Point[]): number[] => points.map((point) => seconds(point.at) ?? 0);

type Point = History["points"][number];
const LEAST_POINTS = 3;

/** Whether anything is known of that time: the run existed, and its counts were kept. */
function isKnown(point: Point): boolean {
  if (!point.ended) return false;
  return Object.values(point.ended).some((n) => n > 0) || !("done" in point) || point.done != null;
}

/** The points since the run began, at least `least` of them: a chart of a young run is not mostly empty. */
export function knownPoints(history: History, least = LEAST_POINTS): Point[] {
  const first = history.points.findIndex(isKnown);
  return first <= 0 ? history.points : history.points.slice(Math.max(0, Math.min(first, history.points.length - least)));
}

/** A step of which less than this has passed gives no rate. */
const LEAST_SHARE = 0.25;

/**
 * Items that ended per minute, by how they ended. The first and the last step may be incomplete: only the time between
 * `began` and `until` (seconds since 1970) counts, so that a rate does not seem to fall at the end.
 */
export function rateColumns(history: History, began = 0, until = Infinity): Columns {
  const points = knownPoints(history);
  const step = Math.max(1, history.step_seconds);
  const whole = until - began;
  // A run that is shorter than a step has a rate too: at least half of it is in one step.
  const least = whole < LEAST_SECONDS ? Infinity : Math.min(step * LEAST_SHARE, whole / 2);
  const perMinute = points.map((point) => {
    const at = seconds(point.at) ?? 0;
    const covered = Math.min(at + step, until) - Math.max(at, began);
    return isKnown(point) && covered >= least ? 60 / covered : null;
  });
  const of = (name: "done" | "dead" | "retried" | "throttled"): Value[] =>
    points.map((point, i) => (perMinute[i] == null ? null : point.ended[name] * perMinute[i]));
  return {
    at: times(points),
    series: [
      { key: "done", label: "done", color: "fill-done", values: of("done") },
      { key: "retried", label: "tried again", color: "fill-waiting", values: of("retried"), dash: [6, 3] },
      { key: "throttled", label: "throttled", color: "fill-delayed", values: of("throttled"), dash: [2, 3] },
      { key: "dead", label: "dead", color: "fill-dead", values: of("dead"), dash: [8, 3, 2, 3] },
    ],
  };
}

/** p50, p95 and p99 of how long items waited or how long attempts took. Minutes without any are gaps. */
export function quantileColumns(history: History, of: "wait" | "work"): Columns {
  const points = knownPoints(history);
  const values = (name: "p50" | "p95" | "p99"): Value[] => points.map((point) => point[of]?.[name] ?? null);
  return {
    at: times(points),
    series: [
      { key: "p50", label: "p50", color: "series-1", values: values("p50") },
      { key: "p95", label: "p95", color: "series-3", values: values("p95"), dash: [6, 3] },
      { key: "p99", label: "p99", color: "series-4", values: values("p99"), dash: [2, 3] },
    ],
  };
}

/** Items in each state at each time, for a stack; states that never occur are left out. */
export function stateColumns(history: History): Columns {
  const points = knownPoints(history);
  const order = ["done", "skipped", "cancelled", "dead", "leased", "ready", "delayed", "waiting"] as const;
  const series = order
    .filter((state) => ITEM_STATES.includes(state))
    .map((state) => ({
      key: state,
      label: state,
      color: `fill-${state}`,
      values: points.map((point): Value => point[state] ?? null),
    }))
    .filter((one) => one.values.some((value) => value != null && value > 0));
  return { at: times(points), series };
}

const MOST_CAUSES = 7;
// Causes that runs often have, from below: each keeps its place and its colour from one reading to the next.
const CAUSES = [
  "host delay", "host limit", "earlier items of their groups", "rate limit of the site", "being worked on", "free workers", "retries",
  "a live worker", "the run is paused",
];

/** The place of a cause; causes that are not known come last, by name. */
const placeOf = (cause: string): number => (CAUSES.indexOf(cause) + CAUSES.length + 1) % (CAUSES.length + 1);

/** What items waited for at each time, for a stack: the greatest causes, the rest summed as "other". */
export function causeColumns(history: History, label: (cause: string) => string = (cause) => cause): Columns {
  const points = knownPoints(history);
  const sums = new Map<string, number>();
  for (const point of points) {
    for (const [cause, items] of Object.entries(point.waiting_for ?? {})) sums.set(cause, (sums.get(cause) ?? 0) + items);
  }
  const causes = [...sums.entries()]
    .filter(([, sum]) => sum > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([cause]) => cause);
  const shown = causes.length > MOST_CAUSES + 1 ? causes.slice(0, MOST_CAUSES) : causes;
  const rest = causes.slice(shown.length);
  const own = [...shown].sort((a, b) => placeOf(a) - placeOf(b) || a.localeCompare(b));
  const taken = new Set(own.filter((cause) => CAUSES.includes(cause)).map((cause) => placeOf(cause) % 8));
  const free = [0, 1, 2, 3, 4, 5, 6, 7].filter((color) => !taken.has(color));
  const colorOf = (cause: string, i: number): number => (CAUSES.includes(cause) ? placeOf(cause) % 8 : (free.shift() ?? i % 8));
  const at = (cause: string) => points.map((point): Value => (point.waiting_for ? (point.waiting_for[cause] ?? 0) : null));
  const series: Series[] = own.map((cause, i) => ({
    key: cause,
    label: label(cause),
    color: `series-${colorOf(cause, i) + 1}`,
    values: at(cause),
  }));
  if (rest.length > 0) {
    const columns = rest.map(at);
    const values = points.map((_, i): Value =>
      columns[0]![i] == null ? null : columns.reduce((sum, column) => sum + (column[i] ?? 0), 0),
    );
    series.push({ key: "", label: "other", color: "series-8", values });
  }
  return { at: times(points), series };
}

/** Changes as marks: the label is short ("paused"), the text says who did what. */
export function historyMarks(history: History): Mark[] {
  return history.marks.flatMap((mark) => {
    const at = seconds(mark.at);
    if (at === null) return [];
    const label = mark.action.replace(/[._]+/g, " ");
    return [{ at, label, text: mark.actor ? `${mark.text} (${mark.actor})` : mark.text }];
  });
}
