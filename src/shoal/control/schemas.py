"""The JSON of `/api/v1`: what requests may say and what answers contain, for OpenAPI and for checks.

Answers are the records of `service/records.py`; the models here describe them and add no logic. A field of an answer is
always there, and may be null where its type says so.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from shoal.model.egress import ExitState, PoolKind
from shoal.model.item import ItemState
from shoal.model.run import RunState
from shoal.model.worker import WorkerState

Row = TypeVar("Row")

MAX_IDS = 1_000
MAX_TEXT = 500
MAX_ITEM = (1 << 63) - 1
MAX_NUMBER = (1 << 31) - 1
# PostgreSQL cannot store a NUL.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]

RunId = Annotated[str, Field(description="The run's id.", examples=["20260301_060000"])]
ScraperName = Annotated[str, Field(description="The scraper's name.", examples=["shop"])]
ItemId = Annotated[int, Field(description="The item's number in its run.", examples=[4711])]
StageName = Annotated[str, Field(examples=["product"])]
PartitionName = Annotated[str, Field(description="The partition; empty: none.", examples=["CA"])]
LaneKey = Annotated[str, Field(description="The lane: a host, or the name of a group.", examples=["shop.example"])]
WorkerId = Annotated[str, Field(description="The worker's id.", examples=["node1-4021-9f2c11aa"])]
NodeName = Annotated[str, Field(description="The machine's name.", examples=["node1"])]
PoolName = Annotated[str, Field(description="The pool of exits, `[egress.NAME]`.", examples=["isp"])]
ExitKey = Annotated[str, Field(description="The exit's key.", examples=["a1b2c3d4e5f6"])]
When = Annotated[dt.datetime, Field(examples=["2026-03-01T06:00:00Z"])]
Amount = Annotated[int, Field(ge=0, examples=[12])]
Count = Annotated[int, Field(ge=0, examples=[1200])]
Share = Annotated[float, Field(ge=0, le=1, examples=[0.97])]
Seconds = Annotated[float, Field(examples=[12.5])]
Sentence = Annotated[str, Field(examples=["Limited by shop.example: 2 starts per second."])]
Url = Annotated[str, Field(description="Logins and tokens are redacted.", examples=["https://shop.example/p/4711"])]
CriticalLane = Annotated[
    str | None, Field(description="The lane that will end last; null: none or unknown.", examples=["shop.example"])
]
Eta = Annotated[
    tuple[float, float] | None,
    Field(
        description="Shortest and longest expected time to the end; null while it cannot be told.",
        examples=[[13200.0, 16200.0]],
    ),
]
Rate = Annotated[float | None, Field(description="Items ended per minute; null while unknown.", ge=0, examples=[312.0])]
Command = Annotated[
    str,
    Field(
        description="The command that does the same; empty when there is none.",
        examples=["shoal items retry 20260301_060000 --state dead"],
    ),
]


class Answer(BaseModel):
    """An answer. More fields may come with later versions."""

    model_config = ConfigDict(extra="ignore")


class Body(BaseModel):
    """The body of a request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ErrorFields(Answer):
    code: Annotated[str, Field(description="A word for programs.", examples=["not_found"])]
    message: Annotated[str, Field(examples=["There is no run '20260301_060000'."])]
    hint: Annotated[str, Field(description="What to do next.", examples=["`shoal runs ls` lists the runs."])]


class ErrorAnswer(Answer):
    """What went wrong."""

    error: ErrorFields


class PageRecord(Answer, Generic[Row]):
    """A part of a list. `cursor` gets the next part; null: there is none."""

    rows: list[Row]
    cursor: Annotated[str | None, Field(description="Pass it as `cursor` for the next page.", examples=["4711"])]
    command: Command


class CountsFields(Answer):
    total: Annotated[int, Field(description="All items.", ge=0, examples=[1275])]
    ended: Count
    remaining: Amount
    ready: Amount
    waiting: Amount
    delayed: Amount
    leased: Amount
    done: Count
    dead: Amount
    skipped: Amount
    cancelled: Amount
    records: Annotated[int, Field(description="Records stored.", ge=0, examples=[1180])]
    duplicates: Amount
    new_records: Amount
    changed_records: Amount
    unchanged_records: Amount
    dropped_records: Amount


class RunRecord(CountsFields):
    """A run with its items per state."""

    run_id: RunId
    scraper: ScraperName
    state: RunState
    sealed: Annotated[bool, Field(description="No more input will come; handlers may still add items.")]
    created_at: When
    finished_at: When | None


