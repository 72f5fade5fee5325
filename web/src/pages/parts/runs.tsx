/** What pages show of a run in the same way: its bar of states, its ETA, its actions. */
import type { ComponentChildren } from "preact";
import { StackedBar } from "../../charts/StackedBar";
import { LEAST_SECONDS } from "../../charts/times";
import type { Counts, ItemState, RunStatus } from "../../api/types";
import { href, hrefWith } from "../../router/router";
import { format, type MenuEntry } from "../../ui";
import { askRun, askScale } from "./actions";

export const BAR_ORDER: readonly ItemState[] = ["done", "skipped", "cancelled", "dead", "leased", "ready", "delayed", "waiting"];

/** All items by state; with a run, each part leads to its items. */
export function StateBar({ counts, label, run, legend = false, height = 8 }: { counts: Counts; label: string; run?: string; legend?: boolean; height?: number }) {
  const parts = BAR_ORDER.map((state) => ({
    key: state,
    label: state,
    value: counts[state],
    color: `fill-${state}`,
    ...(run === undefined ? {} : { href: hrefWith(href("runs", run, "items"), { state }) }),
  }));
  return <StackedBar label={label} parts={parts} legend={legend} height={height} />;
}

/** The honest ETA: a range, or why there is none. */
export function etaText(run: Pick<RunStatus, "state" | "eta_seconds" | "growing" | "remaining" | "critical_lane" | "waiting_for">): { text: string; note: string; tip?: string } {
  if (run.state === "finished") return { text: "–", note: "finished" };
  if (run.state === "cancelled") return { text: "–", note: "cancelled" };
  if (run.state === "paused") return { text: "–", note: "paused" };
  if (run.growing) return { text: "unknown", note: "frontier still growing", tip: "The frontier is what was found and has not ended. It grows: new items are found as fast as others end." };
  if (run.eta_seconds) return { text: format.range(run.eta_seconds), note: run.critical_lane ? `${run.critical_lane} ends last` : "until the last item ends" };
  if (run.remaining === 0) return { text: "–", note: "nothing is left" };
  return { text: "unknown", note: run.waiting_for && run.waiting_for !== "nothing" ? `waiting: ${run.waiting_for}` : "too early to tell" };
}

/** Items ended per minute: lately, or of a run that is over, in all of its time; null when that is too short. */
export function rateOf(run: Pick<RunStatus, "state" | "rate_per_minute" | "ended" | "created_at" | "finished_at">): number | null {
  if (!isOver(run) || run.finished_at === null) return run.rate_per_minute;
  const seconds = (Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000;
  return seconds < LEAST_SECONDS ? null : (run.ended * 60) / seconds;
}

export const isOver = (run: Pick<RunStatus, "state">): boolean => run.state === "finished" || run.state === "cancelled";

export function runEntries(run: RunStatus, refusal: string | null, present: number): MenuEntry[] {
  const over = isOver(run);
  const entries: (MenuEntry | false)[] = [
    run.state === "active"
      ? { text: "Pause", icon: "paused", disabledBecause: refusal, onChoose: () => askRun(run, "pause") }
      : { text: "Resume", icon: "run", disabledBecause: refusal, onChoose: () => askRun(run, "resume") },
    !over && { text: "Scale workers", icon: "scale", disabledBecause: refusal, onChoose: () => askScale(run, present) },
    !over && { text: "Drain workers", icon: "drain", disabledBecause: refusal, onChoose: () => askRun(run, "drain") },
    !over && !run.sealed && { text: "Seal", icon: "seal", disabledBecause: refusal, onChoose: () => askRun(run, "seal") },
    { text: "Compare with the run before", icon: "compare", href: href("runs", run.run_id, "compare") },
    !over && { text: "Cancel the run", icon: "cancelled", danger: true, disabledBecause: refusal, onChoose: () => askRun(run, "cancel") },
  ];
  return entries.filter((entry): entry is MenuEntry => entry !== false);
}

export function Ratio({ part, whole }: { part: number; whole: number }): ComponentChildren {
  return (
    <>
      <span class="num strong">{format.count(part)}</span>
      <span class="muted num"> of {format.count(whole)}</span>
    </>
  );
}
