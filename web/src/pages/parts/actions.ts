/** The changes that pages offer, each as what `ask` takes. */
import { apiPath, mayAct, me, withQuery } from "../../api/client";
import type { Failure, Item, ItemFilter, ItemState, Lane, Run, RunDetail } from "../../api/types";
import { href, hrefWith } from "../../router/router";
import { useStore } from "../../store";
import { ask, format } from "../../ui";
import { policyText } from "../pace";

export const FEW = 20;
export const OPEN_STATES: readonly ItemState[] = ["ready", "waiting", "delayed", "leased"];

/** Why the reader may not press; null when they may. */
export function useRefusal(): string | null {
  const who = useStore(me);
  return who === null || mayAct(who) ? null : "You are a viewer: only operators can change things.";
}

export function askRun(run: Pick<Run, "run_id" | "scraper">, verb: "pause" | "resume" | "seal" | "cancel" | "drain"): void {
  const texts = {
    pause: { title: `Pause ${run.scraper}`, confirm: "Pause", explain: "Claims stop within a second. Attempts that run may end." },
    resume: { title: `Resume ${run.scraper}`, confirm: "Resume", explain: "Workers may claim items of this run again." },
    seal: { title: `Seal ${run.scraper}`, confirm: "Seal", explain: "No more items will be added from outside: the run finishes when none is open." },
    cancel: { title: `Cancel ${run.scraper}`, confirm: "Cancel the run", explain: "Every open item ends as cancelled, leased ones too. Records that are stored stay." },
    drain: { title: `Drain the workers of ${run.scraper}`, confirm: "Drain", explain: "Its workers end what they run, return the rest, and stop." },
  };
  ask({ ...texts[verb], danger: verb === "cancel", action: () => ({ method: "POST", path: `runs/${apiPath(run.run_id)}/${verb}` }) });
}

export function askScale(run: Pick<Run, "scraper">, present: number): void {
  ask({
    title: `Workers of ${run.scraper}`,
    confirm: "Scale",
    explain: "Sets how many workers each pool of this scraper runs, on whichever machine it is.",
    fields: [{ name: "workers", label: "Workers", type: "number", value: String(present || 1), min: 1, max: 1000, hint: "Empty: pools choose by themselves." }],
    action: ({ workers = "" }) => {
      const number = Number(workers);
      if (workers !== "" && !(Number.isInteger(number) && number >= 1)) return null;
      return { method: "POST", path: `scrapers/${apiPath(run.scraper)}/scale`, body: { workers: workers === "" ? null : number } };
    },
  });
}

/** The pace of a lane as the server reads it: "2/s", or seconds between two starts. */
function pace(text: string): string | [number, number] | null {
  const spread = /^(\d+(?:\.\d+)?)(?:\s*-\s*(\d+(?:\.\d+)?))?\s*s?$/.exec(text.trim());
  if (spread) return [Number(spread[1]), Number(spread[2] ?? spread[1])];
  return text.trim() === "" ? null : text.trim();
}

export function askPace(run: string, lanes: readonly Pick<Lane, "lane" | "run_id" | "policy">[]): void {
  const first = lanes[0];
  if (!first) return;
  const written = (lane: Pick<Lane, "policy">): string =>
    lane.policy.delay_min === lane.policy.delay_max ? String(lane.policy.delay_min) : `${lane.policy.delay_min}-${lane.policy.delay_max}`;
  ask({
    title: lanes.length === 1 ? `Pace of ${first.lane}` : "Change the pace of a lane",
    confirm: "Change",
    explain: "It holds for all machines at once, and is marked on the charts.",
    fields: [
      ...(lanes.length > 1 ? [{ name: "lane", label: "Lane", value: first.lane, options: lanes.map((lane) => [lane.lane, `${lane.lane} (${policyText(lane.policy)})`] as const) }] : []),
      { name: "delay", label: "Pace", value: lanes.length === 1 ? written(first) : "", placeholder: "2/s, 30/min, 0.5, 1-3", hint: "Starts per time, or seconds between two starts. Empty: stays as it is." },
      { name: "limit", label: "At once", type: "number", value: lanes.length === 1 ? String(first.policy.limit) : "", min: 1, hint: "Items that run at the same time. Empty: stays as it is." },
    ],
    action: ({ lane = first.lane, delay = "", limit = "" }) => {
      const chosen = lanes.find((each) => each.lane === lane) ?? first;
      const body: Record<string, unknown> = {};
      const wanted = pace(delay);
      if (wanted !== null) body.delay = wanted;
      if (limit !== "" && Number(limit) >= 1) body.limit = Number(limit);
      if (Object.keys(body).length === 0) return null;
      return { method: "PATCH", path: withQuery(`lanes/${apiPath(chosen.lane)}`, { run: chosen.run_id === null ? null : run }), body };
    },
  });
}

