"""A worker: one claimer with a small buffer, N slots, one committer, and a heart beside them.

    ledger -> claimer -> buffer -> slots (attempts) -> committer -> ledger

It ends when its runs have nothing left, when it is told to (`drain`, then `stop_now`), when the ledger orders it to
leave, or when the ledger fails for longer than its patience. Whatever it holds by then goes back uncharged.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from shoal.errors import WorkerLost
from shoal.ledger.protocols import Ledger
from shoal.model.item import Claimed, Lease
from shoal.model.log import Log
from shoal.model.outcome import Finished, VerdictKind
from shoal.model.views import CommitReport, Tending
from shoal.model.worker import Orders, WorkerSpec, WorkerState, new_worker_id
from shoal.worker.attempt import Attempts
from shoal.worker.committer import Committer
from shoal.worker.gate import Barriers, NotNow
from shoal.worker.heart import Heart, OpenLedger
from shoal.worker.options import Ending, WorkerOptions, WorkReport
from shoal.worker.remaining import anything_left
from shoal.worker.starter import Starter

# Items are claimed ahead for this long, so that slots do not wait for the ledger and others do not wait for us.
AHEAD_SECONDS = 0.5
IDLE_SECONDS = (0.02, 1.0)
LOOK_SECONDS = 0.5
SMOOTHING = 0.1
FAREWELL_SECONDS = 1.0
ASLEEP_LOOK_SECONDS = 0.02
NURSE_SECONDS = 2.0
# An item that was rescued so often may be the one that kills its workers.
SUSPECT_RESCUES = 2


class Worker:
    """Works for one scraper on one ledger. `starter` is the one that the attempts' politeness uses."""

    def __init__(
        self,
        ledger: Ledger,
        attempts: Attempts,
        starter: Starter,
        options: WorkerOptions,
        *,
        open_heart: OpenLedger,
        give_up: float,
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._attempts = attempts
        self._starter = starter
        self._options = options
        self._log = log
        self._committer = Committer(self._commit, log=log, patience=options.patience)
        self._heart = Heart(
            open_heart,
            lease=options.lease,
            give_up=give_up,
            log=log,
            on_orders=self._obey,
            on_tending=self._hear,
            on_lost=self._mark_lost,
        )
        starter.tells(self._tell_started)
        self._barriers = Barriers(ledger.lanes)
        self._buffer: asyncio.Queue[tuple[Claimed, float]] = asyncio.Queue()
        # Every lease this worker answers for, until it is committed or given back.
        self._held: dict[int, Lease] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._slots: set[asyncio.Task[None]] = set()
        self._one_suspect = asyncio.Lock()
        self._abandoned: set[int] = set()
        self._claimed = 0
        self._low_water = 0
        self._item_seconds = 0.0
        self._ending: Ending | None = None
        self._end = asyncio.Event()
        self._hungry = asyncio.Event()
        self._stir = asyncio.Event()
        self._now = asyncio.Event()
        self._lost = ""
        self.report = WorkReport()
        self.id = ""

    def drain(self, why: Ending = Ending.STOPPED) -> None:
        """Claim no more, finish what runs, give back the rest, leave."""
        if self._ending is None:
            self._ending = why
            self._end.set()
            self._hungry.set()
            self._stir.set()

    def stop_now(self) -> None:
        """Do not wait for what runs: give it back and leave."""
        self.drain()
        self._now.set()

    async def work(self) -> WorkReport:
        began = time.monotonic()
        await self._join()
        helpers = [
            asyncio.create_task(self._committer.run(), name="committer"),
            asyncio.create_task(self._starter.run(), name="starter"),
            asyncio.create_task(self._replace_stubborn(), name="nurse"),
            asyncio.create_task(self._claim_until_end(), name="claimer"),
        ]
        self._slots = {asyncio.create_task(self._slot(), name="slot") for _ in range(self._options.concurrency)}
        try:
            await self._watch(helpers)
            await self._leave(helpers)
        except BaseException:
            # Whatever went wrong, what is held should not have to wait for the lease to end.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._ledger.workers.stop(self.id)
            raise
        finally:
            for task in (*helpers, *self._slots):
                task.cancel()
            # A handler that ignores being cancelled is left behind; whoever ends the process sees to it.
            await asyncio.wait((*helpers, *self._slots), timeout=FAREWELL_SECONDS)
            await self._heart.stop()
            self._attempts.close()
            self.report.seconds = time.monotonic() - began
            self.report.worker = self.id
        self.report.ending = self._ending or Ending.NOTHING_LEFT
        return self.report

    # Joining and being lost

    async def _join(self) -> None:
        options = self._options
        self.id = new_worker_id()
        await self._ledger.workers.register(
            WorkerSpec(
                id=self.id,
                node=socket.gethostname(),
                pid=os.getpid(),
                version=options.version,
                lease_seconds=options.lease,
                scope=options.scope,
            )
        )
        self._heart.beat_for(self.id)

    def _mark_lost(self, worker: str) -> None:
        if worker == self.id:
            self._lost = worker
            self._hungry.set()
            self._stir.set()

    async def _rejoin(self) -> None:
        """The ledger gave our items to others. What still runs can no longer be stored, so it is not finished."""
        self._log.warning("this worker was given up by the ledger; it goes on under a new id", worker=self.id)
        self._lost = ""
        self._empty_buffer()
        for item in list(self._running):
            self._abandon(item)
        self._held.clear()
        await self._join()

    def _abandon(self, item: int) -> None:
        """Break off an attempt whose lease is gone; its slot goes on with the next."""
        task = self._running.get(item)
        if task is not None:
            self._abandoned.add(item)
            task.cancel()

    def _obey(self, orders: Orders) -> None:
        if orders.state is WorkerState.DRAINING:
            self.drain(Ending.ORDERED)

    def _hear(self, tending: Tending) -> None:
        for worker in tending.lost_workers:
            self._log.warning("a worker was given up; its items go to others", worker=worker)
        if tending.quarantined:
            self._log.warning("items that killed their workers were set aside", items=tending.quarantined)

    # Claiming

    async def _claim_until_end(self) -> None:
        idle = IDLE_SECONDS[0]
        while self._ending is None:
            if self._lost:
                await self._rejoin()
            self._hungry.clear()
            self._stir.clear()
            wanted = self._wanted()
            if wanted <= 0:
                await self._hungry.wait()
            elif claimed := await self._claim(wanted):
                idle = IDLE_SECONDS[0]
                await self._take_in(claimed)
            elif not await self._idle(idle):
                self.drain(Ending.NOTHING_LEFT)
            else:
                idle = min(IDLE_SECONDS[1], idle * 1.5)

    async def _take_in(self, claimed: Sequence[Claimed]) -> None:
        now = time.monotonic()
        self._claimed += len(claimed)
        for item in claimed:
            self._held[item.item] = item.lease
            self._buffer.put_nowait((item, now))
        if self._options.limit is not None and self._claimed >= self._options.limit:
            while self._ending is None and self._held:
                await self._or_stir(asyncio.sleep(0.02))
            self.drain(Ending.LIMIT)

    def _wanted(self) -> int:
        """How many items to claim now: for free slots, and as many ahead as will be worked on in half a second."""
        options = self._options
        ahead = options.batch_size
        if self._item_seconds > 0:
            ahead = min(ahead, math.ceil(options.concurrency * AHEAD_SECONDS / self._item_seconds))
        self._low_water = ahead // 2
        buffered = self._buffer.qsize()
        free = options.concurrency - len(self._running)
        if buffered - free > self._low_water:
            return 0
        wanted = min(options.batch_size, free + ahead - buffered)
        return wanted if options.limit is None else min(wanted, options.limit - self._claimed)

    async def _claim(self, limit: int) -> list[Claimed]:
        try:
            return await self._ledger.claims.claim(self.id, self._options.scope, limit)
        except WorkerLost:
            self._lost = self.id
            return []

    async def _idle(self, seconds: float) -> bool:
        """Nothing was claimable: wait a little. False when nothing will come any more."""
        if not self._held and not self._options.forever and not self._lost:
            await self._ledger.upkeep.tend()
            if self._options.leave_when_idle or not await anything_left(self._ledger, self._options.scope):
                return False
        due = await self._ledger.upkeep.next_due()
        if due is not None:
            seconds = min(seconds, max(due, 0.001))
        await self._or_stir(self._ledger.upkeep.wait(seconds))
        return True

    async def _or_stir(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something, but no longer than until something moved here, or the end."""
        tasks = [asyncio.create_task(waiting), asyncio.create_task(self._stir.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Working

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            if self._buffer.qsize() <= self._low_water:
                self._hungry.set()
            claimed, at = await self._buffer.get()
            self._running[claimed.item] = me
            try:
                await self._attempt(claimed, at)
            except asyncio.CancelledError:
                if claimed.item not in self._abandoned:
                    raise
                me.uncancel()
            finally:
                self._abandoned.discard(claimed.item)
                if me in self._slots:
                    del self._running[claimed.item]
            if me not in self._slots:
                return  # this slot was given up, another one has its place

    async def _replace_stubborn(self) -> None:
        """A handler that swallows its cancellation would keep its slot for ever: its item ends, a new slot comes."""
        while True:
            await asyncio.sleep(NURSE_SECONDS)
            for claimed, finished in self._attempts.overdue(NURSE_SECONDS):
                task = self._running.pop(claimed.item, None)
                if task is None:
                    continue
                self._log.warning("a handler ignores that its time is up; it is left behind", item=claimed.name)
                self._slots.discard(task)
                self._slots.add(asyncio.create_task(self._slot(), name="slot"))
                await self._committer.put(finished, 0)

    async def _attempt(self, claimed: Claimed, at: float) -> None:
        if not await self._is_still_ours(claimed):
            return
        if claimed.lane is not None and await self._is_closed(claimed.lane, claimed, at):
            await self._give_back([claimed.lease])
            return
        if claimed.rescues >= SUSPECT_RESCUES:
            # One of them may be what kills the process. Alone, it is the only one that is blamed for it.
            async with self._one_suspect:
                await self._make(claimed, at)
        else:
            await self._make(claimed, at)

    async def _make(self, claimed: Claimed, at: float) -> None:
        if claimed.rescues and not await self._may_start(claimed.lease):
            return
        try:
            finished, size = await self._attempts.make(claimed, at)
        except NotNow:
            await self._give_back([claimed.lease])
            return
        if asyncio.current_task() not in self._slots:
            return  # it was given up long ago
        if finished.verdict.kind is VerdictKind.THROTTLED and claimed.lane is not None:
            self._barriers.close(claimed.lane, finished.verdict.delay)
        seconds = finished.seconds
        self._item_seconds += (seconds - self._item_seconds) * SMOOTHING if self._item_seconds else seconds
        await self._committer.put(finished, size, hurry=claimed.lane is not None)

    async def _is_closed(self, lane: str, claimed: Claimed, at: float) -> bool:
        return await self._barriers.is_closed(lane, self._attempts.run_of_lane(claimed), at)

    async def _is_still_ours(self, claimed: Claimed) -> bool:
        """A process that slept longer than its lease must not begin what others have by now: first it asks."""
        while self._heart.silent_seconds > self._options.lease and not self._lost:  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(ASLEEP_LOOK_SECONDS)
        return not self._lost and claimed.item in self._held

    async def _may_start(self, lease: Lease) -> bool:
        """Announce an item that has been rescued before: if it kills this worker too, the ledger knows which it was."""
        lost = await self._started([lease])
        if lost:
            self._held.pop(lease.item, None)
        return not lost

    async def _tell_started(self, leases: Sequence[Lease]) -> None:
        for item in await self._started(leases):
            self._held.pop(item, None)
            self._abandon(item)
        self._stir.set()  # the lane has let its next item out, to come due before long

    async def _started(self, leases: Sequence[Lease]) -> set[int]:
        try:
            return await self._ledger.claims.started(self.id, leases)
        except WorkerLost:
            self._mark_lost(self.id)
            return {lease.item for lease in leases}

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        if not leases:
            return
        with contextlib.suppress(WorkerLost):
            self.report.given_back += await self._ledger.claims.give_back(self.id, leases)
        for lease in leases:
            self._held.pop(lease.item, None)

    async def _commit(self, batch: Sequence[Finished]) -> CommitReport:
        try:
            report = await self._ledger.commits.commit(self.id, batch)
        except WorkerLost:
            self._mark_lost(self.id)
            everything = tuple(end.lease.item for end in batch)
            report = CommitReport(committed=0, lost=everything, repeated=(), enqueued=0, duplicates=0)
        for end in batch:
            self._held.pop(end.lease.item, None)
        self._stir.set()  # a lane may have let its next item out
        lost = set(report.lost)
        mine = self.report
        mine.lost += len(lost)
        for end in batch:
            if end.lease.item in lost:
                continue
            mine.attempts += 1
            match end.verdict.kind:
                case VerdictKind.DONE:
                    mine.done += 1
                    mine.records += len(end.records)
                case VerdictKind.DEAD:
                    mine.dead += 1
                case VerdictKind.RETRY:
                    mine.retried += 1
                case VerdictKind.THROTTLED:
                    mine.throttled += 1
            if end.verdict.kind is not VerdictKind.DONE:
                self._tell_failure(end)
        if lost:
            self._log.warning("attempts came too late: others have their items now", items=len(lost))
        return report

    def _tell_failure(self, end: Finished) -> None:
        verdict = end.verdict
        say = self._log.info if verdict.kind is VerdictKind.DEAD else self._log.debug
        facts = {"retry_in": round(verdict.delay, 1)} if verdict.kind is not VerdictKind.DEAD else {}
        say("attempt failed", item=end.lease.item, outcome=verdict.outcome.value, error=verdict.error, **facts)

    # Ending

    async def _watch(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Return when the end is ordered; raise what a helper or a slot raised."""
        end = asyncio.create_task(self._end.wait())
        claimer = helpers[-1]
        try:
            while not self._end.is_set():
                done, _ = await asyncio.wait(
                    (end, *helpers, *self._slots), timeout=NURSE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if task is not end:
                        task.result()
                if claimer.done():
                    return
        finally:
            end.cancel()

    async def _leave(self, helpers: Sequence[asyncio.Task[None]]) -> None:
        """Give back what was not begun, let what runs end within the drain time, commit, say goodbye."""
        committer, *_, claimer = helpers
        await self._stop_claiming(claimer)
        await self._give_back(self._empty_buffer())
        await self._finish_running(committer)
        unfinished = [self._held[item] for item in self._running if item in self._held]
        for slot in self._slots:
            slot.cancel()
        await asyncio.wait(self._slots, timeout=FAREWELL_SECONDS)
        await self._give_back(unfinished)
        flushed = asyncio.create_task(self._committer.flushed())
        await asyncio.wait((flushed, committer), return_when=asyncio.FIRST_COMPLETED)
        if committer.done():
            committer.result()
        await self._ledger.workers.stop(self.id)

    async def _stop_claiming(self, claimer: asyncio.Task[None]) -> None:
        """A claim that is under way may have taken items nobody has heard of yet: those go back."""
        if claimer.done():
            return
        await asyncio.wait((claimer,), timeout=LOOK_SECONDS)
        if not claimer.done():
            claimer.cancel()
            await asyncio.gather(claimer, return_exceptions=True)
            with contextlib.suppress(WorkerLost):
                await self._ledger.claims.reconcile(self.id, list(self._held.values()))

    async def _finish_running(self, committer: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + self._options.drain
        now = asyncio.create_task(self._now.wait())
        try:
            while self._running and not self._now.is_set() and (left := deadline - time.monotonic()) > 0:
                await asyncio.wait((now, committer), timeout=min(left, 0.02), return_when=asyncio.FIRST_COMPLETED)
                if committer.done():
                    committer.result()
        finally:
            now.cancel()

    def _empty_buffer(self) -> list[Lease]:
        leases = []
        while not self._buffer.empty():
            leases.append(self._buffer.get_nowait()[0].lease)
        return leases
