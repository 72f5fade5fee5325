"""Starts on lanes that keep a distance: reserved in the ledger, and used here at their time, never too close."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from shoal.errors import WorkerLost
from shoal.ledger.protocols import Lanes
from shoal.model.item import Lease
from shoal.model.lane import MAX_LANE_DELAY, MAX_STARTS, StartWish
from shoal.worker.heartbeat import awake_and_asleep

Deadline = asyncio.Timeout | None

# How late a start may be used: so much, or this share of the lane's delay, and what is not known of the ledger's clock.
# More after a start was missed, and less again with each that was not.
LEAST_SLACK = 0.004
MOST_SLACK = 0.1
SLACK_SHARE = 0.02
# Answers of the ledger say for so long where its clock stands; clocks drift apart.
CLOCK_SECONDS = 5.0
# A connection is opened so long before its request may leave.
CONNECT_SECONDS = 0.05
LONGEST_NAP = 10.0
# Timers of the event loop are exact to a millisecond. Short distances are waited for to the end in small steps.
EXACT_SPACING = 0.1
TIMER_SECONDS = 0.0012
SEND_DELAYS_KEPT = 16
# A lane that nobody waits for is remembered so long for its last start.
REMEMBERED_LANES = 10_000


class NotNow(Exception):
    """The item goes back uncharged: its lane does not let it start soon, or it is no longer ours."""


class TooFar(Exception):
    """No start was given, because the next one lies `seconds` ahead."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class WorkerSide(msgspec.Struct, frozen=True):
    """What politeness needs of the worker it serves: its id in the ledger now, and whom to tell that something moved
    there, or that it was given up."""

    worker: Callable[[], str]
    moved: Callable[[], None]
    lost: Callable[[str], None]


class _Asked(msgspec.Struct, eq=False):
    """Somebody who waits for a reservation."""

    lease: Lease | None
    within: float | None
    given: asyncio.Future[float]


class _Reserved(msgspec.Struct, frozen=True):
    """A start of ours: not before and not after, on this process's clock."""

    earliest: float
    latest: float