class BudgetRecord(Answer):
    """Calls of one kind. `left` includes what workers have taken ahead; `free` does not."""

    resource: Annotated[str, Field(examples=["search"])]
    capacity: Annotated[int, Field(examples=[5000])]
    left: Annotated[int, Field(examples=[1250])]
    free: Annotated[int, Field(examples=[1200])]
    reset_seconds: Annotated[float | None, Field(description="Until it is full again.", examples=[900.0])]
    from_site: bool
    resting: Annotated[bool, Field(description="The site asked for a pause.")]
    per_minute: Annotated[float | None, Field(description="Calls per minute of late.", examples=[55.0])]
    empty_in_seconds: Annotated[
        float | None,
        Field(description="When it runs out at this pace; null: it is full again before.", examples=[820.0]),
    ]


class PoolCounts(Answer):
    """A pool of exits: proxies, tokens or Tor circuits."""

    pool: PoolName
    kind: PoolKind
    exits: Amount
    good: Amount
    banned: Amount
    resting: Amount
    trial: Amount
    members: Annotated[int, Field(description="Workers that use it.", ge=0, examples=[4])]
    first_back: Annotated[float | None, Field(description="Seconds until the first exit comes back.", examples=[30.0])]
    budgets: list[BudgetRecord]


class PoolRecord(PoolCounts):
    text: Annotated[str, Field(description="How it stands, in one line.", examples=["isp: 38 of 40 proxies good"])]


class AlertConditionRecord(Answer):
    """A condition that holds now."""

    kind: Annotated[str, Field(examples=["stall"])]
    episode: Annotated[str, Field(description="Tells repeated occurrences apart.", examples=["1"])]
    text: Sentence


class SinkRecord(Answer):
    """A sink of the run's scraper; what it is behind is counted for this run."""

    sink: Annotated[str, Field(examples=["warehouse"])]
    kind: Annotated[str, Field(examples=["postgres"])]
    place: Annotated[str, Field(examples=["postgresql://warehouse.example/items"])]
    state: Annotated[str, Field(examples=["up to date"])]
    delivered: Count
    behind: Amount
    behind_is_at_least: bool
    lag_seconds: Seconds
    dead_letters: Amount
    delivered_at: When | None
    failing_since: When | None
    error: Annotated[str | None, Field(examples=["connection refused"])]


class RunStatusRecord(RunRecord):
    """How a run stands."""

    done_share: Annotated[float, Field(description="Done, of the items that are not skipped.", examples=[0.4])]
    ended_share: Annotated[float, Field(description="Ended, of all items.", examples=[0.41])]
    rate_per_minute: Rate
    ok: Annotated[float | None, Field(description="Done among done and dead.", examples=[0.97])]
    eta_seconds: Eta
    total_grows: Annotated[bool, Field(description="Items are still being found: shares of the total mean little.")]
    growing: Annotated[bool, Field(description="They are found as fast as items end: no ETA.")]
    waiting_for: Annotated[str, Field(description="The bottleneck in a few words.", examples=["host limit 61%"])]
    waiting_because: Sentence
    critical_lane: CriticalLane
    egress: list[PoolCounts]
    alerts: list[AlertConditionRecord]
    sinks: list[SinkRecord]


class ReasonRecord(Answer):
    """Why something waits."""

    code: Annotated[str, Field(description="A word for programs.", examples=["lane_limit"])]
    text: Sentence
    since: When | None
    until: When | None
    items: Annotated[int | None, Field(examples=[731])]
    pool: Annotated[str | None, Field(examples=["isp"])]


class PartitionRecord(CountsFields):
    """How far a partition of a stage is."""

    stage: StageName
    partition: PartitionName
    rate_per_minute: Rate
    eta_seconds: Annotated[float | None, Field(description="At this rate; null: cannot be told.", examples=[840.0])]


class WorkerProgressRecord(Answer):
    """What a worker did for the run in the last 10 minutes."""

    worker: WorkerId
    leased: Amount
    done: Count
    dead: Amount
    skipped: Amount
    state: Annotated[str, Field(description="live, draining, dead, or gone.", examples=["live"])]


class RunWorkers(Answer):
    live: Amount
    draining: Amount
    lost: Annotated[int, Field(description="Their heartbeat is older than their lease.", ge=0, examples=[0])]
    running: Annotated[int, Field(description="Attempts that run now.", ge=0, examples=[16])]
    idle: Annotated[int, Field(description="Workers that run nothing, of any run.", ge=0, examples=[2])]


class EventRecord(Answer):
    """An audit event: who did what."""

    event_id: Annotated[int, Field(examples=[381])]
    at: When
    run_id: Annotated[str | None, Field(examples=["20260301_060000"])]
    actor: Annotated[str, Field(description="NAME@ADDRESS of who did it.", examples=["ops@192.0.2.7"])]
    action: Annotated[str, Field(examples=["run.paused"])]
    subject: Annotated[str, Field(examples=["20260301_060000"])]
    detail: dict[str, Any]


