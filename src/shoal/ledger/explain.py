"""Why something is not running: the reasons why an item or a run waits, in the order in which they apply.

`why`, `status`, `watch`, the progress line and alerts all use these reasons. They compare heartbeats with leases on the
ledger's clock, so a killed worker does not count, whatever the state in its row.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.model.item import FINAL_STATES, ItemState
from shoal.model.lane import LaneView
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, Run, RunState
from shoal.model.views import AuditEvent, ItemView, PartitionProgress, WaitReason, sum_counts
from shoal.model.worker import WorkerState, WorkerView

RANK_LIMIT = 10_000
_ANY_TIME = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# How much a worker's clock and the ledger's may differ during one attempt.
SLACK_SECONDS = 1.0
# A full lane wants workers when one in so many of its places is taken by an item without one.
_FEW_PLACES = 3
_SITE_ANSWER = re.compile(r"\d{3}\b|.* answered \d{3}\b|Retry-After\b")
_RETURNED_BY = "when any worker of this ledger or `shoal release` runs"


class DelayedGroup(msgspec.Struct, frozen=True):
    reason: str
    items: int
    first_due: dt.datetime


class LeaseHolder(msgspec.Struct, frozen=True):
    """A worker, how many items of the run it has leased, and how many of them since its last report (`fresh`)."""

    worker: str
    leased: int
    fresh: int


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the autoscaler; `before` equals `after` when it kept the size. `most`: the allowed maximum."""

    subject: str
    at: dt.datetime
    seconds_ago: float
    before: int
    after: int
    most: int
    what: str
    why: str


class ItemContext(msgspec.Struct, frozen=True, kw_only=True):
    """`now` is the ledger's time. `full`: a sentence that the ledger has no space left, or None.

    `pause`: the event of a run that is paused. `ahead`: how many items are before it; None when nobody counted them.
    """

    run: Run
    run_changed_at: dt.datetime
    pause: AuditEvent | None
    now: dt.datetime
    full: str | None
    item: ItemView
    delay_reason: str | None
    lane: LaneView | None
    ahead: int | None
    workers: Sequence[WorkerView]


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """`now` is the ledger's time. `full`: a sentence that the ledger has no space left, or None.

    `pause`: the event of a run that is paused. `places`: who has a place, if the number of its workers is limited.
    """

    run: Run
    run_changed_at: dt.datetime
    pause: AuditEvent | None
    now: dt.datetime
    full: str | None
    partitions: Sequence[PartitionProgress]
    lanes: Sequence[LaneView]
    delayed: Sequence[DelayedGroup]
    holders: Sequence[LeaseHolder]
    workers: Sequence[WorkerView]
    scalings: Sequence[Scaling]
    places: Sequence[str] = ()


def heartbeat_problem(worker: WorkerView) -> str | None:
    """What is wrong with the heartbeat of a registered worker; None when it is fresh."""
    if worker.alive or worker.state not in (WorkerState.LIVE, WorkerState.DRAINING):
        return None
    text = f"no heartbeat for {_seconds(worker.silent_seconds)} (its lease is {worker.lease_seconds:g} s)"
    if not worker.leased:
        return text
    items = "its item returns" if worker.leased == 1 else f"its {worker.leased} items return"
    return f"{text}; {items} {_RETURNED_BY}"


def why_items(items: Iterable[ItemContext]) -> dict[int, WaitReason]:
    """The first reason of each of many items of one run, which share one list of workers."""
    services = _Services()
    return {each.item.id: why_item(each, services)[0] for each in items}


class _Services:
    """What was found out about the workers of one run: there may be a thousand, and as many items ask."""

    def __init__(self) -> None:
        self.full: list[WaitReason] | None = None
        self._able: dict[str, list[WorkerView]] = {}
        self._reasons: dict[tuple[str, str], list[WaitReason]] = {}

    def reasons(self, facts: ItemContext, stage: str, partition: str) -> list[WaitReason]:
        """Whether no worker takes items of this stage and partition, or all that do wait for egress."""
        place = (stage, partition)
        if place not in self._reasons:
            if stage not in self._able:
                self._able[stage] = _eligible_workers(facts.run, stage, facts.workers)
            self._reasons[place] = _service_reasons(facts, stage, partition, self._able[stage])
        return self._reasons[place]


