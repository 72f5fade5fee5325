import { lazy, noteMissingCode } from "./lazy";
import { useEffect, useRef, useState } from "preact/hooks";
import { apiPath, logOut, loginNeeded, me } from "../api/client";
import { connection, ledgerAway, live, paused } from "../api/live";
import { useApi } from "../api/query";
import type { RunStatus } from "../api/types";
import { useLocation } from "../router/router";
import { findRoute, ROUTES, shownRoutes, type PageComponent, type Params, type Route } from "../routes";
import { useStore } from "../store";
import { asked, changes } from "../ui/action";
import { Button, IconButton } from "../ui/Button";
import { PageHead } from "../ui/Card";
import { short } from "../ui/format";
import { Icon } from "../ui/icons";
import { Empty, Note } from "../ui/notes";
import { ToastLayer } from "../ui/Toast";
import { TooltipLayer } from "../ui/Tooltip";
import { Since } from "../ui/values";
import { currentRun } from "./current";
import { helpOpen, paletteOpen, routeHref } from "./keys";
import { Login } from "./Login";
import { Logo } from "./Logo";
import { setTheme, theme, type Theme } from "./theme";

const ActionLayer = lazy(() => import("../ui/ActionDialog").then((module) => module.ActionLayer), () => asked.set(null));
const Palette = lazy(() => import("./Palette").then((module) => module.Palette), () => paletteOpen.set(null));
const Help = lazy(() => import("./Help").then((module) => module.Help), () => helpOpen.set(false));

const NEXT_THEME: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function Shell() {
  const login = useStore(loginNeeded);
  const palette = useStore(paletteOpen);
  const help = useStore(helpOpen);
  const action = useStore(asked);
  if (login) return <Login />;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>Skip to the content</a>
      <div class="shell">
        <Navigation />
        <div class="shell-main">
          <TopBar />
          <Content />
        </div>
      </div>
      {palette && <Palette mode={palette} />}
      {help && <Help />}
      {action && <ActionLayer />}
      <ToastLayer />
    </>
  );
}

function Navigation() {
  const { path } = useLocation();
  const run = useStore(currentRun);
  const found = findRoute(path);
  const [open, setOpen] = useState(false);
  const status = useApi<RunStatus>(run === null ? null : `runs/${apiPath(run)}`, { every: 15, keep: false });
  const changed = useStore(changes);
  const routes = shownRoutes(useStore(me)?.pages);
  useEffect(() => {
    if (changed > 0) status.reload();
  }, [changed]);
  useEffect(() => setOpen(false), [path]);
  const link = (route: Route) => {
    const here = found?.route === route || (route.pattern === "runs/:run/items" && found?.route.pattern === "runs/:run/items/:item");
    const dead = route.pattern === "runs/:run/failures" ? status.data?.dead : 0;
    return (
      <li key={route.pattern}>
        <a href={routeHref(route)} aria-current={here ? "page" : undefined}>
          <Icon name={route.icon ?? "info"} />
          <span class="grow">{route.title}</span>
          {!!dead && <span class="nav-count num" data-tip={`${dead} dead items`}>{short(dead)}</span>}
        </a>
      </li>
    );
  };
  return (
    <nav class={`sidebar ${open ? "open" : ""}`} aria-label="Main">
      <div class="sidebar-head">
        <a class="brand" href={routeHref(ROUTES[0] as Route)}><Logo /><span>Shoal</span></a>
        <span class="menu-button"><IconButton icon={open ? "close" : "menu"} label={open ? "Close the menu" : "Open the menu"} expanded={open} onClick={() => setOpen(!open)} /></span>
      </div>
      <div class="nav">
        <ul>{routes.filter((route) => route.nav === "main").map(link)}</ul>
        {run !== null && (
          <>
            <div class="nav-run">
              <button type="button" class="run-switch" aria-haspopup="dialog" data-tip="Switch to another run (s)" onClick={() => paletteOpen.set("runs")}>
                <span class="grow clip">
                  <span class="strong clip">{status.data?.scraper ?? "Run"}</span>
                  <span class="muted small mono clip">{status.data?.run_id ?? run}</span>
                </span>
                <Icon name="chevron" />
              </button>
            </div>
            <ul aria-label="Pages of the run">{routes.filter((route) => route.nav === "run").map(link)}</ul>
          </>
        )}
      </div>
    </nav>
  );
}

