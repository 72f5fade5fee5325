"""Starts on lanes that keep a distance: reserved in the ledger, and used here at their time, never too close."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Literal

import msgspec

from shoal.errors import WorkerLost
from shoal.ledger.protocols import Lanes
from shoal.model.item import Lease
from shoal.model.lane import MAX_LANE_DELAY, MAX_STARTS, StartRequest
from shoal.worker.state import WorkerIdentity, boottime_seconds

Deadline = asyncio.Timeout | None

# How late a start may be used: so much, or this share of the lane's delay, and what is not known of the ledger's clock.
# More after a start was missed, and less again with each that was not.
MIN_SLACK = 0.004
MAX_SLACK = 0.1
SLACK_SHARE = 0.02
# Answers of the ledger say for so long where its clock stands; clocks drift apart.
CLOCK_SAMPLE_SECONDS = 5.0
# A connection is opened so long before its request may leave.
CONNECT_SECONDS = 0.05
MAX_SLEEP_SECONDS = 10.0
# Timers of the event loop are exact to a millisecond. Short distances are waited for to the end in small steps.
EXACT_SPACING = 0.1
TIMER_RESOLUTION_SECONDS = 0.0012
SEND_DELAYS_KEPT = 16
# A lane that nobody waits for is remembered so long for its last start.
MAX_LANES = 10_000


class ReleaseItem(Exception):
    """The item goes back uncharged: its lane does not let it start soon, or it is no longer ours."""


class StartTooFarAhead(Exception):
    """No start was given, because the next one lies `seconds` ahead."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _PendingReservation(msgspec.Struct, eq=False):
    """Somebody who waits for a reservation."""

    lease: Lease | None
    within: float | None
    future: asyncio.Future[float]


class _ReservedStart(msgspec.Struct, frozen=True):
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
    def uncertainty(self) -> float:
        return self.high - self.low

    async def sample(self, lanes: Lanes) -> None:
        """Ask for nothing but the time, now and then: a reservation takes longer, because it is written to disk."""
        asked_at = boottime_seconds()
        if asked_at - self._read_at > CLOCK_SAMPLE_SECONDS / 2:
            self._read_at = asked_at
            at = await lanes.clock()
            self.add_sample(asked_at, boottime_seconds(), at)

    def add_sample(self, asked_at: float, answered_at: float, at: float) -> None:
        self._answers.append((answered_at, asked_at - at, answered_at - at))
        while self._answers[0][0] < answered_at - CLOCK_SAMPLE_SECONDS:
            self._answers.popleft()
        self._update_bounds()
        if self.low > self.high:  # somebody has set a clock
            while len(self._answers) > 1:
                self._answers.popleft()
            self._update_bounds()

    def _update_bounds(self) -> None:
        self.low = max(low for _, low, _ in self._answers)
        self.high = min(high for _, _, high in self._answers)


