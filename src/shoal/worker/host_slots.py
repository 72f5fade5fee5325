"""Slots at hosts that the item's own lane does not cover: leased in the ledger, shared with the items of the host."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import msgspec

from shoal.errors import LedgerError, Throttled, WorkerLost
from shoal.fetch.page import suspended
from shoal.ledger.protocols import Lanes
from shoal.model.item import ClaimedItem
from shoal.model.lane import HostSlotReply
from shoal.worker.lane_starts import Deadline, ReleaseItem
from shoal.worker.state import WorkerIdentity

# A slot is reused without a request to the ledger for this long after it was confirmed. So what other workers learned
# about the host (a 429) is known here after that time.
FRESH_SECONDS = 0.25
# A free slot is kept this long for the next request of this process, and held in all this long at most.
LINGER_SECONDS = 0.2
MAX_HELD_SECONDS = 1.0
# How often the ledger is asked again while no slot is free.
POLL_SECONDS = (0.02, 0.1)
# When the queue for the host has not moved for this long, all requests give up: two hosts may wait for each other.
STUCK_SECONDS = (4.0, 6.0)
NO_SLOT_DELAY_SECONDS = (1.0, 5.0)
MAX_HOSTS = 10_000


class HostSlot(msgspec.Struct, eq=False):
    """A slot at a host. `paced`: the host's lane has a delay, so the start must be reserved."""

    visit: int
    worker: str
    taken_at: float
    fresh_until: float
    free_since: float
    paced: bool


class _Waiter(msgspec.Struct, eq=False):
    claimed: ClaimedItem
    future: asyncio.Future[HostSlot]


