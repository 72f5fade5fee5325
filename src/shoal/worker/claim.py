"""Claims items into the lease buffer and orders the end when no more can come; says why a worker is idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope
from shoal.observe.formatting import pluralize
from shoal.observe.snapshot import find_bottleneck, take_snapshot
from shoal.worker.commit import SLOW_SECONDS
from shoal.worker.egress import WorkerEgress
from shoal.worker.registration import Registration
from shoal.worker.slots import Slots
from shoal.worker.state import LeaseBuffer, StopReason

OPEN_STATES = (RunState.ACTIVE, RunState.PAUSED)
MAX_RUNS_CHECKED = 200
MAX_RUNS_REPORTED = 5
# A worker that is idle for this long reports why; the interval then doubles up to the maximum.
IDLE_REPORT_SECONDS = 3.0
MAX_IDLE_REPORT_SECONDS = 60.0
# Items are claimed this long ahead, so that slots do not wait for the ledger and other workers do not wait for items.
PREFETCH_SECONDS = 0.5
# When no slot has started anything for this many times the expected time, items claimed ahead are returned.
STUCK_FACTOR = 2
MAX_PREFETCH = 1_000
# An item claimed ahead occupies its lane. Slow items with lanes are claimed less far ahead, and only while they are
# ready for longer than that before anybody claims them.
LANED_PREFETCH_SECONDS = 0.2
IDLE_SECONDS = (0.02, 1.0)
LAST_ITEMS_SECONDS = 0.02


async def runs_in_scope(ledger: Ledger, scope: Scope, *, newest: int = MAX_RUNS_CHECKED) -> list[Run]:
    """The runs that the scope names, or the newest runs of its scraper. Removed runs are left out."""
    if not scope.run_ids:
        return list((await ledger.runs.list(scraper=scope.scraper, limit=newest)).rows)
    runs: list[Run] = []
    for run_id in scope.run_ids:
        try:
            runs.append(await ledger.runs.get(run_id))
        except NotFound:
            continue
    return runs


async def open_runs(ledger: Ledger, scope: Scope) -> list[Run]:
    """Runs of this scope that may still have work, the newest first.

    A run that is not sealed may get more items; a paused run may be resumed. With stages given, a run counts until all
    its stages have ended, because other stages may feed these.
    """
    return [run for run in await runs_in_scope(ledger, scope) if run.state in OPEN_STATES]


async def has_open_runs(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope."""
    return bool(await open_runs(ledger, scope))


async def report_idle_reason(
    ledger: Ledger, scope: Scope, is_idle: Callable[[], bool], report: Callable[[str], None], *, stays: bool
) -> None:
    """Report why the worker is idle, until cancelled: what each of its runs waits for. A reason is reported once.

    `stays`: it waits when no run is open; otherwise it is about to end, and there is nothing to report.
    """
    reported: list[tuple[str, str]] = []
    delay = IDLE_REPORT_SECONDS
    while True:
        await asyncio.sleep(delay)
        if not is_idle():
            reported, delay = [], IDLE_REPORT_SECONDS
            continue
        delay = min(2 * delay, MAX_IDLE_REPORT_SECONDS)
        try:
            reasons = await _reasons(ledger, scope)
        except (LedgerError, NotFound):
            continue  # the worker itself reports it
        if not stays and reasons[0][0] == "":
            continue
        if (causes := [(run_id, cause) for run_id, cause, _ in reasons]) != reported and is_idle():
            reported = causes
            report("\n".join(text for *_, text in reasons))


