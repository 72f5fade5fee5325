/** Paths and queries of the page, below <base href>. Every view and filter is a URL. */
import { Store, useStore } from "../store";

export interface Location {
  path: string;
  query: URLSearchParams;
}

/** The part of a pathname below the base: "" for the base itself, no slash at either end. */
export function pathBelow(base: string, pathname: string): string {
  const folder = base.endsWith("/") ? base : base.slice(0, base.lastIndexOf("/") + 1);
  const inside = pathname.startsWith(folder) ? pathname.slice(folder.length) : pathname.replace(/^\/+/, "");
  return inside.replace(/\/+$/, "");
}

/** `match("runs/:run/items/:item", "runs/7/items/3")` is `{run: "7", item: "3"}`; null: it does not fit. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern === "" ? [] : pattern.split("/");
  const parts = path === "" ? [] : path.split("/");
  if (wanted.length !== parts.length) return null;
  const found: Record<string, string> = {};
  for (const [index, want] of wanted.entries()) {
    const part = parts[index] ?? "";
    if (want.startsWith(":")) {
      try {
        found[want.slice(1)] = decodeURIComponent(part);
      } catch {
        return null;
      }
    } else if (want !== part) return null;
  }
  return found;
}

const basePath = (): string => new URL(document.baseURI).pathname;

function read(): Location {
  return {
    path: pathBelow(basePath(), window.location.pathname),
    query: new URLSearchParams(window.location.search),
  };
}

export const location = new Store<Location>({ path: "", query: new URLSearchParams() });

export function startRouter(): void {
  location.set(read());
  window.addEventListener("popstate", () => location.set(read()));
}

/** The address of a view: `href("runs", id, "items")`. Parts may hold any character. */
export function href(...parts: (string | number)[]): string {
  return basePath() + parts.map((part) => encodeURIComponent(String(part))).join("/");
}

export function hrefWith(base: string, query: Record<string, string | undefined>): string {
  const pairs = Object.entries(query).filter((pair): pair is [string, string] => !!pair[1]);
  return pairs.length ? `${base}?${new URLSearchParams(pairs).toString()}` : base;
}

export function go(address: string, { replace = false } = {}): void {
  const before = window.location.pathname;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  location.set(read());
  if (window.location.pathname !== before) window.scrollTo(0, 0);
}

/** Sets values of the query and keeps the others; empty ones are removed. */
export function setQuery(values: Record<string, string | null | undefined>, { replace = false } = {}): void {
  const query = new URLSearchParams(window.location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  go(window.location.pathname + (text ? `?${text}` : ""), { replace });
}

export const useLocation = (): Location => useStore(location);

/** One value of the query, as a state: changing it changes the URL. */
export function useQueryValue(name: string, fallback = ""): [string, (value: string) => void] {
  const { query } = useLocation();
  return [query.get(name) ?? fallback, (value) => setQuery({ [name]: value === fallback ? null : value })];
}
