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
from shoal.observe.snapshot import holdup, look
from shoal.worker.lease_buffer import Hold
from shoal.worker.options import Ending
from shoal.worker.registration import Membership
from shoal.worker.slots import Slots

OPEN = (RunState.ACTIVE, RunState.PAUSED)
RUNS_LOOKED_AT = 200
RUNS_EXPLAINED = 5
# A worker that had nothing to do for so long says why, then looks again ever more seldom.
EXPLAIN_SECONDS = 3.0
LONGEST_EXPLAIN_SECONDS = 60.0
# Items are claimed ahead for this long, so that slots do not wait for the ledger and others do not wait for us.
AHEAD_SECONDS = 0.5
# When no slot has begun anything for so many times longer than planned, what was claimed ahead goes back: others may be
# free to do it.
STUCK_FACTOR = 2
MOST_AHEAD = 1_000
# An item that is claimed ahead takes a place in its lane, which others could use; asking for the next one of such slow
# items costs little of their time.
SLOW_ITEM_SECONDS = 0.1
IDLE_SECONDS = (0.02, 1.0)
LAST_ITEMS_SECONDS = 0.02


async def runs_served(ledger: Ledger, scope: Scope, *, newest: int = RUNS_LOOKED_AT) -> list[Run]:
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
    return [run for run in await runs_served(ledger, scope) if run.state in OPEN]


