"""Politeness of single requests: robots.txt, and the pace of the lane for every request beyond an item's first."""

from __future__ import annotations

import asyncio
import time

from shoal.errors import InvalidItem, Permanent
from shoal.fetch.robots import Robots, Rules
from shoal.ledger.protocols import Lanes
from shoal.model.item import Claimed
from shoal.model.urlkey import url_host
from shoal.worker.starter import Starter

# How long a host is taken for one without a pace after the ledger said so.
UNPACED_SECONDS = 5.0
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
        self._slowed: dict[str, float] = {}
        self._unpaced: dict[str, float] = {}

    async def learn(self, rules: Rules, claimed: Claimed, run_id: str | None, claimed_at: float) -> None:
        """Hand a crawl-delay on to the lane, once.

        Raises NotNow for an item that was claimed before the lane knew: it goes back, to come out again in its turn.
        """
        lane, delay = claimed.lane, rules.crawl_delay
        if lane is None or not delay or self._lanes is None:
            return
        told_at = self._slowed.get(lane)
        if told_at is None:
            await self._lanes.slow(lane, delay, "robots.txt asks for it", run_id=run_id)
            _forget_some(self._slowed)
            told_at = self._slowed[lane] = time.monotonic()
        if not claimed.paced and claimed_at < told_at:
            raise NotNow

    async def turn(self, key: str, run_id: str | None, deadline: asyncio.Timeout | None, *, sure: bool) -> None:
        """Wait for one more start on a lane. `sure`: it is known to have a pace, so the ledger is asked."""
        now = time.monotonic()
        if self._lanes is None or (not sure and now < self._unpaced.get(key, 0.0)):
            return
        while True:
            seconds = await self._lanes.turn(key, run_id=run_id)
            if seconds == 0.0:
                if not sure:
                    _forget_some(self._unpaced)
                    self._unpaced[key] = now + UNPACED_SECONDS
                return
            if deadline is not None and (when := deadline.when()) is not None:
                # Waiting for the lane is not the item's fault.
                deadline.reschedule(when + abs(seconds))
            await asyncio.sleep(abs(seconds))
            if seconds > 0:
                return


class AttemptGate:
    """The gate of one attempt. Its first request is the start that the ledger's lane has given it."""

    __slots__ = ("_claimed", "_claimed_at", "_deadline", "_polite", "_reading_robots", "_run_id", "_used")

    def __init__(self, polite: Politeness, claimed: Claimed, claimed_at: float, *, own_lane_of_run: bool) -> None:
        self._polite = polite
        self._claimed = claimed
        self._claimed_at = claimed_at
        self._run_id = claimed.run_id if own_lane_of_run else None
        self._deadline: asyncio.Timeout | None = None
        self._reading_robots = False
        self._used = False

    def limited_by(self, deadline: asyncio.Timeout) -> None:
        """Waiting for a turn moves this deadline."""
        self._deadline = deadline

    async def before(self, url: str, hop: int) -> None:
        polite = self._polite
        if polite.robots is not None and not self._reading_robots:
            self._reading_robots = True
            try:
                rules = await polite.robots.rules(url, gate=self)
            finally:
                self._reading_robots = False
            if not rules.allowed(url):
                raise Permanent(f"robots.txt of {url_host(url)} forbids it")
            if rules.crawl_delay and not self._used:
                await polite.learn(rules, self._claimed, self._run_id, self._claimed_at)
        if self._used:
            await self._take_turn(url)

    def sent(self, hop: int) -> None:
        if not self._used:
            self._used = True
            if self._claimed.paced:
                self._polite.starter.note(self._claimed.lease)

    async def _take_turn(self, url: str) -> None:
        claimed = self._claimed
        if claimed.lane is None:
            return
        if claimed.url is None or _host(url) == _host(claimed.url):
            if claimed.paced:
                await self._polite.turn(claimed.lane, self._run_id, self._deadline, sure=True)
        elif (host := _host(url)) is not None:
            await self._polite.turn(host, None, self._deadline, sure=False)


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