class LaneRateLimiter:
    """The starts of one lane in this process.

    Starts are not tied to requests: whoever is next uses the next one that is still good. One that was slept through (a
    busy loop, a suspended machine) has lapsed, because another worker's may be under way by then.
    """

    def __init__(
        self, lanes: Lanes, identity: WorkerIdentity, clock: LedgerClock, key: str, run_id: str | None
    ) -> None:
        self._lanes = lanes
        self._identity = identity
        self._clock = clock
        self._key = key
        self._run_id = run_id
        self._pending: deque[_PendingReservation] = deque()
        self._reserve_task: asyncio.Task[None] | None = None
        self._reserved: deque[_ReservedStart] = deque()
        self._send_lock = asyncio.Lock()
        self._slack = MIN_SLACK
        self._spacing = 0.0
        self._last_sent = float("-inf")
        self._send_started_at = 0.0
        self._delays: deque[float] = deque(maxlen=SEND_DELAYS_KEPT)
        self._outstanding = 0
        self._missed = False
        self.users = 0

    async def reserve(self, lease: Lease | None, within: float | None, deadline: Deadline) -> None:
        """A start for one more request; for the first one of an item with its lease. Returns shortly before it.

        Raises StartTooFarAhead when it would be more than `within` seconds ahead, and ReleaseItem when the lease is
        gone.
        """
        pending = _PendingReservation(lease, within, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._reserve_task is None or self._reserve_task.done():
            self._reserve_task = asyncio.create_task(self._reserve_pending())
        began = time.monotonic()
        earliest = await pending.future
        try:
            # Most of the wait, before a connection is taken.
            await asyncio.sleep(max(0.0, earliest - CONNECT_SECONDS - boottime_seconds()))
        except BaseException:
            self.drop_reservation()
            raise
        extend_deadline(deadline, time.monotonic() - began)

    async def before_send(self, deadline: Deadline) -> None:
        """Wait for the very moment. The next one waits until `sent` or `send_failed`."""
        began = time.monotonic()
        await self._send_lock.acquire()
        try:
            await self._wait_for_start()
        except BaseException:
            self._send_lock.release()
            raise
        extend_deadline(deadline, time.monotonic() - began)

    def after_send(self) -> None:
        """The request has left."""
        self._last_sent = boottime_seconds()
        self._delays.append(self._last_sent - self._send_started_at)
        self._send_lock.release()

    def send_failed(self) -> None:
        """It did not leave after all."""
        self._send_lock.release()

    def drop_reservation(self) -> None:
        """Somebody who has reserved does not come."""
        self._outstanding = max(0, self._outstanding - 1)

    async def _wait_for_start(self) -> None:
        while True:
            while self._missed or not self._reserved:
                try:
                    await self.reserve(None, None, None)
                except StartTooFarAhead as far:
                    await asyncio.sleep(min(far.seconds, MAX_SLEEP_SECONDS))
            start = self._reserved.popleft()
            self.drop_reservation()
            spaced = self._last_sent + self._spacing - self._send_delay()
            await sleep_until(max(start.earliest, spaced), exact=self._spacing < EXACT_SPACING)
            self._send_started_at = boottime_seconds()
            if self._send_started_at <= start.latest:
                self._slack = max(MIN_SLACK, self._slack * 0.95)
                return
            self._slack = min(MAX_SLACK, self._slack * 2)
            self._reserved.clear()
            self._missed = True

    def _send_delay(self) -> float:
        """Writing a request takes at least this long. So much earlier it may begin, and is not sent too early."""
        return min(self._delays) if len(self._delays) == SEND_DELAYS_KEPT else 0.0

    async def _reserve_pending(self) -> None:
        """Reserve for all who wait, as often as it takes; what came in meanwhile goes together."""
        try:
            while self._pending:
                within = self._pending[0].within
                batch = [pending for pending in self._pending if pending.within == within][:MAX_STARTS]
                for pending in batch:
                    self._pending.remove(pending)
                batch = [pending for pending in batch if not pending.future.done()]
                if not batch:
                    continue
                batch.sort(key=lambda pending: pending.lease is None)
                worker = self._identity.id
                try:
                    await self._reserve_for(worker, batch, within)
                except WorkerLost:
                    self._identity.mark_lost(worker)
                    _fail_all(batch, ReleaseItem())
                except BaseException as error:
                    _fail_all([*batch, *self._pending], error)
                    self._pending.clear()
                    if isinstance(error, asyncio.CancelledError):
                        raise
        finally:
            self._reserve_task = None

    async def _reserve_for(self, worker: str, batch: list[_PendingReservation], within: float | None) -> None:
        leases = tuple(pending.lease for pending in batch if pending.lease is not None)
        await self._clock.sample(self._lanes)
        slack = max(self._slack, SLACK_SHARE * self._spacing) + self._clock.uncertainty
        asked_at = boottime_seconds()
        request = StartRequest(leases=leases, count=len(batch), slack=slack, within=within)
        if self._missed:
            # Also for those who had one: all of them are reserved anew.
            idle = min(asked_at - self._last_sent, MAX_LANE_DELAY)
            self._missed = False
            self._reserved.clear()
            count = min(MAX_STARTS, len(batch) + self._outstanding)
            request = StartRequest(leases=leases, count=count, slack=slack, within=within, idle=idle)
        starts = await self._lanes.reserve(worker, self._key, request, run_id=self._run_id)
        self._clock.add_sample(asked_at, boottime_seconds(), starts.at)
        earliest, latest = starts.at + self._clock.high, starts.at + self._clock.low + slack
        self._spacing = starts.spacing
        for wait in starts.waits:
            self._reserved.append(
                _ReservedStart(earliest + wait, latest + wait if starts.spacing > 0 else float("inf"))
            )
        for n, pending in enumerate(batch):
            if pending.future.done():
                continue
            if pending.lease is not None and pending.lease.item in starts.lost:
                pending.future.set_exception(ReleaseItem())
            elif n < len(starts.waits):
                self._outstanding += 1
                pending.future.set_result(earliest + starts.waits[n])
            else:
                pending.future.set_exception(StartTooFarAhead(starts.next_in))
        if leases:
            self._identity.events.work_changed.set()


class StartReservation:
    """One request's start on a lane: reserved, then used or given up."""

    __slots__ = ("_deadline", "_lane", "_state")

    def __init__(self, lane: LaneRateLimiter, deadline: Deadline) -> None:
        self._lane = lane
        self._deadline = deadline
        self._state: Literal["new", "reserved", "sending", "closed"] = "new"
        lane.users += 1

    async def reserve(self, lease: Lease | None, within: float | None) -> None:
        await self._lane.reserve(lease, within, self._deadline)
        self._state = "reserved"

    async def before_send(self) -> None:
        if self._state != "sending":
            await self._lane.before_send(self._deadline)
            self._state = "sending"

    def after_send(self) -> None:
        if self._state == "sending":
            self._state = "closed"
            self._lane.after_send()

    def close(self) -> None:
        if self._state == "sending":
            self._lane.send_failed()
        elif self._state == "reserved":
            self._lane.drop_reservation()
        self._state = "closed"
        self._lane.users -= 1


class RateLimiter:
    """The lanes with a delay that this process visits."""

    def __init__(self, lanes: Lanes, identity: WorkerIdentity) -> None:
        self._lanes = lanes
        self._identity = identity
        self._clock = LedgerClock()
        self._lanes_by_key: dict[tuple[str, str | None], LaneRateLimiter] = {}

    def reservation(self, key: str, run_id: str | None, deadline: Deadline) -> StartReservation:
        lane = self._lanes_by_key.get((key, run_id))
        if lane is None:
            if len(self._lanes_by_key) >= MAX_LANES:
                for name in [name for name, known in self._lanes_by_key.items() if not known.users]:
                    del self._lanes_by_key[name]
            lane = self._lanes_by_key[key, run_id] = LaneRateLimiter(
                self._lanes, self._identity, self._clock, key, run_id
            )
        return StartReservation(lane, deadline)


async def sleep_until(when: float, *, exact: bool) -> None:
    """`when` is by `boottime_seconds`. Exact: not a millisecond late, at the price of that millisecond's work."""
    while (left := when - boottime_seconds()) > 0:  # noqa: ASYNC110 - time is all it waits for
        await asyncio.sleep(max(0.0, left - TIMER_RESOLUTION_SECONDS) if exact else left)


def _fail_all(batch: list[_PendingReservation], error: BaseException) -> None:
    for pending in batch:
        if not pending.future.done():
            pending.future.set_exception(error)


def extend_deadline(deadline: Deadline, seconds: float) -> None:
    """Waiting for others is not the item's fault: its time is moved by as much."""
    if deadline is not None and (when := deadline.when()) is not None:
        deadline.reschedule(when + seconds)
