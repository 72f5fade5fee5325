import { useMemo } from "preact/hooks";
import { apiPath, mayAct, me, withQuery } from "../api/client";
import { useApi } from "../api/query";
import type { Eta, History, ItemPage, Lane, LaneTimeline, Page, RunStatus } from "../api/types";
import { historyMarks, rateColumns } from "../charts/history";
import { LazyTimeSeries } from "../charts/LazyTimeSeries";
import { COUNT_STEPS } from "../charts/scale";
import { seconds } from "../charts/series";
import { longestEta } from "../charts/spans";
import { SwimLanes } from "../charts/SwimLanes";
import { go, href, hrefWith, setQuery, useLocation, useQueryValue } from "../router/router";
import type { Params } from "../routes";
import { useStore } from "../store";
import {
  ask, Badge, Button, Card, Choice, CopyCommand, Empty, ErrorNote, Facts, format, ItemStateBadge, ledgerNow, LinkButton, Num, PageHead,
  Pager, Placeholder, SearchField, Table, type Column,
} from "../ui";
import { isOver } from "./parts/runs";
import { etaText, parseDelay, paceText, policyText } from "./pace";
import "./operations.css";

const PERIODS = [["15", "15 min"], ["60", "1 h"], ["240", "4 h"], ["1440", "24 h"]] as const;
const VIEWER = "Viewers cannot change anything.";

