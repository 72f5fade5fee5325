// The data of time series: gaps, stacks, marks and the rows of the table twin. No drawing here.

export type Value = number | null;

/** One line or one layer of a stack. `color` names a token of tokens.css without its `--`. */
export interface Series {
  key: string;
  label: string;
  color: string;
  values: Value[];
  dash?: number[];
}

/** A change of the run or its settings. `at` in seconds since 1970. */
export interface Mark {
  at: number;
  label: string;
  text: string;
}

/** Seconds since 1970 of an ISO time; null for what is none. */
export function seconds(at: string | null | undefined): number | null {
  if (!at) return null;
  const ms = Date.parse(at);
  return Number.isNaN(ms) ? null : ms / 1000;
}

/** The middle of the part of a step that is between `began` and `until`; of the whole step when no part is. */
export function middleOf(at: number, step: number, began = -Infinity, until = Infinity): number {
  const from = Math.max(at, began);
  const to = Math.min(at + step, until);
  return from <= to ? (from + to) / 2 : at + step / 2;
}

/**
 * Inserts an empty point wherever two points are further apart than one and a half steps, so that a gap is drawn as
 * a gap and never as a line across it.
 */
export function withGaps(at: number[], series: Series[], step: number): { at: number[]; series: Series[] } {
  const places: number[] = [];
  for (let i = 1; i < at.length; i++) if (at[i]! - at[i - 1]! > step * 1.5) places.push(i);
  if (places.length === 0 || step <= 0) return { at, series };
  const spread = <T>(values: T[], filler: (before: number) => T): T[] => {
    const out: T[] = [];
    let from = 0;
    for (const place of places) {
      for (; from < place; from++) out.push(values[from]!);
      out.push(filler(place));
    }
    for (; from < values.length; from++) out.push(values[from]!);
    return out;
  };
  return {
    at: spread(at, (place) => at[place - 1]! + step),
    series: series.map((one) => ({ ...one, values: spread(one.values, () => null) })),
  };
}

/** The upper edge of each layer, the first layer at the bottom. A point where every layer is null stays a gap. */
export function stacked(series: Series[]): Value[][] {
  const length = series[0]?.values.length ?? 0;
  const sums: Value[] = new Array<Value>(length).fill(null);
  return series.map((one) => {
    for (let i = 0; i < length; i++) {
      const value = one.values[i];
      if (value != null) sums[i] = (sums[i] ?? 0) + value;
    }
    return [...sums];
  });
}

/** Like `stacked`, with gaps of a single layer closed: a layer without a value at a point has the height 0 there. */
export function layers(series: Series[]): Value[][] {
  const length = series[0]?.values.length ?? 0;
  const known = (i: number) => series.some((one) => one.values[i] != null);
  return stacked(
    series.map((one) => ({
      ...one,
      values: Array.from({ length }, (_, i) => (known(i) ? (one.values[i] ?? 0) : null)),
    })),
  );
}

/** The greatest value of all series; 0 when there is none. */
export function greatest(values: Value[][]): number {
  let max = 0;
  for (const row of values) for (const value of row) if (value != null && value > max) max = value;
  return max;
}

/** The last point with a value in any series; -1 when there is none. */
export function lastKnown(series: Series[]): number {
  const length = series[0]?.values.length ?? 0;
  for (let i = length - 1; i >= 0; i--) if (series.some((one) => one.values[i] != null)) return i;
  return -1;
}

/** The next point with a value from `index` in the direction `step`; `index` itself when there is none. */
export function nextKnown(series: Series[], index: number, step: number): number {
  const length = series[0]?.values.length ?? 0;
  for (let i = index + step; i >= 0 && i < length; i += step) {
    if (series.some((one) => one.values[i] != null)) return i;
  }
  return index;
}

/** Marks that would overlap, drawn as one. `x` is that of the first; `flip`: its label stands on the left of its line. */
export interface MarkGroup {
  x: number;
  flip: boolean;
  marks: Mark[];
}

/**
 * Groups marks whose labels, `room` pixels wide, would overlap. Labels are on the right of their lines, but at the right
 * edge on the left. Marks outside of 0..`width` are left out.
 */
export function groupMarks(marks: Mark[], place: (at: number) => number, width: number, room: number): MarkGroup[] {
  const groups: MarkGroup[] = [];
  for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
    const x = place(mark.at);
    if (!(x >= 0 && x <= width)) continue;
    const flip = x > width - room;
    const last = groups[groups.length - 1];
    if (last && x - last.x < (flip && !last.flip ? room * 2 : room)) last.marks.push(mark);
    else groups.push({ x, flip, marks: [mark] });
  }
  return groups;
}

/** Where a layer of a stack is thickest, in points; null when it is nowhere `room` high. */
export function thickest(lower: Value[] | null, upper: Value[], room: number, margin = 2): number | null {
  let best: number | null = null;
  let height = room;
  for (let i = margin; i < upper.length - margin; i++) {
    const top = upper[i];
    if (top == null) continue;
    const bottom = lower?.[i] ?? 0;
    // The label is wider than one point: its neighbours must have room as well.
    let least = top - bottom;
    for (let j = i - margin; j <= i + margin; j++) {
      const edge = upper[j];
      least = edge == null ? 0 : Math.min(least, edge - Math.max(bottom, lower?.[j] ?? 0), top - Math.max(bottom, lower?.[j] ?? 0));
    }
    if (least > height) {
      height = least;
      best = i;
    }
  }
  return best;
}

/** Rows of the table twin, the newest first: the time, then a value per series. Empty points are left out. */
export function tableRows(at: number[], series: Series[], limit = 500): { at: number; values: Value[] }[] {
  const rows: { at: number; values: Value[] }[] = [];
  for (let i = at.length - 1; i >= 0 && rows.length < limit; i--) {
    const values = series.map((one) => one.values[i] ?? null);
    if (values.some((value) => value != null)) rows.push({ at: at[i]!, values });
  }
  return rows;
}
