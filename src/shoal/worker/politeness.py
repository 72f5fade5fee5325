"""Politeness of each request: robots.txt, the lane of the host it goes to, lanes and runs closed after a claim."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import EgressUnavailable, NotFound, Skipped, Throttled
from shoal.fetch.page import Fetcher, suspended
from shoal.fetch.robots import Robots
from shoal.ledger.protocols import Lanes, Runs
from shoal.model.item import ClaimedItem
from shoal.model.outcome import RetryPolicy
from shoal.model.run import RunState
from shoal.model.url_key import host_or_none, url_host
from shoal.worker.host_slots import HostSlot, HostSlotPool, HostSlots
from shoal.worker.lane_starts import (
    MAX_SLEEP_SECONDS,
    RateLimiter,
    ReleaseItem,
    StartReservation,
    StartTooFarAhead,
)
from shoal.worker.state import WorkerIdentity

if TYPE_CHECKING:
    from shoal.egress.pool import ExitIdentity

MAX_KEYS = 10_000
# What was read about a lane is used for this long.
LANE_RECHECK_SECONDS = 0.1
RUN_RECHECK_SECONDS = 0.3
# The ledger is asked again whether a host has a lane after this long.
LANE_EXISTS_SECONDS = 10.0
# An item whose start is farther ahead is returned instead of keeping a slot.
MAX_START_WAIT_SECONDS = 1.0


class BoundedDict(dict[str, float]):
    """A dict that drops its oldest half when it is full. A missing key only costs another request to the ledger."""

    def __setitem__(self, key: str, value: float) -> None:
        if len(self) >= MAX_KEYS and key not in self:
            for old in list(self)[: MAX_KEYS // 2]:
                del self[old]
        super().__setitem__(key, value)


class ClosedLanes:
    """Lanes that were closed after their items had been claimed.

    What this process learns (a 429) applies at once; what other processes learned is read from the ledger before an
    item that has waited in the buffer is started.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._until = BoundedDict()
        self._checked_at = BoundedDict()

    def close(self, lane: str, seconds: float) -> None:
        """The site asked this worker to wait for so many seconds."""
        self._until[lane] = time.monotonic() + seconds

    def is_closed_here(self, lane: str) -> bool:
        """Whether it is closed as far as this process knows."""
        return time.monotonic() < self._until.get(lane, 0.0)

    async def is_closed(self, lane: str, run_id: str | None, claimed_at: float) -> bool:
        if self.is_closed_here(lane):
            return True
        now = time.monotonic()
        if now - max(claimed_at, self._checked_at.get(lane, 0.0)) < LANE_RECHECK_SECONDS:
            return False
        try:
            view = await self._lanes.get(lane, run_id=run_id)
        except NotFound:
            return False
        if view.paused or view.blocked_seconds > 0:
            self.close(lane, LANE_RECHECK_SECONDS if view.paused else view.blocked_seconds)
            return True
        self._checked_at[lane] = now
        return False


