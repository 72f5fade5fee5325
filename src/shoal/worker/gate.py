"""Politeness of single requests: robots.txt, and the pace of the lane for every request beyond an item's first."""

from __future__ import annotations

import asyncio
import time

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
        self._slowed: dict[str, float] = {}
        self._unpaced: dict[str, float] = {}

    async def slow(self, lane: str, delay: float, run_id: str | None) -> float:
        """Hand a crawl-delay on to the lane, once. Returns when that was."""
        if lane not in self._slowed and self._lanes is not None:
            await self._lanes.slow(lane, delay, "robots.txt asks for it", run_id=run_id)
            _forget_some(self._slowed)
            self._slowed[lane] = time.monotonic()
        return self._slowed.get(lane, 0.0)

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
    """The gate of one attempt. Its first request is the start that the ledger's lane has given it."""

    __slots__ = ("_begun", "_claimed", "_claimed_at", "_deadline", "_polite", "_reading_robots", "_run_id", "_used")

    def __init__(self, polite: Politeness, claimed: Claimed, claimed_at: float, *, run_of_lane: str | None) -> None:
        self._polite = polite
        self._claimed = claimed
        self._claimed_at = claimed_at
        self._run_id = run_of_lane
        self._deadline: asyncio.Timeout | None = None
        self._reading_robots = False
        self._used = False
        self._begun = False

    def limited_by(self, deadline: asyncio.Timeout) -> None:
        """Waiting for a turn moves this deadline."""
        self._deadline = deadline

    async def before(self, url: str, hop: int) -> None:
        if self._polite.robots is not None and not self._reading_robots:
            await self._obey_robots(self._polite.robots, url)
        if self._used:
            await self._take_turn(url)

    def sent(self, hop: int) -> None:
        self._begun = self._begun or not self._reading_robots
        if not self._used:
            self._used = True
            if self._claimed.paced:
                self._polite.starter.note(self._claimed.lease)

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
        if rules.crawl_delay and (lane := self._lane_of(url)) is not None:
            slowed_at = await self._polite.slow(lane, rules.crawl_delay, self._run_id)
            if lane == self._claimed.lane and self._claimed_at < slowed_at and not (self._claimed.paced or self._begun):
                # It was claimed before the lane knew: it goes back, to come out again in its turn.
                raise NotNow

    async def _take_turn(self, url: str) -> None:
        lane = self._lane_of(url)
        if lane is None:
            return
        if lane != self._claimed.lane:
            await self._polite.turn(lane, None, self._deadline, sure=False)
        elif self._claimed.paced or self._polite.is_slowed(lane):
            await self._polite.turn(lane, self._run_id, self._deadline, sure=True)

    def _lane_of(self, url: str) -> str | None:
        """The lane a request belongs to: the item's own, unless it goes to another host than the item's."""
        claimed = self._claimed
        if claimed.lane is None or claimed.url is None or (host := _host(url)) == _host(claimed.url):
            return claimed.lane
        return host


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