class HostSlotPool:
    """The slots of this process at one host. One task requests them from the ledger for all that wait."""

    def __init__(self, lanes: Lanes, identity: WorkerIdentity, host: str) -> None:
        self._lanes = lanes
        self._identity = identity
        self._host = host
        self._waiting: deque[_Waiter] = deque()
        self._free: list[HostSlot] = []
        self._changed = asyncio.Event()
        self._closed_until = 0.0
        self._close_reason = ""
        self._in_use = 0
        self._worker = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether no slot is in use or wanted, and the host is not closed."""
        return not (self._in_use or self._waiting or self._free or time.monotonic() < self._closed_until)

    def close_for(self, seconds: float, why: str) -> bool:
        """Close the host. False if it was already closed for as long."""
        until = time.monotonic() + seconds
        if until <= self._closed_until + 1.0 and self._closed_until > time.monotonic():
            return False
        self._closed_until, self._close_reason = until, why
        self._fail_waiters()
        self._changed.set()
        return True

    def check_open(self) -> None:
        """Raises Throttled while the host is closed."""
        if time.monotonic() < self._closed_until:
            raise self._closed_error()

    async def acquire(self, claimed: ClaimedItem, deadline: Deadline) -> HostSlot:
        """Wait for a slot. Raises Throttled while the host is closed, or when no slot becomes free in time."""
        self.check_open()
        now = time.monotonic()
        if not self._waiting:
            for slot in self._free:
                if self._is_fresh(slot, now):
                    self._free.remove(slot)
                    self._in_use += 1
                    return slot
        waiter = _Waiter(claimed, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake()
        try:
            with suspended(deadline):
                slot = await waiter.future
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.release(waiter.future.result())  # it got a slot while it was cancelled
            raise
        if time.monotonic() < self._closed_until:
            # The host answered 429 in the request that had this slot before.
            self.release(slot)
            raise self._closed_error()
        return slot

    def release(self, slot: HostSlot) -> None:
        self._in_use -= 1
        slot.free_since = time.monotonic()
        self._free.append(slot)
        self._assign_free()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())

    def _is_fresh(self, slot: HostSlot, now: float) -> bool:
        return now < slot.fresh_until and slot.worker == self._identity.id

    def _assign_free(self) -> None:
        """Assign fresh slots to waiting requests."""
        now = time.monotonic()
        for slot in [slot for slot in self._free if self._is_fresh(slot, now)]:
            while self._waiting and self._waiting[0].future.done():
                self._waiting.popleft()
            if not self._waiting:
                return
            self._free.remove(slot)
            self._in_use += 1
            self._waiting.popleft().future.set_result(slot)

    async def _run(self) -> None:
        while self._waiting or self._free:
            self._changed.clear()
            try:
                await self._release_old()
                if self._waiting:
                    await self._acquire_next()
                elif self._free:
                    await self._pause(LINGER_SECONDS)
            except WorkerLost:
                self._free.clear()
                self._identity.mark_lost(self._worker)
                self._fail_waiters(ReleaseItem())
            except LedgerError as error:
                self._free.clear()  # the worker ends, and its slots with it
                self._fail_waiters(error)
            except Exception as error:
                self._fail_waiters(error)

    async def _release_old(self) -> None:
        """Return slots that are not wanted, or were held for too long."""
        now, worker = time.monotonic(), self._identity.id
        mine = [slot for slot in self._free if slot.worker == worker]  # the others ended with this process's earlier id
        old = [
            slot
            for slot in mine
            if now - slot.taken_at > MAX_HELD_SECONDS or (not self._waiting and now - slot.free_since >= LINGER_SECONDS)
        ]
        self._free = [slot for slot in mine if slot not in old]
        if old:
            await self._lanes.release_slots([slot.visit for slot in old])

    async def _acquire_next(self) -> None:
        """Get a slot for the first waiting request. Slots that are still held are confirmed and used first."""
        visit = 0
        pause = POLL_SECONDS[0]
        patience = random.uniform(*STUCK_SECONDS)
        moved_at, ahead = time.monotonic(), -1
        try:
            while self._waiting:
                await self._release_old()
                if not self._waiting:
                    return
                if self._free:
                    await self._renew()
                    moved_at = time.monotonic()
                else:
                    visit = visit or random.getrandbits(62)
                    answer = await self._request_slot(visit, time.monotonic())
                    if answer.granted or answer.blocked_seconds > 0:
                        visit = 0
                        return
                    if answer.ahead != ahead:
                        moved_at, ahead = time.monotonic(), answer.ahead
                    if time.monotonic() - moved_at > patience:
                        self._fail_waiters(self._no_slot_error())
                        return
                    await self._pause(pause)
                    self._assign_free()
                    pause = min(POLL_SECONDS[1], pause * 1.5)
        finally:
            if visit:
                await self._lanes.release_slots([visit])

    async def _renew(self) -> None:
        held = self._free.pop()
        try:
            await self._request_slot(held.visit, held.taken_at)
        except BaseException:
            self._free.append(held)
            raise

    async def _request_slot(self, visit: int, taken_at: float) -> HostSlotReply:
        asked_at = time.monotonic()
        self._worker = worker = self._identity.id
        claimed = self._waiting[0].claimed
        answer = await self._lanes.request_slot(worker, self._host, visit, run_id=claimed.run_id, stage=claimed.stage)
        if answer.blocked_seconds > 0:
            self._closed_until, self._close_reason = asked_at + answer.blocked_seconds, answer.why
            self._fail_waiters()
        elif answer.granted:
            now = time.monotonic()
            self._free.append(HostSlot(visit, worker, taken_at, asked_at + FRESH_SECONDS, now, answer.paced))
            self._assign_free()
        return answer

    async def _pause(self, seconds: float) -> None:
        """Sleep until something changes here, at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._changed.clear()

    def _closed_error(self) -> Throttled:
        left = max(0.0, self._closed_until - time.monotonic())
        why = f": {self._close_reason}" if self._close_reason else ""
        return Throttled(f"{self._host} is closed for {left:.0f} s{why}", retry_after=left, host=self._host)

    def _no_slot_error(self) -> Throttled:
        wait = random.uniform(*NO_SLOT_DELAY_SECONDS)
        return Throttled(f"no free slot at {self._host} in time", retry_after=wait, host=self._host)

    def _fail_waiters(self, error: Exception | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error or self._closed_error())


class HostSlots:
    """The slots of this process at all hosts that items of other lanes visit."""

    def __init__(self, lanes: Lanes, identity: WorkerIdentity) -> None:
        self._lanes = lanes
        self._identity = identity
        self._hosts: dict[str, HostSlotPool] = {}

    def pool_for(self, host: str) -> HostSlotPool:
        slots = self._hosts.get(host)
        if slots is None:
            if len(self._hosts) >= MAX_HOSTS:
                self._hosts = {name: known for name, known in self._hosts.items() if not known.idle}
            slots = self._hosts[host] = HostSlotPool(self._lanes, self._identity, host)
        return slots

    async def close(self) -> None:
        """Stop the tasks; the ledger frees the slots with the worker."""
        tasks = [known.task for known in self._hosts.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