/** Lanes of a run: who waits for whom, which lane finishes last, and their pace, changed while it runs. */
export default function Lanes({ params }: { params: Params }) {
  const run = params.run ?? "latest";
  const { query } = useLocation();
  const [minutes, setMinutes] = useQueryValue("minutes", "60");
  const [order, setOrder] = useQueryValue("order", "slowest");
  const [text, setText] = useQueryValue("text");
  const chosen = query.get("lane");
  const status = useApi<RunStatus>(apiPath("runs", run), { every: 10 });
  const growing = status.data?.growing === true;
  const over = status.data !== null && isOver(status.data);
  const timeline = useApi<LaneTimeline>(withQuery(apiPath("runs", run, "lanes", "timeline"), { minutes, lanes: 30 }), { every: 5, keep: true });
  const history = useApi<History>(withQuery(apiPath("runs", run, "history"), { minutes: Math.max(15, Number(minutes) || 60) }), { every: 10, keep: true });
  const lanes = useApi<Page<Lane>>(
    withQuery(apiPath("runs", run, "lanes"), { order, text, cursor: query.get("cursor"), limit: 25 }),
    { every: 5, keep: true },
  );
  // The chosen lane may not be among the slowest: its attempts are shown too.
  const hasChosen = chosen === null || timeline.data === null || timeline.data.lanes.some((lane) => lane.lane === chosen);
  const own = useApi<LaneTimeline>(hasChosen ? null : withQuery(apiPath("runs", run, "lanes", "timeline"), { minutes, lane: chosen }), { every: 5 });
  const shown = useMemo(
    () => (timeline.data === null || hasChosen || !own.data ? timeline.data : { ...timeline.data, lanes: [...own.data.lanes, ...timeline.data.lanes] }),
    [timeline.data, own.data, hasChosen],
  );
  const select = (lane: string | null): void => setQuery({ lane });
  // All parts appear at once, so that none moves another.
  const loading = [status, timeline, history, lanes].some((each) => each.data === null && !each.error);

  return (
    <div class="stack">
      <PageHead title="Lanes" actions={<Choice label="Period" value={minutes} options={PERIODS} onChange={setMinutes} />}>
        A lane is a limit and a pace that items share: a host, or a group that works in order.
      </PageHead>
      {timeline.error && <ErrorNote error={timeline.error} stale={timeline.data !== null} onRetry={timeline.reload} />}
      {loading ? <Placeholder height={720} label="Loading the timeline" /> : <>
      <Card>
        {shown === null ? (
          <Placeholder height={420} label="Loading the timeline" />
        ) : shown.lanes.length === 0 ? (
          <Empty title="No lane has worked in this time." icon="lanes">
            <p>Choose a longer period, or look at the lanes below.</p>
          </Empty>
        ) : (
          <Timeline timeline={shown} run={run} growing={growing} chosen={chosen} select={select} />
        )}
      </Card>
      {chosen !== null && <LanePanel key={chosen} run={run} name={chosen} growing={growing} onClose={() => select(null)} />}
      {history.data && history.data.points.length > 0 && <RateCard history={history.data} run={status.data} />}
      <Card
        flush
        title="Which lanes are slowest?"
        note="Limits and delays can be changed while the run goes on; all workers follow at once."
        actions={
          <>
            <Choice label="Order" value={order} options={[["slowest", "Slowest first"], ["name", "By name"]]} onChange={setOrder} />
            <CopyCommand inline command={lanes.data?.command || format.command("lanes", "ls", ["--run", run])} />
          </>
        }
      >
        <div class="card-filter">
          <SearchField label="Search lanes" placeholder="Search lanes: example.com" value={text} onChange={setText} />
        </div>
        {lanes.error && <ErrorNote error={lanes.error} stale={lanes.data !== null} onRetry={lanes.reload} />}
        {lanes.data === null ? (
          <Placeholder height={320} label="Loading lanes" />
        ) : (
          <>
            <Table
              label="Lanes" columns={columns(run, select)} rows={withEnds(lanes.data.rows, growing)} rowKey={(lane) => `${lane.run_id ?? ""} ${lane.lane}`} stale={lanes.stale}
              rowClass={(lane) => (lane.lane === chosen ? "selected" : "")}
              empty={
                <Empty title={text ? `No lane's name begins with “${text}”.` : over ? "Every lane has ended." : "No lane has open items."} icon="lanes">
                  {text ? <p>Search for the beginning of a host or of a group's name.</p> : <p>{over ? "The timeline above shows what ran in them." : <>Items get a lane from their host, or from the setting <code>lane</code> of their stage.</>}</p>}
                </Empty>
              }
            />
            <Pager cursor={lanes.data.cursor} shown={lanes.data.rows.length} />
          </>
        )}
      </Card>
      </>}
    </div>
  );
}

/** While new items are found as fast as others end, no end of a lane can be told. */
const withEnds = <Row extends { eta_seconds: Eta; critical: boolean }>(lanes: Row[], growing: boolean): Row[] =>
  growing ? lanes.map((lane) => ({ ...lane, eta_seconds: null, critical: false })) : lanes;

function Timeline({ timeline, run, growing, chosen, select }: { timeline: LaneTimeline; run: string; growing: boolean; chosen: string | null; select: (lane: string | null) => void }) {
  const lanes = useMemo(() => withEnds(timeline.lanes, growing), [timeline, growing]);
  const ordered = timeline.lanes.filter((lane) => lane.ordered).length;
  const parallel = timeline.lanes.length - ordered;
  const last = timeline.lanes.find((lane) => lane.critical);
  const parts = [
    ordered > 0 ? `${ordered} in order` : "",
    parallel > 0 ? `${parallel} in parallel` : "",
  ].filter(Boolean);
  const answer = last && growing
    ? `${last.lane} is the slowest. New items are found as fast as others end, so no end can be told. Shown: ${parts.join(", ")}.`
    : last
    ? `${last.lane} finishes last${etaText(last.eta_seconds) ? `, in about ${etaText(last.eta_seconds)}` : ""}. Shown: ${parts.join(", ")}.`
    : `${timeline.lanes.every((lane) => lane.waiting === 0) ? "Every lane has ended. " : ""}Shown: ${parts.join(", ")}.`;
  return (
    <SwimLanes
      title="Which lane finishes last?"
      answer={answer}
      from={seconds(timeline.from) ?? 0}
      to={seconds(timeline.to) ?? 0}
      lanes={lanes}
      selected={chosen ?? undefined}
      onOpen={(item) => go(href("runs", run, "items", item))}
      onLane={(lane) => select(lane === chosen ? null : lane)}
    />
  );
}

/** Events of a run that change no pace. */
const NO_PACE = /^(run\.(created|sealed|finished|cancelled)|items\.)/;

function RateCard({ history, run }: { history: History; run: RunStatus | null }) {
  const began = run ? Date.parse(run.created_at) / 1000 : 0;
  const until = useMemo(() => (run?.finished_at ? Date.parse(run.finished_at) : ledgerNow()) / 1000, [history, run?.finished_at]);
  const columns = useMemo(() => rateColumns(history, began, until), [history, began, until]);
  const marks = useMemo(() => historyMarks({ ...history, marks: history.marks.filter((mark) => !NO_PACE.test(mark.action)) }), [history]);
  return (
    <Card>
      <LazyTimeSeries
        title="Did a change of pace help?"
        answer="Items that ended per minute. Changes of lanes and workers, and pauses, are marked."
        at={columns.at} series={columns.series} step={history.step_seconds} began={began} until={until} format={format.short} steps={COUNT_STEPS} marks={marks} height={180}
      />
    </Card>
  );
}

function LaneState({ lane }: { lane: Lane }) {
  if (lane.paused) return <Badge tone="warn" icon="paused" tip="An operator holds it: no item of it starts.">held</Badge>;
  if (lane.blocked_seconds > 0) {
    return (
      <Badge tone="bad" icon="warn" tip={lane.blocked_why ?? undefined}>
        {`blocked ${format.duration(lane.blocked_seconds)}`}
      </Badge>
    );
  }
  if (lane.critical) return <Badge tone="warn" icon="delayed" tip="The run ends when this lane does.">finishes last</Badge>;
  if ((lane.leased ?? 0) > 0) return <Badge tone="info" icon="leased">running</Badge>;
  if (lane.unstarted > 0 && lane.next_seconds > 0) return <Badge tone="late" icon="delayed" tip={`Its delay is over in ${format.duration(lane.next_seconds)}.`}>paced</Badge>;
  if (lane.taken > 0) return <Badge tone="info" icon="leased">running</Badge>;
  if (lane.waiting > 0) return <Badge tone="warn" icon="waiting">waiting</Badge>;
  return <Badge tone="idle" icon="ready">idle</Badge>;
}

function columns(run: string, select: (lane: string) => void): Column<Lane>[] {
  return [
    {
      key: "lane",
      head: "Lane",
      cell: (lane) => (
        <button type="button" class="link-button clip" onClick={() => select(lane.lane)} title={lane.lane}>
          {lane.lane}
        </button>
      ),
    },
    { key: "state", head: "State", width: "136px", cell: (lane) => <LaneState lane={lane} /> },
    {
      key: "policy", head: "Pace", width: "23%",
      cell: (lane) => (
        <span class="num">
          <span class="nowrap">{policyText(lane.policy)}</span>
          {lane.set_by_operator && <span class="muted" data-tip="An operator set it; the scraper's own settings do not apply."> · by hand</span>}
        </span>
      ),
    },
    { key: "leased", head: "Running", end: true, width: "90px", from: 1100, cell: (lane) => <Num value={lane.leased ?? lane.taken} zero="muted" /> },
    {
      key: "waiting", head: "Waiting", end: true, width: "88px",
      cell: (lane) => (
        <a class="num" href={hrefWith(href("runs", run, "items"), { lane: lane.lane, state: "waiting" })}>
          {format.bounded(lane.waiting, lane.waiting_is_at_least)}
        </a>
      ),
    },
    { key: "ended", head: "Ended", end: true, width: "100px", from: 1100, cell: (lane) => <Num value={lane.ended} atLeast={lane.ended_is_at_least} zero="muted" /> },
    { key: "eta", head: "To the end", end: true, width: "160px", cell: (lane) => <span class="num nowrap">{etaText(lane.eta_seconds) || "–"}</span> },
  ];
}

/** One lane: what holds it, its head, and what can be changed. */
function LanePanel({ run, name, growing, onClose }: { run: string; name: string; growing: boolean; onClose: () => void }) {
  const who = useStore(me);
  const found = useApi<Page<Lane>>(withQuery(apiPath("runs", run, "lanes"), { text: name, order: "name", limit: 50 }), { every: 3 });
  const lane = withEnds(found.data?.rows ?? [], growing).find((each) => each.lane === name);
  const refused = mayAct(who) ? null : VIEWER;
  const path = (rest = ""): string => withQuery(`${apiPath("lanes", name)}${rest}`, { run: lane?.run_id ?? undefined });
  if (found.data === null) return <Card title={name}><Placeholder height={160} label="Loading the lane" /></Card>;
  if (!lane) {
    return (
      <Card title={name} actions={<Button small kind="quiet" icon="close" onClick={onClose}>Close</Button>}>
        <Empty title="This lane has no items of this run any more." icon="lanes" />
      </Card>
    );
  }
  const policy = lane.policy;
  const setPace = (): void =>
    ask({
      title: `Change the pace of ${name}`,
      explain: policy.shared ? "The lane is shared: all runs that use it follow." : "Only this run uses the lane.",
      confirm: "Change",
      fields: [
        { name: "limit", label: "Items at once", value: String(policy.limit), type: "number", min: 1, max: 1_000_000, ...(policy.ordered ? { hint: "A lane that works in order has a limit of 1." } : {}) },
        { name: "delay", label: "Pace, or seconds between two starts", value: delayValue(policy.delay_min, policy.delay_max), placeholder: "2/s, 0.5 or 1-3", hint: lane.floor > 0 ? `robots.txt asks for at least ${lane.floor} s.` : "2/s, 30/min, 0.5 or 1-3; 0 for no delay" },
      ],
      action: ({ limit = "", delay = "" }) => {
        const wanted = Number(limit);
        const pace = parseDelay(delay);
        if (!Number.isInteger(wanted) || wanted < 1 || pace === null) return null;
        const body = {
          ...(wanted === policy.limit ? {} : { limit: wanted }),
          ...(delay === delayValue(policy.delay_min, policy.delay_max) ? {} : { delay: pace }),
        };
        return Object.keys(body).length === 0 ? null : { method: "PATCH", path: path(), body };
      },
    });
  const hold = (paused: boolean): void =>
    ask({
      title: paused ? `Hold ${name}` : `Release ${name}`,
      explain: paused ? "No item of the lane starts until it is released. Running ones may end." : "Its items start again.",
      confirm: paused ? "Hold" : "Release",
      action: () => ({ method: "PATCH", path: path(), body: { paused } }),
    });
  const block = (): void =>
    ask({
      title: `Block ${name} for a while`,
      explain: "No item of the lane starts until the time is over; 0 lifts a block.",
      confirm: "Block",
      fields: [{ name: "seconds", label: "Seconds", value: "600", type: "number", min: 0, max: 86_400 }],
      action: ({ seconds: typed = "" }) => {
        const wanted = Number(typed);
        return typed !== "" && wanted >= 0 && wanted <= 86_400 ? { method: "POST", path: path("/block"), body: { seconds: wanted } } : null;
      },
    });
  return (
    <Card
      title={<span class="wrap-anywhere">{name}</span>}
      note={sentence(lane)}
      actions={
        <>
          <Button small icon="pace" disabledBecause={refused} onClick={setPace}>Change pace</Button>
          <Button small icon={lane.paused ? "run" : "paused"} disabledBecause={refused} onClick={() => hold(!lane.paused)}>{lane.paused ? "Release" : "Hold"}</Button>
          <Button small disabledBecause={refused} onClick={block}>Block</Button>
          <Button small kind="quiet" icon="close" onClick={onClose}>Close</Button>
        </>
      }
    >
      <div class="stack">
        <Facts
          facts={[
            ["State", <LaneState lane={lane} />],
            ["At once", policy.ordered ? "1, in order" : format.count(policy.limit)],
            ["Delay", paceText(policy.delay_min, policy.delay_max) || "none"],
            ["Used by", policy.shared ? "all runs" : "this run"],
            ["Running", <Num value={lane.leased ?? lane.taken} />],
            ["Waiting", <Num value={lane.waiting} atLeast={lane.waiting_is_at_least} />],
            ["Visitors", <span class="num" data-tip="Requests of other lanes' items to this host">{format.count(lane.visiting)}</span>],
            ["To the end", etaText(lane.eta_seconds) || "–"],
            ...(lane.floor > 0 ? [["Least delay", `${lane.floor} s${lane.floor_why ? ` (${lane.floor_why})` : ""}`] as const] : []),
          ]}
        />
        <LaneHead run={run} lane={lane} refused={refused} />
        <div class="row wrap">
          <LinkButton small href={hrefWith(href("runs", run, "items"), { lane: name })} icon="items">Its items</LinkButton>
          <CopyCommand command={format.command("lanes", "show", name, ["--run", lane.run_id])} />
        </div>
      </div>
    </Card>
  );
}

/** The item that the lane stands at: the one that waits for a retry, else the one that runs, else the next. */
function LaneHead({ run, lane, refused }: { run: string; lane: Lane; refused: string | null }) {
  const items = (state: string): string => withQuery(apiPath("runs", run, "items"), { lane: lane.lane, state, limit: 1 });
  const delayed = useApi<ItemPage>(items("delayed"), { every: 5 }).data?.rows[0];
  const leased = useApi<ItemPage>(items("leased"), { every: 5 }).data?.rows[0];
  const waiting = useApi<ItemPage>(items("waiting"), { every: 5 }).data?.rows[0];
  const dead = useApi<ItemPage>(items("dead"), { every: 10 }).data?.rows[0];
  const head = (lane.ordered ? delayed : undefined) ?? leased ?? delayed ?? waiting ?? dead;
  if (!head) return null;
  const item = (verb: "retry" | "cancel"): string => apiPath("runs", run, "items", head.item_id, verb);
  return (
    <div class="lane-head">
      <div class="grow">
        <p class="small muted">{head === dead ? "The last that died" : "Head of the lane"}</p>
        <p class="row wrap">
          <ItemStateBadge state={head.state} tries={head.tries} />
          <a class="clip" href={href("runs", run, "items", head.item_id)}>{head.key ?? head.url ?? `item ${head.item_id}`}</a>
        </p>
        {head.waiting_text && <p class="small muted wrap-anywhere">{head.waiting_text}</p>}
        {head.error && <p class="small muted wrap-anywhere">{head.error}</p>}
      </div>
      {(head.state === "dead" || head.state === "skipped") && (
        <Button small icon="retry" disabledBecause={refused} onClick={() => ask({ title: "Retry this item", confirm: "Retry", action: () => ({ method: "POST", path: item("retry"), body: {} }) })}>Retry</Button>
      )}
      {head.state !== "dead" && head.state !== "skipped" && (
        <Button small icon="skipped" disabledBecause={refused} onClick={() => ask({ title: "Skip this item", explain: "It ends as cancelled, and the lane goes on with the next.", confirm: "Skip", danger: true, action: () => ({ method: "POST", path: item("cancel"), body: {} }) })}>Skip</Button>
      )}
    </div>
  );
}

const delayValue = (low: number, high: number): string => (low === high ? String(low) : `${low}-${high}`);

function sentence(lane: Lane): string {
  if (lane.paused) return "An operator holds this lane: none of its items starts.";
  if (lane.blocked_seconds > 0) return `Blocked for ${format.duration(lane.blocked_seconds)} more${lane.blocked_why ? `: ${lane.blocked_why}` : ""}.`;
  if (lane.waiting === 0) return "Nothing waits in this lane.";
  const many = format.bounded(lane.waiting, lane.waiting_is_at_least);
  const end = longestEta(lane.eta_seconds);
  return `${many} items wait; it works ${policyText(lane.policy)}${end === null ? "" : `, so the last one ends in about ${format.duration(end)}`}.`;
}