def why_item(facts: ItemContext, services: _Services | None = None) -> list[WaitReason]:
    """The reasons why an item is not running. `services`: remembers what depends on the workers only."""
    item, services = facts.item, services or _Services()
    if item.state in FINAL_STATES:
        text = f"It is {item.state.value}" + (f": {item.error}" if item.error else "") + "."
        return [WaitReason(code=item.state.value, text=text, since=item.since)]
    if services.full is None:
        services.full = _ledger_full_reasons(facts.full, facts.workers)
    reasons = [*_run_reasons(facts.run, facts.run_changed_at, facts.pause), *services.full]
    if item.state is ItemState.LEASED:
        reasons.append(_leased_reason(item, facts.workers, facts.now))
        return reasons
    if item.state is ItemState.DELAYED:
        reasons.append(_delayed_reason(item, facts.delay_reason, facts.lane, facts.now))
    if facts.lane is not None and item.state is not ItemState.READY:
        reasons.extend(_lane_reasons(facts.lane, item, facts.now))
    if item.state is ItemState.WAITING:
        text = f"{_ranked(facts.ahead)} of its run are before it in the lane." if facts.ahead is not None else ""
        text = text or f"It waits for a place in the lane {item.lane}."
        reasons.append(WaitReason(code="lane_rank", text=text, items=facts.ahead))
    serving = services.reasons(facts, item.stage, item.partition)
    reasons.extend(reason for reason in serving if reason.code != "egress" or item.state is not ItemState.DELAYED)
    if item.state is ItemState.READY:
        text = f"{_ranked(facts.ahead)} are before it in its queue." if facts.ahead is not None else ""
        text = text or "It is ready and waits for a free worker."
        reasons.append(WaitReason(code="queue_rank", text=text, since=item.since, items=facts.ahead))
    return reasons


def _service_reasons(facts: ItemContext, stage: str, partition: str, able: Sequence[WorkerView]) -> list[WaitReason]:
    reasons = _worker_reasons(facts, stage, partition, able)
    taking = (worker for worker in able if _takes(worker, partition))
    if (wait := _egress_wait(stage, taking, facts.now)) is not None:
        reasons.append(_egress_reason(wait, "It waits"))
    return reasons


def why_run(facts: RunContext) -> list[WaitReason]:
    """What the run waits for, the most important first, and the last decisions of the autoscaler."""
    run, counts = facts.run, sum_counts(part.counts for part in facts.partitions)
    reasons = _run_reasons(run, facts.run_changed_at, facts.pause)
    if run.state in (RunState.FINISHED, RunState.CANCELLED):
        return reasons
    if counts.remaining == 0:
        reasons.append(
            WaitReason(code="nothing_left", text="Nothing is left to do.")
            if run.sealed
            else WaitReason(
                code="unsealed",
                text="Everything enqueued so far has ended, but the intake was not closed: more may come. "
                "If the enqueue was interrupted, run it again; duplicates are dropped.",
            )
        )
        return reasons
    reasons.extend(_ledger_full_reasons(facts.full, facts.workers))
    alive = {worker.id for worker in facts.workers if worker.alive}
    any_lost = any(holder.worker not in alive for holder in facts.holders)
    open_stages = {part.stage for part in facts.partitions if part.counts.pending or (any_lost and part.counts.leased)}
    unserved = [
        stage for stage in run.stages if stage in open_stages and not _eligible_workers(run, stage, facts.workers)
    ]
    if unserved:
        # No worker serves the run, or some of its stages.
        code = "no_worker" if len(unserved) == len(open_stages) else "no_worker_for_stage"
        since = _last_served(run, unserved, facts.workers, facts.now)
        reasons.append(WaitReason(code=code, text=_no_worker(run, unserved), since=since))
    without_exit = _egress_waits(facts)
    reasons.extend(_egress_reasons(without_exit, facts.partitions))
    reasons.extend(_holder_reasons(run, facts.holders, facts.workers))
    counts = sum_counts(part.counts for part in facts.partitions if part.stage not in without_exit)
    if counts.ready:
        waiting = (
            "ready" if "no_worker" in {reason.code for reason in reasons} else "ready and waiting for a free worker"
        )
        reasons.append(WaitReason(code="ready", text=f"{_items(counts.ready)} {waiting}.", items=counts.ready))
        if facts.places:
            text = (
                f"The number of workers of {run.scraper} is limited (worker_limit); at work: {', '.join(facts.places)}."
            )
            reasons.append(WaitReason(code="worker_limit", text=text))
    if counts.waiting:
        text = f"{_items(counts.waiting)} waiting for their lanes."
        reasons.append(WaitReason(code="waiting", text=text, items=counts.waiting))
    # Lanes are full because their items have no exit.
    expected = ("lane_limit", "lane_workers", "lane_delay", "lane_order") if without_exit and not counts.waiting else ()
    leased = sum(part.counts.leased for part in facts.partitions)
    for lane in facts.lanes:
        idle = 0 if lane.policy.delay_max > 0 else max(0, min(counts.ready, lane.taken - leased))
        found = _lane_reasons(lane, None, facts.now, idle=idle)
        reasons.extend(reason for reason in found if reason.code not in expected)
    reasons.extend(_delayed_group_reason(group, facts.now) for group in facts.delayed)
    reasons.extend(_scaling_reason(scaling) for scaling in facts.scalings)
    return reasons


