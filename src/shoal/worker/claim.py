"""Claims items into the lease buffer, and knows when no more can come.

The runs that a worker serves: whether they may still have work for it, and what they wait for.

One claimer per process: it keeps a small buffer filled, and knows when nothing will come any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope
from shoal.observe.snapshot import find_bottleneck, take_snapshot
from shoal.worker.lease_buffer import LeaseBuffer
from shoal.worker.options import StopReason
from shoal.worker.registration import Registration
from shoal.worker.slots import Slots

OPEN_STATES = (RunState.ACTIVE, RunState.PAUSED)
MAX_RUNS_CHECKED = 200
MAX_RUNS_REPORTED = 5
# A worker that had nothing to do for so long says why, then looks again ever more seldom.
IDLE_REPORT_SECONDS = 3.0
MAX_IDLE_REPORT_SECONDS = 60.0
# Items are claimed ahead for this long, so that slots do not wait for the ledger and others do not wait for us.
PREFETCH_SECONDS = 0.5
# When no slot has begun anything for so many times longer than planned, what was claimed ahead goes back: others may be
# free to do it.
STUCK_FACTOR = 2
MAX_PREFETCH = 1_000
# An item that is claimed ahead takes a place in its lane, which others could use; asking for the next one of such slow
# items costs little of their time.
SLOW_ITEM_SECONDS = 0.1
IDLE_SECONDS = (0.02, 1.0)
LAST_ITEMS_SECONDS = 0.02


async def runs_in_scope(ledger: Ledger, scope: Scope, *, newest: int = MAX_RUNS_CHECKED) -> list[Run]:
    """The runs that the scope names, or the newest of its scraper. A run that was removed meanwhile is left out."""
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

    A run that is not sealed may get more items; a run that is paused may go on. With stages given, a run still counts
    until it has ended as a whole, because its other stages may feed these.
    """
    return [run for run in await runs_in_scope(ledger, scope) if run.state in OPEN_STATES]


