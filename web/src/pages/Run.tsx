import { useEffect, useMemo } from "preact/hooks";
import { apiPath, withQuery } from "../api/client";
import { useLive } from "../api/live";
import { useApi } from "../api/query";
import type { AuditEvent, Counts, Failure, History, Lane, Page, Partition, RunDetail, Why, WorkerProgress } from "../api/types";
import { causeColumns, historyMarks, quantileColumns, rateColumns, stateColumns } from "../charts/history";
import { LazyTimeSeries } from "../charts/LazyTimeSeries";
import { COUNT_STEPS, DURATION_STEPS } from "../charts/scale";
import { Sparkline } from "../charts/Sparkline";
import { href, hrefWith, useQueryValue } from "../router/router";
import { useStore } from "../store";
import { Badge, Button, Card, changes, Choice, CopyCommand, Empty, ErrorNote, Facts, format, Icon, JsonText, ledgerNow, LinkButton, Menu, Note, Num, PageHead, Placeholder, RunStateBadge, Sentence, Since, Stat, Stats, Table, Time, type Column } from "../ui";
import { eventSentence } from "./events";
import { usePages } from "./lists";
import { askPace, askRun, askScale, useRefusal } from "./parts/actions";
import { etaText, isOver, rateOf, runEntries, StateBar } from "./parts/runs";
import "./pages.css";

const PERIODS = [["15", "15 min"], ["60", "1 hour"], ["360", "6 hours"], ["1440", "1 day"], ["10080", "7 days"]] as const;

