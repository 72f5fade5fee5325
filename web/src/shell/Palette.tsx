import { useMemo, useRef, useState } from "preact/hooks";
import { me, withQuery } from "../api/client";
import { live, paused } from "../api/live";
import { useApi } from "../api/query";
import type { Page, Run } from "../api/types";
import { go, href, hrefWith } from "../router/router";
import { shownRoutes } from "../routes";
import { Dialog } from "../ui/Dialog";
import { Icon, type IconName } from "../ui/icons";
import { currentRun } from "./current";
import { paletteOpen, routeHref } from "./keys";
import { setTheme } from "./theme";

interface Entry {
  id: string;
  icon: IconName;
  text: string;
  note?: string;
  run: () => void;
}

/** Search over pages, runs, items and commands; the arrow keys choose, Enter goes. */
export function Palette({ mode }: { mode: "all" | "runs" }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLUListElement>(null);
  const runs = useApi<Page<Run>>(withQuery("runs", { limit: 100 }), { every: 0 });
  const close = (): void => paletteOpen.set(null);

  const entries = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (...texts: string[]): boolean => {
      const all = texts.join(" ").toLowerCase();
      return words.every((word) => all.includes(word));
    };
    const found: Entry[] = [];
    const run = currentRun.value;
    if (mode === "all") {
      for (const route of shownRoutes(me.value?.pages)) {
        if (!route.nav || !fits(route.title, "page")) continue;
        found.push({ id: `page ${route.pattern}`, icon: route.icon ?? "info", text: route.title, note: route.key ? `g ${route.key}` : "", run: () => go(routeHref(route)) });
      }
    }
    for (const each of runs.data?.rows ?? []) {
      if (!fits(each.scraper, each.run_id, each.state, "run")) continue;
      found.push({ id: `run ${each.run_id}`, icon: "run", text: each.scraper, note: `${each.run_id} · ${each.state}`, run: () => go(href("runs", each.run_id)) });
      if (found.length > 60) break;
    }
    if (mode === "all" && run !== null && text.trim() !== "") {
      const query = text.trim();
      if (/^\d+$/.test(query)) {
        found.push({ id: "item", icon: "items", text: `Item ${query}`, note: `of run ${run}`, run: () => go(href("runs", run, "items", query)) });
      }
      found.push({
        id: "items", icon: "search", text: `Items with “${query}”`, note: `in run ${run}`,
        run: () => go(hrefWith(href("runs", run, "items"), { text: query })),
      });
    }
    if (mode === "all") {
      const commands: Entry[] = [
        { id: "pause", icon: "paused", text: paused.value ? "Resume live updates" : "Pause live updates", note: "p", run: () => live.setPaused(!paused.value) },
        { id: "light", icon: "sun", text: "Theme: light", run: () => setTheme("light") },
        { id: "dark", icon: "moon", text: "Theme: dark", run: () => setTheme("dark") },
        { id: "system", icon: "system", text: "Theme: like the system", run: () => setTheme("system") },
      ];
      found.push(...commands.filter((each) => fits(each.text)));
    }
    return found;
  }, [text, runs.data, mode]);

  const at = Math.min(chosen, Math.max(0, entries.length - 1));
  const choose = (entry: Entry | undefined): void => {
    if (!entry) return;
    close();
    entry.run();
  };
  return (
    <Dialog title={mode === "runs" ? "Switch run" : "Search"} onClose={close}>
      <div class="palette">
        <input
          class="palette-input" type="text" autoFocus autocomplete="off" spellcheck={false}
          role="combobox" aria-expanded="true" aria-controls="palette-list" aria-label={mode === "runs" ? "Find a run" : "Find pages, runs and items"}
          aria-activedescendant={entries[at] ? `palette-${at}` : undefined}
          placeholder={mode === "runs" ? "Scraper or run" : "Page, scraper, run, item number, part of a URL"}
          value={text}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setChosen(0);
          }}
          onKeyDown={(event) => {
            if (event.key === "Enter") choose(entries[at]);
            else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
              event.preventDefault();
              const next = Math.min(Math.max(at + (event.key === "ArrowDown" ? 1 : -1), 0), entries.length - 1);
              setChosen(next);
              list.current?.children[next]?.scrollIntoView({ block: "nearest" });
            }
          }}
        />
        <ul class="palette-list" id="palette-list" role="listbox" aria-label="Results" ref={list}>
          {entries.map((entry, index) => (
            <li key={entry.id} id={`palette-${index}`} role="option" aria-selected={index === at} onMouseMove={() => setChosen(index)} onClick={() => choose(entry)}>
              <Icon name={entry.icon} />
              <span class="clip grow">{entry.text}</span>
              {entry.note && <span class="muted small clip">{entry.note}</span>}
            </li>
          ))}
        </ul>
        {entries.length === 0 && <p class="muted small palette-none">Nothing found.</p>}
      </div>
    </Dialog>
  );
}
