import { useMemo } from "preact/hooks";
import { apiPath, mayAct, me, withQuery } from "../api/client";
import { useLive } from "../api/live";
import { useApi } from "../api/query";
import type { FleetFrame, NodeRow, Page, Pool, Worker } from "../api/types";
import { href, setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import { useStore } from "../store";
import {
  ask, Badge, Button, Card, Choice, type Column, CopyCommand, Empty, ErrorNote, format, Icon, type IconName, ledgerNow, Note, Num, PageHead, Pager,
  Placeholder, Since, Stat, Stats, Table, type Tone, WorkerStateBadge,
} from "../ui";
import "./operations.css";

const VIEWER = "Viewers cannot change anything.";

/** Machines, their workers, what each one works on; pools of workers and their size. */
export default function Fleet(_: { params: Params }) {
  const { query } = useLocation();
  const node = query.get("node") ?? "";
  const present = query.get("present") !== "false";
  const frames = useLive<FleetFrame>("fleet");
  const nodes = useApi<{ rows: NodeRow[] }>("nodes", { every: 5, live: true });
  const pools = useApi<PoolList>("pools", { every: 3 });
  const workers = useApi<Page<Worker>>(withQuery("workers", { present, node, cursor: query.get("cursor"), limit: 25 }), { every: 3, keep: true });
  const rows = frames?.nodes ?? nodes.data?.rows ?? null;
  const shown = useMemo(() => (workers.data?.rows ?? []).map((worker) => withFrame(worker, frames?.by_worker?.[worker.worker])), [workers.data, frames]);
  const versions = useMemo(() => [...new Set((rows ?? []).flatMap((each) => each.versions))].sort((a, b) => b.localeCompare(a, undefined, { numeric: true })), [rows]);
  const sum = (pick: (node: NodeRow) => number): number => (rows ?? []).reduce((all, each) => all + pick(each), 0);
  const trouble = Object.values(frames?.by_worker ?? {}).filter((worker) => worker.trouble).length;
  const needsLook = (each: NodeRow): number => lostOf(each) * 1000 + each.draining;
  // All parts appear at once, so that none moves another.
  const loading = (rows === null && !nodes.error) || (pools.data === null && !pools.error) || (workers.data === null && !workers.error);
  const ordered = [...(rows ?? [])].sort((a, b) => needsLook(b) - needsLook(a) || a.node.localeCompare(b.node, undefined, { numeric: true }));

  return (
    <div class="stack">
      <PageHead title="Fleet" actions={<CopyCommand inline command={workers.data?.command || format.command("workers", "ls")} />}>
        Machines, their workers, and what each one works on now.
      </PageHead>
      {nodes.error && <ErrorNote error={nodes.error} stale={nodes.data !== null} onRetry={nodes.reload} />}
      {loading && <Placeholder height={720} label="Loading machines" />}
      {!loading && rows !== null && (
        <Card>
          <Stats>
            <Stat label="Machines">{format.count(frames?.workers?.nodes ?? rows.length)}</Stat>
            <Stat label="Live workers">{format.count(frames?.workers?.live ?? sum((each) => each.live))}</Stat>
            <Stat label="Draining">{format.count(frames?.workers?.draining ?? sum((each) => each.draining))}</Stat>
            <Stat label="Silent" tip="Their heartbeat is older than their lease; others get their items.">{format.count(frames?.workers?.lost ?? sum(lostOf))}</Stat>
            <Stat label="Items held">{format.count(sum((each) => each.leased))}</Stat>
            <Stat label="Version">{versions.length > 1 ? `${versions.length} different` : (versions[0] ?? "–")}</Stat>
          </Stats>
        </Card>
      )}
      {versions.length > 1 && (
        <Note tone="warn">
          <p><span class="strong">Workers of {versions.length} versions share this ledger:</span> {versions.join(", ")}. Drain the older ones and start them again.</p>
        </Note>
      )}
      {trouble > 0 && <Note tone="bad">{trouble === 1 ? "One worker reports" : `${format.count(trouble)} workers report`} a problem; it is written at the worker below.</Note>}
      {!loading && <Pools pools={pools.data} error={pools.error} reload={pools.reload} />}
      {!loading && ordered.length > 0 && (
        <Card flush title="Which machine works?" note="Choose one to see its workers only.">
          <div class="node-scroll"><Table label="Machines" rows={ordered} rowKey={(each) => each.node} columns={nodeColumns(node)} rowClass={(each) => (each.node === node ? "selected" : "")} /></div>
        </Card>
      )}
      {!loading && <Card
        flush
        title={node ? `What do the workers of ${node} do?` : "What does each worker do?"}
        actions={
          <>
            {node && <Button small kind="quiet" icon="close" onClick={() => setQuery({ node: null, cursor: null })}>All machines</Button>}
            <Choice label="Workers" value={present ? "true" : "false"} options={[["true", "Present"], ["false", "Also those that left"]]} onChange={(value) => setQuery({ present: value === "true" ? null : value, cursor: null })} />
          </>
        }
      >
        {workers.error && <ErrorNote error={workers.error} stale={workers.data !== null} onRetry={workers.reload} />}
        {workers.data === null ? (
          !workers.error && <Placeholder height={320} label="Loading workers" />
        ) : (
          <>
            <WorkerTable workers={shown} stale={workers.stale} versions={versions.length} />
            <Pager cursor={workers.data.cursor} shown={shown.length} />
          </>
        )}
      </Card>}
    </div>
  );
}

/** A worker with what frames have told of it since. */
function withFrame(worker: Worker, frame: FleetFrame["by_worker"][string] | undefined): Worker {
  if (!frame) return worker;
  const silent = Math.max(0, (ledgerNow() - Date.parse(frame.heartbeat_at)) / 1000);
  return { ...worker, ...frame, silent_seconds: Math.min(worker.silent_seconds, silent) };
}

const lostOf = (node: NodeRow): number => node.lost ?? Math.max(0, node.workers - node.live - node.draining);

interface PoolList {
  rows: Pool[];
  scrapers: string[];
}

function nodeColumns(chosen: string): Column<NodeRow>[] {
  return [
    {
      key: "node", head: "Machine",
      cell: (node) => (
        <button type="button" class="link-button clip" aria-pressed={node.node === chosen} onClick={() => setQuery({ node: node.node === chosen ? null : node.node, cursor: null })}>
          {node.node}
        </button>
      ),
    },
    {
      key: "workers", head: "Workers", width: "360px",
      cell: (node) => <WorkerSquares node={node} />,
    },
    { key: "leased", head: "Items held", end: true, width: "110px", cell: (node) => <Num value={node.leased} zero="muted" /> },
    { key: "versions", head: "Version", width: "160px", from: 1100, cell: (node) => <span class="num clip block">{node.versions.join(", ") || "–"}</span> },
  ];
}

const MOST_SQUARES = 12;

/** A square per worker: full is live, striped is draining, crossed is without a heartbeat; the numbers say the same. */
function WorkerSquares({ node }: { node: NodeRow }) {
  const lost = lostOf(node);
  const parts: [string, number][] = [["live", node.live], ["draining", node.draining], ["lost", lost]];
  const scale = node.workers > MOST_SQUARES ? MOST_SQUARES / node.workers : 1;
  return (
    <span class="row">
      <span class="squares" aria-hidden="true">
        {parts.flatMap(([state, count]) => Array.from({ length: count > 0 ? Math.max(1, Math.round(count * scale)) : 0 }, (_, i) => <span key={`${state}${i}`} class={`square ${state}`} />))}
      </span>
      <span class="num nowrap">
        {format.count(node.live)} live{node.draining ? `, ${format.count(node.draining)} draining` : ""}{lost ? `, ${format.count(lost)} silent` : ""}
      </span>
    </span>
  );
}

function WorkerTable({ workers, stale, versions }: { workers: Worker[]; stale: boolean; versions: number }) {
  const who = useStore(me);
  const refused = mayAct(who) ? null : VIEWER;
  const drain = (worker: Worker): void =>
    ask({
      title: `Drain ${worker.worker}`,
      explain: "It finishes its running items, takes no more and exits. A pool that it belongs to starts another one in its place.",
      confirm: "Drain",
      action: () => ({ method: "POST", path: apiPath("workers", worker.worker, "drain"), body: {} }),
    });
  const columns: Column<Worker>[] = [
    {
      key: "worker", head: "Worker", width: "210px",
      cell: (worker) => (
        <span class="block">
          <span class="mono clip block" title={worker.worker}>{worker.worker}</span>
          <span class="small muted">{worker.node} · up <Since at={worker.started_at} /></span>
        </span>
      ),
    },
    { key: "state", head: "State", width: "120px", cell: (worker) => (worker.alive || worker.state === "stopped" ? <WorkerStateBadge state={worker.state} /> : <Badge tone="bad" icon="warn" tip={`No heartbeat for ${format.duration(worker.silent_seconds)}; its lease is ${format.duration(worker.lease_seconds)}.`}>silent</Badge>) },
    {
      key: "items", head: "Works on",
      cell: (worker) => (
        <span class="block">
          {worker.trouble && <span class="worker-trouble"><Icon name="warn" size={12} /> {worker.trouble}</span>}
          {worker.items.length === 0 && !worker.trouble && <span class="muted">{worker.running > 0 ? `${format.count(worker.running)} short ${worker.running === 1 ? "item" : "items"}` : "nothing"}</span>}
          {worker.items.slice(0, 1).map((item) => (
            <span key={`${item.run_id} ${item.item_id}`} class="worker-item">
              <a class="clip" href={href("runs", item.run_id, "items", item.item_id)} title={item.name}>{item.name}</a>
              <span class="num muted nowrap">{format.duration(item.seconds)}</span>
            </span>
          ))}
          {worker.running > 1 && worker.items.length > 0 && <span class="small muted num">the longest of {format.count(worker.running)}</span>}
        </span>
      ),
    },
    { key: "rate", head: "Per minute", end: true, width: "110px", from: 1100, cell: (worker) => <span class="num">{worker.rate_per_minute == null ? "–" : format.short(worker.rate_per_minute)}</span> },
    {
      key: "beat", head: "Heartbeat", end: true, width: "110px",
      cell: (worker) => <span class={`num ${worker.silent_seconds > worker.lease_seconds / 2 ? "late-text" : ""}`}>{worker.silent_seconds < 1 ? "now" : `${format.duration(worker.silent_seconds)} ago`}</span>,
    },
    {
      key: "version", head: "Version", width: "130px", from: 1100,
      cell: (worker) => <span class="block"><span class={`num ${versions > 1 ? "strong" : ""}`}>{worker.version || "–"}</span>{worker.code_version && <span class="small muted mono clip block" title={`Code of the scraper: ${worker.code_version}`}>{worker.code_version}</span>}</span>,
    },
    {
      key: "drain", head: <span class="visually-hidden">Actions</span>, width: "90px", end: true,
      cell: (worker) => (worker.state === "live" ? <Button small disabledBecause={refused} onClick={() => drain(worker)}>Drain</Button> : null),
    },
  ];
  return (
    <Table
      label="Workers" columns={columns} rows={workers} rowKey={(worker) => worker.worker} stale={stale}
      rowClass={(worker) => (worker.alive ? "" : "quiet-row")}
      empty={
        <Empty title="No worker is here." icon="fleet">
          <p>Start one on any machine that reaches the ledger:</p>
          <CopyCommand command="shoal worker SCRAPER" />
        </Empty>
      }
    />
  );
}

const POOL_LOOK: Record<Pool["state"], { tone: Tone; icon: IconName }> = {
  running: { tone: "ok", icon: "done" },
  stopping: { tone: "warn", icon: "drain" },
  gone: { tone: "bad", icon: "warn" },
  ended: { tone: "idle", icon: "cancelled" },
};

function Pools({ pools, error, reload }: { pools: PoolList | null; error: ReturnType<typeof useApi>["error"]; reload: () => void }) {
  const who = useStore(me);
  const refused = mayAct(who) ? null : VIEWER;
  if (error && pools === null) return <ErrorNote error={error} onRetry={reload} />;
  const scrapers = pools?.scrapers ?? [];
  const none = pools !== null && scrapers.length === 0 ? "None can be started here: the server's project has no scraper." : null;
  const start = (): void =>
    ask({
      title: "Start a pool on the server's machine",
      explain: "The server starts the workers with the same supervisor as shoal pool, and restarts those that crash.",
      confirm: "Start",
      fields: [
        { name: "scraper", label: "Scraper", value: scrapers[0] ?? "", options: scrapers.map((name) => [name, name] as const) },
        { name: "workers", label: "Workers", value: "2", type: "number", min: 1, max: 1000 },
      ],
      action: ({ scraper = "", workers = "" }) => (scraper.trim() && Number(workers) >= 1 ? { method: "POST", path: "pools", body: { scraper: scraper.trim(), workers: Number(workers) } } : null),
    });
  const scale = (pool: Pool): void =>
    ask({
      title: `Scale ${pool.scraper}`,
      explain: pool.by_this_server ? "Workers start or drain at once; the change is marked on the charts of the run." : "All running pools of this scraper follow, on every machine.",
      confirm: "Scale",
      fields: [{ name: "workers", label: "Workers", value: String(pool.wanted ?? pool.workers), type: "number", min: 1, max: 1000 }],
      action: ({ workers = "" }) => {
        const wanted = Number(workers);
        if (!Number.isInteger(wanted) || wanted < 1) return null;
        return pool.by_this_server
          ? { method: "POST", path: apiPath("pools", pool.pool_id, "scale"), body: { workers: wanted } }
          : { method: "POST", path: apiPath("scrapers", pool.scraper, "scale"), body: { workers: wanted } };
      },
    });
  const stop = (pool: Pool, verb: "stop" | "restart"): void =>
    ask({
      title: verb === "stop" ? `Stop the pool of ${pool.scraper}` : `Restart the pool of ${pool.scraper}`,
      explain: verb === "stop" ? "Its workers finish their running items and exit." : "Its workers finish their running items; then new ones start.",
      confirm: verb === "stop" ? "Stop" : "Restart",
      danger: verb === "stop",
      action: () => ({ method: "POST", path: apiPath("pools", pool.pool_id, verb), body: {} }),
    });
  const columns: Column<Pool>[] = [
    { key: "scraper", head: "Pool of", cell: (pool) => <span class="block"><span class="strong">{pool.scraper}</span>{pool.run_id && <> <a class="small mono" href={href("runs", pool.run_id)}>{pool.run_id}</a></>}</span> },
    { key: "node", head: "Machine", width: "160px", cell: (pool) => <span class="clip block">{pool.node}{pool.by_this_server && <span class="muted small"> (this server)</span>}</span> },
    { key: "state", head: "State", width: "130px", cell: (pool) => <Badge {...POOL_LOOK[pool.state]} {...(pool.why ? { tip: pool.why } : {})}>{pool.state}</Badge> },
    { key: "workers", head: "Workers", end: true, width: "130px", cell: (pool) => <span class="num">{format.count(pool.workers)}{pool.wanted !== null && pool.wanted !== pool.workers ? <span class="muted"> of {format.count(pool.wanted)}</span> : null}</span> },
    { key: "since", head: "Up", end: true, width: "110px", from: 1100, cell: (pool) => <Since at={pool.started_at} /> },
    {
      key: "act", head: <span class="visually-hidden">Actions</span>, end: true, width: "230px",
      cell: (pool) => pool.state !== "running" ? null : (
        <span class="row end-row">
          <Button small icon="scale" disabledBecause={refused} onClick={() => scale(pool)}>Scale</Button>
          {pool.by_this_server && <Button small disabledBecause={refused} onClick={() => stop(pool, "restart")}>Restart</Button>}
          {pool.by_this_server && <Button small disabledBecause={refused} onClick={() => stop(pool, "stop")}>Stop</Button>}
        </span>
      ),
    },
  ];
  return (
    <Card
      flush
      title="Which pools run?"
      note={`A pool keeps a number of workers running on its machine.${none ? ` ${none}` : ""}`}
      actions={<Button small kind="primary" icon="run" disabledBecause={refused ?? none} onClick={start}>Start a pool</Button>}
    >
      {pools === null ? (
        <Placeholder height={96} label="Loading pools" />
      ) : (
        <Table label="Pools of workers" columns={columns} rows={pools.rows} rowKey={(pool) => pool.pool_id} empty={<Empty title="No pool runs." icon="worker"><p>Workers may still run on their own; they are listed below.</p></Empty>} />
      )}
    </Card>
  );
}
