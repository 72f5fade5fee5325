// How the pace of lanes is written and read.
import type { Eta, LanePolicy } from "../api/types";
import { range } from "../ui/format";

/** "3h 40m – 4h 30m"; empty when no end can be told. */
export const etaText = (eta: Eta): string => (eta === null ? "" : range(eta));

/** "2 at once, 2/s" */
export function policyText(policy: LanePolicy): string {
  const many = policy.ordered ? "in order" : policy.limit === 1 ? "one at a time" : `${policy.limit} at once`;
  const pace = paceText(policy.delay_min, policy.delay_max);
  return pace ? `${many}, ${pace}` : many;
}

/** "2/s", "1 every 5 s", "1 every 2–4 s"; empty without a delay. */
export function paceText(low: number, high: number): string {
  if (high <= 0) return "";
  if (low !== high) return `1 every ${trim(low)}–${trim(high)} s`;
  if (high < 1) return `${trim(1 / high)}/s`;
  if (high === 1) return "1/s";
  return `1 every ${trim(high)} s`;
}

const trim = (value: number): string => String(Math.round(value * 100) / 100);

/** What PATCH lanes/LANE takes for a delay: "2/s" stays a pace, "0.5" and "1-3" are seconds; null: neither. */
export function parseDelay(text: string): string | [number, number] | null {
  const plain = text.trim();
  if (/^\d+(\.\d+)?\s*\/\s*(\d+(\.\d+)?)?\s*[a-z]+$/i.test(plain)) return plain;
  const seconds = /^(\d+(?:\.\d+)?)(?:\s*(?:-|–|to)\s*(\d+(?:\.\d+)?))?\s*s?$/i.exec(plain);
  if (!seconds) return null;
  const low = Number(seconds[1]);
  const high = seconds[2] === undefined ? low : Number(seconds[2]);
  return low <= high && high <= 86_400 ? [low, high] : null;
}
