/** `usePages` reads several pages of a keyset list as one, for views that need all of it: maps, boards. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, withQuery } from "../api/client";
import { paused } from "../api/live";
import type { Page } from "../api/types";
import { useStore } from "../store";
import { changes } from "../ui";

export interface Listed<Row> {
  rows: Row[] | null;
  /** The rows that were read are not all there are. */
  more: boolean;
  error: ApiError | null;
  reload: () => void;
}

const PAGE = 200;

export function usePages<Row>(path: string | null, most: number, every: number): Listed<Row> {
  const [state, setState] = useState<{ path: string | null; rows: Row[] | null; more: boolean; error: ApiError | null }>({
    path: null,
    rows: null,
    more: false,
    error: null,
  });
  const [round, setRound] = useState(0);
  const changed = useStore(changes);
  const stopped = useStore(paused);
  const generation = useRef(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);

  useEffect(() => {
    if (path === null) return;
    const mine = ++generation.current;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async (): Promise<void> => {
      try {
        const rows: Row[] = [];
        let cursor: string | null = null;
        do {
          const page: Page<Row> = await get<Page<Row>>(withQuery(path, { cursor, limit: PAGE }));
          rows.push(...page.rows);
          cursor = page.cursor;
        } while (cursor !== null && rows.length < most && mine === generation.current);
        if (mine === generation.current) setState({ path, rows, more: cursor !== null, error: null });
      } catch (caught) {
        const error = caught instanceof ApiError ? caught : new ApiError(0, "bug", String(caught));
        if (mine === generation.current) setState((before) => ({ ...before, path, error }));
      }
      if (mine === generation.current && every > 0 && !stopped) timer = setTimeout(tick, every * 1000);
    };
    const tick = (): void => {
      if (document.visibilityState === "visible") void read();
      else timer = setTimeout(tick, 1000);
    };
    void read();
    return () => {
      generation.current += 1;
      clearTimeout(timer);
    };
  }, [path, most, every, stopped, round, changed]);

  return { rows: state.rows, more: state.more, error: state.path === path ? state.error : null, reload };
}
