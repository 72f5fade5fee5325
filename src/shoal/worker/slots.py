"""The slots: each takes an item from the buffer, makes the attempt, hands its end to the committer, and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from shoal.model.item import Claimed, Lease
from shoal.model.log import Log
from shoal.model.outcome import Finished, VerdictKind
from shoal.worker.attempt import Attempts
from shoal.worker.commit import Committer
from shoal.worker.heartbeat import Heart
from shoal.worker.lane_starts import NotNow
from shoal.worker.lease_buffer import Hold
from shoal.worker.options import Ending, WorkReport
from shoal.worker.politeness import Barriers
from shoal.worker.registration import Membership
from shoal.worker.watchdog import Running

SMOOTHING = 0.1
ASLEEP_LOOK_SECONDS = 0.02
NURSE_SECONDS = 2.0
# An item that was rescued so often may be the one that kills its workers.
SUSPECT_RESCUES = 2


class Slots:
    """`capacity`: how many there are, or will be when what runs has ended. `item_seconds`: how long items take,
    smoothed. `low_water`: with so few in the buffer more are wanted. `shrunk`: the buffer may hold too much by now.
    `given_back`: items that went back unworked.
    """

    def __init__(
        self,
        attempts: Attempts,
        membership: Membership,
        hold: Hold,
        committer: Committer,
        barriers: Barriers,
        heart: Heart,
        report: WorkReport,
        log: Log,
    ) -> None:
        self._attempts = attempts
        self._membership = membership
        self._hold = hold
        self._committer = committer
        self._barriers = barriers
        self._heart = heart
        self._signs = membership.signs
        self._options = membership.options
        self._report = report
        self._log = log
        self._running: dict[Lease, asyncio.Task[None]] = {}
        self._last_begun = 0.0
        self._abandoned: set[Lease] = set()
        self._idle: set[asyncio.Task[None]] = set()
        self._one_suspect = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        self.capacity = self._options.first
        self.item_seconds = 0.0
        self.given_back = 0
        self.low_water = 0
        self.shrunk = False

    def start(self) -> None:
        for _ in range(self.capacity):
            self._add()

    def resize(self, capacity: int) -> None:
        """From now on so many. Those that are too many end after their item; no attempt is broken off."""
        if capacity < self.capacity:
            self.shrunk = True
            self._signs.hungry.set()
        self.capacity = capacity
        for _ in range(capacity - len(self.tasks)):
            self._add()
        for task in list(self._idle)[: max(0, len(self.tasks) - capacity)]:
            self.tasks.discard(task)
            self._idle.discard(task)
            task.cancel()

    @property
    def free(self) -> int:
        return self.capacity - len(self._running)

    @property
    def stuck_seconds(self) -> float:
        """How long no slot has begun anything because all are busy; 0 while one is free."""
        return 0.0 if self.free > 0 else time.monotonic() - self._last_begun

    @property
    def running(self) -> list[Lease]:
        """The leases that are being worked on."""
        return list(self._running)

    def in_progress(self) -> list[Running]:
        """What is being worked on, by name; may be asked from another thread."""
        return [Running(self._attempts.name_of(lease), lease, task) for lease, task in list(self._running.items())]

    def abandon(self, lease: Lease) -> None:
        """Break off an attempt whose lease is gone; its slot goes on with the next."""
        task = self._running.get(lease)
        if task is not None:
            self._abandoned.add(lease)
            task.cancel()

    async def give_back(self, leases: Sequence[Lease]) -> None:
        self._report.given_back += await self._membership.give_back(leases)
        self.given_back += len(leases)
        self._hold.drop(leases)

    async def replace_stubborn(self) -> None:
        """A handler that swallows its cancellation would keep its slot for ever: its item ends, a new slot comes."""
        while True:
            await asyncio.sleep(NURSE_SECONDS)
            for claimed, finished in self._attempts.overdue(NURSE_SECONDS):
                task = self._running.pop(claimed.lease, None)
                if task is not None:
                    self._log.warning("a handler ignores that its time is up; it is left behind", item=claimed.name)
                    self.tasks.discard(task)
                    if len(self.tasks) < self.capacity:
                        self._add()
                    await self._committer.put(finished, 0)

    def _add(self) -> None:
        self.tasks.add(asyncio.create_task(self._work(), name="slot"))

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        while True:
            if self._hold.buffered <= self.low_water:
                self._signs.hungry.set()
            try:
                self._idle.add(me)
                claimed, at = await self._hold.next()
            except asyncio.CancelledError:
                if me not in self.tasks:
                    return  # it was one too many, and had nothing to do
                raise
            finally:
                self._idle.discard(me)
            lease = claimed.lease
            if self._signs.ending is not None:
                await self.give_back([lease])
                continue
            self._running[lease] = me
            self._last_begun = time.monotonic()
            try:
                await self._attempt(claimed, at)
            except asyncio.CancelledError:
                if lease not in self._abandoned:
                    raise
                me.uncancel()
            finally:
                self._abandoned.discard(lease)
                if me in self.tasks:
                    del self._running[lease]
            if me not in self.tasks:
                return  # this slot was given up, another one has its place
            if len(self.tasks) > self.capacity:
                self.tasks.discard(me)
                return

    async def _attempt(self, claimed: Claimed, at: float) -> None:
        if not await self._is_still_ours(claimed):
            return
        if claimed.lane is not None:
            run_id = self._attempts.run_of_lane(claimed)
            if await self._barriers.is_closed(claimed.lane, run_id, at):
                await self.give_back([claimed.lease])
                return
        if claimed.rescues >= SUSPECT_RESCUES:
            # One of them may be what kills the process. Alone, it is the only one that is blamed for it.
            async with self._one_suspect:
                await self._make(claimed, at)
        else:
            await self._make(claimed, at)

    async def _make(self, claimed: Claimed, at: float) -> None:
        if claimed.rescues and await self._membership.started([claimed.lease]):
            self._hold.drop([claimed.lease])
            return  # others have it by now
        try:
            finished, size = await self._attempts.make(claimed, at)
        except NotNow:
            await self.give_back([claimed.lease])
            return
        if asyncio.current_task() not in self.tasks:
            return  # it was given up long ago
        self._learn(claimed, finished)
        await self._committer.put(finished, size, hurry=claimed.lane is not None)

    def _learn(self, claimed: Claimed, finished: Finished) -> None:
        if finished.verdict.kind is VerdictKind.THROTTLED and claimed.lane is not None:
            self._barriers.close(claimed.lane, finished.verdict.delay)
        if finished.verdict.kind is not VerdictKind.DONE:
            self._complain(claimed, finished)
        seconds = finished.seconds
        self.item_seconds += (seconds - self.item_seconds) * SMOOTHING if self.item_seconds else seconds

    def _complain(self, claimed: Claimed, finished: Finished) -> None:
        complaints = self._attempts.complaints
        complaints.failed(claimed, finished.verdict)
        if complaints.broken is not None and self._signs.ending is None:
            self._log.error("every attempt fails at the same line; correct it and go on", error=complaints.broken)
            self._signs.finish(Ending.BROKEN)

    async def _is_still_ours(self, claimed: Claimed) -> bool:
        """A process that slept longer than its lease must not begin what others have by now: first it asks."""
        membership = self._membership
        while self._heart.silent_seconds > self._options.lease and not membership.lost:  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(ASLEEP_LOOK_SECONDS)
        return not membership.lost and claimed.lease in self._hold.leases