export default function RunPage({ params }: { params: Record<string, string> }) {
  const id = params.run ?? "latest";
  const base = `runs/${apiPath(id)}`;
  const changed = useStore(changes);
  const read = useApi<RunDetail>(base, { live: true });
  const frames = useLive<RunDetail>(`run:${id}`);
  const why = useApi<Why>(`${base}/why`);
  useEffect(() => {
    if (changed > 0) {
      read.reload();
      why.reload();
    }
  }, [changed]);
  const refusal = useRefusal();

  // The sentence of `why` comes before the figures: they wait for it, so that nothing moves.
  if (read.data === null || (why.data === null && !why.error)) {
    return (
      <>
        <PageHead title="Run" badge={<span class="mono muted">{id}</span>} />
        {read.error ? <ErrorNote error={read.error} onRetry={read.reload} /> : <Placeholder height={640} />}
      </>
    );
  }
  const run: RunDetail = { ...read.data, ...frames };
  const going = !isOver(run);
  const primary = run.state === "active" ? "pause" : "resume";
  const entries = runEntries(run, refusal, run.workers.live).filter((entry) => !(going ? ["Pause", "Resume", "Scale workers"] : ["Compare with the run before"]).includes(entry.text));
  return (
    <>
      <PageHead
        title={run.scraper}
        badge={<><RunStateBadge state={run.state} />{run.sealed && <Badge tone="idle" icon="seal" tip="No more items come from outside; handlers may still add some.">sealed</Badge>}</>}
        actions={
          <>
            {going && <Button icon={primary === "pause" ? "paused" : "run"} disabledBecause={refusal} onClick={() => askRun(run, primary)}>{primary === "pause" ? "Pause" : "Resume"}</Button>}
            {going && <Button icon="scale" disabledBecause={refusal} onClick={() => askScale(run, run.workers.live)}>Scale</Button>}
            {going && <PaceButton run={run.run_id} refusal={refusal} />}
            {!going && <LinkButton icon="compare" href={href("runs", run.run_id, "compare")}>Compare</LinkButton>}
            {!going && <LinkButton icon="results" href={href("runs", run.run_id, "results")}>Results</LinkButton>}
            <Menu label="More actions" entries={entries} />
            <CopyCommand command={run.command ?? format.command("status", run.run_id)} inline />
          </>
        }
      >
        <span class="mono">{run.run_id}</span> · began <Time at={run.created_at} />
        {run.finished_at ? <> · ended <Time at={run.finished_at} /> after {format.duration((Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000)}</> : <>, <Since at={run.created_at} /> ago</>}
      </PageHead>
      <div class="stack">
        {read.error && <ErrorNote error={read.error} stale />}
        {run.alerts.map((alert) => <Note key={alert.kind + alert.episode} tone="warn"><span class="strong">{alert.kind}:</span> {alert.text}</Note>)}
        <Summary run={run} why={why.data} />
        <Charts run={run} base={base} why={why.data} />
        <Progress run={run} base={base} />
        <div class="grid-2">
          <Failures run={run} base={base} />
          <Workers run={run} />
        </div>
        {run.sinks.length > 0 && <Sinks run={run} />}
        <div class="grid-2">
          <Changes events={run.events} run={run.run_id} />
          <About run={run} />
        </div>
      </div>
    </>
  );
}

function PaceButton({ run, refusal }: { run: string; refusal: string | null }) {
  const lanes = useApi<Page<Lane>>(withQuery(`runs/${apiPath(run)}/lanes`, { order: "slowest", limit: 50 }), { every: 30 });
  const rows = lanes.data?.rows ?? [];
  return (
    <Button icon="pace" disabledBecause={refusal ?? (rows.length === 0 ? "This run has no lanes yet." : null)} onClick={() => askPace(run, rows)}>Pace</Button>
  );
}

/** Where it stands and why: the sentence first, the figures after it. */
function Summary({ run, why }: { run: RunDetail; why: Why | null }) {
  const eta = etaText(run);
  const reason = run.why[0];
  const text = why?.text || run.waiting_because || reason?.text;
  const since = why?.since ?? reason?.since ?? null;
  const critical = why?.critical_lane ?? run.critical_lane;
  const idle = run.workers.idle;
  const stuck = run.state === "active" && run.remaining > 0 && run.workers.live === 0;
  const rate = rateOf(run);
  return (
    <Card>
      <div class="stack">
        <div class={stuck ? "why stuck" : "why"}>
          <Icon name={stuck ? "warn" : run.state === "finished" ? "done" : run.state === "active" ? "info" : "paused"} size={18} />
          <div class="grow">
            <p class="why-text wrap-anywhere"><Sentence text={text || (run.state === "finished" ? "The run is finished." : "Nothing holds it back.")} /></p>
            <p class="small muted why-more">
              {since && <>{isOver(run) ? "Since" : "So for"} {isOver(run) ? <Time at={since} /> : <Since at={since} />}. </>}
              {!isOver(run) && critical && <>The lane <a href={hrefWith(href("runs", run.run_id, "lanes"), { lane: critical })}>{critical}</a> {run.growing ? "is the slowest" : "will end last"}{why?.critical_seconds && run.eta_seconds ? `, in ${format.range(why.critical_seconds)}` : ""}. </>}
              {run.growing && "New items are found as fast as others end, so no end can be told. "}
              {!isOver(run) && idle > 0 && `${format.count(idle)} of ${format.count(run.workers.live)} workers ${idle === 1 ? "is" : "are"} idle. `}
            </p>
          </div>
          <CopyCommand command={why?.command ?? format.command("items", "why", run.run_id)} inline />
        </div>
        <Stats>
          <Stat label="Done" note={`${format.count(run.done)} of ${format.count(run.total)}${run.total_grows ? ", more may come" : ""}`}>{format.percent(run.done_share)}</Stat>
          <Stat label="Left" note={`${format.count(run.leased)} with workers`}>{format.count(run.remaining)}</Stat>
          <Stat label="Dead" note={<a href={href("runs", run.run_id, "failures")}>{run.ok === null ? "no attempt yet" : `${format.percent(run.ok)} succeed`}</a>}>{run.dead > 0 ? <span class="bad-text">{format.count(run.dead)}</span> : "0"}</Stat>
          <Stat label="Per minute" note={rate === null ? "too short to tell" : isOver(run) ? "in the whole run" : "in the last minutes"}>{format.short(rate)}</Stat>
          <Stat label="Time left" note={eta.note} tip={eta.tip}>{eta.text}</Stat>
          <Stat label="Records" note={<a href={href("runs", run.run_id, "results")}>{run.changed_records > 0 ? `${format.count(run.new_records)} new, ${format.count(run.changed_records)} changed` : "look at them"}</a>}>{format.count(run.records)}</Stat>
          <Stat label="Workers" note={`${format.count(run.workers.running)} attempts run`}>{format.count(run.workers.live)}</Stat>
        </Stats>
        <StateBar counts={run} label="Items by state" run={run.run_id} legend height={12} />
      </div>
    </Card>
  );
}

/** The period that shows the whole run; of a run that goes on, its last hour at most. */
export function periodOf(run: Pick<RunDetail, "created_at" | "finished_at" | "state">, now: number): number {
  // The history of a run that has ended ends with it.
  const over = isOver(run) && run.finished_at !== null;
  const age = ((over ? Date.parse(run.finished_at!) : now) - Date.parse(run.created_at)) / 60_000;
  const wanted = over ? age : Math.min(age, 60);
  const known = PERIODS.map(([each]) => Number(each));
  return known.find((each) => each >= wanted) ?? known[known.length - 1] ?? 60;
}

function Charts({ run, base, why }: { run: RunDetail; base: string; why: Why | null }) {
  const [minutes, setMinutes] = useQueryValue("minutes", String(useMemo(() => periodOf(run, ledgerNow()), [run.run_id, run.state])));
  const changed = useStore(changes);
  const read = useApi<History>(withQuery(`${base}/history`, { minutes }), { every: 15, keep: true });
  useEffect(() => {
    if (changed > 0) read.reload();
  }, [changed]);
  const data = read.data;
  const drawn = useMemo(() => {
    if (!data) return null;
    const began = Date.parse(run.created_at) / 1000;
    const until = (run.finished_at ? Date.parse(run.finished_at) : ledgerNow()) / 1000;
    return {
      rate: rateColumns(data, began, until),
      causes: causeColumns(data),
      states: stateColumns(data),
      wait: quantileColumns(data, "wait"),
      work: quantileColumns(data, "work"),
      shared: { step: data.step_seconds, began, until, marks: historyMarks(data), sync: "run" },
    };
  }, [data]);
  return (
    <section class="stack" aria-label="History">
      <div class="row between wrap">
        <Choice label="Period" value={minutes} options={PERIODS} onChange={setMinutes} />
        {read.error && <span class="small muted"><Icon name="warn" size={12} /> {read.error.message}</span>}
      </div>
      <Card>
        {drawn
          ? <LazyTimeSeries title="What is it waiting for?" answer={<Sentence text={waitingText(data, why)} />} {...drawn.causes} {...drawn.shared} kind="stacked" format={format.short} steps={COUNT_STEPS} height={220} empty={blocked(why) ? "Counted once a minute: the first count is not there yet." : "Nothing waited in this time."} />
          : <Placeholder height={296} />}
      </Card>
      <div class="grid-2">
        <Card>{drawn ? <LazyTimeSeries title="How many items end per minute?" {...drawn.rate} {...drawn.shared} format={format.short} height={180} empty={isOver(run) && run.ended > 0 ? "The run was too short for a rate." : "No item ended in this time."} /> : <Placeholder height={236} />}</Card>
        <Card>{drawn ? <LazyTimeSeries title="In which state were the items?" {...drawn.states} {...drawn.shared} kind="stacked" format={format.short} steps={COUNT_STEPS} height={180} empty="There were no items in this time." /> : <Placeholder height={236} />}</Card>
        <Card>{drawn ? <LazyTimeSeries title="How long do items wait for a worker?" {...drawn.wait} {...drawn.shared} format={format.duration} steps={DURATION_STEPS} height={180} empty="No item started in this time." /> : <Placeholder height={236} />}</Card>
        <Card>{drawn ? <LazyTimeSeries title="How long does an attempt take?" {...drawn.work} {...drawn.shared} format={format.duration} steps={DURATION_STEPS} height={180} empty="No attempt ended in this time." /> : <Placeholder height={236} />}</Card>
      </div>
    </section>
  );
}

const blocked = (why: Why | null): boolean => why !== null && why.bottleneck.cause !== "nothing";

/** Open items by what they wait for, at the last sample if it is new: "host delay 99%, retries 1%". */
function waitingText(history: History | null, why: Why | null): string {
  const last = (history?.points ?? []).slice(-2).reverse().find((point) => point.waiting_for != null)?.waiting_for ?? {};
  const causes = Object.entries(last).filter(([, items]) => items > 0).sort((a, b) => b[1] - a[1]);
  const all = causes.reduce((sum, [, items]) => sum + items, 0);
  if (all === 0) return blocked(why) ? why!.text : "Nothing waits.";
  return causes.slice(0, 3).map(([cause, items], i) => `${i === 0 ? "" : ", "}${cause} ${format.percent(items / all)}`).join("") + (causes.length > 3 ? ", and more" : "");
}

type StageRow = Counts & { stage: string };

const MOST_PARTITIONS = 600;
const SHOWN_PARTITIONS = 8;

function Progress({ run, base }: { run: RunDetail; base: string }) {
  const listed = usePages<Partition>(`${base}/partitions`, MOST_PARTITIONS, 10);
  const stages: StageRow[] = run.stages.flatMap((name) => {
    const counts = run.stage_counts[name];
    return counts ? [{ ...counts, stage: name }] : [];
  });
  const all = useMemo(() => sumPartitions((listed.rows ?? []).filter((each) => each.partition !== "")), [listed.rows]);
  const partitions = all.slice(0, SHOWN_PARTITIONS);
  const figures = <Row extends Counts>(items: (row: Row) => Record<string, string>): Column<Row>[] => [
    { key: "bar", head: "Progress", wide: true, cell: (row) => <StateBar counts={row} label="Items by state" /> },
    { key: "share", head: "Ended", end: true, width: "80px", cell: (row) => format.percent(row.total ? row.ended / row.total : 0) },
    { key: "total", head: "Items", end: true, width: "100px", from: 720, cell: (row) => <a href={hrefWith(href("runs", run.run_id, "items"), items(row))}>{format.count(row.total)}</a> },
    { key: "left", head: "Left", end: true, width: "100px", cell: (row) => <Num value={row.remaining} zero="muted" /> },
    { key: "dead", head: "Dead", end: true, width: "80px", cell: (row) => (row.dead ? <a href={hrefWith(href("runs", run.run_id, "items"), { ...items(row), state: "dead" })}>{format.count(row.dead)}</a> : <span class="muted">0</span>) },
  ];
  return (
    <div class="stack">
      {stages.length > 0 && (
        <Card title="How far is each stage?" flush>
          <Table label="Stages" rows={stages} rowKey={(row) => row.stage} columns={[
            { key: "stage", head: "Stage", width: "20%", cell: (row) => <span class="clip strong">{row.stage}</span> },
            ...figures<StageRow>((row) => ({ stage: row.stage })),
          ]} />
        </Card>
      )}
      {partitions.length > 0 && (
        <Card
          title={run.remaining > 0 ? "Which partitions take longest?" : "How far did each partition get?"} flush
          note={all.length > partitions.length ? `${format.count(partitions.length)} of ${format.count(all.length)}${listed.more ? "+" : ""}, those with most left first` : undefined}
          actions={<LinkButton small icon="map" href={href("runs", run.run_id, "map")}>Map</LinkButton>}
        >
          <Table label="Partitions" rows={partitions} rowKey={(row) => row.partition}
            columns={[
              { key: "partition", head: "Partition", width: "20%", cell: (row) => <span class="clip strong">{row.partition}</span> },
              ...figures<PartitionSum>((row) => ({ partition: row.partition })),
            ]} />
        </Card>
      )}
    </div>
  );
}

type PartitionSum = Counts & { partition: string };

/** All stages of a partition together; those with most left first, then those with most dead items. */
export function sumPartitions(rows: readonly Partition[]): PartitionSum[] {
  const sums = new Map<string, PartitionSum>();
  for (const row of rows) {
    const sum = sums.get(row.partition);
    if (sum === undefined) sums.set(row.partition, { ...row });
    else for (const name of COUNTED) sum[name] += row[name];
  }
  return [...sums.values()].sort((a, b) => b.remaining - a.remaining || b.dead - a.dead || b.total - a.total);
}

const COUNTED = ["total", "ended", "remaining", "ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled"] as const;

function Failures({ run, base }: { run: RunDetail; base: string }) {
  const read = useApi<Page<Failure>>(withQuery(`${base}/failures`, { limit: 5 }), { every: 15 });
  const rows = read.data?.rows ?? [];
  return (
    <Card title="Why do items die?" flush actions={<a class="small" href={href("runs", run.run_id, "failures")}>All failures</a>}>
      <Table label="Failures" rows={rows} rowKey={(row) => row.failure_id}
        empty={read.data === null && !read.error ? <Placeholder height={160} /> : <Empty title={read.error?.message ?? "No item has died."} icon={read.error ? "warn" : "done"} />}
        columns={[
          { key: "message", head: "Error", cell: (row) => <a class="two-lines" href={hrefWith(href("runs", run.run_id, "items"), { failure: row.failure_id })}><span class="clip">{row.message}</span><span class="small muted clip">{row.outcome} · {row.host || row.stage}</span></a> },
          { key: "trend", head: "Last hour", width: "140px", from: 720, cell: (row) => (row.trend.some((n) => n > 0) ? <Sparkline values={row.trend} label={`Per minute in the last hour, at most ${Math.max(0, ...row.trend)}`} width={116} color="fill-dead" /> : <span class="small muted">none</span>) },
          { key: "items", head: "Items", end: true, width: "84px", cell: (row) => <Num value={row.items} atLeast={row.items_is_at_least} /> },
        ]} />
    </Card>
  );
}

const WORKER_LOOK = { live: ["ok", "done"], draining: ["warn", "drain"], dead: ["bad", "warn"], gone: ["idle", "cancelled"] } as const;

function Workers({ run }: { run: RunDetail }) {
  return (
    <Card title="Who worked on it in the last 10 minutes?" flush actions={<a class="small" href={href("fleet")}>Fleet</a>}>
      <Table<WorkerProgress> label="Workers" rows={run.worker_progress.slice(0, 10)} rowKey={(row) => row.worker}
        empty={<Empty title="No worker has worked on it in the last 10 minutes."><CopyCommand command={format.command("worker", run.scraper, ["--run-id", run.run_id])} /></Empty>}
        columns={[
          { key: "worker", head: "Worker", cell: (row) => <span class="mono small clip block">{row.worker}</span> },
          { key: "state", head: "State", width: "104px", cell: (row) => { const [tone, icon] = WORKER_LOOK[row.state as keyof typeof WORKER_LOOK] ?? WORKER_LOOK.gone; return <Badge tone={tone} icon={icon}>{row.state}</Badge>; } },
          { key: "leased", head: "Leased", end: true, width: "74px", from: 720, cell: (row) => <Num value={row.leased} zero="muted" /> },
          { key: "done", head: "Done", end: true, width: "84px", cell: (row) => format.count(row.done) },
          { key: "dead", head: "Dead", end: true, width: "68px", cell: (row) => <Num value={row.dead} zero="muted" /> },
        ]} />
      {run.worker_progress.length > 10 && <p class="pager small muted">{format.count(run.worker_progress.length - 10)} more</p>}
    </Card>
  );
}

function Sinks({ run }: { run: RunDetail }) {
  return (
    <Card title="Where do the records go?" flush>
      <Table label="Sinks" rows={run.sinks} rowKey={(row) => row.sink} columns={[
        { key: "sink", head: "Sink", cell: (row) => <span class="two-lines"><span class="strong clip">{row.sink}</span><span class="small muted clip">{row.kind} · {row.place}</span></span> },
        { key: "state", head: "State", width: "26%", cell: (row) => (row.error ? <span class="wrap-anywhere"><Badge tone="bad" icon="warn">{row.state}</Badge> <span class="small">{row.error}</span></span> : <Badge tone="ok" icon="done">{row.state}</Badge>) },
        { key: "delivered", head: "Delivered", end: true, width: "110px", cell: (row) => format.count(row.delivered) },
        { key: "behind", head: "Behind", end: true, width: "100px", cell: (row) => <Num value={row.behind} atLeast={row.behind_is_at_least} zero="muted" /> },
        { key: "lag", head: "Lag", end: true, width: "90px", from: 720, cell: (row) => format.duration(row.lag_seconds) },
        { key: "dead", head: "Dead letters", end: true, width: "110px", from: 720, cell: (row) => <Num value={row.dead_letters} zero="muted" /> },
      ]} />
    </Card>
  );
}

const MOST_EVENTS = 8;

function Changes({ events, run }: { events: AuditEvent[]; run: string }) {
  return (
    <Card title="What was changed?" flush actions={<a class="small" href={hrefWith(href("activity"), { run })}>Activity</a>}>
      {events.length === 0 ? <Empty title="Nobody has changed anything." /> : (
        <ul class="lines">
          {events.slice(0, MOST_EVENTS).map((event) => (
            <li key={event.event_id}>
              <span class="nowrap strong">{event.action.replace(/[._]+/g, " ")}</span>
              <span class="grow clip muted small">{eventSentence(event)}</span>
              <span class="small muted clip">{event.actor}</span>
              <span class="small muted"><Time at={event.at} mode="ago" /></span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

function About({ run }: { run: RunDetail }) {
  const versions = (counts: Record<string, number>): string => Object.entries(counts).map(([name, workers]) => `${name} (${workers})`).join(", ") || "–";
  return (
    <Card title="What was it made from?">
      <div class="stack">
        <Facts facts={[
          ["Stages", run.stages.join(" → ")],
          ["Attempts", `${run.max_attempts} per item, ${run.max_rescues} rescues`],
          ["Code", <span class="mono">{run.code_version ?? "–"}</span>],
          ["Workers run", <span>Shoal {versions(run.versions)}; code {versions(run.code_versions)}</span>],
          ["Duplicates", format.count(run.duplicates)],
        ]} />
        {Object.keys(run.code_versions).length > 1 && <Note tone="warn">Workers run different versions of the scraper's code.</Note>}
        <details class="more"><summary>Settings</summary><JsonText value={run.settings} label="Settings of the run" /></details>
      </div>
    </Card>
  );
}