class PausedRuns:
    """Runs that were paused after their items had been claimed: an item that has waited in the buffer is not started.

    So a pause takes effect within a second, also when items that were claimed ahead take longer than expected.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._checked_at = BoundedDict()

    async def is_paused(self, run_id: str, claimed_at: float) -> bool:
        """Whether the run is no longer active. A reading counts for a moment, and so does the claim itself."""
        now = time.monotonic()
        if now - max(claimed_at, self._checked_at.get(run_id, 0.0)) < RUN_RECHECK_SECONDS:
            return False
        self._checked_at[run_id] = now  # one slot asks for all
        try:
            paused = (await self._runs.get(run_id)).state is not RunState.ACTIVE
        except NotFound:
            paused = True
        if paused:
            self._checked_at.pop(run_id, None)
        return paused


class Politeness:
    """The politeness that all attempts of a process share.

    `robots` is None when robots.txt is not obeyed; the others are None for attempts without a ledger.
    """

    def __init__(
        self,
        robots: Robots | None,
        lanes: Lanes | None = None,
        identity: WorkerIdentity | None = None,
        *,
        closed_lanes: ClosedLanes | None = None,
    ) -> None:
        self.robots = robots
        self._lanes = lanes
        self.identity = identity
        self.host_slots: HostSlots | None = None
        self.rate_limiter: RateLimiter | None = None
        self.closed_lanes = closed_lanes
        if lanes is not None and identity is not None:
            self.host_slots = HostSlots(lanes, identity)
            self.rate_limiter = RateLimiter(lanes, identity)
        self._crawl_delay_set_at = BoundedDict()
        self._declared_at = BoundedDict()
        self._lane_seen_at = BoundedDict()
        self._no_lane_at = BoundedDict()
        self._rng = random.Random()
        self.worker_pace = WorkerPace(self._rng)

    def gate(
        self,
        claimed: ClaimedItem,
        claimed_at: float,
        *,
        lane_run_id: str | None,
        deadline: asyncio.Timeout,
        own_pace: bool = False,
    ) -> AttemptGate | None:
        """The gate of one attempt; None when there is nothing to obey. `own_pace`: of each identity, or each worker."""
        if self.robots is None and claimed.lane is None and claimed.url is not None and not own_pace:
            return None
        return AttemptGate(self, claimed, claimed_at, lane_run_id=lane_run_id, deadline=deadline)

    async def set_crawl_delay(self, lane: str, delay: float, run_id: str | None) -> float:
        """Set the crawl-delay of a lane in the ledger, once. Returns when that was."""
        if lane not in self._crawl_delay_set_at and self._lanes is not None:
            await self._lanes.set_delay_floor(lane, delay, "robots.txt asks for it", run_id=run_id)
            self._crawl_delay_set_at[lane] = time.monotonic()
        return self._crawl_delay_set_at.get(lane, 0.0)

    async def declare_identity_lane(self, lane: str, delay: tuple[float, float]) -> None:
        """Make sure that the lane of an identity at a host has its delay in the ledger."""
        if lane not in self._declared_at and self._lanes is not None:
            await self._lanes.declare(lane, delay)
            self._declared_at[lane] = time.monotonic()

    def has_crawl_delay(self, lane: str) -> bool:
        return lane in self._crawl_delay_set_at

    async def has_lane(self, host: str) -> bool:
        """Whether the ledger knows a lane of this host, as of some seconds ago."""
        if self._lanes is None:
            return False
        now = time.monotonic()
        if now - self._lane_seen_at.get(host, -LANE_EXISTS_SECONDS) < LANE_EXISTS_SECONDS:
            return True
        if now - self._no_lane_at.get(host, -LANE_EXISTS_SECONDS) < LANE_EXISTS_SECONDS:
            return False
        try:
            await self._lanes.get(host)
        except NotFound:
            self._no_lane_at[host] = now
            return False
        self._lane_seen_at[host] = now
        return True

    async def block_host(self, host: str, ended: Throttled, claimed: ClaimedItem) -> None:
        """Block a host other than that of the item's own lane: no worker visits it until then."""
        if ended.retry_after is None:
            ended.retry_after = RetryPolicy().delay(claimed.tries + 1, self._rng)
        if self._lanes is None or self.host_slots is None:
            return
        wait, why = ended.retry_after, ended.message
        if self.host_slots.pool_for(host).close_for(wait, why):
            await self._lanes.block_host(host, wait, why, run_id=claimed.run_id, stage=claimed.stage)

    async def close(self) -> None:
        if self.host_slots is not None:
            await self.host_slots.close()


class IdentityPace(msgspec.Struct, frozen=True):
    """The pace of an attempt's exits: so many seconds, from..to, between two starts of each of them at a host."""

    identity: ExitIdentity
    delay: tuple[float, float]


class _HostTimes:
    """When one worker may visit one host again.

    `turn_at`: when the next request gets its turn. `send_at`: when the next request may be sent. `turns`: requests wait
    in it, the first come first. `waiting`: how many wait for one or the other.
    """

    __slots__ = ("send_at", "turn_at", "turns", "waiting")

    def __init__(self) -> None:
        self.turns = asyncio.Lock()
        self.turn_at = self.send_at = 0.0
        self.waiting = 0

    def is_needed(self, now: float) -> bool:
        return self.waiting > 0 or max(self.turn_at, self.send_at) > now


