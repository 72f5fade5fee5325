"""Places at hosts that an item's own lane does not speak for: leased in the ledger, shared with the hosts' items."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque

import msgspec

from shoal.errors import LedgerError, Throttled, WorkerLost
from shoal.ledger.protocols import Lanes
from shoal.model.item import Claimed
from shoal.model.lane import Admission
from shoal.worker.lane_starts import Deadline, NotNow, WorkerSide, extend

# A place is used again without asking for so long after the ledger confirmed it: what others heard of the host since
# (a 429) is known here after that time.
FRESH_SECONDS = 0.25
# It is kept for the next visitor of this process for so long, and held in all for so long while others may wait.
LINGER_SECONDS = 0.2
HELD_SECONDS = 1.0
# How often somebody who waits in the ledger's line asks again.
ASK_AGAIN_SECONDS = (0.02, 0.1)
# When nobody before us got a place for so long, all who wait give up: two hosts may wait for each other.
STUCK_SECONDS = (4.0, 6.0)
PUT_OFF_SECONDS = (1.0, 5.0)
MOST_HOSTS = 10_000


class Place(msgspec.Struct, eq=False):
    """A place at a host. `paced`: the host's lane keeps a distance, so the start must be reserved."""

    visit: int
    worker: str
    taken_at: float
    fresh_until: float
    free_since: float
    paced: bool


class _Waiter(msgspec.Struct, eq=False):
    claimed: Claimed
    given: asyncio.Future[Place]