async def anything_left(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope."""
    return bool(await open_runs(ledger, scope))


async def explain_idleness(
    ledger: Ledger, scope: Scope, is_idle: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Say why the worker has nothing to do: each run that it serves, and what that waits for. For ever.

    Told once, and again when a reason has changed.
    """
    told: list[tuple[str, str]] = []
    nap = EXPLAIN_SECONDS
    while True:
        await asyncio.sleep(nap)
        if not is_idle():
            told, nap = [], EXPLAIN_SECONDS
            continue
        nap = min(2 * nap, LONGEST_EXPLAIN_SECONDS)
        try:
            reasons = await _reasons(ledger, scope)
        except (LedgerError, NotFound):
            continue  # whoever works for this worker says that
        if (causes := [(run_id, cause) for run_id, cause, _ in reasons]) != told and is_idle():
            told = causes
            tell("\n".join(text for *_, text in reasons))


async def _reasons(ledger: Ledger, scope: Scope) -> list[tuple[str, str, str]]:
    """Run, cause, and a sentence about it."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return [("", "", "Nothing to do: no run is open. The worker waits for one.")]
    reasons = []
    for run in runs[:RUNS_EXPLAINED]:
        found = holdup((moment := await look(ledger, run.id)).counts, moment.gates)
        text = f"Nothing to do for run {run.id} of {run.scraper}: "
        if run.state is RunState.PAUSED:
            text += f"it is paused. `shoal runs resume {run.id}` lets it go on, `shoal runs cancel {run.id}` ends it."
        else:
            text += f"it waits for {found.cause}. {found.text}" if found.cause != "nothing" else found.text
        reasons.append((run.id, found.cause, text.rstrip()))
    if len(runs) > RUNS_EXPLAINED:
        reasons.append(("", "", f"... and {len(runs) - RUNS_EXPLAINED} more open runs."))
    return reasons


class Claimer:
    def __init__(
        self,
        ledger: Ledger,
        membership: Membership,
        hold: Hold,
        slots: Slots,
        *,
        rejoin: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._options = membership.options
        self._membership = membership
        self._hold = hold
        self._slots = slots
        self._signs = membership.signs
        self._rejoin = rejoin
        self._claimed = 0
        self._laned = True

    async def run(self) -> None:
        """Claim until the end is ordered, or order it when nothing is left."""
        idle = IDLE_SECONDS[0]
        while self._signs.ending is None:
            if self._membership.lost:
                await self._rejoin()
            self._signs.hungry.clear()
            self._signs.moved.clear()
            if self._slots.shrunk or (self._hold.buffered and self._is_stuck()):
                await self._give_back_spare()
            wanted = self._wanted()
            if wanted <= 0:
                await self._hungry_or_stuck()
            elif claimed := await self._membership.claim(wanted):
                idle = IDLE_SECONDS[0]
                self._claimed += len(claimed)
                self._laned = any(item.lane is not None for item in claimed)
                self._hold.take_in(claimed)
                if self._is_limit_reached():
                    await self._last_items()
            elif not await self._idle(idle):
                self._signs.finish(Ending.NOTHING_LEFT)
            else:
                idle = min(IDLE_SECONDS[1], idle * 1.5)

    async def _hungry_or_stuck(self) -> None:
        """Wait until slots want more, or until what was claimed ahead may have waited for too long."""
        if not self._hold.buffered:
            await self._signs.hungry.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stuck_after()):
                await self._signs.hungry.wait()

    def _stuck_after(self) -> float:
        return STUCK_FACTOR * max(AHEAD_SECONDS, self._slots.item_seconds)

    def _is_stuck(self) -> bool:
        """Whether what is in the slots takes much longer than what was there before: nobody knows for how long."""
        return self._slots.stuck_seconds > self._stuck_after()

    async def _give_back_spare(self) -> None:
        """What was claimed ahead for slots that are no longer there, or that others could have begun by now."""
        self._slots.shrunk = False
        spare = self._hold.empty_buffer(keep=max(0, self._slots.free) + self._ahead())
        await self._slots.give_back(spare)

    def _wanted(self) -> int:
        """How many items to claim now: for free slots, and as many ahead as will be worked on in half a second."""
        options, ahead = self._options, self._ahead()
        self._slots.low_water = ahead // 2
        buffered, free = self._hold.buffered, self._slots.free
        if buffered - free > ahead // 2:
            return 0
        wanted = min(options.batch_size, free + ahead - buffered)
        return wanted if options.limit is None else min(wanted, options.limit - self._taken())

    def _taken(self) -> int:
        """How many items count for the limit: what went back unworked does not."""
        return self._claimed - self._slots.given_back

    def _ahead(self) -> int:
        """How many to claim beyond free slots. None of items that take long, or nobody knows how long: what one holds
        for an hour, others could have done meanwhile."""
        seconds = self._slots.item_seconds
        if not self._options.ahead or seconds <= 0 or self._is_stuck():
            return 0
        if self._laned and seconds > SLOW_ITEM_SECONDS:
            return 0
        return min(MOST_AHEAD, int(self._slots.capacity * AHEAD_SECONDS / seconds))

    def _is_limit_reached(self) -> bool:
        return self._options.limit is not None and self._taken() >= self._options.limit

    async def _last_items(self) -> None:
        """Wait for the last items that the limit allows, and end; but if one of them goes back, go on for another."""
        while self._signs.ending is None and self._hold.leases:
            self._signs.moved.clear()
            await self._or_moved(asyncio.sleep(LAST_ITEMS_SECONDS))
        if self._is_limit_reached():
            self._signs.finish(Ending.LIMIT)

    async def _idle(self, seconds: float) -> bool:
        """Nothing was claimable: wait a little. False when nothing will come any more."""
        may_leave = not self._hold.leases and not self._options.forever and not self._membership.lost
        if may_leave:
            await self._membership.tend()
            if not self._options.leave_when_idle and not await anything_left(self._ledger, self._options.scope):
                return False
        due = await self._ledger.upkeep.next_due(self._options.scope)
        if may_leave and self._options.leave_when_idle and due != 0:
            return False
        # What is overdue though it was looked for just now is held up: its lane is locked, or others come first.
        if due is not None and (due > 0 or seconds == IDLE_SECONDS[0]):
            seconds = min(seconds, max(due, 0.001))
        await self._or_moved(self._ledger.upkeep.wait(seconds))
        return True

    async def _or_moved(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something, but no longer than until something moved here, or the end."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._signs.moved.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
