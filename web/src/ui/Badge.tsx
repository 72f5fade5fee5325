import type { ComponentChildren } from "preact";
import type { ItemState, RunState, WorkerState } from "../api/types";
import { Icon, type IconName } from "./icons";

export type Tone = "ok" | "bad" | "warn" | "info" | "idle" | "late";

/** A state in words with an icon; the colour only repeats what both say. */
export function Badge({ tone, icon, children, tip }: { tone: Tone; icon: IconName; children: ComponentChildren; tip?: string }) {
  return (
    <span class={`badge ${tone}`} data-tip={tip}>
      <Icon name={icon} size={12} />
      {children}
    </span>
  );
}

export const ITEM_STATE_LOOK: Record<ItemState, { tone: Tone; icon: IconName; means: string }> = {
  ready: { tone: "idle", icon: "ready", means: "can be claimed now" },
  waiting: { tone: "warn", icon: "waiting", means: "waits for its lane" },
  delayed: { tone: "late", icon: "delayed", means: "waits for a time: a retry or a start in the future" },
  leased: { tone: "info", icon: "leased", means: "a worker has it" },
  done: { tone: "ok", icon: "done", means: "ended well" },
  dead: { tone: "bad", icon: "dead", means: "failed for good; it can be retried" },
  skipped: { tone: "idle", icon: "skipped", means: "not wanted: robots.txt or the handler said so" },
  cancelled: { tone: "idle", icon: "cancelled", means: "cancelled by an operator" },
};

export function ItemStateBadge({ state, tries = 0 }: { state: ItemState; tries?: number }) {
  const look = ITEM_STATE_LOOK[state] ?? ITEM_STATE_LOOK.ready;
  const retrying = state === "delayed" && tries > 0;
  return (
    <Badge tone={look.tone} icon={retrying ? "retry" : look.icon} tip={look.means}>
      {retrying ? `retrying (${tries})` : state}
    </Badge>
  );
}

const RUN_STATE_LOOK: Record<RunState, { tone: Tone; icon: IconName }> = {
  active: { tone: "info", icon: "run" },
  paused: { tone: "warn", icon: "paused" },
  finished: { tone: "ok", icon: "done" },
  cancelled: { tone: "idle", icon: "cancelled" },
};

export function RunStateBadge({ state }: { state: RunState }) {
  const look = RUN_STATE_LOOK[state] ?? RUN_STATE_LOOK.active;
  return <Badge tone={look.tone} icon={look.icon}>{state}</Badge>;
}

const WORKER_STATE_LOOK: Record<WorkerState, { tone: Tone; icon: IconName }> = {
  live: { tone: "ok", icon: "done" },
  draining: { tone: "warn", icon: "drain" },
  stopped: { tone: "idle", icon: "cancelled" },
  lost: { tone: "bad", icon: "warn" },
};

export function WorkerStateBadge({ state }: { state: WorkerState | null }) {
  if (state === null) return <Badge tone="idle" icon="cancelled">gone</Badge>;
  const look = WORKER_STATE_LOOK[state] ?? WORKER_STATE_LOOK.stopped;
  return <Badge tone={look.tone} icon={look.icon}>{state}</Badge>;
}