class RunDetailRecord(RunStatusRecord):
    """Everything about how one run stands, and what it was made from."""

    stages: Annotated[list[str], Field(examples=[["listing", "product"]])]
    stage_counts: Annotated[dict[str, CountsFields], Field(description="Items per state, by stage.")]
    max_attempts: Annotated[int, Field(examples=[4])]
    max_rescues: Annotated[int, Field(examples=[3])]
    code_version: Annotated[str | None, Field(examples=["7d1f02"])]
    settings: Annotated[dict[str, Any], Field(description="Of the time when the run was made; without secrets.")]
    events: Annotated[list[EventRecord], Field(description="The newest; 20 at most.")]
    why: list[ReasonRecord]
    workers: Annotated[RunWorkers, Field(description="Those that take items of this run.")]
    worker_progress: Annotated[
        list[WorkerProgressRecord], Field(description="Of the last 10 minutes, most done first; 50 at most.")
    ]
    versions: Annotated[dict[str, int], Field(description="Live workers per version of Shoal.")]
    code_versions: Annotated[dict[str, int], Field(description="Live workers per version of the scraper's code.")]


class BottleneckRecord(Answer):
    cause: Annotated[str, Field(examples=["host limit"])]
    share: Annotated[float | None, Field(description="Of the open items.", examples=[0.61])]
    text: Sentence


class WhyRecord(Answer):
    """What a run waits for, in one sentence and in detail."""

    run_id: RunId
    text: Sentence
    since: When | None
    until: When | None
    reasons: list[ReasonRecord]
    eta_seconds: Eta
    growing: bool
    critical_lane: CriticalLane
    critical_seconds: Annotated[
        tuple[float, float] | None, Field(description="How long that lane takes.", examples=[[13200.0, 16200.0]])
    ]
    bottleneck: BottleneckRecord


class StatesOverTime(Answer):
    ready: int | None
    waiting: int | None
    delayed: int | None
    leased: int | None
    done: int | None
    dead: int | None
    skipped: int | None
    cancelled: int | None


class EndedAttempts(Answer):
    done: Amount
    dead: Amount
    skipped: Amount
    retried: Amount
    throttled: Amount


class LatencyRecord(Answer):
    """Durations in seconds; quantiles are null when there were none."""

    count: Amount
    p50: Annotated[float | None, Field(examples=[0.12])]
    p95: Annotated[float | None, Field(examples=[0.8])]
    p99: Annotated[float | None, Field(examples=[2.5])]


class HistoryPointRecord(StatesOverTime):
    """One step. Items per state and `waiting_for` are of the last sample in it, and null without one."""

    at: When
    ended: Annotated[EndedAttempts, Field(description="Attempts that ended in this step.")]
    records: Amount
    wait: Annotated[LatencyRecord, Field(description="From the time an item could be claimed until its attempt began.")]
    work: Annotated[LatencyRecord, Field(description="From there until it ended.")]
    waiting_for: Annotated[
        dict[str, int] | None, Field(description="Open items by what they wait for.", examples=[{"host limit": 731}])
    ]


class MarkRecord(Answer):
    """Something that was done to the run."""

    at: When
    actor: Annotated[str, Field(examples=["ops@192.0.2.7"])]
    action: Annotated[str, Field(examples=["lane.set"])]
    text: Annotated[str, Field(examples=["lane shop.example: limit 4"])]


class HistoryRecord(Answer):
    """A run over time: 240 points at most, the oldest first, and what was done to it."""

    run_id: RunId
    step_seconds: Annotated[int, Field(examples=[60])]
    points: list[HistoryPointRecord]
    marks: list[MarkRecord]


class LanePolicyRecord(Answer):
    limit: Annotated[int, Field(description="Items that run at once.", examples=[2])]
    delay_min: Annotated[float, Field(description="Seconds between two starts, from ...", examples=[0.5])]
    delay_max: Annotated[float, Field(description="... to.", examples=[0.5])]
    ordered: Annotated[bool, Field(description="A sequential group: one at a time, in order.")]
    shared: Annotated[bool, Field(description="Used by all runs.")]
    loopback_limit: int | None


class LaneRecord(Answer):
    """A lane: a limit and a delay that items share."""

    lane: LaneKey
    run_id: Annotated[str | None, Field(description="Null: shared by all runs.", examples=["20260301_060000"])]
    policy: LanePolicyRecord
    paused: bool
    blocked_seconds: Annotated[float, Field(description="A site asked to wait; 0: not blocked.", examples=[0.0])]
    blocked_why: Annotated[str | None, Field(examples=["429 Too Many Requests"])]
    next_seconds: Annotated[float, Field(description="Until the next start is allowed.", examples=[0.2])]
    taken: Amount
    unstarted: Amount
    waiting: Amount
    set_by_operator: bool
    floor: Annotated[float, Field(description="The minimum delay that robots.txt asks for.", examples=[0.0])]
    floor_why: str | None
    visiting: Amount