/** What a retry says when nobody would work on the items; null while somebody does, or when it is not known. */
export function idleText(run: Pick<RunDetail, "workers"> | null): string | null {
  return run?.workers?.live === 0 ? "No live worker works on this run: what is retried waits until one is started." : null;
}

export function askItems(run: string, verb: "retry" | "cancel", filter: ItemFilter, what: string, warn: string | null): void {
  const body = (limit?: number) => ({ filter, ...(limit === undefined ? {} : { limit }) });
  const path = `runs/${apiPath(run)}/items/${verb}`;
  ask({
    title: `${verb === "retry" ? "Retry" : "Cancel"} ${what}`,
    confirm: verb === "retry" ? "Retry" : "Cancel",
    danger: verb === "cancel",
    explain: verb === "retry" ? "They are queued again as if new." : "Open items end as cancelled, leased ones too.",
    warn: verb === "retry" ? warn : null,
    action: () => ({ method: "POST", path, body: body() }),
    ...(verb === "retry"
      ? { few: { limit: FEW, action: { method: "POST" as const, path, body: body(FEW) }, look: hrefWith(href("runs", run, "items"), { state: "ready", ...textsOf(filter) }) } }
      : {}),
  });
}

const textsOf = (filter: ItemFilter): Record<string, string | undefined> => ({ stage: filter.stage, partition: filter.partition, text: filter.text });

export function askFailure(run: string, failure: Failure, verb: "retry" | "mute" | "unmute", warn: string | null = null): void {
  const path = `runs/${apiPath(run)}/failures/${apiPath(failure.failure_id)}/${verb}`;
  if (verb !== "retry") {
    ask({
      title: verb === "mute" ? "Mute this group" : "Show this group again",
      confirm: verb === "mute" ? "Mute" : "Unmute",
      explain: verb === "mute" ? "It leaves the list. Its items stay dead and countable." : undefined,
      action: () => ({ method: "POST", path }),
    });
    return;
  }
  ask({
    title: `Retry: ${failure.message.slice(0, 80)}`,
    confirm: "Retry",
    warn,
    explain: `${format.bounded(failure.items, failure.items_is_at_least)} ${failure.items === 1 ? "item" : "items"} died like this.${failure.items > FEW ? ` Retry ${FEW} first and look how they end.` : ""}`,
    action: () => ({ method: "POST", path, body: {} }),
    few: { limit: FEW, action: { method: "POST", path, body: { limit: FEW } }, look: hrefWith(href("runs", run, "failures"), {}) },
  });
}

export function askItem(item: Pick<Item, "run_id" | "item_id">, verb: "retry" | "cancel"): void {
  ask({
    title: `${verb === "retry" ? "Retry" : "Cancel"} item ${item.item_id}`,
    confirm: verb === "retry" ? "Retry" : "Cancel the item",
    danger: verb === "cancel",
    action: () => ({ method: "POST", path: `runs/${apiPath(item.run_id)}/items/${item.item_id}/${verb}` }),
  });
}

export function askReplay(item: Pick<Item, "run_id" | "item_id">, pools: readonly string[]): void {
  ask({
    title: `Replay item ${item.item_id}`,
    confirm: "Replay",
    explain: "Its handler runs again and its records are replaced. With the stored page no site is visited.",
    fields: [
      {
        name: "egress",
        label: "Page",
        value: "",
        options: [["", "the stored page"], ["direct", "fetched again, directly"], ...pools.map((pool) => [pool, `fetched again through ${pool}`] as const)],
      },
    ],
    action: ({ egress = "" }) => ({
      method: "POST",
      path: `runs/${apiPath(item.run_id)}/items/${item.item_id}/replay`,
      body: egress === "" ? {} : { egress },
    }),
  });
}