_REASONS = {
    "retry": "waiting for their next try",
    "throttled": "the site asked to wait",
    "egress": "no exit could be used",
    "not_before": "not before a set time",
    "lane": "waiting for the delay of their lane",
    "blocked": "rate limited by their site",
    "order": "in the pause after the one before them in their group",
}


def _run_reasons(run: Run, changed_at: dt.datetime, pause: AuditEvent | None) -> list[WaitReason]:
    match run.state:
        case RunState.PAUSED:
            by = f" by {pause.actor}" if pause is not None and pause.actor else ""
            because = f": {pause.detail['because']}" if pause is not None and pause.detail.get("because") else ""
            text = f"The run {run.id} is paused{by}{because}; `shoal runs resume {run.id}` resumes it."
            return [WaitReason(code="run_paused", text=text, since=changed_at)]
        case RunState.CANCELLED | RunState.FINISHED:
            text = f"The run {run.id} is {run.state.value}."
            return [WaitReason(code=f"run_{run.state.value}", text=text, since=changed_at)]
        case _:
            return []


def _ledger_full_reasons(full: str | None, workers: Iterable[WorkerView]) -> list[WaitReason]:
    """A ledger that cannot be written: detected by this process, or reported by a worker whose heartbeat succeeded."""
    for worker in workers:
        if full is None and worker.alive and worker.report is not None and worker.report.trouble:
            full = f"{worker.id} cannot store anything: {worker.report.trouble}"
    if full is None:
        return []
    return [WaitReason(code="ledger_full", text=f"{full} Workers wait for free space; nothing is lost.")]


def _leased_reason(item: ItemView, workers: Iterable[WorkerView], now: dt.datetime) -> WaitReason:
    """Which worker holds the item, and whether it has started it, according to its last report."""
    worker = next((worker for worker in workers if worker.id == item.worker), None)
    if worker is None:
        text = f"Claimed by {item.worker}, which no longer exists; it returns {_RETURNED_BY}."
        return WaitReason(code="held_by_dead", text=text, since=item.since)
    if not worker.alive:
        silent = f"no heartbeat for {_seconds(worker.silent_seconds)} (its lease is {worker.lease_seconds:g} s)"
        text = f"Held by a dead worker: {worker.id} has sent {silent}. The item returns {_RETURNED_BY}."
        return WaitReason(code="held_by_dead", text=text, since=item.since)
    report, age, claimed_for = worker.report, worker.report_seconds or 0.0, (now - item.since).total_seconds()
    running = None if report is None else next((for_ for id, for_ in report.items if id == item.id), None)
    if running is not None and (running := running + age) <= claimed_for + SLACK_SECONDS:
        text = f"{worker.id} has been running it for {_seconds(running)}.{_warning(worker)}"
        return WaitReason(code="running", text=text, since=now - dt.timedelta(seconds=running))
    if report is None or age >= claimed_for:
        text = f"Claimed by {worker.id}; its next heartbeat says whether it has begun.{_warning(worker)}"
        return WaitReason(code="leased", text=text, since=item.since)
    busy = sum(report.running.values())
    if report.lists_all:
        text = f"Claimed by {worker.id}, not begun: it waits in the worker's buffer while {_are(busy)} running."
        return WaitReason(code="claimed", text=text + _warning(worker), since=item.since)
    text = f"Claimed by {worker.id}, which holds {_counted(worker.leased)}: {_are(busy)} running"
    text += f", {_are(report.unstored)} done and not stored yet" if report.unstored else ""
    return WaitReason(code="leased", text=f"{text}, the others have not begun.{_warning(worker)}", since=item.since)


