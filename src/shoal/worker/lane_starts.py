"""Starts on lanes with a delay: reserved in the ledger and used at their time, never closer than the delay."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Literal

import msgspec

from shoal.errors import WorkerLost
from shoal.fetch.page import suspended
from shoal.ledger.protocols import Lanes
from shoal.model.item import Lease
from shoal.model.lane import MAX_LANE_DELAY, MAX_STARTS, StartRequest
from shoal.worker.state import WorkerIdentity, boottime_seconds

Deadline = asyncio.Timeout | None

# How late a start may be used: this long, or this share of the lane's delay, plus the uncertainty about the ledger's
# clock. It doubles after a missed start and shrinks with each start that was used.
MIN_SLACK = 0.004
MAX_SLACK = 0.1
SLACK_SHARE = 0.02
# A reading of the ledger's clock is used for this long, because clocks drift.
CLOCK_SAMPLE_SECONDS = 5.0
# A connection is opened this long before its request may be sent.
CONNECT_SECONDS = 0.05
MAX_SLEEP_SECONDS = 10.0
# Timers of the event loop are exact to a millisecond. The end of short delays is waited for in small steps.
EXACT_SPACING = 0.1
TIMER_RESOLUTION_SECONDS = 0.0012
SEND_DELAYS_KEPT = 16
# With more lanes than this, those without users are dropped.
MAX_LANES = 10_000


class ReleaseItem(Exception):
    """The item must be returned uncharged: its lane does not let it start soon, or its lease is lost."""


class StartTooFarAhead(Exception):
    """No start was reserved, because the next one is `seconds` ahead."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _PendingReservation(msgspec.Struct, eq=False):
    """A request that waits for a reservation."""

    lease: Lease | None
    within: float | None
    future: asyncio.Future[float]


class _ReservedStart(msgspec.Struct, frozen=True):
    """A reserved start: when it may be used, on this process's clock."""

    earliest: float
    latest: float


class LedgerClock:
    """The offset of the ledger's clock from this process's clock: between `low` and `high` seconds.

    An answer was made between the request and its arrival, so the quickest of the latest answers bound it best.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, float]] = deque()
        self._read_at = float("-inf")
        self.low = self.high = 0.0

    @property
    def uncertainty(self) -> float:
        return self.high - self.low

    async def sample(self, lanes: Lanes) -> None:
        """Read the ledger's clock if the last reading is old. It is quicker than a reservation, which is written."""
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
        if self.low > self.high:  # a clock was changed
            while len(self._answers) > 1:
                self._answers.popleft()
            self._update_bounds()

    def _update_bounds(self) -> None:
        self.low = max(low for _, low, _ in self._answers)
        self.high = min(high for _, _, high in self._answers)


class LaneRateLimiter:
    """The starts of one lane in this process.

    Starts are not tied to requests: the next request uses the next valid start. A start that was missed (a busy loop, a
    suspended machine) is void, because another worker may use the one after it.
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
        """Reserve a start for one request, with the item's lease for its first one. Returns shortly before the start.

        Raises StartTooFarAhead when it would be more than `within` seconds ahead, and ReleaseItem when the lease is
        lost.
        """
        pending = _PendingReservation(lease, within, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._reserve_task is None or self._reserve_task.done():
            self._reserve_task = asyncio.create_task(self._reserve_pending())
        with suspended(deadline):
            earliest = await pending.future
            try:
                # Most of the wait is before a connection is taken.
                await asyncio.sleep(max(0.0, earliest - CONNECT_SECONDS - boottime_seconds()))
            except BaseException:
                self.drop_reservation()
                raise

    async def before_send(self, deadline: Deadline) -> None:
        """Wait for the start. The next request waits until `after_send` or `send_failed`."""
        began = time.monotonic()
        await self._send_lock.acquire()
        try:
            await self._wait_for_start()
        except BaseException:
            self._send_lock.release()
            raise
        extend_deadline(deadline, time.monotonic() - began)

    def after_send(self) -> None:
        """The request was sent."""
        self._last_sent = boottime_seconds()
        self._delays.append(self._last_sent - self._send_started_at)
        self._send_lock.release()

    def send_failed(self) -> None:
        """The request was not sent."""
        self._send_lock.release()

    def drop_reservation(self) -> None:
        """A request that has reserved a start does not use it."""
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
        """The least time that writing a request took: it may begin this much earlier."""
        return min(self._delays) if len(self._delays) == SEND_DELAYS_KEPT else 0.0

    async def _reserve_pending(self) -> None:
        """Reserve for all pending requests; those that came in meanwhile go together."""
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
            # Starts that were reserved before are void too: all of them are reserved again.
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
    """One request's start on a lane: reserved, then used or dropped."""

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
    """The starts of all lanes with a delay that this process visits."""

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
    """`when` is by `boottime_seconds`. `exact` avoids the millisecond of the timer's resolution by polling."""
    while (left := when - boottime_seconds()) > 0:  # noqa: ASYNC110 - time is all it waits for
        await asyncio.sleep(max(0.0, left - TIMER_RESOLUTION_SECONDS) if exact else left)


def _fail_all(batch: list[_PendingReservation], error: BaseException) -> None:
    for pending in batch:
        if not pending.future.done():
            pending.future.set_exception(error)


def extend_deadline(deadline: Deadline, seconds: float) -> None:
    """Extend the timeout of an attempt by the time that it waited for its lane."""
    if deadline is not None and (when := deadline.when()) is not None:
        deadline.reschedule(when + seconds)
