// Where the spans of a swim-lane go: rows inside the lane, the symbol of an outcome, the order of lanes.
import type { Eta, LaneSpan, TimelineLane } from "../api/types";

export interface PlacedSpan {
  span: LaneSpan;
  row: number;
  from: number;
  to: number;
  open: boolean;
}

/** How an attempt looks: its tone, and the symbol that says the same without colour. */
export type Tone = "ok" | "run" | "wait" | "warn" | "bad" | "off";

const TONES: Record<string, Tone> = {
  done: "ok",
  permanent: "bad",
  poison: "bad",
  transient: "warn",
  throttled: "warn",
  blocked: "warn",
  crashed: "warn",
  skipped: "off",
  duplicate: "off",
  released: "off",
};

export function outcomeTone(outcome: string | null, open: boolean): Tone {
  if (open) return "run";
  if (outcome === null) return "off";
  return TONES[outcome] ?? "bad";
}

export const TONE_SYMBOLS: Record<Tone, string> = { ok: "✓", run: "▸", wait: "…", warn: "!", bad: "✕", off: "–" };

/**
 * Gives each span the first row that is free at its begin, so that spans which ran at once are one below the other.
 * More than `rows` at once share the last row. A span without an end reaches to `now`.
 */
export function placeSpans(spans: LaneSpan[], now: number, rows: number): PlacedSpan[] {
  const ends: number[] = [];
  const placed: PlacedSpan[] = [];
  const known = spans
    .map((span) => {
      const from = Date.parse(span.begin) / 1000;
      const open = span.end === null;
      const to = open ? now : Date.parse(span.end!) / 1000;
      return { span, from, to: Math.max(from, to), open };
    })
    .filter((each) => Number.isFinite(each.from) && Number.isFinite(each.to))
    .sort((a, b) => a.from - b.from);
  for (const each of known) {
    let row = ends.findIndex((end) => end <= each.from + 0.001);
    if (row < 0) row = Math.min(ends.length, Math.max(1, rows) - 1);
    ends[row] = Math.max(ends[row] ?? 0, each.to);
    placed.push({ ...each, row });
  }
  return placed;
}

/** The time that a timeline shows: from its first attempt on, if most of `from`..`to` is before it. */
export function fittedFrom(lanes: TimelineLane[], from: number, to: number): number {
  let first = to;
  for (const lane of lanes) for (const span of lane.spans) first = Math.min(first, Date.parse(span.begin) / 1000 || to);
  return first - from > (to - from) / 2 ? Math.min(first - (to - first) * 0.02, to - 60) : from;
}

/** How many rows the spans of a lane need. */
export function rowsOf(placed: PlacedSpan[]): number {
  return placed.reduce((most, each) => Math.max(most, each.row + 1), 1);
}

export function longestEta(eta: Eta | undefined): number | null {
  if (eta == null) return null;
  return Array.isArray(eta) ? eta[1] : eta;
}

/** The critical lane first, then sequential lanes, then those that need longest. */
export function laneOrder(lanes: TimelineLane[]): TimelineLane[] {
  return [...lanes].sort(
    (a, b) =>
      Number(b.critical) - Number(a.critical) ||
      Number(b.ordered) - Number(a.ordered) ||
      (longestEta(b.eta_seconds) ?? -1) - (longestEta(a.eta_seconds) ?? -1) ||
      a.lane.localeCompare(b.lane),
  );
}

/** The share of the time `from`..`to` in which at least one span was running. */
export function busyShare(placed: PlacedSpan[], from: number, to: number): number {
  if (!(to > from)) return 0;
  let busy = 0;
  let until = from;
  for (const each of [...placed].sort((a, b) => a.from - b.from)) {
    const begin = Math.max(each.from, until);
    const end = Math.min(each.to, to);
    if (end > begin) {
      busy += end - begin;
      until = end;
    }
  }
  return Math.min(1, busy / (to - from));
}
