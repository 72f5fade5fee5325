"""A worker: one claimer with a small buffer, N slots, one committer; heartbeat and maintenance beside them.

    ledger -> claimer -> buffer -> slots (attempts) -> committer -> ledger

It ends when its runs have nothing left, when it is told to (`drain`, then `stop_now`), when the ledger orders it to
leave, when the ledger fails for longer than its patience, or when one of its parts fails: none of them may end
unnoticed. Whatever it holds by then goes back uncharged.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.outcome import Finished, VerdictKind
from shoal.model.views import CommitReport, Tending
from shoal.model.worker import MOST_REPORTED, Orders, WorkerReport, WorkerState
from shoal.worker.attempt import Attempts
from shoal.worker.autoconcurrency import Governor
from shoal.worker.claim import Claimer
from shoal.worker.commit import Committer, Space
from shoal.worker.heartbeat import Heart, OpenLedger
from shoal.worker.lane_starts import WorkerSide
from shoal.worker.lease_buffer import Hold, Signs
from shoal.worker.options import Ending, WorkerOptions, WorkReport
from shoal.worker.politeness import Barriers
from shoal.worker.registration import Maintenance, Membership
from shoal.worker.slots import Slots
from shoal.worker.watchdog import Hang, LoopWatchdog, Running

LOOK_SECONDS = 0.5
SLOT_LOOK_SECONDS = 2.0
FAREWELL_SECONDS = 1.0


class Worker:
    """Works for one scraper on one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        attempts: Attempts,
        options: WorkerOptions,
        *,
        open_heart: OpenLedger,
        give_up: float,
        log: Log,
    ) -> None:
        self._attempts = attempts
        self._options = options
        self._log = log
        self.report = WorkReport()
        self._signs = Signs()
        self._hold = Hold()
        self._space = Space(options.patience, log)
        self._membership = Membership(ledger, options, self._signs, self._space)
        self._open_ledger = open_heart
        self.watchdog = LoopWatchdog(
            bound=give_up,
            drain=options.drain,
            log=log,
            running=self._in_progress,
            release=self._release,
        )
        self._heart = Heart(
            open_heart,
            lease=options.lease,
            loop_is_alive=lambda: self.watchdog.is_alive,
            log=log,
            on_orders=self._obey,
            on_lost=self._membership.mark_lost,
            report=self._heartbeat_report,
        )
        self._maintenance = Maintenance(ledger, self._hear, log)
        self._committer = Committer(self._commit)
        self._slots = Slots(
            attempts,
            self._membership,
            self._hold,
            self._committer,
            Barriers(ledger.lanes),
            self._heart,
            self.report,
            log,
        )
        self._claimer = Claimer(ledger, self._membership, self._hold, self._slots, rejoin=self._rejoin)
        self._governor = (
            None if options.least is None else Governor(ledger, self._membership, self._hold, self._slots, log)
        )
        membership = self._membership
        attempts.serve(WorkerSide(lambda: membership.id, self._signs.moved.set, membership.mark_lost))

    @property
    def id(self) -> str:
        """Its name in the ledger; another one after it was given up and joined again."""
        return self._membership.id

    @property
    def ending(self) -> Ending | None:
        """Why it is about to leave; None while it works."""
        return self._signs.ending

    @property
    def idle(self) -> bool:
        """Whether it holds nothing to work on."""
        return not self._hold.leases

    def drain(self, why: Ending = Ending.STOPPED) -> None:
        """Claim no more, finish what runs, give back the rest, leave."""
        self._signs.finish(why)

    def stop_now(self) -> None:
        """Do not wait for what runs: give it back and leave."""
        self.drain()
        self._signs.now.set()

    async def work(self) -> WorkReport:
        began = time.monotonic()
        self.watchdog.start()
        try:
            return await self._work(began)
        finally:
            self.watchdog.stop()

    async def _work(self, began: float) -> WorkReport:
        self._heart.beat_for(await self._membership.join())
        committer = asyncio.create_task(self._committer.run(), name="committer")
        claimer = asyncio.create_task(self._claimer.run(), name="claimer")
        helpers = [
            committer,
            claimer,
            asyncio.create_task(self._slots.replace_stubborn(), name="nurse"),
            asyncio.create_task(self._maintenance.run(), name="maintenance"),
            asyncio.create_task(self._attempts.complaints.repeat(), name="complaints"),
        ]
        if self._governor is not None:
            helpers.append(asyncio.create_task(self._governor.run(), name="governor"))
        self._slots.start()
        try:
            await self._watch(helpers, claimer)
            await self._leave(committer, claimer)
        except BaseException:
            # Whatever went wrong, what is held should not have to wait for the lease to end.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._membership.leave()
            raise
        finally:
            await self._end([*helpers, *self._slots.tasks])
            self._attempts.complaints.tell_repeated()
            self.report.seconds = round(time.monotonic() - began, 3)
            self.report.worker = self._membership.id
            self.report.dropped = self._attempts.complaints.dropped
            self.report.first_dropped = self._attempts.complaints.first_dropped
        self.report.ending = self._signs.ending or Ending.NOTHING_LEFT
        return self.report

    async def _rejoin(self) -> None:
        """The ledger gave our items to others. What still runs can no longer be stored, so it is not finished."""
        self._log.warning("this worker was given up; it goes on under a new id", worker=self._membership.id)
        self._hold.empty_buffer()
        for lease in self._slots.running:
            self._slots.abandon(lease)
        self._hold.leases.clear()
        self._heart.beat_for(await self._membership.join())

    def _obey(self, orders: Orders) -> None:
        if orders.state is WorkerState.DRAINING:
            self.drain(Ending.ORDERED)

    def _hear(self, tending: Tending) -> None:
        for worker in tending.lost_workers:
            self._log.warning("a worker was given up; its items go to others", worker=worker)
        if tending.quarantined:
            self._log.warning("items that killed their workers were set aside", items=tending.quarantined)

    def _heartbeat_report(self) -> WorkerReport:
        """Called on the thread of the heartbeat: everything here is read in one step."""
        now = time.monotonic()
        attempts = self._attempts.under_way()
        longest = heapq.nsmallest(MOST_REPORTED, attempts, key=lambda attempt: attempt[1])
        return WorkerReport(
            running=dict(Counter(lease.run_no for lease, _ in attempts)),
            items=tuple((lease.item, round(now - began, 1)) for lease, began in longest),
            unstored=self._committer.held,
            trouble=self._space.trouble,
        )

    def _in_progress(self) -> Sequence[Running]:
        return self._slots.in_progress()

    async def _release(self, hang: Hang) -> None:
        """The loop hangs: give back what it holds, from another thread. Only the item that did it is blamed."""
        ledger = await self._open_ledger()
        try:
            if hang.stopped:
                await ledger.workers.stop(self.id)
                return
            await ledger.claims.reconcile(self.id, [item.lease for item in hang.suspects])
            await ledger.workers.bury(self.id)
        finally:
            await ledger.close()

    async def _commit(self, batch: Sequence[Finished]) -> CommitReport:
        report, ends = await self._membership.commit(batch)
        self._hold.drop(end.lease for end in batch)
        self._signs.moved.set()  # a lane may have let its next item out
        lost = set(report.lost)
        self.report.lost += len(lost)
        for end, given in zip(ends, batch, strict=True):
            if end.lease.item not in lost:
                self._count(end)
                if end is not given:
                    self._log.error(
                        "the ledger refused an item's results", item=end.lease.item, error=end.verdict.error
                    )
        if lost:
            self._log.warning("attempts came too late: others have their items now", items=len(lost))
        return report

    def _count(self, end: Finished) -> None:
        mine = self.report
        mine.attempts += 1
        if self._governor is not None:
            self._governor.saw(end.verdict)
        match end.verdict.kind:
            case VerdictKind.DONE:
                mine.done += 1
                mine.records += len(end.records)
            case VerdictKind.DEAD:
                mine.dead += 1
            case VerdictKind.RETRY:
                mine.retried += 1
            case VerdictKind.THROTTLED | VerdictKind.PUT_OFF:
                mine.throttled += 1

    async def _watch(self, helpers: Sequence[asyncio.Task[None]], claimer: asyncio.Task[None]) -> None:
        """Return when the end is ordered; raise what a helper, a slot or the heartbeat raised."""
        end = asyncio.create_task(self._signs.end.wait())
        essential: set[asyncio.Future[Any]] = {*helpers, self._heart.failure}
        try:
            while not self._signs.end.is_set() and not claimer.done():
                done, _ = await asyncio.wait(
                    (end, *essential, *self._slots.tasks),
                    timeout=SLOT_LOOK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done - {end}:
                    if not task.cancelled():
                        task.result()
                        if task not in essential or self._signs.ending is not None:
                            continue
                    raise RuntimeError(f"a part of this worker ended without a reason: {task!r}")
        finally:
            end.cancel()

    async def _leave(self, committer: asyncio.Task[None], claimer: asyncio.Task[None]) -> None:
        """Give back what was not begun, let what runs end within the drain time, commit, say goodbye."""
        await self._stop_claiming(claimer)
        await self._slots.give_back(self._hold.empty_buffer())
        await self._finish_running(committer)
        unfinished = [lease for lease in self._slots.running if lease in self._hold.leases]
        for slot in self._slots.tasks:
            slot.cancel()
        await asyncio.wait(self._slots.tasks, timeout=FAREWELL_SECONDS)
        await self._slots.give_back(unfinished)
        flushed = asyncio.create_task(self._committer.flushed())
        await asyncio.wait((flushed, committer), return_when=asyncio.FIRST_COMPLETED)
        if committer.done():
            committer.result()
        await self._membership.leave()

    async def _stop_claiming(self, claimer: asyncio.Task[None]) -> None:
        """A claim that is under way may have taken items nobody has heard of yet: those go back."""
        if not claimer.done():
            await asyncio.wait((claimer,), timeout=LOOK_SECONDS)
        if claimer.done():
            claimer.result()
        else:
            claimer.cancel()
            await asyncio.gather(claimer, return_exceptions=True)
            await self._membership.reconcile(list(self._hold.leases))

    async def _finish_running(self, committer: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + self._options.drain
        now = asyncio.create_task(self._signs.now.wait())
        try:
            while self._slots.running and not now.done() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait((now, committer), timeout=min(left, 0.02), return_when=asyncio.FIRST_COMPLETED)
                for essential in (committer, self._heart.failure):
                    if essential.done():
                        essential.result()
        finally:
            now.cancel()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        # A handler that ignores being cancelled is left behind; whoever ends the process sees to it.
        await asyncio.wait(tasks, timeout=FAREWELL_SECONDS)
        await self._heart.stop()
        await self._attempts.close()
