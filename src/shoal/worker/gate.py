"""Politeness of single requests: robots.txt, and the pace of the lane for every request beyond an item's first."""

from __future__ import annotations

import asyncio
import time

from shoal.errors import NotFound, Permanent
from shoal.fetch.robots import Robots
from shoal.ledger.protocols import Lanes
from shoal.model.item import Claimed
from shoal.model.urlkey import host_or_none, url_host
from shoal.worker.places import Places, extend
from shoal.worker.remembered import Remembered
from shoal.worker.starter import Starter

# How long a host is taken for one without a pace after the ledger said so.
UNPACED_SECONDS = 5.0
# How long a failure to get robots.txt is remembered.
# How late a turn may be used: so much, and twice what a question to the ledger takes.
LEAST_SLACK = 0.02
LONGEST_ROUND_TRIP = 1.0


class NotNow(Exception):
    """The item goes back uncharged: its lane has just learnt that it must be slower."""


class Politeness:
    """What all attempts of a process share.

    `lanes` is None for a single try without a ledger, `robots` when robots.txt is not to be obeyed.
    """

    def __init__(self, lanes: Lanes | None, robots: Robots | None, starter: Starter) -> None:
        self._lanes = lanes
        self.robots = robots
        self.starter = starter
        self._round_trip = 0.0
        self.places = Places(lanes)
        self._slowed = Remembered()
        self._unpaced = Remembered()

    async def slow(self, lane: str, delay: float, run_id: str | None) -> float:
        """Hand a crawl-delay on to the lane, once. Returns when that was."""
        if lane not in self._slowed and self._lanes is not None:
            await self._lanes.slow(lane, delay, "robots.txt asks for it", run_id=run_id)
            self._slowed[lane] = time.monotonic()
        return self._slowed.get(lane, 0.0)

    def is_slowed(self, lane: str) -> bool:
        return lane in self._slowed

    async def turn(self, key: str, run_id: str | None, deadline: asyncio.Timeout | None, *, sure: bool) -> None:
        """Wait for one more start on a lane. `sure`: it is known to have a pace; otherwise that is found out first."""
        if self._lanes is None or not (sure or await self._has_pace(self._lanes, key)):
            return
        while True:
            slack = LEAST_SLACK + 2 * self._round_trip
            asked = time.monotonic()
            seconds = await self._lanes.turn(key, run_id=run_id, slack=slack)
            self._round_trip += (min(time.monotonic() - asked, LONGEST_ROUND_TRIP) - self._round_trip) / 4
            if seconds != 0.0:
                extend(deadline, abs(seconds))
                await asyncio.sleep(abs(seconds))
            # A turn that was slept through, or whose answer came late, has lapsed: another's may be under way already.
            if seconds >= 0.0 and time.monotonic() - (asked + seconds) <= slack:
                return

    async def _has_pace(self, lanes: Lanes, key: str) -> bool:
        """Whether a lane keeps a distance or is blocked. That it does neither is believed for a few seconds."""
        now = time.monotonic()
        if now < self._unpaced.get(key, 0.0):
            return False
        try:
            lane = await lanes.get(key)
        except NotFound:
            paced = False
        else:
            paced = lane.policy.delay_max > 0 or lane.blocked_seconds > 0
        if not paced:
            self._unpaced[key] = now + UNPACED_SECONDS
        return paced


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
        "_used",
    )

    def __init__(self, polite: Politeness, claimed: Claimed, claimed_at: float, *, run_of_lane: str | None) -> None:
        self._polite = polite
        self._claimed = claimed
        self._claimed_at = claimed_at
        self._run_id = run_of_lane
        self._deadline: asyncio.Timeout | None = None
        self._place: str | None = None
        self._reading_robots = False
        self._used = False
        self._begun = False

    def limited_by(self, deadline: asyncio.Timeout) -> None:
        """Waiting for a turn moves this deadline."""
        self._deadline = deadline

    async def before(self, url: str, hop: int) -> None:
        if self._polite.robots is not None and not self._reading_robots:
            await self._obey_robots(self._polite.robots, url)
        if self._is_free():
            return
        foreign = self._foreign_host(url)
        # The place first: a turn that waits for a place would be used late.
        await self._enter(foreign or host_or_none(url) or "", foreign=foreign is not None)
        try:
            if self._used and (foreign is None or self._claimed.url is None):
                await self._take_own_turn()
            if foreign is not None:
                await self._polite.turn(foreign, None, self._deadline, sure=False)
        except BaseException:
            self.done(hop)
            raise

    async def _enter(self, host: str, *, foreign: bool) -> None:
        await self._polite.places.enter(host, foreign=foreign, deadline=self._deadline)
        self._place = host

    def sent(self, hop: int) -> None:
        self._begun = self._begun or not self._reading_robots
        if not self._used:
            self._used = True
            if self._claimed.paced:
                self._polite.starter.note(self._claimed.lease)

    def done(self, hop: int) -> None:
        if self._place is not None:
            self._polite.places.leave(self._place)
            self._place = None

    async def _obey_robots(self, robots: Robots, url: str) -> None:
        self._reading_robots = True
        try:
            rules = await robots.rules(url, gate=self)
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

    async def _take_own_turn(self) -> None:
        lane = self._claimed.lane
        if lane is not None and (self._claimed.paced or self._polite.is_slowed(lane)):
            await self._polite.turn(lane, self._run_id, self._deadline, sure=True)

    def _is_free(self) -> bool:
        return self._claimed.lane is None and self._claimed.url is not None

    def _foreign_host(self, url: str) -> str | None:
        """The host of a request that the item's own lane does not speak for, else None."""
        own = self._claimed.url
        if url == own:
            return None
        host = host_or_none(url)
        return host if own is None or host != host_or_none(own) else None
