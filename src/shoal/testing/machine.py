"""A Hypothesis state machine: random histories of a ledger, compared with a small model.

Derive a class, define `open_harness`, and run its TestCase. The model knows which items were acknowledged, which leases
are valid, and what was committed. It does not model the tables of lanes; it checks the guarantees of lanes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, TypeVar

import msgspec
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.define.records import MAX_OUTPUT_VALUES
from shoal.errors import WorkerLost, WrongState
from shoal.model.changes import LOG_BEGIN, ChangePage, ChangePosition
from shoal.model.item import ClaimedItem, ItemState, Lease, NewItem, prepare
from shoal.model.lane import LanePolicy, StartRequest
from shoal.model.outcome import DONE, FinishedAttempt, RedirectVisit, VisitDecision
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.views import CommitReport, ItemFilter, ResultRow, UpkeepReport
from shoal.model.worker import Scope
from shoal.testing.harness import LedgerHarness, dead, done, keyed, record_key, retry, skipped, throttled

T = TypeVar("T")
LEASE_SECONDS = 30.0
HOST_LIMIT = 2
SPACED_SECONDS = 5.0
FLOOR_SECONDS = 8.0
# Items are admitted so many seconds before their start.
LEAD_SECONDS = 0.1
KEYS = [f"k{n}" for n in range(12)]
RECORD_KEYS = ["a", "b", "c"]
LANES = [None, "host-a", "host-b"]


class ModelItem(msgspec.Struct):
    """An item in the model."""

    stage: str
    lane: str | None
    state: str = "open"
    epochs: int = 0
    follow_up: bool = False
    # A duplicate: the item whose page it is. An alias was never anything else; it may redirect further.
    same_as: tuple[str, str] | None = None
    alias: bool = False
    redirects: bool = False


class ModelLease(msgspec.Struct):
    """A lease that a worker believes it has. `valid`: whether the ledger must accept it."""

    claimed: ClaimedItem
    worker: str
    valid: bool = True
    started: bool = False
    committed: FinishedAttempt | None = None
    via: str | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Derive from this and define `open_harness`."""

    steps: ClassVar[int] = 40

    def open_harness(self) -> AbstractAsyncContextManager[LedgerHarness]:
        raise TypeError("derive from LedgerMachine and define open_harness")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = self.open_harness()
        self.harness = self.run_sync(self.opened.__aenter__())
        self.ledger = self.harness.ledger
        self.items: dict[tuple[str, str], ModelItem] = {}
        self.held: list[ModelLease] = []
        self.workers: list[str] = []
        self.silent: dict[str, float] = {}
        self.earliest: dict[str, float] = {}
        # How many records without a key each item has.
        self.plain_records: dict[int, int] = {}
        self.new_records = 0
        # The item that stored the record with a key, by stage and key.
        self.owners: dict[tuple[str, str], int] = {}
        self.paused = False
        self.paused_lanes: set[str] = set()
        self.floors: dict[str, float] = {}
        self.jumped = 0.0
        # No item of these lanes may start before this time, because of an earlier start or reservation.
        self.not_before: dict[str, float] = {}
        # Host slots: the worker, the host, and whether the slot is granted.
        self.slots: dict[int, tuple[str, str, bool]] = {}
        # A sink that reads the log of result changes: its position, and what it has, by stage and key or id.
        self.read_to: ChangePosition = LOG_BEGIN
        self.delivered: dict[tuple[str, str], tuple[int, int, str]] = {}

    def now(self) -> float:
        """The ledger's time, from an arbitrary origin."""
        return time.monotonic() + self.jumped

    def run_sync(self, coroutine: Awaitable[T]) -> T:
        async def run() -> T:
            return await coroutine

        return self.runner.run(run())

    @initialize()
    def create_run(self) -> None:
        hosts = LanePolicy(limit=HOST_LIMIT)
        spaced = LanePolicy(limit=HOST_LIMIT, delay_min=SPACED_SECONDS, delay_max=SPACED_SECONDS)
        group = LanePolicy(limit=1, ordered=True, shared=False)
        spec = RunSpec(
            scraper="machine",
            stages=(StageSpec("page", lane=hosts), StageSpec("polite", lane=spaced), StageSpec("group", lane=group)),
            max_rescues=2,
        )
        self.run: Run = self.run_sync(self.ledger.runs.create(spec))

    # -- intake ------------------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6),
        stage=st.sampled_from(["page", "polite", "group"]),
        lane=st.sampled_from(LANES),
        partition=st.sampled_from(["", "x"]),
        priority=st.integers(-2, 2),
        delay=st.sampled_from([0.0, 0.0, 0.0, 50.0]),
    )
    def enqueue(
        self, keys: list[str], stage: str, lane: str | None, partition: str, priority: int, delay: float
    ) -> None:
        lane = self.lane_name(stage, lane)
        new = [
            NewItem(key=key, stage=stage, lane=lane, partition=partition, priority=priority, delay=delay)
            for key in keys
        ]
        fresh = {key for key in keys if (stage, key) not in self.items}
        report = self.run_sync(self.ledger.intake.enqueue(self.run.id, new))
        assert (report.enqueued, report.duplicates) == (len(fresh), len(keys) - len(fresh))
        for key in fresh:
            self.items[stage, key] = ModelItem(stage, lane)

    def lane_name(self, stage: str, lane: str | None) -> str | None:
        """Stages with different policies do not share lanes here: the model would have to know which declared last."""
        return None if lane is None else f"{stage}-{lane}"

    # -- workers ------------------------------------------------------------------------------------------------------

    @rule()
    def register(self) -> None:
        assume(len(self.workers) < 4)
        worker = self.run_sync(self.harness.worker(lease_seconds=LEASE_SECONDS))
        self.workers.append(worker)
        self.reset_silence(worker)

    def reset_silence(self, worker: str) -> None:
        self.silent[worker] = self.earliest[worker] = 0.0

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        self.run_sync(self.ledger.workers.heartbeat(worker))
        self.reset_silence(worker)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), limit=st.integers(1, 6), partition=st.sampled_from([(), ("x",)]))
    def claim(self, data: st.DataObject, limit: int, partition: tuple[str, ...]) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        claimed = self.run_sync(self.ledger.claims.claim(worker, Scope(partitions=partition), limit))
        note(f"claimed {[item.name for item in claimed]}")
        assert len(claimed) <= limit
        if claimed:
            self.reset_silence(worker)
        assert not (claimed and self.paused), "a paused run hands out nothing"
        for item in claimed:
            known = self.items[item.stage, item.name]
            assert known.state == "open", (item, known)
            assert not any(h.valid and h.claimed.item == item.item for h in self.held), "leased twice"
            assert item.lane not in self.paused_lanes
            assert item.epoch > known.epochs, "epochs only grow"
            known.epochs = item.epoch
            assert item.paced == (self.delay_of(item.lane) > 0), item
            if item.paced:
                assert item.lane is not None
                assert self.may_start(item.lane) is None, "two items of a lane that keeps a distance may start now"
                due = self.not_before.get(item.lane, float("-inf")) - LEAD_SECONDS
                assert self.now() >= due, "too early after the last start"
            self.held.append(ModelLease(item, worker))

    def delay_of(self, lane: str | None) -> float:
        if lane is None:
            return 0.0
        declared = lane.startswith("polite") and any(item.lane == lane for item in self.items.values())
        return max(SPACED_SECONDS if declared else 0.0, self.floors.get(lane, 0.0))

    def may_start(self, lane: str) -> ModelLease | None:
        """An item of the lane whose request may be sent at any moment, as far as the ledger knows."""
        paced = (held for held in self.held if held.claimed.paced and held.claimed.lane == lane)
        return next((held for held in paced if held.valid and not held.started), None)

    def record_start(self, lane: str | None, wait: float = 0.0) -> None:
        """A request of this lane is sent after so many seconds; the next one keeps the delay."""
        delay = self.delay_of(lane)
        if lane is not None and delay > 0:
            self.not_before[lane] = max(self.not_before.get(lane, float("-inf")), self.now() + wait + delay)

    @precondition(lambda self: any(not h.committed for h in self.held))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        pending = [h for h in self.held if not h.committed]
        worker = data.draw(st.sampled_from(sorted({h.worker for h in pending})))
        mine = [h for h in pending if h.worker == worker]
        chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=5, unique_by=lambda h: h.claimed.item))
        ends = []
        for held in chosen:
            kind = data.draw(
                st.sampled_from(["done", "done", "keyed", "upsert", "follow", "retry", "throttled", "dead", "skipped"])
            )
            if kind in ("keyed", "upsert"):
                keys = data.draw(st.lists(st.sampled_from(RECORD_KEYS), min_size=1, max_size=3))
                pairs = [(f"{kind}-{key}", held.claimed.item) for key in keys]
                ends.append(keyed(held.claimed, *pairs, replaces=kind == "upsert"))
            else:
                ends.append(self.end_of(held, kind))
            held.committed = ends[-1]
        before = self.now()
        report = self.run_sync(self.ledger.commits.commit(worker, ends))
        valid = [h for h in chosen if h.valid]
        assert report.committed == len(valid)
        assert set(report.lost) == {h.claimed.item for h in chosen if not h.valid}
        assert report.repeated == ()
        for held, end in zip(chosen, ends, strict=True):
            if held.valid:
                if not held.started:
                    self.record_start(held.claimed.lane, before - self.now())
                self.apply_commit(held, end)
            else:
                self.held.remove(held)

    def end_of(self, held: ModelLease, kind: str) -> FinishedAttempt:
        item = held.claimed
        match kind:
            case "retry":
                return retry(item, delay=20)
            case "throttled":
                return throttled(item, delay=40)
            case "dead":
                return dead(item)
            case "skipped":
                return skipped(item)
            case "follow":
                new = NewItem(key=f"{item.name}+", stage="page", lane=self.lane_name("page", "host-a"))
                return done(item, f'{{"epoch": {item.epoch}}}', follow_ups=[new])
            case _:
                return done(item, f'{{"epoch": {item.epoch}}}')

    def apply_commit(self, held: ModelLease, end: FinishedAttempt) -> None:
        item = held.claimed
        known = self.items[item.stage, item.name]
        held.valid = False
        kind = end.decision.kind.value
        if kind == "done":
            known.state = "done"
            self.store_records(item.stage, item.item, end)
        elif kind in ("dead", "skipped"):
            known.state = kind

    @precondition(lambda self: any(not h.committed for h in self.held))
    @rule(data=st.data(), to=st.sampled_from([*KEYS[:6], "r0", "r1", "r2"]))
    def redirect(self, data: st.DataObject, to: str) -> None:
        """The page of an item redirects to another one."""
        held = data.draw(st.sampled_from([h for h in self.held if not h.committed]))
        stage, own = held.claimed.stage, (held.claimed.stage, held.claimed.name)
        visit = RedirectVisit(
            lease=held.claimed.lease,
            target=prepare(NewItem(key=to, stage=stage), stage),
            via=None if held.via is None else prepare(NewItem(key=held.via), stage).key_hash,
            shown=to,
        )
        before = self.now()
        reply = self.run_sync(self.ledger.commits.visit_redirect(held.worker, visit))
        if not held.valid:
            assert reply.decision is VisitDecision.LOST
            return
        passed = None if held.via is None else self.items[stage, held.via]
        if passed is not None and passed.alias and passed.same_as == own:
            passed.redirects = True
        known = self.items.get((stage, to))
        page = self.page_of((stage, to))
        if known is None:
            self.items[stage, to] = ModelItem(stage, None, "skipped", same_as=own, alias=True)
        elif not (known.redirects or page == own):
            owner = known.same_as if known.alias else None
            runs = any(h.valid and (h.claimed.stage, h.claimed.name) == owner for h in self.held)
            assert reply.decision is (VisitDecision.WAIT if runs else VisitDecision.DUPLICATE), (known, reply)
            if not runs:
                if not held.started:
                    self.record_start(held.claimed.lane, before - self.now())
                held.valid, held.committed = False, skipped(held.claimed)
                self.items[own].state, self.items[own].same_as = "skipped", page
            return
        assert reply.decision is VisitDecision.VISIT, (known, reply)
        held.via = to

    def page_of(self, name: tuple[str, str]) -> tuple[str, str]:
        """The item whose page this one is."""
        while (known := self.items.get(name)) is not None and known.same_as is not None:
            name = known.same_as
        return name

    def store_records(self, stage: str, item: int, end: FinishedAttempt) -> None:
        self.plain_records[item] = 0 if end.record_keys else len(end.records)
        for key in end.record_keys:
            # A first record stays, an upserted one is replaced by each later one.
            place = stage, key.text
            self.new_records += place not in self.owners
            if key.replaces or place not in self.owners:
                self.owners[place] = item
        for new in end.follow_ups:
            assert new.key is not None
            self.items.setdefault(("page", new.key), ModelItem("page", new.lane, follow_up=True))

    @precondition(lambda self: any(known.state in ("done", "dead") for known in self.items.values()))
    @rule(data=st.data(), kind=st.sampled_from(["done", "keyed", "upsert", "follow"]), stale=st.booleans())
    def replay(self, data: st.DataObject, kind: str, stale: bool) -> None:
        """The records of an item that is done or dead are replaced, unless it has changed since it was read."""
        ended = sorted(place for place, known in self.items.items() if known.state in ("done", "dead"))
        stage, key = data.draw(st.sampled_from(ended))
        view = self.run_sync(self.ledger.reads.item(self.run.id, key=key, stage=stage))
        lease = Lease(view.id, view.epoch - stale, self.run.no)
        records, keys, new = [f'{{"epoch": {view.epoch}}}'], [], []
        if kind in ("keyed", "upsert"):
            names = data.draw(st.lists(st.sampled_from(RECORD_KEYS), max_size=3))
            texts = [f"{kind}-{name}" for name in names]
            keys = [record_key(stage, text, replaces=kind == "upsert") for text in texts]
            records = [f'{{"key": "{text}", "value": {view.epoch}}}' for text in texts]
        elif kind == "follow":
            new = [NewItem(key=f"{key}+", stage="page", lane=self.lane_name("page", "host-a"))]
        end = FinishedAttempt(
            lease=lease, decision=DONE, records=tuple(records), record_keys=tuple(keys), follow_ups=tuple(new)
        )
        report = self.run_sync(self.ledger.steering.replay(end))
        assert report.replayed == (not stale)
        if not stale:
            # Its older keys are free, but a key that it had stays its own.
            kept = {(stage, each.text) for each in keys}
            self.owners = {place: item for place, item in self.owners.items() if item != view.id or place in kept}
            self.items[stage, key].state = "done"
            self.store_records(stage, view.id, end)

    @precondition(lambda self: any(h.committed for h in self.held))
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        """The answer to a commit was lost, so the commit is repeated."""
        held = data.draw(st.sampled_from([h for h in self.held if h.committed]))
        assert held.committed is not None
        report = self.run_sync(self.ledger.commits.commit(held.worker, [held.committed]))
        assert (report.committed, report.lost, report.repeated) == (0, (), (held.claimed.item,))

    @precondition(lambda self: any(not h.committed for h in self.held))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from([h for h in self.held if not h.committed]))
        if held.claimed.paced:
            lost = self.reserve(held.claimed.lane or "", held.worker, held)
        else:
            before = self.now()
            lost = self.run_sync(self.ledger.claims.mark_started(held.worker, [held.claimed.lease]))
            if held.valid and not held.started:
                held.started = True
                self.record_start(held.claimed.lane, before - self.now())
        assert lost == (set() if held.valid else {held.claimed.item})

    @precondition(lambda self: any(not h.committed for h in self.held))
    @rule(data=st.data())
    def return_leases(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from([h for h in self.held if not h.committed]))
        assert self.run_sync(self.ledger.claims.return_leases(held.worker, [held.claimed.lease])) == int(held.valid)
        held.valid = False

    # -- faults -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), seen=st.booleans())
    def kill(self, data: st.DataObject, seen: bool) -> None:
        """A worker dies, which its pool observes, or stops."""
        worker = data.draw(st.sampled_from(self.workers))
        if seen:
            upkeep_report = self.run_sync(self.ledger.workers.mark_dead(worker))
            assert worker in upkeep_report.lost_workers
            self.silent[worker] = float("inf")
            self.apply_upkeep(upkeep_report)
        else:
            self.run_sync(self.ledger.workers.stop(worker))
            self.mark_dead(worker)

    def apply_upkeep(self, upkeep_report: UpkeepReport) -> None:
        for worker in upkeep_report.lost_workers:
            # A ledger whose clock was set back may count from the moment it noticed.
            silent = self.silent[worker] - self.earliest[worker]
            assert silent > LEASE_SECONDS - 1, "reaped before its time"
            self.mark_dead(worker)

    def mark_dead(self, worker: str) -> None:
        self.workers.remove(worker)
        del self.silent[worker], self.earliest[worker]
        self.slots = {visit: known for visit, known in self.slots.items() if known[0] != worker}
        for held in self.held:
            if held.worker == worker and held.valid:
                held.valid = False
                self.note_quarantine(held)

    def note_quarantine(self, held: ModelLease) -> None:
        """The ledger decides when an item has killed enough workers; the model asks, and checks that it may."""
        known = self.items[held.claimed.stage, held.claimed.name]
        view = self.run_sync(self.ledger.reads.item(self.run.id, id=held.claimed.item))
        if view.state is ItemState.DEAD:
            assert view.outcome == "poison"
            assert view.rescues == 3
            known.state = "dead"

    @rule(seconds=st.sampled_from([1.0, 6.0, 21.0, 31.0, 100.0, -5.0, -40.0]))
    def advance_clock(self, seconds: float) -> None:
        self.run_sync(self.harness.advance_clock(seconds))
        self.jumped += seconds
        if seconds < 0:
            self.not_before.clear()  # the ledger may notice, and then waits no longer than the delay
        for worker in self.silent:
            self.silent[worker] += seconds
            self.earliest[worker] = min(self.earliest[worker], self.silent[worker])

    @rule()
    def run_upkeep(self) -> None:
        self.apply_upkeep(self.run_sync(self.ledger.upkeep.run_once()))

    @rule()
    def release_all(self) -> None:
        self.run_sync(self.ledger.steering.release(older_than=0))
        for held in self.held:
            # A lease claimed in what is now the future is too young for any release by age.
            if held.valid:
                view = self.run_sync(self.ledger.reads.item(self.run.id, id=held.claimed.item))
                held.valid = view.state is ItemState.LEASED

    # -- orders -------------------------------------------------------------------------------------------------------

    @rule(pause=st.booleans())
    def pause_or_resume(self, pause: bool) -> None:
        runs = self.ledger.runs
        self.run_sync(runs.pause(self.run.id) if pause else runs.resume(self.run.id))
        self.paused = pause

    @rule(
        stage=st.sampled_from(["page", "polite"]),
        lane=st.sampled_from(["host-a", "host-b"]),
        change=st.sampled_from(["pause", "go on", "block", "unblock"]),
    )
    def change_lane(self, stage: str, lane: str, change: str) -> None:
        name = f"{stage}-{lane}"
        lanes = self.ledger.lanes
        match change:
            case "pause":
                self.run_sync(lanes.set(name, paused=True))
                self.paused_lanes.add(name)
            case "go on":
                self.run_sync(lanes.set(name, paused=False))
                self.paused_lanes.discard(name)
            case "block":
                self.run_sync(lanes.block(name, 60, "429"))
            case "unblock":
                self.run_sync(lanes.block(name, 0, ""))

    @rule(
        stage=st.sampled_from(["page", "polite"]),
        lane=st.sampled_from(["host-a", "host-b"]),
        floor=st.sampled_from([0.0, FLOOR_SECONDS]),
    )
    def slow_lane(self, stage: str, lane: str, floor: float) -> None:
        name = f"{stage}-{lane}"
        view = self.run_sync(self.ledger.lanes.set_delay_floor(name, floor, "robots.txt"))
        assert view.floor == floor
        if floor < self.floors.get(name, 0.0):
            self.not_before.pop(name, None)  # a shorter delay counts at once
        self.floors[name] = floor

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), stage=st.sampled_from(["page", "polite"]), lane=st.sampled_from(["host-a", "host-b"]))
    def reserve_more(self, data: st.DataObject, stage: str, lane: str) -> None:
        """A request beyond an item's first: a redirect, a second page."""
        self.reserve(f"{stage}-{lane}", data.draw(st.sampled_from(self.workers)), None)

    def reserve(self, lane: str, worker: str, held: ModelLease | None) -> set[int]:
        request = StartRequest(leases=() if held is None else (held.claimed.lease,))
        before = self.now()
        starts = self.run_sync(self.ledger.lanes.reserve(worker, lane, request))
        for wait in starts.waits:
            if held is not None and held.valid:
                held.started = True
            if self.delay_of(lane) > 0:
                assert self.now() + wait >= self.not_before.get(lane, float("-inf")), "too early after the last start"
                self.record_start(lane, wait - (self.now() - before))
        return set(starts.lost)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), host=st.sampled_from(["page-host-a", "elsewhere"]))
    def request_slot(self, data: st.DataObject, host: str) -> None:
        """A worker requests a host slot."""
        worker = data.draw(st.sampled_from(self.workers))
        visit = data.draw(st.sampled_from([1, 2, 3, 4]))
        known = self.slots.get(visit)
        if known is not None and known[:2] != (worker, host):
            return
        answer = self.run_sync(self.ledger.lanes.request_slot(worker, host, visit, run_id=self.run.id, stage="page"))
        assert not (answer.granted and answer.blocked_seconds)
        if answer.blocked_seconds:
            self.slots.pop(visit, None)
        else:
            self.slots[visit] = (worker, host, answer.granted)
            assert answer.granted or known is None or not known[2], "a slot was lost"

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def release_slot(self, data: st.DataObject) -> None:
        visit = data.draw(st.sampled_from(sorted(self.slots)))
        self.run_sync(self.ledger.lanes.release_slots([visit]))
        del self.slots[visit]

    @rule(state=st.sampled_from([ItemState.READY, ItemState.WAITING, ItemState.DELAYED, ItemState.LEASED]))
    def cancel_one(self, state: ItemState) -> None:
        page = self.run_sync(self.ledger.reads.items(self.run.id, ItemFilter(states=(state,)), limit=1))
        cancelled = self.run_sync(self.ledger.steering.cancel(self.run.id, ItemFilter(states=(state,)), limit=1))
        assert cancelled == len(page.rows)
        for view in page.rows:
            assert view.key is not None
            self.items[view.stage, view.key].state = "cancelled"
            for held in self.held:
                if held.claimed.item == view.id:
                    held.valid = False

    @rule(state=st.sampled_from([ItemState.DEAD, ItemState.SKIPPED, ItemState.CANCELLED]))
    def retry_ended(self, state: ItemState) -> None:
        expected = [known for known in self.items.values() if known.state == state.value]
        assert self.run_sync(self.ledger.steering.retry(self.run.id, ItemFilter(states=(state,)))) == len(expected)
        for known in expected:
            known.state, known.same_as, known.alias, known.redirects = "open", None, False, False

    @rule(limit=st.integers(1, 4))
    def read_changes(self, limit: int) -> None:
        """A sink reads on. When it has read everything, it has what is stored."""
        page = self.run_sync(self.ledger.changes.read(self.read_to, limit=limit))
        self.deliver(page)
        if not page.more:
            rows = self.run_sync(self.ledger.reads.results(self.run.id)).rows
            assert self.delivered == stored_records(rows, self.run.id)

    def deliver(self, page: ChangePage) -> None:
        self.read_to = page.end
        for record in page.records:
            self.forget(record.item, record.n, record.n + 1)
            self.delivered[record.stage, record.record_key or record.id] = record.item, record.n, record.record
        for gone in page.replaced:
            self.forget(gone.item, gone.count, MAX_OUTPUT_VALUES)

    def forget(self, item: int, begin: int, end: int) -> None:
        """The sink drops the records of an item with these numbers."""
        self.delivered = {
            key: value for key, value in self.delivered.items() if value[0] != item or not begin <= value[1] < end
        }

    @rule()
    def seal_and_enqueue_after_the_end(self) -> None:
        """A finished run takes nothing until it is resumed."""
        assume(not self.paused and all(known.state != "open" for known in self.items.values()))
        self.run_sync(self.ledger.runs.seal(self.run.id))
        upkeep_report = self.run_sync(self.ledger.upkeep.run_once())
        self.apply_upkeep(upkeep_report)
        assert upkeep_report.finished == (self.run.id,)
        try:
            self.run_sync(self.ledger.intake.enqueue(self.run.id, [NewItem(key="late")]))
        except WrongState:
            self.run_sync(self.ledger.runs.resume(self.run.id))
        else:
            raise AssertionError("a finished run took an item")

    # -- what must always be true -------------------------------------------------------------------------------------

    @invariant()
    def tables_keep_their_rules(self) -> None:
        self.run_sync(self.harness.check())

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        if not hasattr(self, "run"):
            return
        counts = self.run_sync(self.ledger.reads.stats(self.run.id))
        by_state = {
            state: sum(k.state == state for k in self.items.values())
            for state in ("done", "dead", "skipped", "cancelled")
        }
        assert (counts.done, counts.dead, counts.skipped, counts.cancelled) == tuple(by_state.values())
        assert counts.total == len(self.items)
        assert counts.leased == sum(h.valid for h in self.held)
        assert counts.results == sum(self.plain_records.values()) + len(self.owners)
        assert counts.new_records == self.new_records
        rows = self.run_sync(self.ledger.reads.results(self.run.id)).rows
        assert {(row.stage, row.record_key): row.item for row in rows if row.record_key} == self.owners

    @invariant()
    def lanes_keep_their_promise(self) -> None:
        out: dict[str, int] = {}
        for held in self.held:
            if held.valid and held.claimed.lane is not None:
                out[held.claimed.lane] = out.get(held.claimed.lane, 0) + 1
        for _, host, granted in self.slots.values():
            out[host] = out.get(host, 0) + granted
        for lane, count in out.items():
            assert count <= (1 if lane.startswith("group") else HOST_LIMIT), (lane, count)

    def teardown(self) -> None:
        """Whatever happened: everything that was acknowledged can be brought to an end."""
        try:
            if hasattr(self, "run"):
                self.run_sync(self.drain())
        finally:
            self.run_sync(self.opened.__aexit__(None, None, None))
            self.runner.close()

    async def drain(self) -> None:
        ledger = self.ledger
        await ledger.runs.resume(self.run.id)
        for page in ((await ledger.lanes.list()).rows, (await ledger.lanes.list(run_id=self.run.id)).rows):
            for lane in page:
                await ledger.lanes.set(lane.key, run_id=lane.run_id, paused=False)
                await ledger.lanes.block(lane.key, 0, "", run_id=lane.run_id)
        await ledger.lanes.release_slots(list(self.slots))
        worker = await self.harness.worker(lease_seconds=86_400)
        open_before = [known for known in self.items.values() if known.state == "open"]
        finished = 0
        for _ in range(40 + 4 * len(open_before)):
            await self.harness.advance_clock(500)
            await ledger.upkeep.run_once()
            claimed = await ledger.claims.claim(worker, Scope(), 50)
            finished += (await self.finish_all(worker, claimed)).committed
            if (await ledger.reads.stats(self.run.id)).remaining == 0:
                break
        counts = await ledger.reads.stats(self.run.id)
        assert counts.remaining == 0, await ledger.reads.why_run(self.run.id)
        assert finished + self.just_quarantined(counts.dead) == len(open_before)
        assert counts.total == len(self.items)
        await self.harness.check()
        self.deliver(await ledger.changes.read(self.read_to))
        assert self.delivered == stored_records((await ledger.reads.results(self.run.id)).rows, self.run.id)

    async def finish_all(self, worker: str, claimed: Sequence[ClaimedItem]) -> CommitReport:
        try:
            return await self.harness.finish(worker, claimed)
        except WorkerLost:
            raise AssertionError("a worker with a day's lease was lost") from None

    def just_quarantined(self, dead_now: int) -> int:
        """Leases of workers that fell silent may turn out to be poison while draining."""
        return dead_now - sum(known.state == "dead" for known in self.items.values())


def stored_records(rows: Sequence[ResultRow], run_id: str) -> dict[tuple[str, str], tuple[int, int, str]]:
    """Results as a sink has them: by stage and record key, or by id."""
    return {
        (row.stage, row.record_key or f"{run_id}:{row.item}:{row.n}"): (row.item, row.n, row.record) for row in rows
    }
