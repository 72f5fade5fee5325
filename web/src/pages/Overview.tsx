import { useApi } from "../api/query";
import { useLive } from "../api/live";
import type { History, Overview, RunStatus } from "../api/types";
import { apiPath } from "../api/client";
import { Sparkline } from "../charts/Sparkline";
import { knownPoints } from "../charts/history";
import { StateStrip } from "../charts/StateStrip";
import { href, hrefWith } from "../router/router";
import { Badge, Card, CopyCommand, Empty, ErrorNote, format, Icon, Menu, PageHead, Placeholder, RunStateBadge, Sentence, Since, Stat, Stats, Table, Time, type Column } from "../ui";
import { useRefusal } from "./parts/actions";
import { etaText, isOver, Ratio, runEntries, StateBar } from "./parts/runs";
import "./pages.css";

// More cards than this are not read at a glance; the others are in the table.
const MOST_CARDS = 9;

export default function OverviewPage() {
  const read = useApi<Overview>("overview", { live: true });
  const frames = useLive<Overview>("overview");
  const data = read.data && { ...read.data, ...frames };

  if (data === null) {
    return (
      <>
        <PageHead title="Overview" />
        {read.error ? <ErrorNote error={read.error} onRetry={read.reload} /> : <Placeholder height={420} />}
      </>
    );
  }
  if (data.empty) return <FirstSteps />;
  const going = data.runs.filter((run) => run.state === "active" || run.state === "paused").slice(0, MOST_CARDS);
  const others = data.runs.filter((run) => !going.includes(run));
  const rate = data.runs.reduce((sum, run) => sum + (run.state === "active" ? (run.rate_per_minute ?? 0) : 0), 0);
  return (
    <>
      <PageHead title="Overview" actions={<CopyCommand command="shoal status" inline />}>
        {data.ledger.ok ? "What goes on, what holds it back, and what went wrong." : data.ledger.text}
      </PageHead>
      <div class="stack">
        {read.error && <ErrorNote error={read.error} stale />}
        <Card>
          <Stats>
            <Stat label="Active runs" note={`${format.count(data.runs.filter((run) => run.state === "paused").length)} paused`}>
              {format.count(data.runs.filter((run) => run.state === "active").length)}
            </Stat>
            <Stat label="Items per minute" note="all runs together">{format.short(rate)}</Stat>
            <Stat label="Workers" note={<a href={href("fleet")}>{format.count(data.workers.nodes)} {data.workers.nodes === 1 ? "node" : "nodes"}</a>}>
              {format.count(data.workers.live)}
            </Stat>
            {data.workers.draining > 0 && <Stat label="Draining" note="end what they run">{format.count(data.workers.draining)}</Stat>}
            {data.workers.lost > 0 && <Stat label="Lost" note="no heartbeat"><span class="bad-text"><Icon name="warn" /> {format.count(data.workers.lost)}</span></Stat>}
            {data.egress.map((pool) => (
              <Stat key={pool.pool} label={`Egress ${pool.pool}`} note={<a href={hrefWith(href("egress"), { pool: pool.pool })}>{outOfUse(pool)}</a>}>
                {format.count(pool.good)}<span class="muted stat-of"> of {format.count(pool.exits)}</span>
              </Stat>
            ))}
            <Stat label="Ledger" note={data.ledger.latency_seconds === null ? "" : `answers in ${format.duration(data.ledger.latency_seconds)}`}>{format.bytes(data.ledger.size_bytes)}</Stat>
          </Stats>
        </Card>
        {data.alerts.length > 0 && (
          <Card title="Alerts" flush actions={<a class="small" href={href("activity")}>All activity</a>}>
            <ul class="lines">
              {data.alerts.map((alert) => (
                <li key={`${alert.at} ${alert.kind} ${alert.run_id}`}>
                  <AlertBadge kind={alert.kind} />
                  <span class="grow clip">
                    <a href={alert.run_id ? href("runs", alert.run_id) : href("activity")}>{alert.title}</a> <span class="muted">{alert.body.split("\n")[0]}</span>
                  </span>
                  <span class="muted small"><Time at={alert.at} mode="ago" /></span>
                </li>
              ))}
            </ul>
          </Card>
        )}
        {going.length === 0 ? (
          <Card><Empty title="No run goes on."><p>Start one; it appears here at once.</p><CopyCommand command="shoal run SCRAPER" /></Empty></Card>
        ) : (
          <div class="grid-auto">{going.map((run) => <RunCard key={run.run_id} run={run} present={data.workers.live} />)}</div>
        )}
        {others.length > 0 && (
          <Card title="Recent runs" flush actions={<a class="small" href={href("runs")}>All runs</a>}>
            <Table label="Recent runs" rows={others} rowKey={(run) => run.run_id} columns={RECENT} />
          </Card>
        )}
      </div>
    </>
  );
}

/** Why exits of a pool are not used: "1 banned, 2 resting". */
function outOfUse(pool: Overview["egress"][number]): string {
  const states = [["banned", pool.banned], ["resting", pool.resting], ["on trial", pool.trial]] as const;
  return states.filter(([, exits]) => exits > 0).map(([state, exits]) => `${format.count(exits)} ${state}`).join(", ") || "all are good";
}

/** A run that ended as it should is told as an alert too, but is no trouble. */
function AlertBadge({ kind }: { kind: string }) {
  return kind === "finish" ? <Badge tone="ok" icon="done">{kind}</Badge> : <Badge tone="bad" icon="warn">{kind}</Badge>;
}

