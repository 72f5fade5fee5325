"""Why something is not running: the gates an item or a run stands before, in the order it meets them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import msgspec

from shoal.ledger.scalings import Scaling, scaling_gate
from shoal.model.item import FINAL_STATES, ItemState
from shoal.model.lane import LaneView
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, Gate, ItemView
from shoal.model.worker import WorkerState, WorkerView

RANK_LIMIT = 10_000


class DelayedGroup(msgspec.Struct, frozen=True):
    reason: str
    items: int
    first_due: dt.datetime


class ItemFacts(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    run_changed_at: dt.datetime
    item: ItemView
    delay_reason: str | None
    lane: LaneView | None
    ahead: int
    workers: Sequence[WorkerView]


class RunFactsNow(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    run_changed_at: dt.datetime
    counts: Counts
    lanes: Sequence[LaneView]
    delayed: Sequence[DelayedGroup]
    workers: Sequence[WorkerView]
    scalings: Sequence[Scaling]


def why_item(facts: ItemFacts) -> list[Gate]:
    item = facts.item
    if item.state in FINAL_STATES:
        text = f"It is {item.state.value}" + (f": {item.error}" if item.error else "") + "."
        return [Gate(code=item.state.value, text=text, since=item.since)]
    gates = _run_gates(facts.run, facts.run_changed_at)
    if item.state is ItemState.LEASED:
        gates.append(_leased_gate(item, facts.workers))
        return gates
    if item.state is ItemState.DELAYED:
        gates.append(_delayed_gate(item, facts.delay_reason, facts.lane))
    if facts.lane is not None and item.state is not ItemState.READY:
        gates.extend(_lane_gates(facts.lane, item))
    if item.state is ItemState.WAITING:
        gates.append(
            Gate(
                code="lane_rank",
                text=f"{_ranked(facts.ahead)} of its run wait before it in the lane.",
                items=facts.ahead,
            )
        )
    gates.extend(_worker_gates(facts.run, item.stage, item.partition, facts.workers))
    if item.state is ItemState.READY:
        gates.append(
            Gate(
                code="queue_rank",
                text=f"{_ranked(facts.ahead)} stand before it in its queue.",
                since=item.since,
                items=facts.ahead,
            )
        )
    return gates


def why_run(facts: RunFactsNow) -> list[Gate]:
    """What the run waits for, the most important first, and why there are as many workers as there are."""
    run, counts = facts.run, facts.counts
    gates = _run_gates(run, facts.run_changed_at)
    if run.state in (RunState.FINISHED, RunState.CANCELLED):
        return gates
    if counts.remaining == 0:
        gates.append(
            Gate(code="nothing_left", text="Nothing is left to do.")
            if run.sealed
            else Gate(
                code="unsealed",
                text="Everything enqueued so far has ended, but the intake was not closed: more may come. "
                "If the enqueue was interrupted, run it again; duplicates are dropped.",
            )
        )
        return gates
    if counts.pending:
        for stage in run.stages:
            gates.extend(gate for gate in _worker_gates(run, stage, None, facts.workers) if gate not in gates)
    if counts.leased:
        gates.append(Gate(code="leased", text=f"{_items(counts.leased)} being worked on.", items=counts.leased))
    if counts.ready:
        gates.append(
            Gate(
                code="ready",
                text=f"{_items(counts.ready)} ready and waiting for a free worker.",
                items=counts.ready,
            )
        )
    if counts.waiting:
        text = f"{_items(counts.waiting)} waiting for their lanes."
        gates.append(Gate(code="waiting", text=text, items=counts.waiting))
        for lane in facts.lanes:
            gates.extend(_lane_gates(lane, None))
    for group in facts.delayed:
        gates.append(
            Gate(
                code=f"delayed_{group.reason}",
                text=f"{_items(group.items)} delayed ({_REASONS[group.reason]}).",
                until=group.first_due,
                items=group.items,
            )
        )
    gates.extend(scaling_gate(scaling) for scaling in facts.scalings)
    return gates


_REASONS = {
    "retry": "waiting for their next try",
    "throttled": "the site asked to wait",
    "not_before": "not before a set time",
    "lane": "keeping the distance their lane asks for",
}


def _run_gates(run: Run, changed_at: dt.datetime) -> list[Gate]:
    match run.state:
        case RunState.PAUSED:
            return [Gate(code="run_paused", text=f"The run {run.id} is paused.", since=changed_at)]
        case RunState.CANCELLED | RunState.FINISHED:
            text = f"The run {run.id} is {run.state.value}."
            return [Gate(code=f"run_{run.state.value}", text=text, since=changed_at)]
        case _:
            return []


def _leased_gate(item: ItemView, workers: Iterable[WorkerView]) -> Gate:
    holder = next((worker for worker in workers if worker.id == item.worker), None)
    if holder is None:
        return Gate(code="leased", text=f"{item.worker} holds it but is gone; it comes back soon.", since=item.since)
    left = holder.lease_seconds - holder.silent_seconds
    text = f"{holder.id} works on it; its last sign of life was {holder.silent_seconds:.0f} s ago"
    text += "." if left > holder.lease_seconds / 2 else f", it is given to others in {max(left, 0):.0f} s."
    return Gate(code="leased", text=text, since=item.since)


def _delayed_gate(item: ItemView, reason: str | None, lane: LaneView | None) -> Gate:
    match reason:
        case "retry":
            text = f"Try {item.tries + 1} of {item.max_attempts} comes later; the last one failed: {item.error}."
        case "throttled":
            text = f"The site asked to wait: {item.error}."
        case "not_before":
            text = "It was enqueued not to start before a set time."
        case _:
            text = f"It keeps the distance that the lane {lane.key if lane else item.lane} asks for."
    return Gate(code=f"delayed_{reason}", text=text, since=item.since, until=item.due_at)


def _lane_gates(lane: LaneView, item: ItemView | None) -> list[Gate]:
    gates = []
    waiting = lane.waiting or None
    if lane.paused:
        gates.append(Gate(code="lane_paused", text=f"The lane {lane.key} is paused.", items=waiting))
    if lane.blocked_seconds > 0:
        text = f"The lane {lane.key} is blocked for another {lane.blocked_seconds:.0f} s"
        text += f": {lane.blocked_why}." if lane.blocked_why else "."
        gates.append(Gate(code="lane_blocked", text=text, items=waiting))
    if item is None or item.state is ItemState.WAITING:
        policy = lane.policy
        if lane.taken + lane.visiting >= policy.limit:
            text = f"The lane {lane.key} is full: {lane.taken + lane.visiting} of {policy.limit} places are taken."
            if lane.visiting:
                text += f" {lane.visiting} by requests that redirects or handlers sent there."
            gates.append(Gate(code="lane_limit", text=text, items=waiting))
        elif policy.delay_max > 0:
            text = f"The lane {lane.key} starts one item every {_range(policy.delay_min, policy.delay_max)} s"
            text += f", the next in {lane.next_seconds:.1f} s." if lane.next_seconds > 0 else "."
            if 0 < lane.floor <= policy.delay_min and lane.floor_why:
                text += f" At least {lane.floor:g} s: {lane.floor_why}."
            gates.append(Gate(code="lane_delay", text=text, items=waiting))
    return gates


def _worker_gates(run: Run, stage: str, partition: str | None, workers: Iterable[WorkerView]) -> list[Gate]:
    able = [worker for worker in workers if worker.state is WorkerState.LIVE and _serves(worker, run, stage)]
    if not able:
        return [Gate(code="no_worker", text=f"No live worker serves the stage {stage} of {run.scraper}.")]
    if partition is not None and not any(
        worker.scope.steal or not worker.scope.partitions or partition in worker.scope.partitions for worker in able
    ):
        return [
            Gate(
                code="no_worker_for_partition",
                text=f"No live worker takes the partition {partition!r}: all keep to their own.",
            )
        ]
    return []


def _serves(worker: WorkerView, run: Run, stage: str) -> bool:
    scope = worker.scope
    return scope.takes_from(run.id, run.scraper) and (not scope.stages or stage in scope.stages)


def _items(count: int) -> str:
    return "1 item is" if count == 1 else f"{_ranked(count)} items are"


def _range(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _ranked(count: int) -> str:
    return f"more than {RANK_LIMIT}" if count > RANK_LIMIT else str(count)