async def _reasons(ledger: Ledger, scope: Scope) -> list[tuple[str, str, str]]:
    """Run id, cause, and a sentence for each run."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return [("", "", "Nothing to do: no run is open. The worker waits for one.")]
    reasons = []
    for run in runs[:MAX_RUNS_REPORTED]:
        found = find_bottleneck((snapshot := await take_snapshot(ledger, run.id)).counts, snapshot.gates)
        text = f"Nothing to do for run {run.id} of {run.scraper}: "
        if run.state is RunState.PAUSED:
            text += f"it is paused. `shoal runs resume {run.id}` continues it, `shoal runs cancel {run.id}` ends it."
        else:
            text += f"it waits for {found.cause}. {found.text}" if found.cause != "nothing" else found.text
        reasons.append((run.id, found.cause, text.rstrip()))
    if len(runs) > MAX_RUNS_REPORTED:
        reasons.append(("", "", f"... and {pluralize(len(runs) - MAX_RUNS_REPORTED, 'more open run')}."))
    return reasons


class Claimer:
    """Keeps the lease buffer filled for the slots. There is one for each worker.

    When the ledger declared the worker dead, it registers again under a new id. `StopReason.NOTHING_LEFT` or `LIMIT` is
    ordered when no more items can come.
    """

    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        slots: Slots,
        log: Log,
        *,
        egress: WorkerEgress | None = None,
    ) -> None:
        self._egress = egress
        self._ledger = ledger
        self._options = registration.options
        self._registration = registration
        self._identity = registration.identity
        self._lease_buffer = lease_buffer
        self._slots = slots
        self._events = registration.identity.events
        self._log = log
        self._claimed = 0
        self._has_lanes = True
        self._ready_seconds = 0.0

    async def run(self) -> None:
        """Claim until the worker stops."""
        idle = IDLE_SECONDS[0]
        while self._events.stop_reason is None:
            if self._identity.lost:
                await self._register_again()
            self._events.items_wanted.clear()
            self._events.work_changed.clear()
            if self._slots.shrunk or (self._lease_buffer.buffered and self._is_stuck()):
                await self._release_surplus()
            size = self._claim_size()
            if size <= 0:
                await self._wait_for_demand()
            elif claimed := await self._claim(size):
                idle = IDLE_SECONDS[0]
                self._claimed += len(claimed)
                self._lease_buffer.add_claimed(claimed)
                if self._is_limit_reached():
                    await self._wait_for_last_items()
            elif not await self._wait_for_work(idle):
                self._events.stop(StopReason.NOTHING_LEFT)
            else:
                idle = min(IDLE_SECONDS[1], idle * 1.5)

    async def _claim(self, size: int) -> list[ClaimedItem]:
        """Claim items of the stages that can be run now."""
        scope: Scope | None = self._options.scope
        if self._egress is not None:
            scope = self._egress.claimable(self._options.scope)
        claimed = [] if scope is None else await self._registration.claim(size, scope)
        self._observe(claimed, size)
        return claimed

    def _observe(self, claimed: Sequence[ClaimedItem], size: int) -> None:
        """Learn from a claim whether items have lanes, and whether more are ready than this worker needs."""
        self._lease_buffer.plenty = plenty = len(claimed) == size
        if claimed:
            laned = [item for item in claimed if item.lane is not None]
            self._has_lanes = bool(laned)
            # A lane with a delay releases an item when it may start, so it must not wait in a buffer; an ordered one
            # releases the next item, which may go first, when the last one has ended.
            waits = [0.0 if item.paced or self._slots.is_ordered(item) else item.waited or 0.0 for item in laned]
            self._ready_seconds = min(waits, default=0.0) if plenty else 0.0

    async def _register_again(self) -> None:
        """The ledger gave the items to other workers. What runs can no longer be stored, so it is cancelled."""
        self._log.warning("worker declared dead; registering again with a new id", worker=self._identity.id)
        self._lease_buffer.pop_unstarted()
        self._slots.cancel_attempts()
        self._lease_buffer.leases.clear()
        await self._registration.register()

    async def _wait_for_demand(self) -> None:
        """Wait until slots want more, or until items claimed ahead may have waited too long."""
        if not self._lease_buffer.buffered:
            await self._events.items_wanted.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stuck_after()):
                await self._events.items_wanted.wait()

    def _stuck_after(self) -> float:
        return STUCK_FACTOR * max(PREFETCH_SECONDS, self._slots.item_seconds)

    def _is_stuck(self) -> bool:
        """Whether the items in the slots take much longer than those before them."""
        return self._slots.stuck_seconds > self._stuck_after()

    async def _release_surplus(self) -> None:
        """Return items that were claimed ahead for slots that no longer exist or that are stuck."""
        self._slots.shrunk = False
        surplus = self._lease_buffer.pop_unstarted(keep=max(0, self._slots.free) + self._prefetch_count())
        await self._slots.return_leases(surplus)

    def _claim_size(self) -> int:
        """How many items to claim now: for the free slots, and as many ahead as half a second of work."""
        options, ahead = self._options, self._prefetch_count()
        # A claim takes milliseconds: the fewer items are taken in that time, the later the next ones may be claimed.
        low_water = ahead // (4 if self._slots.item_seconds > SLOW_SECONDS else 2)
        self._lease_buffer.low_water = low_water
        buffered, free = self._lease_buffer.buffered, self._slots.free
        if buffered - free > low_water:
            return 0
        size = min(options.batch_size, free + ahead - buffered)
        return size if options.limit is None else min(size, options.limit - self._counted_claims())

    def _counted_claims(self) -> int:
        """How many items count for the limit: those that were returned without an attempt do not."""
        return self._claimed - self._slots.returned

    def _prefetch_count(self) -> int:
        """How many items to claim beyond the free slots; 0 when items take long or their time is unknown."""
        seconds, ahead = self._slots.item_seconds, PREFETCH_SECONDS
        if not self._options.prefetch or seconds <= 0 or self._is_stuck():
            return 0
        if self._has_lanes and seconds > SLOW_SECONDS:
            ahead = min(LANED_PREFETCH_SECONDS, self._ready_seconds / 2)
        return min(MAX_PREFETCH, int(self._slots.capacity * ahead / seconds))

    def _is_limit_reached(self) -> bool:
        return self._options.limit is not None and self._counted_claims() >= self._options.limit

    async def _wait_for_last_items(self) -> None:
        """Wait for the last items that the limit allows, then stop, unless one of them was returned."""
        self._lease_buffer.plenty = False
        while self._events.stop_reason is None and self._lease_buffer.leases:
            self._events.work_changed.clear()
            await self._wait_or_work_changed(asyncio.sleep(LAST_ITEMS_SECONDS))
        if self._is_limit_reached():
            self._events.stop(StopReason.LIMIT)

    async def _wait_for_work(self, seconds: float) -> bool:
        """Nothing was claimable: wait up to `seconds`. False when no more items can come."""
        may_stop = not self._lease_buffer.leases and not self._options.forever and not self._identity.lost
        if may_stop:
            await self._registration.run_maintenance()
            if not self._options.stop_when_idle and not await has_open_runs(self._ledger, self._options.scope):
                return False
        due = await self._ledger.upkeep.next_due(self._options.scope)
        if may_stop and self._options.stop_when_idle and due != 0:
            return False
        # An item that is due and was not claimable is blocked: its lane is locked, or other workers come first.
        if due is not None and (due > 0 or seconds == IDLE_SECONDS[0]):
            seconds = min(seconds, max(due, 0.001))
        await self._wait_or_work_changed(self._ledger.upkeep.wait(seconds))
        return True

    async def _wait_or_work_changed(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait until `waiting` ends, `work_changed` is set, or the worker stops."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._events.work_changed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