def _warning(worker: WorkerView) -> str:
    """A warning when a heartbeat is late but the lease has not expired."""
    left = worker.lease_seconds - worker.silent_seconds
    if left > worker.lease_seconds / 2:
        return ""
    last = f"The last heartbeat of {worker.id} was {_seconds(worker.silent_seconds)} ago"
    return f" {last}; in {_seconds(left)} it is declared dead."


def _holder_reasons(run: Run, holders: Sequence[LeaseHolder], workers: Sequence[WorkerView]) -> list[WaitReason]:
    """Leased items of live workers, with their reports, and of dead ones."""
    alive = {worker.id: worker for worker in workers if worker.alive}
    held = [(holder, alive[holder.worker]) for holder in holders if holder.worker in alive]
    lost = [holder for holder in holders if holder.worker not in alive]
    reasons = []
    if lost:
        items = sum(holder.leased for holder in lost)
        silent = {worker.id: worker.silent_seconds for worker in workers}
        since = f"no heartbeat for {_seconds(silent[lost[0].worker])}" if lost[0].worker in silent else "it is gone"
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return_ = "It returns" if items == 1 else "They return"
        text = f"{_items(items)} held by a dead worker: {lost[0].worker} ({since}){more}. {return_} {_RETURNED_BY}."
        reasons.append(WaitReason(code="held_by_dead", text=text, items=items))
    if held:
        leased = sum(holder.leased for holder, _ in held)
        late = next((warning for _, worker in held if (warning := _warning(worker))), "")
        reasons.append(WaitReason(code="leased", text=_leased_text(run, leased, held) + late, items=leased))
    return reasons


def _leased_text(run: Run, leased: int, held: Sequence[tuple[LeaseHolder, WorkerView]]) -> str:
    reports = [worker.report for _, worker in held if worker.report is not None]
    running = min(leased, sum(report.running.get(run.no, 0) for report in reports))
    # A report is as old as the heartbeat, and does not count unstored items by run.
    mixed = any(report.unstored for report in reports) and any(h.leased != worker.leased for h, worker in held)
    if len(reports) < len(held) or mixed or any(holder.fresh for holder, _ in held):
        text = f"{_items(leased)} claimed by workers"
        was = "was" if running == 1 else "were"
        return f"{text}; at their last heartbeats {running} {was} running." if running else f"{text}."
    unstored = min(leased - running, sum(report.unstored for report in reports))
    parts = [f"{_items(running)} being worked on"] if running else []
    if unstored:
        parts.append(f"{_items(unstored)} done and not stored yet")
    if rest := leased - running - unstored:
        parts.append(f"{_items(rest)} claimed and not begun")
    return ", ".join(parts) + "."


def _delayed_reason(item: ItemView, reason: str | None, lane: LaneView | None, now: dt.datetime) -> WaitReason:
    if reason == "lane" and lane is not None and lane.blocked_seconds > 0:
        reason = "blocked"
    elif reason == "lane" and lane is not None and lane.policy.ordered:
        reason = "order"
    match reason:
        case "retry":
            text = f"Try {item.tries + 1} of {item.max_attempts} is scheduled; the last one failed: {item.error}."
        case "throttled":
            another = (item.error or "").startswith("redirects to ")
            text = f"It {item.error}." if another else f"The site asked to wait: {item.error}."
        case "egress":
            text = f"It waits: {(item.error or 'no exit could be used').removesuffix('.')}."
        case "not_before":
            text = "It was enqueued not to start before a set time."
        case "blocked":
            text = f"It is the first item of the lane {item.lane}, which is blocked."
        case "order":
            text = f"It is the first item of the group {item.lane}; the pause after the previous item has not ended."
        case _:
            text = f"It waits for the delay of the lane {lane.key if lane else item.lane}."
    if item.due_at is not None and item.due_at <= now:
        # Workers promote delayed items: without a worker they stay delayed.
        text = f"It is due and waits for a worker. {text}"
        return WaitReason(code=f"delayed_{reason}", text=text, since=item.due_at)
    return WaitReason(code=f"delayed_{reason}", text=text, since=item.since, until=item.due_at)


