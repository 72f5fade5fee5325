import { useMemo, useState } from "preact/hooks";
import { apiPath } from "../api/client";
import { useApi } from "../api/query";
import type { Collection, CollectionDetail, CollectionMember } from "../api/types";
import { StackedBar } from "../charts/StackedBar";
import { href, setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import {
  Badge, Button, Card, type Column, CopyCommand, Empty, ErrorNote, format, Icon, type IconName, Num, PageHead, Placeholder,
  RunStateBadge, SearchField, Table, Time, type Tone,
} from "../ui";
import "./operations.css";

const MEMBER_LOOK: Record<string, { tone: Tone; icon: IconName; fill: string }> = {
  success: { tone: "ok", icon: "done", fill: "fill-done" },
  warning: { tone: "warn", icon: "warn", fill: "fill-waiting" },
  failed: { tone: "bad", icon: "dead", fill: "fill-dead" },
  running: { tone: "info", icon: "leased", fill: "fill-leased" },
  "not run": { tone: "idle", icon: "ready", fill: "fill-skipped" },
};

const SEVERITY = ["failed", "warning", "running", "not run", "success"];
const FIRST = 25;

/** Folders of scrapers that run as one: how their members ended. */
export default function Collections(_: { params: Params }) {
  return (
    <div class="stack">
      <PageHead title="Collections" actions={<CopyCommand inline command={format.command("runs", "ls")} />}>
        Folders of scrapers that run as one: groups in order, the others in parallel.
      </PageHead>
      <CollectionList />
    </div>
  );
}

function CollectionList() {
  const { query } = useLocation();
  const list = useApi<{ rows: Collection[] }>("collections", { every: 10 });
  const chosen = query.get("collection") ?? list.data?.rows[0]?.collection ?? null;
  const detail = useApi<CollectionDetail>(chosen === null ? null : apiPath("collections", chosen), { every: 5 });
  if (list.data === null) return list.error ? <ErrorNote error={list.error} onRetry={list.reload} /> : <Placeholder height={320} label="Loading collections" />;
  const columns: Column<Collection>[] = [
    { key: "name", head: "Collection", cell: (one) => <button type="button" class="link-button clip" aria-pressed={one.collection === chosen} onClick={() => setQuery({ collection: one.collection, text: null, status: null })}>{one.collection}</button> },
    { key: "state", head: "Last run", width: "130px", cell: (one) => <RunStateBadge state={one.run.state} /> },
    { key: "members", head: "Members", end: true, width: "110px", cell: (one) => <Num value={one.run.total} /> },
    { key: "ended", head: "Ended", end: true, width: "110px", cell: (one) => <Num value={one.run.ended} zero="muted" /> },
    { key: "dead", head: "Failed", end: true, width: "110px", cell: (one) => <Num value={one.run.dead} zero="muted" /> },
    { key: "at", head: "Started", end: true, width: "140px", from: 720, cell: (one) => <Time at={one.run.created_at} mode="ago" /> },
  ];
  return (
    <div class="stack">
      {list.error && <ErrorNote error={list.error} stale onRetry={list.reload} />}
      {list.data.rows.length === 0 && (
        <Card>
          <Empty title="No folder of scrapers has run." icon="collections">
            <p>Run all scrapers of a folder as one, groups in order and the others in parallel:</p>
            <CopyCommand command="shoal run FOLDER --all" />
          </Empty>
        </Card>
      )}
      {list.data.rows.length > 1 && (
        <Card flush title="Which collections have run?">
          <div class="node-scroll"><Table label="Collections" columns={columns} rows={list.data.rows} rowKey={(one) => one.collection} rowClass={(one) => (one.collection === chosen ? "selected" : "")} /></div>
        </Card>
      )}
      {detail.error && <ErrorNote error={detail.error} stale={detail.data !== null} onRetry={detail.reload} />}
      {detail.data !== null ? <CollectionCard key={detail.data.collection} collection={detail.data} /> : chosen !== null && !detail.error && <Placeholder height={320} label="Loading the members" />}
    </div>
  );
}

function CollectionCard({ collection }: { collection: CollectionDetail }) {
  const { query } = useLocation();
  const text = query.get("text") ?? "";
  const status = query.get("status") ?? "";
  const [open, setOpen] = useState(() => new Set<string>());
  const [all, setAll] = useState(false);
  const parts = [
    { key: "success", label: "success", value: collection.success },
    { key: "warning", label: "warning", value: collection.warnings },
    { key: "failed", label: "failed", value: collection.failed },
    { key: "not run", label: "not run", value: collection.not_run },
  ].map((part) => ({ ...part, color: MEMBER_LOOK[part.key]!.fill }));
  const shown = useMemo(
    () => collection.members.filter((member) => (status === "" || member.status === status) && (text === "" || member.member.toLowerCase().includes(text.toLowerCase()))),
    [collection.members, status, text],
  );
  const singles = shown.filter((member) => member.group === null).sort((a, b) => SEVERITY.indexOf(a.status) - SEVERITY.indexOf(b.status));
  const grouped = collection.groups.map((group) => ({ group, members: shown.filter((member) => member.group === group.group) }));
  const filtered = text !== "" || status !== "";
  return (
    <Card
      title={<span class="row wrap">{collection.collection} <RunStateBadge state={collection.run.state} /></span>}
      note={<>Run <a class="mono" href={href("runs", collection.run.run_id)}>{collection.run.run_id}</a>, started <Time at={collection.run.created_at} mode="ago" /></>}
      actions={<CopyCommand inline command={collection.command || format.command("runs", "show", collection.run.run_id)} />}
    >
      <div class="stack">
        <StackedBar label={`Members of ${collection.collection}`} parts={parts} />
        <div class="filters">
          <div class="wide"><SearchField label="Search members" value={text} onChange={(value) => setQuery({ text: value })} /></div>
          <div class="choice" role="group" aria-label="Status">
            {["", "failed", "warning", "success", "not run"].map((each) => (
              <button key={each} type="button" aria-pressed={status === each} onClick={() => setQuery({ status: each })}>{each || "All"}</button>
            ))}
          </div>
        </div>
        {grouped.filter(({ members }) => members.length > 0 || !filtered).map(({ group, members }) => {
          const expanded = open.has(group.group) || filtered;
          return (
            <section key={group.group} class="member-group">
              <button
                type="button" class="group-head" aria-expanded={expanded}
                onClick={() => {
                  const next = new Set(open);
                  if (!next.delete(group.group)) next.add(group.group);
                  setOpen(next);
                }}
              >
                <Icon name={expanded ? "chevron" : "right"} />
                <span class="strong">{group.group}</span>
                <MemberBadge status={group.status} />
                <span class="muted small">in order · {format.count(group.total)} members · {format.duration(group.seconds)}</span>
                <MemberStrip members={collection.members.filter((member) => member.group === group.group)} />
              </button>
              {expanded && <MemberTable members={members} label={`Members of ${group.group}`} />}
            </section>
          );
        })}
        {singles.length > 0 && (
          <section class="member-group">
            <h3 class="group-title">Singles <span class="muted small">in parallel · {format.count(singles.length)}</span></h3>
            <MemberTable members={all ? singles : singles.slice(0, FIRST)} label="Single members" />
            {singles.length > FIRST && <div class="pager"><Button small kind="quiet" onClick={() => setAll(!all)}>{all ? "Show fewer" : `Show all ${format.count(singles.length)}`}</Button></div>}
          </section>
        )}
        {shown.length === 0 && filtered && <Empty title="No member matches." icon="search" />}
        {!collection.members_complete && <p class="small muted">The first {format.count(collection.members.length)} members are listed.</p>}
      </div>
    </Card>
  );
}

/** The members of a group in their order, a mark each. */
function MemberStrip({ members }: { members: CollectionMember[] }) {
  return (
    <span class="member-strip" aria-hidden="true">
      {members.slice(0, 60).map((member) => <span key={member.member} class={`strip-mark ${(MEMBER_LOOK[member.status] ?? MEMBER_LOOK["not run"]!).tone}`} />)}
    </span>
  );
}

function MemberBadge({ status }: { status: string }) {
  const look = MEMBER_LOOK[status] ?? { tone: "idle" as const, icon: "info" as const };
  return <Badge tone={look.tone} icon={look.icon}>{status}</Badge>;
}

function MemberTable({ members, label }: { members: CollectionMember[]; label: string }) {
  const columns: Column<CollectionMember>[] = [
    { key: "member", head: "Member", cell: (member) => (member.run_id ? <a class="clip block" href={href("runs", member.run_id)}>{member.member}</a> : <span class="clip block">{member.member}</span>) },
    { key: "status", head: "Status", width: "120px", cell: (member) => <MemberBadge status={member.status} /> },
    { key: "done", head: "Done", end: true, width: "90px", cell: (member) => <Num value={member.done} zero="muted" /> },
    { key: "dead", head: "Dead", end: true, width: "80px", cell: (member) => <Num value={member.dead} zero="muted" /> },
    { key: "records", head: "Records", end: true, width: "100px", cell: (member) => <Num value={member.records} zero="muted" /> },
    { key: "seconds", head: "Took", end: true, width: "100px", cell: (member) => <span class="num">{format.duration(member.seconds)}</span> },
    { key: "reason", head: "Why", from: 1100, cell: (member) => <span class="muted wrap-anywhere">{member.reason || "–"}</span> },
  ];
  return <Table label={label} columns={columns} rows={members} rowKey={(member) => member.member} />;
}