class HostPlaces:
    """The places of this process at one host. One task speaks with the ledger for all who want one."""

    def __init__(self, lanes: Lanes, side: WorkerSide, host: str) -> None:
        self._lanes = lanes
        self._side = side
        self._host = host
        self._waiting: deque[_Waiter] = deque()
        self._free: list[Place] = []
        self._changed = asyncio.Event()
        self._shut_until = 0.0
        self._why = ""
        self._inside = 0
        self._worker = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Nobody is inside, nobody waits, and nothing need be remembered."""
        return not (self._inside or self._waiting or self._free or time.monotonic() < self._shut_until)

    def shut(self, seconds: float, why: str) -> bool:
        """The host asks to wait. False if that was known."""
        until = time.monotonic() + seconds
        if until <= self._shut_until + 1.0 and self._shut_until > time.monotonic():
            return False
        self._shut_until, self._why = until, why
        self._refuse_all()
        self._changed.set()
        return True

    async def enter(self, claimed: Claimed, deadline: Deadline) -> Place:
        """Wait for a place. Raises Throttled while the host is shut, or when no place comes free for long."""
        now = time.monotonic()
        if now < self._shut_until:
            raise self._refusal()
        if not self._waiting:
            for place in self._free:
                if self._is_good(place, now):
                    self._free.remove(place)
                    self._inside += 1
                    return place
        waiter = _Waiter(claimed, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake()
        try:
            place = await waiter.given
        except BaseException:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif waiter.given.done() and not waiter.given.cancelled() and waiter.given.exception() is None:
                self.leave(waiter.given.result())  # it was called, and cannot come
            raise
        extend(deadline, time.monotonic() - now)
        return place

    def leave(self, place: Place) -> None:
        self._inside -= 1
        place.free_since = time.monotonic()
        self._free.append(place)
        self._hand_out()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._look_after())

    def _is_good(self, place: Place, now: float) -> bool:
        return now < place.fresh_until and place.worker == self._side.worker()

    def _hand_out(self) -> None:
        """Give fresh places to those who wait."""
        now = time.monotonic()
        for place in [place for place in self._free if self._is_good(place, now)]:
            while self._waiting and self._waiting[0].given.done():
                self._waiting.popleft()
            if not self._waiting:
                return
            self._free.remove(place)
            self._inside += 1
            self._waiting.popleft().given.set_result(place)

    async def _look_after(self) -> None:
        while self._waiting or self._free:
            self._changed.clear()
            try:
                await self._give_up_old()
                if self._waiting:
                    await self._ask()
                elif self._free:
                    await self._pause(LINGER_SECONDS)
            except WorkerLost:
                self._free.clear()
                self._side.lost(self._worker)
                self._refuse_all(NotNow())
            except LedgerError as error:
                self._free.clear()  # the worker ends of it, and they with it
                self._refuse_all(error)
            except Exception as error:
                self._refuse_all(error)

    async def _give_up_old(self) -> None:
        """Return places that were kept for nobody, or for too long."""
        now, worker = time.monotonic(), self._side.worker()
        mine = [place for place in self._free if place.worker == worker]  # others went with the worker we were before
        old = [
            place
            for place in mine
            if now - place.taken_at > HELD_SECONDS or (not self._waiting and now - place.free_since >= LINGER_SECONDS)
        ]
        self._free = [place for place in mine if place not in old]
        if old:
            await self._lanes.leave([place.visit for place in old])

    async def _ask(self) -> None:
        """Get one more place for whoever waits first. Places that we still hold are confirmed and used before that."""
        visit = 0
        pause = ASK_AGAIN_SECONDS[0]
        patience = random.uniform(*STUCK_SECONDS)
        moved_at, ahead = time.monotonic(), -1
        try:
            while self._waiting:
                await self._give_up_old()
                if not self._waiting:
                    return
                if self._free:
                    await self._confirm()
                    moved_at = time.monotonic()
                else:
                    visit = visit or random.getrandbits(62)
                    answer = await self._enter(visit, time.monotonic())
                    if answer.is_in or answer.shut > 0:
                        visit = 0
                        return
                    if answer.ahead != ahead:
                        moved_at, ahead = time.monotonic(), answer.ahead
                    if time.monotonic() - moved_at > patience:
                        self._refuse_all(self._no_place())
                        return
                    await self._pause(pause)
                    self._hand_out()
                    pause = min(ASK_AGAIN_SECONDS[1], pause * 1.5)
        finally:
            if visit:
                await self._lanes.leave([visit])

    async def _confirm(self) -> None:
        held = self._free.pop()
        try:
            await self._enter(held.visit, held.taken_at)
        except BaseException:
            self._free.append(held)
            raise

    async def _enter(self, visit: int, taken_at: float) -> Admission:
        asked_at = time.monotonic()
        self._worker = worker = self._side.worker()
        claimed = self._waiting[0].claimed
        answer = await self._lanes.enter(worker, self._host, visit, run_id=claimed.run_id, stage=claimed.stage)
        if answer.shut > 0:
            self._shut_until, self._why = asked_at + answer.shut, answer.why
            self._refuse_all()
        elif answer.is_in:
            now = time.monotonic()
            self._free.append(Place(visit, worker, taken_at, asked_at + FRESH_SECONDS, now, answer.paced))
            self._hand_out()
        return answer

    async def _pause(self, seconds: float) -> None:
        """Sleep, but no longer than until somebody comes or goes here."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
        finally:
            self._changed.clear()

    def _refusal(self) -> Throttled:
        left = max(0.0, self._shut_until - time.monotonic())
        why = f": {self._why}" if self._why else ""
        return Throttled(f"{self._host} must not be visited for {left:.0f} s{why}", retry_after=left, host=self._host)

    def _no_place(self) -> Throttled:
        wait = random.uniform(*PUT_OFF_SECONDS)
        return Throttled(f"no place at {self._host} came free in time", retry_after=wait, host=self._host)

    def _refuse_all(self, error: Exception | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.given.done():
                waiter.given.set_exception(error or self._refusal())


class Places:
    """The hosts that this process visits from elsewhere."""

    def __init__(self, lanes: Lanes, side: WorkerSide) -> None:
        self._lanes = lanes
        self._side = side
        self._hosts: dict[str, HostPlaces] = {}

    def at(self, host: str) -> HostPlaces:
        places = self._hosts.get(host)
        if places is None:
            if len(self._hosts) >= MOST_HOSTS:
                self._hosts = {name: known for name, known in self._hosts.items() if not known.idle}
            places = self._hosts[host] = HostPlaces(self._lanes, self._side, host)
        return places

    async def close(self) -> None:
        """Stop looking after places; the ledger takes them back with the worker."""
        tasks = [known.task for known in self._hosts.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