const RECENT: Column<RunStatus>[] = [
  { key: "scraper", head: "Run", cell: (run) => <span class="two-lines"><a class="clip" href={href("runs", run.run_id)}>{run.scraper}</a><span class="mono small muted clip">{run.run_id}</span></span> },
  { key: "state", head: "State", width: "120px", cell: (run) => <RunStateBadge state={run.state} /> },
  { key: "bar", head: "Items", wide: true, width: "22%", cell: (run) => <StateBar counts={run} label={`Items of ${run.scraper}`} /> },
  { key: "total", head: "Total", end: true, width: "110px", cell: (run) => format.count(run.total) },
  { key: "dead", head: "Dead", end: true, width: "90px", cell: (run) => (run.dead ? <a href={href("runs", run.run_id, "failures")}>{format.count(run.dead)}</a> : "0") },
  { key: "records", head: "Records", end: true, width: "110px", from: 1100, cell: (run) => format.count(run.records) },
  { key: "took", head: "Took", end: true, width: "100px", from: 1100, cell: (run) => (run.finished_at ? format.duration((Date.parse(run.finished_at) - Date.parse(run.created_at)) / 1000) : <span class="muted">–</span>) },
  { key: "ended", head: "Ended", end: true, width: "120px", cell: (run) => <Time at={run.finished_at ?? run.created_at} mode="ago" /> },
];

function RunCard({ run, present }: { run: RunStatus; present: number }) {
  const refusal = useRefusal();
  const history = useApi<History>(`runs/${apiPath(run.run_id)}/history?minutes=60`, { every: 60 });
  const eta = etaText(run);
  const points = history.data ? knownPoints(history.data, 10) : [];
  const period = (points.length * (history.data?.step_seconds ?? 60)) / 60;
  const ended = points.map((point) => point.ended.done + point.ended.dead + point.ended.skipped);
  return (
    <article class="card run-card" aria-label={`Run ${run.scraper} ${run.run_id}`}>
      <div class="card-body stack tight">
        <div class="row between">
          <h2 class="clip"><a href={href("runs", run.run_id)}>{run.scraper}</a></h2>
          <div class="row"><RunStateBadge state={run.state} /><Menu label={`Actions for ${run.scraper}`} entries={runEntries(run, refusal, present)} /></div>
        </div>
        <p class="small muted clip"><span class="mono">{run.run_id}</span> · <Since at={run.created_at} /></p>
        <StateBar counts={run} label={`Items of ${run.scraper}`} />
        <div class="row between small">
          <span><Ratio part={run.done} whole={run.total} /> done</span>
          <span class="num">{run.total_grows && <span class="muted">more may come · </span>}<span class="strong">{format.percent(run.done_share)}</span></span>
        </div>
        <dl class="mini-stats">
          <div><dt>Left</dt><dd class="num">{format.short(run.remaining)}</dd></div>
          <div><dt>Dead</dt><dd class="num">{run.dead > 0 ? <a class="bad-text" href={href("runs", run.run_id, "failures")}><Icon name="dead" size={12} /> {format.short(run.dead)}</a> : "0"}</dd></div>
          <div><dt>Per minute</dt><dd class="num">{format.short(run.rate_per_minute)}</dd></div>
          <div><dt>Time left</dt><dd class="num nowrap" data-tip={eta.tip ?? eta.note}>{eta.text === "unknown" || eta.text === "–" ? <span class="muted small">{eta.note}</span> : eta.text}</dd></div>
        </dl>
        <dl class="trends">
          <dt>States</dt>
          <dd>{points.length > 1 ? <StateStrip points={points} label={`States of the items in the last hour: done, dead, running, open`} /> : <div class="spark-empty" />}</dd>
          <dt>Ended</dt>
          <dd>
            {ended.length > 1
              ? <Sparkline values={ended} label={`Items ended per step in the last hour, at most ${format.count(Math.max(...ended))}`} width={300} height={28} color="series-1" stretch />
              : <div class="spark-empty" />}
          </dd>
          <dd class="trend-axis muted small"><span>{period >= 60 ? "1 h" : `${period} min`} {isOver(run) ? "before" : "ago"}</span><span>{isOver(run) ? "its end" : "now"}</span></dd>
        </dl>
        <p class="run-why clip-2" data-tip={run.waiting_because || undefined}>{run.alerts[0] ? <><Icon name="warn" size={12} /> {run.alerts[0].text}</> : <Sentence text={run.waiting_because || "Nothing holds it back."} />}</p>
      </div>
    </article>
  );
}

function FirstSteps() {
  return (
    <>
      <PageHead title="Overview" />
      <div class="first-card">
      <Card>
        <div class="first-steps stack">
          <div class="stack tight">
            <h2>This ledger has no runs yet</h2>
            <p class="muted">A run appears here as soon as it begins, from this machine or from any other that uses the same ledger.</p>
          </div>
          <ol class="steps">
            <li><div class="stack tight"><p><span class="strong">See it work</span> <span class="muted">with a shop on this machine that has every fault of a real one.</span></p><CopyCommand command="shoal demo --serve" /></div></li>
            <li><div class="stack tight"><p><span class="strong">Begin a project</span> <span class="muted">with one scraper, its settings and a test.</span></p><CopyCommand command="shoal init my_project" /></div></li>
            <li><div class="stack tight"><p><span class="strong">Run your scraper</span> <span class="muted">and watch it here.</span></p><CopyCommand command="shoal run books.py" /></div></li>
          </ol>
        </div>
      </Card>
      </div>
    </>
  );
}
