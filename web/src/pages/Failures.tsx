import { useEffect, useMemo } from "preact/hooks";
import { apiPath, withQuery } from "../api/client";
import { useApi } from "../api/query";
import type { Failure, Page, RunDetail } from "../api/types";
import { Sparkline } from "../charts/Sparkline";
import { href, hrefWith, setQuery, useLocation } from "../router/router";
import { useStore } from "../store";
import { Badge, Button, Card, changes, Choice, CopyCommand, Empty, ErrorNote, format, Menu, Num, PageHead, Pager, Placeholder, Table, Time, type Column } from "../ui";
import { usePages } from "./lists";
import { askFailure, askItems, idleText, useRefusal } from "./parts/actions";
import "./pages.css";
import "./operations.css";

// Groups are listed by their newest item. For those with most items, so many of the newest groups are read.
const MOST_GROUPS = 1000;
const SHOWN_GROUPS = 100;

export default function FailuresPage({ params }: { params: Record<string, string> }) {
  const id = params.run ?? "latest";
  const { query } = useLocation();
  const muted = query.get("muted") === "true";
  const byItems = query.get("order") === "items";
  const refusal = useRefusal();
  const changed = useStore(changes);
  const run = useApi<RunDetail>(`runs/${apiPath(id)}`, { every: 15 });
  const read = useApi<Page<Failure>>(withQuery(`runs/${apiPath(id)}/failures`, { muted, cursor: query.get("cursor") }), { keep: true });
  const all = usePages<Failure>(byItems ? withQuery(`runs/${apiPath(id)}/failures`, { muted }) : null, MOST_GROUPS, 15);
  const largest = useMemo(() => (all.rows === null ? null : [...all.rows].sort((a, b) => b.items - a.items).slice(0, SHOWN_GROUPS)), [all.rows]);
  const rows = byItems ? largest : (read.data?.rows ?? null);
  const error = byItems ? all.error : read.error;
  useEffect(() => {
    if (changed > 0) {
      read.reload();
      run.reload();
    }
  }, [changed]);
  const runId = run.data?.run_id ?? id;
  const items = (failure: Failure): string => hrefWith(href("runs", runId, "items"), { failure: failure.failure_id });

  const most = Math.max(0, ...(rows ?? []).map((failure) => failure.items));
  const columns: Column<Failure>[] = [
    {
      key: "message", head: "Error",
      cell: (failure) => (
        <span class="two-lines">
          <a class="clip-2 wrap-anywhere" href={items(failure)}>{failure.message}</a>
          <span class="small muted clip" title={failure.error ?? undefined}>{failure.host && `${failure.host} · `}stage {failure.stage}</span>
        </span>
      ),
    },
    { key: "outcome", head: "Outcome", width: "128px", from: 720, cell: (failure) => <Badge tone="bad" icon="dead">{failure.outcome}</Badge> },
    { key: "trend", head: "Last hour", width: "140px", from: 720, cell: (failure) => (failure.trend.some((n) => n > 0) ? <Sparkline values={failure.trend} label={`Items per minute in the last hour, at most ${Math.max(0, ...failure.trend)}`} width={126} color="fill-dead" /> : <span class="small muted">none</span>) },
    {
      key: "items", head: "Items", end: true, width: "132px",
      cell: (failure) => (
        <span class="row end-row">
          <span class="meter bad-meter from-720" aria-hidden="true"><span style={{ width: `${most ? (failure.items / most) * 100 : 0}%` }} /></span>
          <span class="strong share-number"><Num value={failure.items} atLeast={failure.items_is_at_least} /></span>
        </span>
      ),
    },
    { key: "first", head: "First", end: true, width: "98px", from: 1100, cell: (failure) => <Time at={failure.first_at} mode="ago" /> },
    { key: "last", head: "Last", end: true, width: "98px", cell: (failure) => <Time at={failure.last_at} mode="ago" /> },
    {
      key: "actions", head: <span class="visually-hidden">Actions</span>, end: true, width: "132px",
      cell: (failure) => (
        <span class="row row-actions">
          <Button small icon="retry" disabledBecause={refusal} onClick={() => askFailure(runId, failure, "retry", idleText(run.data))}>Retry</Button>
          <Menu label={`More for ${failure.message.slice(0, 60)}`} entries={[
            { text: "Show its items", icon: "items", href: items(failure) },
            { text: "Look at one of them", icon: "search", href: href("runs", runId, "items", failure.item_id) },
            failure.muted
              ? { text: "Unmute", icon: "mute", disabledBecause: refusal, onChoose: () => askFailure(runId, failure, "unmute") }
              : { text: "Mute", icon: "mute", disabledBecause: refusal, onChoose: () => askFailure(runId, failure, "mute") },
          ]} />
        </span>
      ),
    },
  ];

  return (
    <>
      <PageHead
        title="Failures"
        badge={run.data && <span class="count-badge num">{format.count(run.data.dead)} dead</span>}
        actions={
          <>
            <Button icon="retry" disabledBecause={refusal ?? (run.data?.dead === 0 ? "No item is dead." : null)} onClick={() => askItems(runId, "retry", { states: ["dead"] }, "all dead items", idleText(run.data))}>Retry all</Button>
            <CopyCommand command={read.data?.command ?? format.command("items", "ls", runId, ["--state", "dead"])} inline />
          </>
        }
      >
        {run.data?.scraper ?? ""} <span class="mono">{runId}</span>: dead items, grouped by what went wrong{byItems ? "" : ", the newest first"}.
      </PageHead>
      <div class="stack">
        <div class="row wrap">
          <Choice label="Groups" value={muted ? "true" : ""} options={[["", "Open"], ["true", "Muted"]]} onChange={(value) => setQuery({ muted: value, cursor: null })} />
          <Choice label="Order" value={byItems ? "items" : ""} options={[["", "Newest first"], ["items", "Most items first"]]} onChange={(value) => setQuery({ order: value, cursor: null })} />
        </div>
        {error && <ErrorNote error={error} onRetry={byItems ? all.reload : read.reload} stale={rows !== null} />}
        {rows === null ? (
          !error && <Placeholder height={360} />
        ) : (
          <Card flush>
            <Table label="Failures" rows={rows} rowKey={(failure) => failure.failure_id} columns={columns} stale={!byItems && read.stale}
              empty={<Empty title={muted ? "No group is muted." : "No item has died."} icon={muted ? "mute" : "done"} />} />
            <Pager cursor={byItems ? null : (read.data?.cursor ?? null)} shown={rows.length} total={groupsText(rows.length, byItems ? (all.rows ?? rows).length : rows.length, byItems && all.more)} />
          </Card>
        )}
      </div>
    </>
  );
}

/** "12 groups", "100 of 240 groups", "100 of the newest 1,000 groups". */
function groupsText(shown: number, read: number, more: boolean): string {
  const groups = shown === 1 && read === 1 ? "group" : "groups";
  return shown === read && !more ? `${format.count(shown)} ${groups}` : `${format.count(shown)} of ${more ? "the newest " : ""}${format.count(read)} groups`;
}