class WorkerPace:
    """The pace of one worker: it waits between two of its requests to a host, whatever other workers do.

    It is the worker's own, so it is not in the ledger. Only a request whose turn it is sets the time of the next one:
    one that is cancelled while it waits leaves those behind it as if it had never come. A turn counts also when its
    request is not sent, because the host may have seen the attempt to connect.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._hosts: dict[str, _HostTimes] = {}
        self._max_hosts = MAX_KEYS

    async def wait(self, host: str, delay: tuple[float, float], deadline: asyncio.Timeout) -> float:
        """Until this worker may send its next request to the host. Returns the pause that follows that request.

        Meanwhile `deadline` stands still.
        """
        with suspended(deadline), self._waiting_for(host) as times:
            async with times.turns:
                while (left := times.turn_at - time.monotonic()) > 0:  # noqa: ASYNC110 - it waits for time
                    await asyncio.sleep(left)
                pause = self._rng.uniform(*delay)
                times.turn_at = time.monotonic() + pause
        return pause

    async def before_send(self, host: str, pause: float, deadline: asyncio.Timeout) -> None:
        """Until the pause after the request before it has passed, which may have had to connect first and was late."""
        with suspended(deadline), self._waiting_for(host) as times:
            while (left := times.send_at - time.monotonic()) > 0:  # noqa: ASYNC110 - it waits for time
                await asyncio.sleep(left)
            times.send_at = time.monotonic() + pause

    def sent(self, host: str, pause: float) -> None:
        """The request was sent now, later than expected when it had to connect first, or to wait for its lane."""
        times, next_at = self._times(host), time.monotonic() + pause
        times.turn_at = max(times.turn_at, next_at)
        times.send_at = max(times.send_at, next_at)

    @contextmanager
    def _waiting_for(self, host: str) -> Iterator[_HostTimes]:
        times = self._times(host)
        times.waiting += 1
        try:
            yield times
        finally:
            times.waiting -= 1

    def _times(self, host: str) -> _HostTimes:
        """Those of a host. Hosts that any request may visit now are forgotten when there are many."""
        times = self._hosts.get(host)
        if times is None:
            if len(self._hosts) >= self._max_hosts:
                now = time.monotonic()
                self._hosts = {name: known for name, known in self._hosts.items() if known.is_needed(now)}
                self._max_hosts = max(MAX_KEYS, 2 * len(self._hosts))
            times = self._hosts[host] = _HostTimes()
        return times


class AttemptGate:
    """Controls the requests of one attempt. Its first request uses the start that the ledger's lane gave the item.

    An item with a URL and no lane has no limit. An item without a URL has no host of its own: its requests obey the
    lanes of the hosts they go to, besides the item's own. Waiting for a slot or a start extends `deadline`.
    """

    __slots__ = (
        "_claimed",
        "_claimed_at",
        "_deadline",
        "_fetcher",
        "_host_slot",
        "_identity_pace",
        "_identity_start",
        "_obeys_robots",
        "_politeness",
        "_reading_robots",
        "_request_sent",
        "_run_id",
        "_start",
        "_start_used",
        "_worker_delay",
        "_worker_pause",
    )

    def __init__(
        self,
        politeness: Politeness,
        claimed: ClaimedItem,
        claimed_at: float,
        *,
        lane_run_id: str | None,
        deadline: asyncio.Timeout,
    ) -> None:
        self._politeness = politeness
        self._claimed = claimed
        self._claimed_at = claimed_at
        self._run_id = lane_run_id
        self._deadline = deadline
        self._host_slot: tuple[HostSlotPool, HostSlot] | None = None
        self._start: StartReservation | None = None
        self._identity_start: StartReservation | None = None
        self._identity_pace: IdentityPace | None = None
        self._worker_delay: tuple[float, float] | None = None
        self._worker_pause: tuple[str, float] | None = None
        self._fetcher: Fetcher | None = None
        self._reading_robots = False
        self._obeys_robots = True
        self._start_used = False
        self._request_sent = False

    def use_identity(self, fetcher: Fetcher | None, pace: IdentityPace | None) -> None:
        """Requests go out as an identity: robots.txt is asked for with this fetcher, and the identity has a pace."""
        self._fetcher = fetcher
        self._identity_pace = pace

    def use_worker_pace(self, delay: tuple[float, float]) -> None:
        """Requests of this worker to one host are so many seconds apart, from..to."""
        self._worker_delay = delay

    def repeat(self) -> None:
        """The item is run again at once: its start was used, and its requests wait for further ones."""
        self._start_used = self._request_sent = True

    async def before_request(self, url: str, hop: int) -> None:
        if self._politeness.robots is not None and self._obeys_robots and not self._reading_robots:
            await self._check_robots(self._politeness.robots, url)
        if self._identity_pace is not None:
            await self._reserve_identity(self._identity_pace, url)
        if self._worker_delay is not None and (host := host_or_none(url)) is not None:
            pause = await self._politeness.worker_pace.wait(host, self._worker_delay, self._deadline)
            self._worker_pause = host, pause
        if self._is_free():
            return
        other_host = self._other_host(url)
        try:
            # The slot first: a start that waits for a slot would be used late.
            if other_host is not None and self._politeness.host_slots is not None:
                host_slots = self._politeness.host_slots.pool_for(other_host)
                self._host_slot = host_slots, await host_slots.acquire(self._claimed, self._deadline)
            if other_host is None or self._claimed.url is None:
                await self._reserve_own()
            if other_host is not None:
                if self._start is not None:
                    await self._use_start_now()  # the item's own lane does not cover this host
                if self._host_slot is not None and self._host_slot[1].paced:
                    await self._reserve(other_host, None, is_other_host=True)
        except BaseException:
            self.request_done(hop)
            raise

    async def on_redirect(self, url: str, method: str) -> None:
        """Each request is limited by itself."""

    async def before_send(self, hop: int) -> None:
        """Wait for the request's turn.

        A worker that was stopped or cut off sends nothing until it knows that the item is still its own: another worker
        may be visiting the host in its place. Raises ReleaseItem when it is not.
        """
        identity = self._politeness.identity
        if identity is not None and identity.may_be_lost:
            await self._confirm_lease(identity)
        await self._wait_for_turn()
        if identity is not None and identity.may_be_lost:
            raise ReleaseItem  # the turn has passed as well
        self._check_still_open()

    def _check_still_open(self) -> None:
        """The host may have answered 429 to another request while this one waited for its turn."""
        if self._host_slot is not None:
            self._host_slot[0].check_open()
        lane, closed_lanes = self._claimed.lane, self._politeness.closed_lanes
        if lane is None or closed_lanes is None or self._start is None or self._request_sent:
            return
        if closed_lanes.is_closed_here(lane):
            raise ReleaseItem

    async def _confirm_lease(self, identity: WorkerIdentity) -> None:
        with suspended(self._deadline):
            if not await identity.wait_for_lease():
                raise ReleaseItem

    async def _wait_for_turn(self) -> None:
        if self._worker_pause is not None:
            await self._politeness.worker_pace.before_send(*self._worker_pause, self._deadline)
        if self._identity_start is not None:
            await self._identity_start.before_send()
        if self._start is not None:
            await self._start.before_send()

    def after_send(self, hop: int) -> None:
        self._request_sent = self._request_sent or not self._reading_robots
        self._start_used = True
        if self._worker_pause is not None:
            self._politeness.worker_pace.sent(*self._worker_pause)
            self._worker_pause = None
        if self._identity_start is not None:
            self._identity_start.after_send()
        if self._start is not None:
            self._start.after_send()

    def request_done(self, hop: int) -> None:
        if self._identity_start is not None:
            self._identity_start.close()
            self._identity_start = None
        if self._start is not None:
            self._start.close()
            self._start = None
        if self._host_slot is not None:
            host_slots, slot = self._host_slot
            self._host_slot = None
            host_slots.release(slot)

    async def for_page_request(self, url: str, *, navigation: bool) -> AttemptGate | None:
        """A gate for a request that a rendered page makes beside others; None when the request needs none.

        A document obeys robots.txt and the lane of its host. Another request obeys only a lane that exists, and what is
        loaded from the item's own host belongs to its visit.
        """
        host = host_or_none(url)
        if not navigation and (host is None or self._is_own(host) or not await self._politeness.has_lane(host)):
            return None
        gate = AttemptGate(
            self._politeness, self._claimed, self._claimed_at, lane_run_id=self._run_id, deadline=self._deadline
        )
        gate.use_identity(self._fetcher, self._identity_pace)
        gate._worker_delay = self._worker_delay
        gate.repeat()
        gate._obeys_robots = navigation
        return gate

    async def start(self) -> None:
        """Use the item's start for a handler that makes its requests without Shoal."""
        try:
            await self._reserve_own()
            await self._use_start_now()
        finally:
            self.request_done(0)

    async def on_throttled(self, ended: Throttled) -> None:
        """Block the host that answered 429. The item's own lane is blocked by the commit of the attempt."""
        if ended.host is not None and not self._is_own(ended.host):
            await self._politeness.block_host(ended.host, ended, self._claimed)

    async def _check_robots(self, robots: Robots, url: str) -> None:
        self._reading_robots = True
        try:
            rules = await robots.rules(url, gate=self, fetcher=self._fetcher)
        except Throttled as ended:
            ended.host = ended.host or host_or_none(url)
            await self.on_throttled(ended)
            raise
        finally:
            self._reading_robots = False
        if not rules.allowed(url):
            raise Skipped(f"robots.txt of {url_host(url)} forbids it")
        if rules.crawl_delay and not self._is_free():
            await self._apply_crawl_delay(rules.crawl_delay, self._other_host(url))

    async def _apply_crawl_delay(self, delay: float, host: str | None) -> None:
        """Set the crawl-delay on the lane of the host."""
        claimed = self._claimed
        if host is not None:
            await self._politeness.set_crawl_delay(host, delay, None)
        elif claimed.lane is not None:
            slowed_at = await self._politeness.set_crawl_delay(claimed.lane, delay, self._run_id)
            if self._claimed_at < slowed_at and not (claimed.paced or self._request_sent):
                # It was claimed before the lane had the delay: it is returned and claimed again when the lane allows.
                raise ReleaseItem

    async def _reserve_identity(self, pace: IdentityPace, url: str) -> None:
        """Reserve a start at the host for the exit of the request. Raises EgressUnavailable when it is far ahead."""
        host = host_or_none(url)
        if host is None or self._politeness.rate_limiter is None:
            return
        taken = False
        while not taken:
            exit_ = await pace.identity.choose_exit(url)
            lane = f"{host} via {exit_.pool}/{exit_.key}"
            await self._politeness.declare_identity_lane(lane, pace.delay)
            start = self._politeness.rate_limiter.reservation(lane, None, self._deadline)
            try:
                await start.reserve(None, None)
                taken = await pace.identity.take_exit(url)
            except StartTooFarAhead as far:
                text = f"the next start of {exit_.name} at {host} is {far.seconds:.0f} s ahead"
                raise EgressUnavailable(text, retry_after=far.seconds) from None
            finally:
                if not taken:
                    start.close()
        self._identity_start = start

    async def _reserve_own(self) -> None:
        """Reserve a start on the item's own lane, if that has a delay."""
        lane = self._claimed.lane
        if (
            lane is None
            or self._start is not None
            or not (self._claimed.paced or self._politeness.has_crawl_delay(lane))
        ):
            return
        await self._reserve(lane, self._run_id, is_other_host=False)

    async def _reserve(self, lane: str, run_id: str | None, *, is_other_host: bool) -> None:
        if self._politeness.rate_limiter is None:
            return
        self._start = start = self._politeness.rate_limiter.reservation(lane, run_id, self._deadline)
        is_first = not is_other_host and not self._start_used and self._claimed.paced
        while True:
            try:
                if is_first:
                    await start.reserve(self._claimed.lease, MAX_START_WAIT_SECONDS)
                else:
                    await start.reserve(None, None)
            except StartTooFarAhead as far:
                if is_first:
                    raise ReleaseItem from None
                if is_other_host:
                    text = f"the next start at {lane} is {far.seconds:.0f} s ahead"
                    raise Throttled(text, retry_after=far.seconds, host=lane) from None
                await asyncio.sleep(min(far.seconds, MAX_SLEEP_SECONDS))
            else:
                return

    async def _use_start_now(self) -> None:
        if self._start is not None:
            await self._start.before_send()
            self._start.after_send()
            self._start.close()
            self._start = None
        self._start_used = True

    def _is_free(self) -> bool:
        return self._claimed.lane is None and self._claimed.url is not None

    def _is_own(self, host: str) -> bool:
        """Whether the item's own lane covers this host."""
        return self._claimed.url is not None and host_or_none(self._claimed.url) == host

    def _other_host(self, url: str) -> str | None:
        """The host of the URL if the item's own lane does not cover it, else None."""
        own = self._claimed.url
        if url == own:
            return None
        host = host_or_none(url)
        return host if host is not None and not self._is_own(host) else None