def _delayed_group_reason(group: DelayedGroup, now: dt.datetime) -> WaitReason:
    text, code = f"{_items(group.items)} delayed ({_REASONS[group.reason]})", f"delayed_{group.reason}"
    if group.first_due <= now:
        return WaitReason(code=code, text=f"{text}; the first is due.", since=group.first_due, items=group.items)
    return WaitReason(code=code, text=f"{text}.", until=group.first_due, items=group.items)


def _lane_reasons(lane: LaneView, item: ItemView | None, now: dt.datetime, *, idle: int = 0) -> list[WaitReason]:
    """`idle`: so many of the lane's places, at least, are taken by items that no worker has. Then a full lane would go
    faster with more workers, and not with a higher limit.
    """
    reasons = []
    waiting = lane.waiting or None
    if lane.paused:
        of_run = f" --run {lane.run_id}" if lane.run_id is not None else ""
        text = f"The lane {lane.key} is paused; `shoal lanes resume {shlex.quote(lane.key)}{of_run}` resumes it."
        reasons.append(WaitReason(code="lane_paused", text=text, items=waiting))
    if lane.blocked_seconds > 0:
        reasons.append(_blocked_reason(lane, now))
    if lane.waiting and (item is None or item.state is ItemState.WAITING):
        policy = lane.policy
        if policy.ordered:
            text = f"The group {lane.key} runs one at a time, in order: the item before it has not ended."
            reasons.append(WaitReason(code="lane_order", text=text, items=waiting))
        elif lane.taken + lane.visiting >= policy.limit:
            text = f"The lane {lane.key} is full: {lane.taken + lane.visiting} of {policy.limit} places are taken."
            if lane.visiting:
                text += f" {lane.visiting} of them by requests from redirects or handlers."
            code = "lane_limit"
            if idle and idle * _FEW_PLACES >= lane.taken + lane.visiting:  # a few are between two claims
                text += f" {idle} of them by items that wait for a free worker."
                code = "lane_workers"
            reasons.append(WaitReason(code=code, text=text, items=waiting))
        elif policy.delay_max > 0:
            text = f"The lane {lane.key} starts one item every {_range(policy.delay_min, policy.delay_max)} s"
            text += f", the next in {lane.next_seconds:.1f} s." if lane.next_seconds > 0 else "."
            if 0 < lane.floor <= policy.delay_min and lane.floor_why:
                text += f" At least {lane.floor:g} s: {lane.floor_why}."
            reasons.append(WaitReason(code="lane_delay", text=text, items=waiting))
    return reasons


def lane_code(lane: LaneView) -> str:
    """The code of the first reason why items wait for this lane; empty when there is none."""
    return next((reason.code for reason in _lane_reasons(lane, None, _ANY_TIME)), "")


def _blocked_reason(lane: LaneView, now: dt.datetime) -> WaitReason:
    why = lane.blocked_why or ""
    what = "rate limited by its site" if _SITE_ANSWER.match(why) else "blocked"
    text = f"The lane {lane.key} is {what} for another {_seconds(lane.blocked_seconds)}" + (f": {why}." if why else ".")
    until = now + dt.timedelta(seconds=lane.blocked_seconds)
    return WaitReason(code="lane_blocked", text=text, until=until, items=lane.waiting or None)


def _scaling_reason(scaling: Scaling) -> WaitReason:
    kind, _, name = scaling.subject.partition(" ")
    who = f"The pool on {name}" if kind == "pool" else f"The {scaling.subject}"
    how = f"went from {scaling.before} to {scaling.after} {scaling.what}"
    if scaling.before == scaling.after:
        how = f"stayed at {scaling.after} of {scaling.most} {scaling.what}"
    return WaitReason(code="scaled", text=f"{who} {how} {_ago(scaling.seconds_ago)}: {scaling.why}.", since=scaling.at)


