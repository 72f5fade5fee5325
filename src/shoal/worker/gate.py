"""Politeness of single requests: robots.txt, and the pace of the lane for every request beyond an item's first."""

from __future__ import annotations

import asyncio
import contextlib
import time

from shoal.define.policy import DEFAULT_PER_HOST
from shoal.errors import InvalidItem, NotFound, Permanent, Transient
from shoal.fetch.robots import Robots
from shoal.ledger.protocols import Lanes
from shoal.model.item import Claimed
from shoal.model.urlkey import url_host
from shoal.worker.starter import Starter

# How long a host is taken for one without a pace after the ledger said so.
UNPACED_SECONDS = 5.0
# How long a failure to get robots.txt is remembered.
ROBOTS_SECONDS = 60.0
# How late a turn may be used: so much, and twice what a question to the ledger takes.
LEAST_SLACK = 0.02
LONGEST_ROUND_TRIP = 1.0
# A look at a lane is good for so long.
LOOK_SECONDS = 0.1
REMEMBERED_HOSTS = 10_000


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
        self._places: dict[str, asyncio.Semaphore] = {}
        self._slowed: dict[str, float] = {}
        self._unpaced: dict[str, float] = {}

    async def slow(self, lane: str, delay: float, run_id: str | None) -> float:
        """Hand a crawl-delay on to the lane, once. Returns when that was."""
        if lane not in self._slowed and self._lanes is not None:
            await self._lanes.slow(lane, delay, "robots.txt asks for it", run_id=run_id)
            _forget_some(self._slowed)
            self._slowed[lane] = time.monotonic()
        return self._slowed.get(lane, 0.0)

    async def place(self, host: str) -> asyncio.Semaphore:
        """A place at a host that the item's own lane does not speak for: as many as its lane allows, per process."""
        known = self._places.get(host)
        if known is None:
            limit = DEFAULT_PER_HOST
            if self._lanes is not None:
                with contextlib.suppress(NotFound):
                    limit = (await self._lanes.get(host)).policy.limit
            if len(self._places) >= REMEMBERED_HOSTS:
                self._places = {key: place for key, place in self._places.items() if place.locked()}
            known = self._places.setdefault(host, asyncio.Semaphore(limit))
        await known.acquire()
        return known

    def is_slowed(self, lane: str) -> bool:
        return lane in self._slowed

    async def turn(self, key: str, run_id: str | None, deadline: asyncio.Timeout | None, *, sure: bool) -> None:
        """Wait for one more start on a lane. `sure`: it is known to have a pace, so the ledger is asked."""
        now = time.monotonic()
        if self._lanes is None or (not sure and now < self._unpaced.get(key, 0.0)):
            return
        while True:
            slack = LEAST_SLACK + 2 * self._round_trip
            asked = time.monotonic()
            seconds = await self._lanes.turn(key, run_id=run_id, slack=slack)
            answered = time.monotonic()
            self._round_trip += (min(answered - asked, LONGEST_ROUND_TRIP) - self._round_trip) / 4
            if seconds == 0.0 and not sure:
                _forget_some(self._unpaced)
                self._unpaced[key] = now + UNPACED_SECONDS
                return
            if seconds != 0.0:
                if deadline is not None and (when := deadline.when()) is not None:
                    # Waiting for the lane is not the item's fault.
                    deadline.reschedule(when + abs(seconds))
                await asyncio.sleep(abs(seconds))
            # A turn that was slept through, or whose answer came late, has lapsed: another's may be under way already.
            if seconds >= 0.0 and time.monotonic() - (asked + seconds) <= slack:
                return


class Barriers:
    """Which lanes must not be visited though their items were claimed before anybody knew.

    What this process hears it knows at once; what others heard it learns by looking at the lane before an item that
    has been waiting in the buffer is started.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._until: dict[str, float] = {}
        self._looked_at: dict[str, float] = {}

    def close(self, lane: str, seconds: float) -> None:
        """The site asked to wait."""
        _forget_some(self._until)
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
        _forget_some(self._looked_at)
        self._looked_at[lane] = now
        return False


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
        self._place: asyncio.Semaphore | None = None
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
        host = self._foreign_host(url)
        if self._used and (host is None or self._claimed.url is None):
            await self._take_own_turn()
        if host is not None:
            await self._polite.turn(host, None, self._deadline, sure=False)
            self._place = await self._polite.place(host)

    def sent(self, hop: int) -> None:
        self._begun = self._begun or not self._reading_robots
        if not self._used:
            self._used = True
            if self._claimed.paced:
                self._polite.starter.note(self._claimed.lease)

    def done(self, hop: int) -> None:
        if self._place is not None:
            self._place.release()
            self._place = None

    async def _obey_robots(self, robots: Robots, url: str) -> None:
        self._reading_robots = True
        try:
            rules = await robots.rules(url, gate=self)
        except Transient as unknown:
            # Trying again at once would only find the same remembered failure.
            raise Transient(unknown.message, retry_after=ROBOTS_SECONDS) from unknown
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
        host = _host(url)
        return host if own is None or host != _host(own) else None


def _host(url: str) -> str | None:
    try:
        return url_host(url)
    except InvalidItem:
        return None


def _forget_some(known: dict[str, float]) -> None:
    """Keep memory flat over any number of hosts: the oldest half goes."""
    if len(known) >= REMEMBERED_HOSTS:
        for key in list(known)[: REMEMBERED_HOSTS // 2]:
            del known[key]