function TopBar() {
  const chosen = useStore(theme);
  const who = useStore(me);
  return (
    <header class="topbar">
      <button type="button" class="search-button" aria-haspopup="dialog" onClick={() => paletteOpen.set("all")}>
        <Icon name="search" />
        <span class="grow">Search</span>
        <kbd class="kbd">/</kbd>
      </button>
      <span class="grow" />
      <ConnectionState />
      <IconButton
        icon={chosen === "light" ? "sun" : chosen === "dark" ? "moon" : "system"}
        label={`Theme: ${chosen}. Switch to ${NEXT_THEME[chosen]}`}
        onClick={() => setTheme(NEXT_THEME[chosen])}
      />
      <IconButton icon="help" label="Keyboard help (?)" onClick={() => helpOpen.set(true)} />
      {who && (
        <span class="who" data-tip={`${who.role} by ${who.by} · Shoal ${who.version} · ${who.ledger}`}>
          <Icon name="user" /> <span class="clip">{who.name}</span> {who.role === "viewer" && <span class="muted">(viewer)</span>}
        </span>
      )}
      {who?.by === "session" && <Button small kind="quiet" onClick={() => void logOut()}>Log out</Button>}
    </header>
  );
}

/** Whether what is on the page is true now. */
function ConnectionState() {
  const state = useStore(connection);
  const away = useStore(ledgerAway);
  const stopped = useStore(paused);
  const look =
    away !== null ? { tone: "bad", text: "ledger away", tip: away.text }
    : stopped ? { tone: "warn", text: "paused", tip: "Nothing on the page changes by itself. Press p to go on." }
    : state === "live" ? { tone: "ok", text: "live", tip: "Changes are shown within a second." }
    : state === "polling" ? { tone: "warn", text: "polling", tip: "The live connection fails; the page asks every few seconds instead." }
    : { tone: "warn", text: state, tip: "The live connection is being opened." };
  return (
    <div class="row connection-box">
      <span class={`connection ${look.tone}`} role="status" aria-label="Connection" data-tip={look.tip}>
        <Icon name={look.tone === "ok" ? "done" : stopped && away === null ? "paused" : "warn"} size={12} />
        <span>{look.text}{away !== null && <> for <Since at={away.since} /></>}</span>
      </span>
      <IconButton icon={stopped ? "run" : "paused"} label={stopped ? "Resume live updates (p)" : "Pause live updates (p)"} pressed={stopped} onClick={() => live.setPaused(!stopped)} />
    </div>
  );
}

interface Shown {
  path: string;
  params: Params;
  Page: PageComponent | null;
  failed: boolean;
}

const loaded = new Map<string, PageComponent>();

/** The page of the address. The page before stays until the code of the next has been loaded. */
function Content() {
  const { path } = useLocation();
  const away = useStore(ledgerAway);
  const [shown, setShown] = useState<Shown | null>(null);
  const first = useRef(true);

  useEffect(() => {
    let mine = true;
    const found = findRoute(path);
    if (found === null) {
      setShown({ path, params: {}, Page: null, failed: false });
      document.title = "Not found · Shoal";
      return;
    }
    const { route, params } = found;
    const show = (Page: PageComponent): void => {
      loaded.set(route.pattern, Page);
      if (mine) setShown({ path, params, Page, failed: false });
    };
    document.title = [params.item && `Item ${params.item}`, params.item ? null : route.title, "Shoal"].filter(Boolean).join(" · ");
    const known = loaded.get(route.pattern);
    if (known) show(known);
    else {
      route.load().then(
        (module) => show(module.default),
        () => {
          noteMissingCode();
          if (mine) setShown({ path, params, Page: null, failed: true });
        },
      );
    }
    return () => {
      mine = false;
    };
  }, [path]);

  useEffect(() => {
    if (shown === null) return;
    if (first.current) first.current = false;
    else document.querySelector<HTMLElement>("main h1")?.focus({ preventScroll: true });
  }, [shown?.path]);

  return (
    <main id="main" tabIndex={-1}>
      {away !== null && (
        <div class="banner" role="alert">
          <Note tone="bad"><span class="strong">The ledger is away for <Since at={away.since} />.</span> {away.text} The page shows what was last known and goes on by itself when the ledger is back.</Note>
        </div>
      )}
      {shown === null ? null
        : shown.failed ? <Failed />
        : shown.Page === null ? <NotFound path={shown.path} />
        : <shown.Page key={shown.path} params={shown.params} />}
      <TooltipLayer />
    </main>
  );
}

function Failed() {
  return (
    <>
      <PageHead title="Not loaded" />
      <Empty title="This page could not be loaded.">
        <p>It is tried again when the server answers. If the server was updated, <a href={window.location.href} data-native>load everything again</a>.</p>
      </Empty>
    </>
  );
}

function NotFound({ path }: { path: string }) {
  return (
    <>
      <PageHead title="Not found" />
      <Empty title="There is no such page." icon="search">
        <p class="mono wrap-anywhere">/{path}</p>
        <p><a href={routeHref(ROUTES[0] as Route)}>Go to the overview</a>, or press <kbd class="kbd">/</kbd> to search.</p>
      </Empty>
    </>
  );
}