async def has_open_runs(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope."""
    return bool(await open_runs(ledger, scope))


async def report_idle_reason(
    ledger: Ledger, scope: Scope, is_idle: Callable[[], bool], report: Callable[[str], None]
) -> None:
    """Say why the worker has nothing to do: each run that it serves, and what that waits for. For ever.

    Told once, and again when a reason has changed.
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
            continue  # whoever works for this worker says that
        if (causes := [(run_id, cause) for run_id, cause, _ in reasons]) != reported and is_idle():
            reported = causes
            report("\n".join(text for *_, text in reasons))


async def _reasons(ledger: Ledger, scope: Scope) -> list[tuple[str, str, str]]:
    """Run, cause, and a sentence about it."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return [("", "", "Nothing to do: no run is open. The worker waits for one.")]
    reasons = []
    for run in runs[:MAX_RUNS_REPORTED]:
        found = find_bottleneck((moment := await take_snapshot(ledger, run.id)).counts, moment.gates)
        text = f"Nothing to do for run {run.id} of {run.scraper}: "
        if run.state is RunState.PAUSED:
            text += f"it is paused. `shoal runs resume {run.id}` lets it go on, `shoal runs cancel {run.id}` ends it."
        else:
            text += f"it waits for {found.cause}. {found.text}" if found.cause != "nothing" else found.text
        reasons.append((run.id, found.cause, text.rstrip()))
    if len(runs) > MAX_RUNS_REPORTED:
        reasons.append(("", "", f"... and {len(runs) - MAX_RUNS_REPORTED} more open runs."))
    return reasons


class Claimer:
    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        slots: Slots,
        *,
        reregister: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._options = registration.options
        self._registration = registration
        self._lease_buffer = lease_buffer
        self._slots = slots
        self._events = registration.events
        self._reregister = reregister
        self._claimed = 0
        self._has_lanes = True

    async def run(self) -> None:
        """Claim until the end is ordered, or order it when nothing is left."""
        idle = IDLE_SECONDS[0]
        while self._events.stop_reason is None:
            if self._registration.lost:
                await self._reregister()
            self._events.items_wanted.clear()
            self._events.work_changed.clear()
            if self._slots.shrunk or (self._lease_buffer.buffered and self._is_stuck()):
                await self._release_surplus()
            wanted = self._claim_size()
            if wanted <= 0:
                await self._wait_for_demand()
            elif claimed := await self._registration.claim(wanted):
                idle = IDLE_SECONDS[0]
                self._claimed += len(claimed)
                self._has_lanes = any(item.lane is not None for item in claimed)
                self._lease_buffer.add_claimed(claimed)
                if self._is_limit_reached():
                    await self._wait_for_last_items()
            elif not await self._wait_for_work(idle):
                self._events.stop(StopReason.NOTHING_LEFT)
            else:
                idle = min(IDLE_SECONDS[1], idle * 1.5)

    async def _wait_for_demand(self) -> None:
        """Wait until slots want more, or until what was claimed ahead may have waited for too long."""
        if not self._lease_buffer.buffered:
            await self._events.items_wanted.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stuck_after()):
                await self._events.items_wanted.wait()

    def _stuck_after(self) -> float:
        return STUCK_FACTOR * max(PREFETCH_SECONDS, self._slots.item_seconds)

    def _is_stuck(self) -> bool:
        """Whether what is in the slots takes much longer than what was there before: nobody knows for how long."""
        return self._slots.stuck_seconds > self._stuck_after()

    async def _release_surplus(self) -> None:
        """What was claimed ahead for slots that are no longer there, or that others could have begun by now."""
        self._slots.shrunk = False
        spare = self._lease_buffer.pop_unstarted(keep=max(0, self._slots.free) + self._prefetch_count())
        await self._slots.return_leases(spare)

    def _claim_size(self) -> int:
        """How many items to claim now: for free slots, and as many ahead as will be worked on in half a second."""
        options, ahead = self._options, self._prefetch_count()
        self._slots.low_water = ahead // 2
        buffered, free = self._lease_buffer.buffered, self._slots.free
        if buffered - free > ahead // 2:
            return 0
        wanted = min(options.batch_size, free + ahead - buffered)
        return wanted if options.limit is None else min(wanted, options.limit - self._counted_claims())

    def _counted_claims(self) -> int:
        """How many items count for the limit: what went back unworked does not."""
        return self._claimed - self._slots.given_back

    def _prefetch_count(self) -> int:
        """How many to claim beyond free slots. None of items that take long, or nobody knows how long: what one holds
        for an hour, others could have done meanwhile."""
        seconds = self._slots.item_seconds
        if not self._options.prefetch or seconds <= 0 or self._is_stuck():
            return 0
        if self._has_lanes and seconds > SLOW_ITEM_SECONDS:
            return 0
        return min(MAX_PREFETCH, int(self._slots.capacity * PREFETCH_SECONDS / seconds))

    def _is_limit_reached(self) -> bool:
        return self._options.limit is not None and self._counted_claims() >= self._options.limit

    async def _wait_for_last_items(self) -> None:
        """Wait for the last items that the limit allows, and end; but if one of them goes back, go on for another."""
        while self._events.stop_reason is None and self._lease_buffer.leases:
            self._events.work_changed.clear()
            await self._wait_or_work_changed(asyncio.sleep(LAST_ITEMS_SECONDS))
        if self._is_limit_reached():
            self._events.stop(StopReason.LIMIT)

    async def _wait_for_work(self, seconds: float) -> bool:
        """Nothing was claimable: wait a little. False when nothing will come any more."""
        may_stop = not self._lease_buffer.leases and not self._options.forever and not self._registration.lost
        if may_stop:
            await self._registration.run_maintenance()
            if not self._options.stop_when_idle and not await has_open_runs(self._ledger, self._options.scope):
                return False
        due = await self._ledger.upkeep.next_due(self._options.scope)
        if may_stop and self._options.stop_when_idle and due != 0:
            return False
        # What is overdue though it was looked for just now is held up: its lane is locked, or others come first.
        if due is not None and (due > 0 or seconds == IDLE_SECONDS[0]):
            seconds = min(seconds, max(due, 0.001))
        await self._wait_or_work_changed(self._ledger.upkeep.wait(seconds))
        return True

    async def _wait_or_work_changed(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something, but no longer than until something moved here, or the end."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._events.work_changed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
