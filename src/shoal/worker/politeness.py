"""Politeness of each request: robots.txt, the lane of its host, lanes closed meanwhile.

Times that were noted per host or lane, in flat memory over any number of them.

Lanes that were closed after their items had been claimed.

Politeness of single requests: robots.txt, and the lane of the host that each request goes to.
"""

from __future__ import annotations

import asyncio
import random
import time

from shoal.errors import NotFound, Permanent, Throttled
from shoal.fetch.robots import Robots
from shoal.ledger.protocols import Lanes
from shoal.model.item import Claimed
from shoal.model.outcome import RetryPolicy
from shoal.model.url_key import host_or_none, url_host
from shoal.worker.host_slots import HostPlaces, Place, Places
from shoal.worker.lane_starts import LONGEST_NAP, AllStarts, LaneStart, NotNow, TooFar, WorkerSide

MOST = 10_000
# A look at a lane is good for so long.
LOOK_SECONDS = 0.1
# An item whose own start is farther ahead than this goes back instead of keeping a slot.
OWN_START_WITHIN = 1.0


class Remembered(dict[str, float]):
    """A dict that forgets its oldest half when it gets too long. Whoever asks must be able to find out again."""

    def __setitem__(self, key: str, value: float) -> None:
        if len(self) >= MOST and key not in self:
            for old in list(self)[: MOST // 2]:
                del self[old]
        super().__setitem__(key, value)


class Barriers:
    """Which lanes must not be visited though their items were claimed before anybody knew.

    What this process hears it knows at once; what others heard it learns by looking at the lane before an item that
    has been waiting in the buffer is started.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._until = Remembered()
        self._looked_at = Remembered()

    def close(self, lane: str, seconds: float) -> None:
        """The site asked to wait."""
        self._until[lane] = time.monotonic() + seconds

    async def is_closed(self, lane: str, run_id: str | None, claimed_at: float) -> bool:
        now = time.monotonic()
        if now < self._until.get(lane, 0.0):
            return True
        if now - max(claimed_at, self._looked_at.get(lane, 0.0)) < LOOK_SECONDS:
            return False
        try:
            view = await self._lanes.get(lane, run_id=run_id)
        except NotFound:
            return False
        if view.paused or view.blocked_seconds > 0:
            self.close(lane, LOOK_SECONDS if view.paused else view.blocked_seconds)
            return True
        self._looked_at[lane] = now
        return False


class Politeness:
    """What all attempts of a process share.

    `lanes` is None for a single try without a ledger, `robots` when robots.txt is not to be obeyed.
    """

    def __init__(self, lanes: Lanes | None, robots: Robots | None) -> None:
        self._lanes = lanes
        self.robots = robots
        self.places: Places | None = None
        self.starts: AllStarts | None = None
        self._slowed = Remembered()
        self._rng = random.Random()

    def serve(self, side: WorkerSide) -> None:
        """Places and starts are taken for this worker."""
        if self._lanes is not None:
            self.places = Places(self._lanes, side)
            self.starts = AllStarts(self._lanes, side)

    async def slow(self, lane: str, delay: float, run_id: str | None) -> float:
        """Hand a crawl-delay on to the lane, once. Returns when that was."""
        if lane not in self._slowed and self._lanes is not None:
            await self._lanes.slow(lane, delay, "robots.txt asks for it", run_id=run_id)
            self._slowed[lane] = time.monotonic()
        return self._slowed.get(lane, 0.0)

    def is_slowed(self, lane: str) -> bool:
        return lane in self._slowed

    async def close_host(self, host: str, ended: Throttled, claimed: Claimed) -> None:
        """A host that has no say in the item's own lane asks to wait: nobody visits it until then."""
        if ended.retry_after is None:
            ended.retry_after = RetryPolicy().delay(claimed.tries + 1, self._rng)
        if self._lanes is None or self.places is None:
            return
        wait, why = ended.retry_after, ended.message
        if self.places.at(host).shut(wait, why):
            await self._lanes.close_host(host, wait, why, run_id=claimed.run_id, stage=claimed.stage)

    async def close(self) -> None:
        if self.places is not None:
            await self.places.close()


class AttemptGate:
    """The gate of one attempt. Its first request is the start that the ledger's lane has given it.

    An item with a URL and no lane was set free by its author. An item without a URL has no host of its own: what it
    visits keeps to the lanes of the hosts, besides the item's own.
    """

    __slots__ = (
        "_begun",
        "_claimed",
        "_claimed_at",
        "_deadline",
        "_place",
        "_polite",
        "_reading_robots",
        "_run_id",
        "_start",
        "_used",
    )

    def __init__(self, polite: Politeness, claimed: Claimed, claimed_at: float, *, run_of_lane: str | None) -> None:
        self._polite = polite
        self._claimed = claimed
        self._claimed_at = claimed_at
        self._run_id = run_of_lane
        self._deadline: asyncio.Timeout | None = None
        self._place: tuple[HostPlaces, Place] | None = None
        self._start: LaneStart | None = None
        self._reading_robots = False
        self._used = False
        self._begun = False

    def limited_by(self, deadline: asyncio.Timeout) -> None:
        """Waiting for a place or a start moves this deadline."""
        self._deadline = deadline

    async def before(self, url: str, hop: int) -> None:
        if self._polite.robots is not None and not self._reading_robots:
            await self._obey_robots(self._polite.robots, url)
        if self._is_free():
            return
        foreign = self._foreign_host(url)
        try:
            # The place first: a start that waits for a place would be used late.
            if foreign is not None and self._polite.places is not None:
                places = self._polite.places.at(foreign)
                self._place = places, await places.enter(self._claimed, self._deadline)
            if foreign is None or self._claimed.url is None:
                await self._reserve_own()
            if foreign is not None:
                if self._start is not None:
                    await self._depart_at_once()  # its own lane is none of the host's: that start is over
                if self._place is not None and self._place[1].paced:
                    await self._reserve(foreign, None, foreign=True)
        except BaseException:
            self.done(hop)
            raise

    async def departing(self, hop: int) -> None:
        if self._start is not None:
            await self._start.departing()

    def sent(self, hop: int) -> None:
        self._begun = self._begun or not self._reading_robots
        self._used = True
        if self._start is not None:
            self._start.sent()

    def done(self, hop: int) -> None:
        if self._start is not None:
            self._start.close()
            self._start = None
        if self._place is not None:
            places, place = self._place
            self._place = None
            places.leave(place)

    async def start(self) -> None:
        """Something that is no request of ours starts, such as a handler with a client of its own."""
        try:
            await self._reserve_own()
            await self._depart_at_once()
        finally:
            self.done(0)

    async def throttled(self, ended: Throttled) -> None:
        """A host answered that it wants to be left alone. The item's own lane hears of it by the end of the attempt."""
        if ended.host is not None and not self._is_own(ended.host):
            await self._polite.close_host(ended.host, ended, self._claimed)

    async def _obey_robots(self, robots: Robots, url: str) -> None:
        self._reading_robots = True
        try:
            rules = await robots.rules(url, gate=self)
        except Throttled as ended:
            ended.host = ended.host or host_or_none(url)
            await self.throttled(ended)
            raise
        finally:
            self._reading_robots = False
        if not rules.allowed(url):
            raise Permanent(f"robots.txt of {url_host(url)} forbids it")
        if rules.crawl_delay and not self._is_free():
            await self._slow_down(rules.crawl_delay, self._foreign_host(url))

    async def _slow_down(self, delay: float, host: str | None) -> None:
        """Hand a crawl-delay on to the lane it is meant for."""
        claimed = self._claimed
        if host is not None:
            await self._polite.slow(host, delay, None)
        elif claimed.lane is not None:
            slowed_at = await self._polite.slow(claimed.lane, delay, self._run_id)
            if self._claimed_at < slowed_at and not (claimed.paced or self._begun):
                # It was claimed before the lane knew: it goes back, to come out again in its turn.
                raise NotNow

    async def _reserve_own(self) -> None:
        """A start on the item's own lane, if that keeps a distance."""
        lane = self._claimed.lane
        if lane is None or self._start is not None or not (self._claimed.paced or self._polite.is_slowed(lane)):
            return
        await self._reserve(lane, self._run_id, foreign=False)

    async def _reserve(self, lane: str, run_id: str | None, *, foreign: bool) -> None:
        if self._polite.starts is None:
            return
        self._start = start = self._polite.starts.on(lane, run_id, self._deadline)
        is_first = not foreign and not self._used and self._claimed.paced
        while True:
            try:
                if is_first:
                    await start.reserve(self._claimed.lease, OWN_START_WITHIN)
                else:
                    await start.reserve(None, None)
            except TooFar as far:
                if is_first:
                    raise NotNow from None
                if foreign:
                    text = f"the next start at {lane} is {far.seconds:.0f} s ahead"
                    raise Throttled(text, retry_after=far.seconds, host=lane) from None
                await asyncio.sleep(min(far.seconds, LONGEST_NAP))
            else:
                return

    async def _depart_at_once(self) -> None:
        if self._start is not None:
            await self._start.departing()
            self._start.sent()
            self._start.close()
            self._start = None
        self._used = True

    def _is_free(self) -> bool:
        return self._claimed.lane is None and self._claimed.url is not None

    def _is_own(self, host: str) -> bool:
        """Whether the item's own lane speaks for this host."""
        return self._claimed.url is not None and host_or_none(self._claimed.url) == host

    def _foreign_host(self, url: str) -> str | None:
        """The host of a request that the item's own lane does not speak for, else None."""
        own = self._claimed.url
        if url == own:
            return None
        host = host_or_none(url)
        return host if host is not None and not self._is_own(host) else None
