import { useEffect } from "preact/hooks";
import { mayAct, me, withQuery } from "../api/client";
import { useLive } from "../api/live";
import { useApi } from "../api/query";
import type { Alert, AuditEvent, Page } from "../api/types";
import { href, hrefWith, setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import { useStore } from "../store";
import {
  ask, Badge, Button, Card, type Column, CopyCommand, Empty, ErrorNote, format, type IconName, PageHead, Pager, Placeholder,
  SearchField, Table, Tabs, Time, type Tone,
} from "../ui";
import { eventCommand, eventSentence, whoAndWhere } from "./events";
import "./operations.css";

/** Who changed what, and which alerts were raised. */
export default function Activity(_: { params: Params }) {
  const { query } = useLocation();
  const view = query.get("view") === "alerts" ? "alerts" : "events";
  const who = useStore(me);
  const here = href("activity");
  const test = (): void =>
    ask({
      title: "Send a test alert",
      explain: "Every address of the setting notify gets a message; the result says which accepted it.",
      confirm: "Send",
      action: () => ({ method: "POST", path: "alerts/test", body: {} }),
    });
  return (
    <div class="stack">
      <PageHead
        title="Activity"
        actions={
          <>
            {view === "alerts" && <Button icon="activity" disabledBecause={mayAct(who) ? null : "Viewers cannot change anything."} onClick={test}>Send a test alert</Button>}
            {view === "alerts" && <CopyCommand inline command={format.command("alerts", "ls")} />}
          </>
        }
      >
        Every change leaves an event with who made it and from where.
      </PageHead>
      <Tabs label="Views" current={view} tabs={[{ key: "events", href: here, text: "Changes" }, { key: "alerts", href: hrefWith(here, { view: "alerts" }), text: "Alerts" }]} />
      {view === "events" ? <Events /> : <Alerts />}
    </div>
  );
}

function Events() {
  const { query } = useLocation();
  const run = query.get("run") ?? "";
  const actor = query.get("actor") ?? "";
  // A frame says that there is a new event; the page is read again then.
  const live = useLive<{ rows: AuditEvent[] }>("events");
  const newest = live?.rows?.at(-1)?.event_id ?? 0;
  const events = useApi<Page<AuditEvent>>(withQuery("events", { run, actor, cursor: query.get("cursor"), limit: 50 }), { every: 10, keep: true });
  useEffect(() => {
    if (newest > 0 && query.get("cursor") === null) events.reload();
  }, [newest]);
  const columns: Column<AuditEvent>[] = [
    { key: "at", head: "When", width: "132px", cell: (event) => <Time at={event.at} /> },
    { key: "actor", head: "Who", width: "14%", cell: (event) => (event.actor ? <button type="button" class="link-button clip" title={`Only ${event.actor}`} onClick={() => setQuery({ actor: event.actor, cursor: null })}>{whoAndWhere(event.actor)[0]}</button> : <span class="muted">–</span>) },
    { key: "where", head: "From", width: "124px", cell: (event) => <span class="num clip block" title={whoAndWhere(event.actor)[1]}>{whoAndWhere(event.actor)[1] || <span class="muted">–</span>}</span> },
    { key: "action", head: "What", width: "168px", cell: (event) => <EventBadge action={event.action} /> },
    { key: "text", head: "Change", cell: (event) => <span class="wrap-anywhere">{eventSentence(event)}</span> },
    { key: "run", head: "Run", width: "176px", from: 1100, cell: (event) => (event.run_id ? <a class="mono clip block" href={href("runs", event.run_id)}>{event.run_id}</a> : <span class="muted">–</span>) },
    { key: "copy", head: <span class="visually-hidden">Command</span>, width: "64px", end: true, from: 720, cell: (event) => { const command = eventCommand(event); return command ? <CopyCommand inline command={command} /> : null; } },
  ];
  return (
    <Card flush>
      <div class="card-filter filters">
        <div class="wide"><SearchField label="Run" placeholder="Only this run: its id" value={run} onChange={(value) => setQuery({ run: value, cursor: null })} /></div>
        <div class="wide"><SearchField label="Who" placeholder="Only this actor: NAME@ADDRESS" value={actor} onChange={(value) => setQuery({ actor: value, cursor: null })} /></div>
        {(run || actor) && <Button small kind="quiet" icon="close" onClick={() => setQuery({ run: null, actor: null, cursor: null })}>Clear</Button>}
      </div>
      {events.error && <ErrorNote error={events.error} stale={events.data !== null} onRetry={events.reload} />}
      {events.data === null ? (
        !events.error && <Placeholder height={320} label="Loading events" />
      ) : (
        <>
          <Table
            label="Changes" columns={columns} rows={events.data.rows} rowKey={(event) => event.event_id} stale={events.stale}
            empty={<Empty title={run || actor ? "No event matches." : "Nothing has been changed yet."} icon="activity" />}
          />
          <Pager cursor={events.data.cursor} shown={events.data.rows.length} />
        </>
      )}
    </Card>
  );
}

const ACTIONS: [RegExp, Tone, IconName][] = [
  [/pause|hold|rest/, "warn", "paused"],
  [/cancel|delete|rm|removed/, "bad", "cancelled"],
  [/ban|block/, "bad", "dead"],
  [/retr|replay|rescue/, "info", "retry"],
  [/resume|free|start|created|finished/, "ok", "done"],
  [/scale|pool|worker|drain/, "info", "scale"],
  [/lane|pace|limit|delay/, "info", "pace"],
  [/token|session|login/, "late", "user"],
];

function EventBadge({ action }: { action: string }) {
  const found = ACTIONS.find(([pattern]) => pattern.test(action));
  return <Badge tone={found?.[1] ?? "idle"} icon={found?.[2] ?? "info"}>{action.replace(/[._]+/g, " ")}</Badge>;
}

function Alerts() {
  const alerts = useApi<{ rows: Alert[] }>("alerts", { every: 5 });
  if (alerts.data === null) return alerts.error ? <ErrorNote error={alerts.error} onRetry={alerts.reload} /> : <Placeholder height={320} label="Loading alerts" />;
  const columns: Column<Alert>[] = [
    { key: "at", head: "When", width: "150px", cell: (alert) => <Time at={alert.at} /> },
    { key: "kind", head: "Kind", width: "130px", cell: (alert) => <Badge tone={/recover|finish|end/.test(alert.kind) ? "ok" : "bad"} icon={/recover|finish|end/.test(alert.kind) ? "done" : "warn"}>{alert.kind}</Badge> },
    { key: "title", head: "Alert", cell: (alert) => <span class="block"><span class="strong wrap-anywhere block">{alert.title}</span><span class="muted alert-body wrap-anywhere block">{alert.body}</span></span> },
    { key: "run", head: "Run", width: "180px", from: 720, cell: (alert) => (alert.run_id ? <a class="mono clip block" href={href("runs", alert.run_id)}>{alert.run_id}</a> : <span class="muted">–</span>) },
    { key: "delivery", head: "Delivered", width: "200px", from: 1100, cell: (alert) => <Delivery delivery={alert.delivery} /> },
  ];
  return (
    <Card flush>
      {alerts.error && <ErrorNote error={alerts.error} stale onRetry={alerts.reload} />}
      <Table
        label="Alerts" columns={columns} rows={alerts.data.rows} rowKey={(alert) => `${alert.at} ${alert.kind} ${alert.run_id ?? ""} ${alert.title}`}
        empty={<Empty title="No alert has been raised." icon="done"><p>Addresses that get alerts are in the setting <code>notify</code>.</p></Empty>}
      />
    </Card>
  );
}

function Delivery({ delivery }: { delivery: Record<string, string> | null }) {
  const pairs = Object.entries(delivery ?? {});
  if (pairs.length === 0) return <span class="muted">no address</span>;
  return <>{pairs.map(([address, state]) => <span key={address} class="block small wrap-anywhere"><span class="strong">{state}</span> <span class="muted">{address}</span></span>)}</>;
}