class LedgerClock:
    """Where the ledger's clock stands on this process's clock: between two bounds, in seconds to be added to it.

    An answer was made between the question and its arrival. The quickest of the latest ones tell that closest.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, float]] = deque()
        self._read_at = float("-inf")
        self.low = self.high = 0.0

    @property
    def doubt(self) -> float:
        return self.high - self.low

    async def read(self, lanes: Lanes) -> None:
        """Ask for nothing but the time, now and then: a reservation takes longer, because it is written to disk."""
        asked_at = awake_and_asleep()
        if asked_at - self._read_at > CLOCK_SECONDS / 2:
            self._read_at = asked_at
            at = await lanes.clock()
            self.learn(asked_at, awake_and_asleep(), at)

    def learn(self, asked_at: float, answered_at: float, at: float) -> None:
        self._answers.append((answered_at, asked_at - at, answered_at - at))
        while self._answers[0][0] < answered_at - CLOCK_SECONDS:
            self._answers.popleft()
        self._narrow()
        if self.low > self.high:  # somebody has set a clock
            while len(self._answers) > 1:
                self._answers.popleft()
            self._narrow()

    def _narrow(self) -> None:
        self.low = max(low for _, low, _ in self._answers)
        self.high = min(high for _, _, high in self._answers)


class LaneStarts:
    """The starts of one lane in this process.

    Starts are not tied to requests: whoever is next uses the next one that is still good. One that was slept through (a
    busy loop, a suspended machine) has lapsed, because another worker's may be under way by then.
    """

    def __init__(self, lanes: Lanes, side: WorkerSide, clock: LedgerClock, key: str, run_id: str | None) -> None:
        self._lanes = lanes
        self._side = side
        self._clock = clock
        self._key = key
        self._run_id = run_id
        self._asked: deque[_Asked] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._reserved: deque[_Reserved] = deque()
        self._launch = asyncio.Lock()
        self._lateness = LEAST_SLACK
        self._spacing = 0.0
        self._last_sent = float("-inf")
        self._departed = 0.0
        self._delays: deque[float] = deque(maxlen=SEND_DELAYS_KEPT)
        self._owed = 0
        self._missed = False
        self.users = 0

    async def reserve(self, lease: Lease | None, within: float | None, deadline: Deadline) -> None:
        """A start for one more request; for the first one of an item with its lease. Returns shortly before it.

        Raises TooFar when it would be more than `within` seconds ahead, and NotNow when the lease is gone.
        """
        asked = _Asked(lease, within, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        began = time.monotonic()
        earliest = await asked.given
        try:
            # Most of the wait, before a connection is taken.
            await asyncio.sleep(max(0.0, earliest - CONNECT_SECONDS - awake_and_asleep()))
        except BaseException:
            self.not_needed()
            raise
        extend(deadline, time.monotonic() - began)

    async def departing(self, deadline: Deadline) -> None:
        """Wait for the very moment. The next one waits until `sent` or `given_up`."""
        began = time.monotonic()
        await self._launch.acquire()
        try:
            await self._moment()
        except BaseException:
            self._launch.release()
            raise
        extend(deadline, time.monotonic() - began)

    def sent(self) -> None:
        """The request has left."""
        self._last_sent = awake_and_asleep()
        self._delays.append(self._last_sent - self._departed)
        self._launch.release()

    def given_up(self) -> None:
        """It did not leave after all."""
        self._launch.release()

    def not_needed(self) -> None:
        """Somebody who has reserved does not come."""
        self._owed = max(0, self._owed - 1)

    async def _moment(self) -> None:
        while True:
            while self._missed or not self._reserved:
                try:
                    await self.reserve(None, None, None)
                except TooFar as far:
                    await asyncio.sleep(min(far.seconds, LONGEST_NAP))
            start = self._reserved.popleft()
            self.not_needed()
            spaced = self._last_sent + self._spacing - self._send_delay()
            await sleep_until(max(start.earliest, spaced), exact=self._spacing < EXACT_SPACING)
            self._departed = awake_and_asleep()
            if self._departed <= start.latest:
                self._lateness = max(LEAST_SLACK, self._lateness * 0.95)
                return
            self._lateness = min(MOST_SLACK, self._lateness * 2)
            self._reserved.clear()
            self._missed = True

    def _send_delay(self) -> float:
        """Writing a request takes at least this long. So much earlier it may begin, and is not sent too early."""
        return min(self._delays) if len(self._delays) == SEND_DELAYS_KEPT else 0.0

    async def _ask(self) -> None:
        """Reserve for all who wait, as often as it takes; what came in meanwhile goes together."""
        try:
            while self._asked:
                within = self._asked[0].within
                batch = [asked for asked in self._asked if asked.within == within][:MAX_STARTS]
                for asked in batch:
                    self._asked.remove(asked)
                batch = [asked for asked in batch if not asked.given.done()]
                if not batch:
                    continue
                batch.sort(key=lambda asked: asked.lease is None)
                worker = self._side.worker()
                try:
                    await self._reserve_for(worker, batch, within)
                except WorkerLost:
                    self._side.lost(worker)
                    _refuse(batch, NotNow())
                except BaseException as error:
                    _refuse([*batch, *self._asked], error)
                    self._asked.clear()
                    if isinstance(error, asyncio.CancelledError):
                        raise
        finally:
            self._asking = None

    async def _reserve_for(self, worker: str, batch: list[_Asked], within: float | None) -> None:
        leases = tuple(asked.lease for asked in batch if asked.lease is not None)
        await self._clock.read(self._lanes)
        slack = max(self._lateness, SLACK_SHARE * self._spacing) + self._clock.doubt
        asked_at = awake_and_asleep()
        wish = StartWish(leases=leases, count=len(batch), slack=slack, within=within)
        if self._missed:
            # Also for those who had one: all of them are reserved anew.
            idle = min(asked_at - self._last_sent, MAX_LANE_DELAY)
            self._missed = False
            self._reserved.clear()
            count = min(MAX_STARTS, len(batch) + self._owed)
            wish = StartWish(leases=leases, count=count, slack=slack, within=within, idle=idle)
        starts = await self._lanes.reserve(worker, self._key, wish, run_id=self._run_id)
        self._clock.learn(asked_at, awake_and_asleep(), starts.at)
        earliest, latest = starts.at + self._clock.high, starts.at + self._clock.low + slack
        self._spacing = starts.spacing
        for wait in starts.waits:
            self._reserved.append(_Reserved(earliest + wait, latest + wait if starts.spacing > 0 else float("inf")))
        for n, asked in enumerate(batch):
            if asked.given.done():
                continue
            if asked.lease is not None and asked.lease.item in starts.lost:
                asked.given.set_exception(NotNow())
            elif n < len(starts.waits):
                self._owed += 1
                asked.given.set_result(earliest + starts.waits[n])
            else:
                asked.given.set_exception(TooFar(starts.next_in))
        if leases:
            self._side.moved()


class LaneStart:
    """One request's start on a lane: reserved, then used or given up."""

    __slots__ = ("_deadline", "_lane", "_state")

    def __init__(self, lane: LaneStarts, deadline: Deadline) -> None:
        self._lane = lane
        self._deadline = deadline
        self._state: Literal["new", "reserved", "launching", "over"] = "new"
        lane.users += 1

    async def reserve(self, lease: Lease | None, within: float | None) -> None:
        await self._lane.reserve(lease, within, self._deadline)
        self._state = "reserved"

    async def departing(self) -> None:
        if self._state != "launching":
            await self._lane.departing(self._deadline)
            self._state = "launching"

    def sent(self) -> None:
        if self._state == "launching":
            self._state = "over"
            self._lane.sent()

    def close(self) -> None:
        if self._state == "launching":
            self._lane.given_up()
        elif self._state == "reserved":
            self._lane.not_needed()
        self._state = "over"
        self._lane.users -= 1


class AllStarts:
    """The lanes with a delay that this process visits."""

    def __init__(self, lanes: Lanes, side: WorkerSide) -> None:
        self._lanes = lanes
        self._side = side
        self._clock = LedgerClock()
        self._known: dict[tuple[str, str | None], LaneStarts] = {}

    def on(self, key: str, run_id: str | None, deadline: Deadline) -> LaneStart:
        lane = self._known.get((key, run_id))
        if lane is None:
            if len(self._known) >= REMEMBERED_LANES:
                for name in [name for name, known in self._known.items() if not known.users]:
                    del self._known[name]
            lane = self._known[key, run_id] = LaneStarts(self._lanes, self._side, self._clock, key, run_id)
        return LaneStart(lane, deadline)


async def sleep_until(when: float, *, exact: bool) -> None:
    """`when` is by `awake_and_asleep`. Exact: not a millisecond late, at the price of that millisecond's work."""
    while (left := when - awake_and_asleep()) > 0:  # noqa: ASYNC110 - time is all it waits for
        await asyncio.sleep(max(0.0, left - TIMER_SECONDS) if exact else left)


def _refuse(batch: list[_Asked], error: BaseException) -> None:
    for asked in batch:
        if not asked.given.done():
            asked.given.set_exception(error)


def extend(deadline: Deadline, seconds: float) -> None:
    """Waiting for others is not the item's fault: its time is moved by as much."""
    if deadline is not None and (when := deadline.when()) is not None:
        deadline.reschedule(when + seconds)