class LaneStatusRecord(LaneRecord):
    """A lane with the items that wait, run and have ended in it: of one run, or of all."""

    ordered: bool
    waiting_is_at_least: bool
    leased: Amount
    ended: Annotated[Count | None, Field(description="Of one run; null: of all runs, which is not counted.")]
    ended_is_at_least: bool
    eta_seconds: Annotated[
        tuple[float, float] | None,
        Field(description="Until its waiting items have ended, at least and at most.", examples=[[310.0, 365.0]]),
    ]
    critical: Annotated[bool, Field(description="It will end last.")]


class SpanRecord(Answer):
    """An attempt in a lane. `end` and `outcome` are null while it runs."""

    item_id: ItemId
    key: Annotated[str, Field(description="The item's key or URL.", examples=["https://shop.example/p/4711"])]
    begin: When
    end: When | None
    outcome: Annotated[str | None, Field(examples=["done"])]


class TimelineLane(LaneStatusRecord):
    limit: Annotated[int, Field(examples=[1])]
    spans: Annotated[list[SpanRecord], Field(description="In the order of their beginning; 100 at most.")]


class LaneTimelineRecord(Answer):
    """What ran in the lanes of a run between two times."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    from_: Annotated[dt.datetime, Field(alias="from", examples=["2026-03-01T06:00:00Z"])]
    to: When
    lanes: Annotated[list[TimelineLane], Field(description="30 at most, the slowest first.")]


class ItemRecord(Answer):
    """An item of a run."""

    run_id: RunId
    item_id: ItemId
    stage: StageName
    partition: PartitionName
    key: Annotated[str | None, Field(examples=["https://shop.example/p/4711"])]
    url: Annotated[str | None, Field(examples=["https://shop.example/p/4711"])]
    payload: dict[str, Any] | None
    request: dict[str, Any] | None
    depth: Annotated[int, Field(examples=[2])]
    lane: Annotated[str | None, Field(examples=["shop.example"])]
    priority: Annotated[int, Field(examples=[0])]
    max_attempts: Annotated[int, Field(examples=[4])]
    state: ItemState
    since: When
    due_at: When | None
    worker: Annotated[str | None, Field(examples=["node1-4021-9f2c11aa"])]
    tries: Annotated[int, Field(examples=[1])]
    rescues: Annotated[int, Field(examples=[0])]
    epoch: Annotated[int, Field(examples=[1])]
    outcome: Annotated[str | None, Field(examples=["transient"])]
    error: Annotated[str | None, Field(examples=["500 Internal Server Error"])]
    parent: Annotated[int | None, Field(examples=[12])]


class ListedItem(ItemRecord):
    """An item of a list, with what it waits for in one sentence; empty when it has ended."""

    waiting_text: Annotated[str, Field(examples=["It waits for its lane shop.example."])]


class ItemPage(PageRecord[ListedItem]):
    """Items in the order they were enqueued. A page may be short, even empty, while more follow."""

    count: Annotated[int | None, Field(description="Items that match, as far as they were counted.", examples=[37])]
    count_is_at_least: bool


class AttemptRecord(Answer):
    epoch: Annotated[int, Field(examples=[1])]
    worker: Annotated[str | None, Field(examples=["node1-4021-9f2c11aa"])]
    claimed_at: When
    ended_at: When
    seconds: Seconds
    outcome: Annotated[str, Field(examples=["transient"])]
    error: Annotated[str | None, Field(examples=["500 Internal Server Error"])]
    egress: Annotated[str | None, Field(description="The exit it went out through.", examples=["isp 192.0.2.9:3128"])]
    detail: dict[str, Any] | None


class ResultRecord(Answer):
    """A stored record, unchanged: it is what a site said, never trusted text."""

    item_id: ItemId
    n: Annotated[int, Field(description="Its position among the records of its item.", examples=[0])]
    stage: StageName
    key: Annotated[str | None, Field(examples=["https://shop.example/p/4711"])]
    url: Annotated[str | None, Field(examples=["https://shop.example/p/4711"])]
    record: Annotated[dict[str, Any], Field(examples=[{"title": "A lamp", "price": 12.5}])]
    record_key: Annotated[Any, Field(description="The record's own key, if its stage has one.", examples=["4711"])]
    change: Annotated[str | None, Field(description="new, changed or unchanged.", examples=["new"])]


class ChildRecord(Answer):
    """An item that another one enqueued."""

    item_id: ItemId
    stage: StageName
    name: Annotated[str, Field(description="Its key or URL.", examples=["https://shop.example/p/4712"])]
    state: ItemState


class ItemDetailRecord(ItemRecord):
    """One item with its attempts, why it does not run, and its first records."""

    waiting_text: Annotated[str, Field(examples=["It waits for its lane shop.example."])]
    attempts: list[AttemptRecord]
    why: list[ReasonRecord]
    results: Annotated[list[ResultRecord], Field(description="20 at most.")]
    children: Annotated[list[ChildRecord], Field(description="Items that it enqueued; 20 at most.")]
    children_is_at_least: Annotated[bool, Field(description="There are more.")]


class FailureRecord(Answer):
    """Dead items that failed alike. `error`, `item_id` and `last` are those of the one that died last."""

    failure_id: Annotated[int, Field(examples=[3])]
    stage: StageName
    outcome: Annotated[str, Field(examples=["permanent"])]
    host: Annotated[str, Field(description="Empty for items without a URL.", examples=["shop.example"])]
    message: Annotated[str, Field(description="With varying parts replaced.", examples=["404 Not Found"])]
    items: Amount
    items_is_at_least: bool
    first_at: When
    last_at: When
    error: Annotated[str, Field(examples=["404 Not Found"])]
    item_id: ItemId
    last: Annotated[str, Field(description="Its URL or key.", examples=["https://shop.example/p/4711"])]
    muted: bool
    muted_by: Annotated[str | None, Field(examples=["ops@192.0.2.7"])]
    muted_at: When | None
    trend: Annotated[
        list[int], Field(description="Deaths in each of the last 60 minutes, the current one last.", examples=[[0, 2]])
    ]


class FailurePageRecord(PageRecord[FailureRecord]):
    """Groups of failures. Items that died just now may not be in a group yet."""

    ungrouped: Amount
    ungrouped_is_at_least: bool


class ReportedItem(Answer):
    """An item that a worker runs, as of its last heartbeat."""

    run_id: RunId
    item_id: ItemId
    name: Annotated[str, Field(description="Its key or URL.", examples=["https://shop.example/p/4711"])]
    seconds: Seconds


class ScopeRecord(Answer):
    """The items that a worker takes; empty lists mean all."""

    scraper: Annotated[str | None, Field(examples=["shop"])]
    run_ids: list[str]
    stages: list[str]
    partitions: list[str]
    steal: bool


class WorkerRecord(Answer):
    """A worker, with what it runs."""

    worker: WorkerId
    node: NodeName
    pid: Annotated[int, Field(examples=[4021])]
    version: Annotated[str, Field(examples=["1.0"])]
    code_version: Annotated[str | None, Field(examples=["7d1f02"])]
    state: WorkerState
    alive: Annotated[bool, Field(description="Present, and its heartbeat is not older than its lease.")]
    started_at: When
    silent_seconds: Seconds
    lease_seconds: Seconds
    leased: Amount
    running: Annotated[int, Field(description="Running attempts, as of its last heartbeat.", examples=[8])]
    unstored: Annotated[int, Field(description="Finished attempts that wait for their commit.", examples=[0])]
    scope: ScopeRecord
    report_seconds: Annotated[float | None, Field(description="The age of its report.", examples=[1.2])]
    problem: Annotated[str | None, Field(description="Why it counts as dead.")]
    items: Annotated[list[ReportedItem], Field(description="The longest running ones; 5 at most.")]
    trouble: Annotated[str | None, Field(description="What stops it, in one sentence.")]
    rate_per_minute: Rate


class NodeRecord(Answer):
    """A machine with workers."""

    node: NodeName
    workers: Amount
    live: Amount
    draining: Amount
    leased: Amount
    versions: Annotated[list[str], Field(examples=[["1.0"]])]
    started_at: Annotated[dt.datetime, Field(description="Of its oldest worker.", examples=["2026-03-01T06:00:00Z"])]


class NodeList(Answer):
    rows: list[NodeRecord]


class HostHealthRecord(Answer):
    """An exit at one host."""

    host: Annotated[str, Field(examples=["shop.example"])]
    succeeded: Count
    blocked: Amount
    blocks_in_row: Amount
    blocked_seconds: Annotated[float, Field(description="Kept from this host for so long.", examples=[0.0])]
    error: Annotated[str, Field(examples=[""])]


class EgressExitRecord(Answer):
    """A proxy, a token or a Tor circuit. `hosts` and `budgets` are of a single exit."""

    pool: PoolName
    exit: ExitKey
    kind: PoolKind
    label: Annotated[str, Field(description="Without secrets.", examples=["http://192.0.2.9:3128"])]
    state: ExitState
    why: Annotated[str, Field(examples=[""])]
    by: Annotated[str, Field(description="The operator who set its state.", examples=[""])]
    succeeded: Count
    failed: Amount
    failures_in_row: Amount
    error: Annotated[str, Field(examples=[""])]
    used_seconds: Annotated[float | None, Field(description="Since its last report.", examples=[3.5])]
    listed: bool
    hosts: list[HostHealthRecord]
    budgets: list[BudgetRecord]
    seconds_left: Annotated[float | None, Field(description="Until its state changes; null: until it is freed.")]


class PoolList(Answer):
    rows: list[PoolRecord]


class MatrixCell(Answer):
    host: Annotated[str, Field(examples=["shop.example"])]
    state: Annotated[Literal["good", "blocked"], Field(examples=["good"])]
    blocks: Amount
    succeeded: Count
    until: Annotated[float | None, Field(description="Seconds for which it is still blocked there.", examples=[120.0])]


class MatrixExit(Answer):
    exit: ExitKey
    label: Annotated[str, Field(examples=["http://192.0.2.9:3128"])]
    state: ExitState
    cells: list[MatrixCell]


class EgressMatrixRecord(Answer):
    """Exits and hosts: where an exit is blocked. 50 exits and 30 hosts at most, the most blocked first."""

    pool: PoolName
    hosts: list[str]
    exits: list[MatrixExit]
    complete: bool


class FieldCoverageRecord(Answer):
    """How often a field is filled, now and in the run before."""

    field: Annotated[str, Field(examples=["price"])]
    present: Count
    filled: Count
    filled_share: Share
    types: Annotated[list[str], Field(examples=[["float", "null"]])]
    example: Annotated[str, Field(examples=["12.5"])]
    records: Count
    before_share: Annotated[float | None, Field(description="Filled share in the run before.", examples=[0.99])]
    drift: Annotated[float | None, Field(description="Filled share now minus that of the run before.")]


class CoverageRecord(Answer):
    """Which fields the records have. `sampled`: a part of the records was read, spread evenly over the run."""

    run_id: RunId
    before_run_id: Annotated[str | None, Field(description="The run of the same scraper before this one.")]
    records: Count
    of: Count
    sampled: bool
    complete: bool
    fields: list[FieldCoverageRecord]


class RunFiguresRecord(RunRecord):
    minutes: Annotated[float, Field(examples=[42.0])]
    rate_per_minute: Rate
    ok_percent: Annotated[float | None, Field(examples=[97.1])]
    deaths: Annotated[dict[str, int], Field(description="Dead items per kind.", examples=[{"permanent, N": 3}])]
    deaths_complete: bool


class ComparisonRecord(Answer):
    """Two runs side by side: the earlier one first."""

    runs: tuple[RunFiguresRecord, RunFiguresRecord]


class WorkersSummary(Answer):
    live: Amount
    draining: Amount
    lost: Annotated[int, Field(description="Present in the ledger, but without a heartbeat.", ge=0, examples=[0])]
    nodes: Amount


class AlertRecord(Answer):
    """An alert that was raised."""

    at: When
    kind: Annotated[str, Field(examples=["failure"])]
    run_id: RunId
    scraper: ScraperName
    title: Annotated[str, Field(examples=["shop: the run failed"])]
    body: Annotated[str, Field(examples=["12% of its items died."])]
    delivery: Annotated[
        str,
        Field(description="delivered, undelivered, being sent, interrupted or not sent.", examples=["delivered"]),
    ]


class LedgerStatus(Answer):
    ok: bool
    text: Sentence
    size_bytes: Annotated[int | None, Field(examples=[52428800])]
    latency_seconds: Annotated[float | None, Field(examples=[0.002])]


class OverviewRecord(Answer):
    """What an operator looks at first."""

    at: When
    runs: Annotated[list[RunStatusRecord], Field(description="Active and paused ones first; 20 at most.")]
    workers: WorkersSummary
    egress: list[PoolRecord]
    alerts: Annotated[list[AlertRecord], Field(description="The newest; 5 at most.")]
    ledger: LedgerStatus
    empty: Annotated[bool, Field(description="The ledger has no runs yet.")]


class AlertList(Answer):
    rows: list[AlertRecord]


class MemberRecord(Answer):
    """A scraper of a collection in its last run."""

    member: Annotated[str, Field(examples=["fiji/fijitimes"])]
    group: Annotated[str | None, Field(description="Members of a group run one after another.", examples=["times"])]
    status: Annotated[str, Field(description="success, warning, failed or not run.", examples=["success"])]
    reason: Annotated[str, Field(examples=[""])]
    run_id: Annotated[str | None, Field(examples=["20260301_060001"])]
    done: Count
    dead: Amount
    skipped: Amount
    records: Count
    seconds: Annotated[float | None, Field(examples=[31.0])]
    log: Annotated[str | None, Field(examples=["logs/fiji.fijitimes.log"])]


class GroupRecord(Answer):
    group: Annotated[str, Field(examples=["times"])]
    status: Annotated[str, Field(examples=["success"])]
    exit_code: int
    total: Amount
    success: Amount
    warnings: Amount
    failed: Amount
    not_run: Amount
    success_rate: Annotated[float | None, Field(examples=[1.0])]
    seconds: Seconds


class CollectionRecord(Answer):
    """A folder of scrapers that runs as one: its last run. Its items are the members."""

    collection: Annotated[str, Field(examples=["newspapers"])]
    run: RunRecord
    command: Command


class CollectionDetailRecord(CollectionRecord):
    """A collection with the groups and members of its last run."""

    success: Amount
    warnings: Amount
    failed: Amount
    not_run: Amount
    success_rate: Annotated[float | None, Field(examples=[1.0])]
    groups: list[GroupRecord]
    members: Annotated[list[MemberRecord], Field(description="In the order they were planned; 500 at most.")]
    members_complete: bool


class CollectionList(Answer):
    rows: list[CollectionRecord]


class SlotRecord(Answer):
    """One start time of a schedule."""

    slot: Annotated[str, Field(examples=["2026-03-01T06:00:00Z"])]
    at: When
    manual: Annotated[bool, Field(description="Asked for by an operator.")]
    state: Annotated[str, Field(description="done, failed, skipped, interrupted, going or left.", examples=["done"])]
    run_id: Annotated[str | None, Field(examples=["20260301_060000"])]
    node: Annotated[str | None, Field(examples=["node1"])]
    why: Annotated[str | None, Field(examples=["the slot before was unfinished"])]
    finished_at: When | None


class ScheduleRecord(Answer):
    """When a scraper starts, when it will, and how its last slots ended."""

    schedule: ScraperName
    cron: Annotated[str | None, Field(examples=["0 6 * * *"])]
    every: Annotated[float | None, Field(description="Seconds between two starts.")]
    timezone: Annotated[str, Field(examples=["UTC"])]
    overlap: Annotated[str, Field(examples=["skip"])]
    missed: Annotated[str, Field(examples=["once"])]
    action: Annotated[str, Field(examples=["run"])]
    seen: Annotated[bool, Field(description="A node runs it or has run it.")]
    next: list[When]
    slots: Annotated[list[SlotRecord], Field(description="The newest first; 10 at most.")]
    command: Command


class ScheduleList(Answer):
    rows: list[ScheduleRecord]


class StoredSettingsRecord(Answer):
    """Settings that are stored in the ledger for a scope."""

    scope: Annotated[str, Field(examples=["pool:shop"])]
    version: Annotated[int, Field(examples=[3])]
    at: When | None
    by: Annotated[str, Field(examples=["ops@192.0.2.7"])]
    value: Annotated[dict[str, Any], Field(description="Without secrets.", examples=[{"workers": 4}])]


class EffectiveSetting(Answer):
    """A setting of this server."""

    name: Annotated[str, Field(examples=["concurrency"])]
    value: Annotated[Any, Field(description="Without secrets.", examples=[16])]
    origin: Annotated[str, Field(description="Where the value came from.", examples=["shoal.toml"])]


class SettingsRecord(Answer):
    stored: Annotated[list[StoredSettingsRecord], Field(description="By scope; 200 at most.")]
    effective: list[EffectiveSetting]


# Writes


class PreviewAnswer(Answer):
    """What the same call without `preview` would do."""

    preview: Literal[True]
    items: Annotated[int | None, Field(description="How many it would touch; null: not countable.", examples=[37])]
    items_is_at_least: bool
    text: Annotated[str, Field(examples=["To be retried: 37 items of run 20260301_060000."])]
    command: Command


class ActionAnswer(Answer):
    """What was done."""

    text: Annotated[str, Field(examples=["Retried: 37 items of run 20260301_060000."])]
    items: Annotated[int | None, Field(description="How many it touched; null: not countable.", examples=[37])]
    command: Command
    complete: Annotated[
        bool, Field(description="False: it goes on in the background, `items` is how far it has come (status 202).")
    ]


class RunActionAnswer(ActionAnswer):
    run_id: RunId
    state: RunState


class LaneAnswer(ActionAnswer):
    lane: LaneRecord


class DrainAnswer(ActionAnswer):
    workers: Annotated[list[str], Field(description="The workers that drain.")]


class ScaleAnswer(ActionAnswer):
    scraper: ScraperName
    workers: Annotated[int | None, Field(description="Null: pools choose by themselves.", examples=[4])]
    present: Amount


class ExitAnswer(ActionAnswer):
    exit: EgressExitRecord


class ExitTestAnswer(ActionAnswer):
    pool: PoolName
    exit: ExitKey
    label: Annotated[str, Field(examples=["http://192.0.2.9:3128"])]
    ok: bool
    seconds: Seconds


class ReplayAnswer(ActionAnswer):
    """Items whose handler ran again."""

    run_id: RunId
    replayed: Amount
    failed: Amount
    skipped: Amount
    records: Amount
    dropped_records: Amount
    enqueued: Amount
    failures: list[dict[str, Any]]


class SettingsAnswer(ActionAnswer):
    scope: Annotated[str, Field(examples=["scraper:shop"])]
    version: Annotated[int, Field(examples=[3])]


class AddressTestRecord(Answer):
    address: Annotated[str, Field(description="Without secrets.", examples=["mailto://***@mail.example"])]
    reason: Annotated[str | None, Field(description="Null: it accepted the message.")]


class AlertTestAnswer(ActionAnswer):
    addresses: list[AddressTestRecord]


class MuteAnswer(ActionAnswer):
    failure: FailureRecord


class ItemFilterBody(Body):
    """Which items; all conditions together. Without any: those that the action applies to."""

    ids: Annotated[
        list[Annotated[int, Field(ge=1, le=MAX_ITEM)]], Field(max_length=MAX_IDS, description="These items.")
    ] = []
    states: Annotated[list[ItemState], Field(max_length=8)] = []
    stage: Annotated[Text | None, Field(max_length=100, examples=["product"])] = None
    partition: Annotated[Text | None, Field(max_length=255, examples=["CA"])] = None
    outcome: Annotated[Text | None, Field(max_length=100, examples=["permanent"])] = None
    lane: Annotated[Text | None, Field(max_length=255, examples=["shop.example"])] = None
    error: Annotated[
        Text | None, Field(max_length=MAX_TEXT, description="Part of the last error.", examples=["404"])
    ] = None
    failure: Annotated[int | None, Field(ge=1, le=MAX_NUMBER, description="A group of failures.", examples=[3])] = None
    text: Annotated[Text | None, Field(max_length=MAX_TEXT, description="Part of the key or URL.")] = None


class ItemsBody(Body):
    """Which items of the run to change, and at most how many."""

    filter: ItemFilterBody = ItemFilterBody()
    limit: Annotated[
        int | None, Field(ge=1, le=MAX_ITEM, description="At most so many: try a few first.", examples=[20])
    ] = None


class LimitBody(Body):
    limit: Annotated[
        int | None, Field(ge=1, le=MAX_ITEM, description="At most so many: try a few first.", examples=[20])
    ] = None


class ReplayBody(Body):
    """How to replay an item."""

    egress: Annotated[
        Text | None,
        Field(
            min_length=1,
            max_length=200,
            description="Fetch the page anew, through this pool or `direct`. Without it the stored page is used and no "
            "site is visited.",
            examples=["isp"],
        ),
    ] = None
    follow_ups: Annotated[bool, Field(description="Enqueue items that the handler yields and that are new.")] = True


class LaneBody(Body):
    """What to change of a lane; what is left out stays."""

    limit: Annotated[int | None, Field(ge=1, le=1_000_000, description="Items at once.", examples=[4])] = None
    delay: Annotated[
        str
        | Annotated[
            list[Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]], Field(min_length=2, max_length=2)
        ]
        | None,
        Field(description="A pace such as `2/s`, or seconds between two starts, from and to.", examples=["2/s"]),
    ] = None
    paused: bool | None = None


class BlockBody(Body):
    seconds: Annotated[
        float, Field(ge=0, le=86_400, allow_inf_nan=False, description="So long; 0 lifts a block.", examples=[600])
    ]
    why: Annotated[Text, Field(max_length=MAX_TEXT, examples=["the site is being maintained"])] = (
        "blocked by an operator"
    )


class ScaleBody(Body):
    workers: Annotated[
        int | None,
        Field(ge=1, le=1_000, description="Of each pool of the scraper; null: it chooses by itself.", examples=[4]),
    ]


class RestBody(Body):
    seconds: Annotated[
        float | None,
        Field(
            gt=0, le=366 * 86_400, allow_inf_nan=False, description="So long; null: until it is freed.", examples=[1800]
        ),
    ] = None


class BanBody(RestBody):
    why: Annotated[Text, Field(min_length=1, max_length=MAX_TEXT, examples=["it serves old pages"])] = (
        "banned by an operator"
    )


class ExitTestBody(Body):
    url: Annotated[
        Text | None,
        Field(max_length=2_000, description="Fetch this page through it; else only the proxy is asked."),
    ] = None


class RetryOptionsBody(Body):
    """How often an item is tried again, and when. What is left out, or null, is as configured."""

    retries: Annotated[int | None, Field(ge=0, le=999, description="Tries after the first.", examples=[5])] = None
    backoff_factor: Annotated[float | None, Field(ge=1, le=10, examples=[2.0])] = None
    backoff_cap: Annotated[
        float | None, Field(ge=0.01, le=86_400, description="A delay has so many seconds at most.", examples=[300.0])
    ] = None
    backoff_jitter: Annotated[
        float | None, Field(ge=0, le=1, description="Share of a delay that is random.", examples=[0.2])
    ] = None


class SettingsBody(Body):
    """A new version of the retry options of a scraper."""

    value: RetryOptionsBody
    version: Annotated[
        int | None,
        Field(ge=0, le=MAX_ITEM, description="Refuse (409) unless this is the newest version; 0: there is none yet."),
    ] = None