def _ago(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


class EgressGate(msgspec.Struct, frozen=True):
    """All workers that could take items of a stage wait for exits; `pool` is empty when they wait for a login."""

    pool: str
    why: str
    since: dt.datetime
    until: dt.datetime | None


def _egress_wait(stage: str, able: Iterable[WorkerView], now: dt.datetime) -> EgressGate | None:
    """What all these workers wait for, by the report of the one that expects the end first; None when one can go on."""
    gates = []
    for worker in able:
        wait = next((wait for wait in worker.report.egress if wait.stage == stage), None) if worker.report else None
        if wait is None:
            return None
        reported_at = now - dt.timedelta(seconds=worker.report_seconds or 0.0)
        until = None if wait.until is None else reported_at + dt.timedelta(seconds=wait.until)
        gates.append(EgressGate(wait.pool, wait.why, reported_at - dt.timedelta(seconds=wait.since), until))
    if not gates:
        return None
    first = min(gates, key=lambda gate: (gate.until is None, gate.until or now))
    return msgspec.structs.replace(first, since=max(gate.since for gate in gates))


def _egress_waits(facts: RunContext) -> dict[str, EgressGate]:
    """The stages with items that could be claimed, if the workers had exits."""
    found = {}
    for stage in {part.stage for part in facts.partitions if part.counts.ready or part.counts.waiting}:
        wait = _egress_wait(stage, _eligible_workers(facts.run, stage, facts.workers), facts.now)
        if wait is not None:
            found[stage] = wait
    return found


def _egress_reasons(waits: Mapping[str, EgressGate], partitions: Sequence[PartitionProgress]) -> list[WaitReason]:
    """One reason for each pool and sentence, the one with most items first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for stage in sorted(waits):
        groups.setdefault((waits[stage].pool, waits[stage].why), []).append(stage)
    reasons = []
    for stages in groups.values():
        counts = sum_counts(part.counts for part in partitions if part.stage in stages)
        items = counts.ready + counts.waiting
        whose = f"of the stage {stages[0]}" if len(stages) == 1 else f"of the stages {', '.join(stages)}"
        who = f"1 item {whose} waits" if items == 1 else f"{items} items {whose} wait"
        reasons.append(_egress_reason(waits[stages[0]], who, items))
    return sorted(reasons, key=lambda reason: -(reason.items or 0))


def _egress_reason(gate: EgressGate, who: str, items: int | None = None) -> WaitReason:
    text = f"{who} for egress {gate.pool}: {gate.why}." if gate.pool else f"{who}: {gate.why}."
    return WaitReason(code="egress", text=text, since=gate.since, until=gate.until, items=items, pool=gate.pool or None)


def _takes(worker: WorkerView, partition: str) -> bool:
    return worker.scope.steal or not worker.scope.partitions or partition in worker.scope.partitions


def _worker_reasons(facts: ItemContext, stage: str, partition: str, able: Sequence[WorkerView]) -> list[WaitReason]:
    if not able:
        since = _last_served(facts.run, [stage], facts.workers, facts.now)
        return [WaitReason(code="no_worker", text=_no_worker(facts.run, [stage]), since=since)]
    if not any(_takes(worker, partition) for worker in able):
        return [
            WaitReason(
                code="no_worker_for_partition",
                text=f"No live worker takes the partition {partition!r}: all workers claim their own partitions only.",
            )
        ]
    return []


def _eligible_workers(run: Run, stage: str, workers: Iterable[WorkerView]) -> list[WorkerView]:
    """Workers that are alive and would claim items of this stage."""
    return [
        worker
        for worker in workers
        if worker.alive and worker.state is WorkerState.LIVE and worker.scope.includes_stage(run.id, run.scraper, stage)
    ]


def _last_served(
    run: Run, stages: Sequence[str], workers: Iterable[WorkerView], now: dt.datetime
) -> dt.datetime | None:
    """The last heartbeat of dead workers that would serve the stages; None when there are none."""
    silent = [
        worker.silent_seconds
        for worker in workers
        if not worker.alive and any(worker.scope.includes_stage(run.id, run.scraper, stage) for stage in stages)
    ]
    return now - dt.timedelta(seconds=min(silent)) if silent else None


def _no_worker(run: Run, stages: Sequence[str]) -> str:
    named = f"the stage {stages[0]}" if len(stages) == 1 else f"the stages {', '.join(stages)}"
    if run.scraper.startswith(COLLECTION_SCRAPER_PREFIX):
        return f"No live worker runs the members of {run.scraper}. Resume it with `shoal run` and its folder."
    start = "Start one: `shoal worker` or `shoal run` with its file or name."
    return f"No live worker serves {named} of {run.scraper}. {start}"


def _items(count: int) -> str:
    return "1 item is" if count == 1 else f"{_ranked(count)} items are"


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"


def _counted(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _ranked(count: int) -> str:
    return f"more than {RANK_LIMIT}" if count > RANK_LIMIT else str(count)
