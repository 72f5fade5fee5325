/**
 * `useApi` reads a path and keeps it fresh. Old data stays on the page while new data is fetched, while the server is
 * away, and when the path changes only in its filter (`keep`): nothing on the page jumps or goes blank.
 */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { useStore } from "../store";
import { ApiError, get } from "./client";
import { connection, ledgerAway, noteLedger, paused } from "./live";

interface Cached {
  data: unknown;
  at: number;
}

const CACHE_SIZE = 60;
const cache = new Map<string, Cached>();

function remember(path: string, data: unknown): void {
  cache.delete(path);
  cache.set(path, { data, at: Date.now() });
  if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value as string);
}

export function forgetAll(): void {
  cache.clear();
}

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  /** The data is of another path or another time, and newer is on its way. */
  stale: boolean;
  reload: () => void;
}

export interface ApiOptions {
  /** Seconds between two reads while the page is visible and not paused; 0: only once. */
  every?: number;
  /** Whether data of the path before stays until the new data is there. */
  keep?: boolean;
  /** Frames bring most of it: while the connection is live, it is read once a minute only. */
  live?: boolean;
}

export function useApi<T>(path: string | null, options: ApiOptions = {}): Loaded<T> {
  const { keep = false } = options;
  const connected = useStore(connection);
  const every = options.live && connected === "live" ? 60 : (options.every ?? 5);
  const [state, setState] = useState<{ path: string | null; data: T | null; error: ApiError | null }>({
    path: null,
    data: null,
    error: null,
  });
  const [round, setRound] = useState(0);
  const stopped = useStore(paused);
  const generation = useRef(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);

  useEffect(() => {
    if (path === null) return;
    const mine = ++generation.current;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;

    const read = async (): Promise<void> => {
      try {
        const data = await get<T>(path);
        remember(path, data);
        failures = 0;
        if (ledgerAway.value !== null) noteLedger({ ok: true, text: "" });
        if (mine === generation.current) setState({ path, data, error: null });
      } catch (caught) {
        const error = caught instanceof ApiError ? caught : new ApiError(0, "bug", String(caught));
        failures += 1;
        if (error.status === 503) noteLedger({ ok: false, text: error.message });
        if (mine === generation.current) {
          setState((before) => ({ path, data: before.path === path || keep ? before.data : null, error }));
        }
      }
      if (mine === generation.current && every > 0 && !stopped) {
        timer = setTimeout(tick, Math.min(every * 2 ** failures, 30) * 1000);
      }
    };
    const tick = (): void => {
      if (document.visibilityState === "visible") void read();
      else timer = setTimeout(tick, 1000);
    };

    const known = cache.get(path);
    if (known) setState({ path, data: known.data as T, error: null });
    const fresh = known !== undefined && Date.now() - known.at < 1000 && round === 0;
    if (fresh && (every === 0 || stopped)) return;
    void read();
    return () => {
      generation.current += 1;
      clearTimeout(timer);
    };
  }, [path, round, every, stopped, keep]);

  const current = state.path === path;
  const known = path === null ? undefined : cache.get(path);
  const before = keep ? state.data : null;
  const data = current ? state.data : ((known?.data as T | undefined) ?? before);
  return { data, error: current ? state.error : null, stale: !current && data !== null, reload };
}
