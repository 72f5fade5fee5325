/** What pages show of a run in the same way: its bar of states, its ETA, its actions. */
import type { ComponentChildren } from "preact";
import { StackedBar } from "../../charts/StackedBar";
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
export function etaText(run: Pick<RunStatus, "state" | "eta_seconds" | "growing" | "remaining" | "critical_lane">): { text: string; note: string } {
  if (run.state === "finished") return { text: "–", note: "finished" };
  if (run.state === "cancelled") return { text: "–", note: "cancelled" };
  if (run.state === "paused") return { text: "–", note: "paused" };
  if (run.growing) return { text: "unknown", note: "frontier still growing" };
  if (run.eta_seconds) return { text: format.range(run.eta_seconds), note: run.critical_lane ? `${run.critical_lane} ends last` : "until the last item ends" };
  if (run.remaining === 0) return { text: "–", note: "nothing is left" };
  return { text: "unknown", note: "no rate yet" };
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
