// Scales and ticks of charts that are drawn without uPlot.

/** Maps a value of `from`..`to` to 0..`width` pixels. */
export function linear(from: number, to: number, width: number): (value: number) => number {
  const span = to - from;
  return (value) => (span > 0 ? ((value - from) / span) * width : 0);
}

const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
];

/** Round times in `from`..`to`, at most `most` of them. `offset`: minutes behind UTC, as Date.getTimezoneOffset says. */
export function timeTicks(from: number, to: number, most: number, offset = 0): number[] {
  if (!(to > from) || most < 1) return [];
  const step = TIME_STEPS.find((each) => (to - from) / each <= most) ?? TIME_STEPS[TIME_STEPS.length - 1]!;
  const shift = offset * 60;
  const ticks: number[] = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to && ticks.length <= 1000; at += step) {
    ticks.push(at);
  }
  return ticks.length > most * 2 ? [] : ticks;
}

/** Which rows of `count` are visible, with `spare` more on both sides. */
export function visibleRows(
  scroll: number,
  height: number,
  row: number,
  count: number,
  spare = 4,
): { first: number; last: number } {
  const first = Math.max(0, Math.floor(scroll / row) - spare);
  const last = Math.min(count, Math.ceil((scroll + height) / row) + spare);
  return { first: Math.min(first, last), last };
}

/** Steps for the axes of durations in seconds. */
export const DURATION_STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600,
  43200, 86400, 172800, 604800,
];
/** Steps for the axes of whole numbers. */
export const COUNT_STEPS = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3]! * 10 ** Math.floor(i / 3));
