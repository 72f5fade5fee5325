/** Every page: its address, its title, its code (loaded when it is first shown), its key after `g`. */
import type { ComponentType } from "preact";
import { match } from "./router/router";
import type { IconName } from "./ui/icons";

export type Params = Record<string, string>;
export type PageComponent = ComponentType<{ params: Params }>;

export interface Route {
  pattern: string;
  title: string;
  load: () => Promise<{ default: PageComponent }>;
  /** Its place in the navigation: "main", or "run" for pages of the current run; none: reached by links. */
  nav?: "main" | "run";
  icon?: IconName;
  key?: string;
  /** It is shown only when the routes of the served project are for this: a tag of theirs. */
  needs?: string;
}

export const ROUTES: readonly Route[] = [
  { pattern: "", title: "Overview", load: () => import("./pages/Overview"), nav: "main", icon: "overview", key: "o" },
  { pattern: "runs", title: "Runs", load: () => import("./pages/Runs"), nav: "main", icon: "run", key: "r" },
  { pattern: "runs/:run", title: "Run", load: () => import("./pages/Run"), nav: "run", icon: "scale", key: "u" },
  { pattern: "runs/:run/items", title: "Items", load: () => import("./pages/Items"), nav: "run", icon: "items", key: "i" },
  { pattern: "runs/:run/items/:item", title: "Item", load: () => import("./pages/Item") },
  { pattern: "runs/:run/failures", title: "Failures", load: () => import("./pages/Failures"), nav: "run", icon: "failures", key: "f" },
  { pattern: "runs/:run/lanes", title: "Lanes", load: () => import("./pages/Lanes"), nav: "run", icon: "lanes", key: "l" },
  { pattern: "runs/:run/map", title: "Map", load: () => import("./pages/Map"), nav: "run", icon: "map", key: "m" },
  { pattern: "runs/:run/results", title: "Results", load: () => import("./pages/Results"), nav: "run", icon: "results", key: "d" },
  { pattern: "egress", title: "Egress", load: () => import("./pages/Egress"), nav: "main", icon: "egress", key: "e" },
  { pattern: "fleet", title: "Fleet", load: () => import("./pages/Fleet"), nav: "main", icon: "fleet", key: "w" },
  { pattern: "collections", title: "Collections", load: () => import("./pages/Collections"), nav: "main", icon: "collections", key: "c" },
  { pattern: "schedules", title: "Schedules", load: () => import("./pages/Schedules"), nav: "main", icon: "schedules", key: "t" },
  { pattern: "subtitles", title: "Subtitles", load: () => import("./pages/Subtitles"), nav: "main", icon: "subtitles", key: "v", needs: "subtitles" },
  { pattern: "activity", title: "Activity", load: () => import("./pages/Activity"), nav: "main", icon: "activity", key: "a" },
  { pattern: "runs/:run/compare", title: "Compare", load: () => import("./pages/Compare") },
];

/** The pages that the server has something for; `pages` is what it said, if it has. */
export const shownRoutes = (pages: readonly string[] = []): Route[] => ROUTES.filter((route) => route.needs === undefined || pages.includes(route.needs));

export function findRoute(path: string, routes = ROUTES): { route: Route; params: Params } | null {
  for (const route of routes) {
    const params = match(route.pattern, path);
    if (params) return { route, params };
  }
  return null;
}
