/** Keys of the whole page. They do nothing while something is typed or a dialog is open. */
import { currentRun } from "./current";
import { me } from "../api/client";
import { live, paused } from "../api/live";
import { go, href } from "../router/router";
import { shownRoutes, type Route } from "../routes";
import { Store } from "../store";

export const paletteOpen = new Store<"all" | "runs" | null>(null);
export const helpOpen = new Store(false);

/** The address of a page of the navigation; pages of a run are those of the current one. */
export function routeHref(route: Route): string {
  if (!route.pattern.includes(":run")) return href(...route.pattern.split("/"));
  return href(...route.pattern.split("/").map((part) => (part === ":run" ? (currentRun.value ?? "latest") : part)));
}

const typing = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** Moves the focus to the first link of the next or the previous row of the table. */
function moveRow(step: 1 | -1): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main tbody tr")].filter((row) => row.querySelector("a, button"));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  next?.querySelector<HTMLElement>("a, button")?.focus();
}

export function startKeys(): () => void {
  let prefix = 0;
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        paletteOpen.set("all");
      }
      return;
    }
    // A dialog that was asked for may still be loading.
    if (typing(event.target) || document.querySelector("dialog[open]") || paletteOpen.value || helpOpen.value) return;
    if (Date.now() - prefix < 1500) {
      prefix = 0;
      const route = shownRoutes(me.value?.pages).find((each) => each.key === event.key);
      if (route) {
        event.preventDefault();
        go(routeHref(route));
      }
      return;
    }
    const handled: Record<string, () => void> = {
      g: () => (prefix = Date.now()),
      "/": () => paletteOpen.set("all"),
      s: () => paletteOpen.set("runs"),
      "?": () => helpOpen.set(true),
      p: () => live.setPaused(!paused.value),
      j: () => moveRow(1),
      k: () => moveRow(-1),
    };
    const handle = handled[event.key];
    if (handle) {
      event.preventDefault();
      handle();
    }
  };
  document.addEventListener("keydown", onKey);
  return () => document.removeEventListener("keydown", onKey);
}
