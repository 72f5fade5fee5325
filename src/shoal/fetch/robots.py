"""robots.txt by RFC 9309: fetched once per site and day, obeyed, and retried while it is unavailable."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from protego import Protego

from shoal.errors import AttemptEnded, Blocked, EgressUnavailable, ExitFailed, Permanent, Throttled, Transient
from shoal.fetch import urls
from shoal.fetch.classify import classify_page, ratio
from shoal.fetch.page import Request
from shoal.model.lane import MAX_LANE_DELAY
from shoal.model.log import Log
from shoal.model.url_key import quoted

if TYPE_CHECKING:
    from shoal.fetch.page import Fetcher, Page, RequestGate

MAX_FILE_BYTES = 512 * 1024
MAX_SITES = 10_000
FIRST_RETRY_SECONDS = 1.0
# A longer Crawl-delay is shortened to this.
MAX_CRAWL_DELAY = MAX_LANE_DELAY
# Each wildcard is matched against each URL. Real files have a few hundred at most.
MAX_WILDCARDS = 2_000
MAX_AGENT_NAMES = 100
# From this size on, parsing would block the event loop noticeably; a thread does it.
_THREAD_CHARACTERS = 32 * 1024
_AGENT = re.compile(r"user[- ]?agent\b\s*:?\s*(.*)", re.IGNORECASE)
_SITE_WIDE = re.compile(r"(?:site-?maps?|host)\b", re.IGNORECASE)
_RULE = re.compile(r"(allow|dis+al+[ao]w|diasllow)\b\s*:?\s*(.*)", re.IGNORECASE)
# Lines without a colon that the parser accepts nevertheless.
_LOOSE_RULE = re.compile(r"(?:allow|dis+al+[ao]w|diasllow|crawl[- ]delay|request[- ]rate)\s", re.IGNORECASE)


class RobotsRules:
    """The rules of one site for one user agent. `crawl_delay` is the pause between two requests, in seconds.

    `warnings`: which rules are not followed exactly, as texts.
    """

    __slots__ = ("_agent", "_parsed", "crawl_delay", "sitemaps", "warnings")

    def __init__(self, text: str, agent: str) -> None:
        own = _AgentGroups(text, agent)
        self._parsed = Protego.parse(own.text)
        self._agent = agent
        self.sitemaps: tuple[str, ...] = tuple(self._parsed.sitemaps)
        requested = self._strictest_delay()
        self.crawl_delay = None if requested is None else min(requested, MAX_CRAWL_DELAY)
        self.warnings: tuple[str, ...] = ()
        if requested is not None and requested > MAX_CRAWL_DELAY:
            self.warnings += (f"it asks for {requested:.3g} s between two requests; {MAX_CRAWL_DELAY:.0f} s are kept",)
        if own.simplified:
            self.warnings += (
                f"it has more than {MAX_WILDCARDS} wildcards; {own.simplified} rules were cut at their first one too "
                "many, which forbids more than it asks for",
            )

    def allowed(self, url: str) -> bool:
        return self._parsed.can_fetch(url, self._agent)

    def _strictest_delay(self) -> float | None:
        delay = self._parsed.crawl_delay(self._agent)
        rate = self._parsed.request_rate(self._agent)
        if rate is None:
            return delay
        return max(delay or 0.0, ratio(rate.seconds, rate.requests))


class _AgentGroups:
    """The part of a robots.txt that applies to one agent: the groups that may match it, and the sitemaps.

    Everything else is dropped before parsing, because the parser copies each rule of a group to each agent of it, which
    is quadratic. The number of wildcards is limited, because each is matched against every URL. Beyond the limit a
    Disallow rule is cut at its wildcard, and forbids more; an Allow rule is dropped.
    """

    def __init__(self, text: str, agent: str) -> None:
        self._agent = agent.lower()
        self._wildcards = MAX_WILDCARDS
        self.simplified = 0
        kept: list[str] = []
        names: dict[str, None] = {}
        in_names = False
        for written in text.splitlines():
            line = written.partition("#")[0].strip()
            if (agent_line := _AGENT.match(line)) is not None:
                if not in_names:
                    names.clear()
                in_names = True
                if (name := self._name(agent_line[1])) is not None and len(names) < MAX_AGENT_NAMES:
                    names[name] = None
            elif _SITE_WIDE.match(line):
                kept.append(line)
            elif ":" in line or _LOOSE_RULE.match(line):
                if in_names:
                    kept += [f"User-agent: {name}" for name in names]
                in_names = False
                if names:
                    kept += self._rule(line)
        if in_names:  # a group without rules allows everything
            kept += [f"User-agent: {name}" for name in names]
        self.text = "\n".join(kept)

    def _name(self, written: str) -> str | None:
        """The name of a group's agent; None if it cannot match ours."""
        name = written.strip().lower()
        return name if name == "*" or ((plain := name.replace("*", "")) and plain in self._agent) else None

    def _rule(self, line: str) -> list[str]:
        rule = _RULE.match(line)
        if rule is None:
            return [line]
        path = rule[2]
        special = path.count("*") or path.endswith("$")
        if special <= self._wildcards:
            self._wildcards -= special
            return [line]
        self.simplified += 1
        parts = path.split("*")
        path, self._wildcards = "*".join(parts[: self._wildcards + 1]), 0
        return [f"Disallow: {path.removesuffix('$') or '/'}"] if rule[1].lower() != "allow" else []


class Robots:
    """A cache of the rules of sites.

    Rules are kept for `ttl` seconds. After a failure a site is asked again after a second, then after twice the time
    for every further failure, up to `retry` seconds; meanwhile the items retry by their own policy. Rules that are not
    followed exactly are logged when the file is read.
    """

    def __init__(
        self, fetcher: Fetcher, user_agent: str, *, ttl: float = 86_400, retry: float = 60, log: Log | None = None
    ) -> None:
        self._fetcher = fetcher
        self._log = log
        self._agent = product_token(user_agent)
        self._ttl = ttl
        self._retry = retry
        self._sites: OrderedDict[str, _Site] = OrderedDict()

    async def rules(self, url: str, *, gate: RequestGate | None = None, fetcher: Fetcher | None = None) -> RobotsRules:
        """The rules for the site of this URL. Raises Transient or Throttled while they are unavailable.

        `fetcher`: what to ask the site with instead, such as one that goes out through a proxy.
        """
        site = self._site(url)
        if (known := site.cached()) is not None:
            return known
        # One caller fetches, the others wait. If it is cancelled, the next one gets the lock and fetches.
        async with site.lock:
            if (known := site.cached()) is not None:
                return known
            try:
                rules = await self._fetch_rules(site.origin, gate, fetcher or self._fetcher)
            except _RulesUnavailable as unavailable:
                wait = min(self._retry, FIRST_RETRY_SECONDS * 2.0 ** min(site.failures, 16))
                if isinstance(unavailable.ended, Throttled) and unavailable.ended.retry_after is not None:
                    wait = unavailable.ended.retry_after
                site.store_failure(unavailable.ended, until=monotonic() + wait)
                raise type(unavailable.ended)(unavailable.ended.message, retry_after=wait) from unavailable.__cause__
            site.store(rules, until=monotonic() + self._ttl)
            return rules

    def _site(self, url: str) -> _Site:
        parsed = urls.parse_url(url)
        if parsed is None or not urls.is_http(parsed):
            raise Permanent(f"{quoted(url)} is not a URL that can be fetched")
        origin = parsed.origin
        site = self._sites.get(origin)
        if site is None:
            site = self._sites[origin] = _Site(origin)
            if len(self._sites) > MAX_SITES:
                self._sites.popitem(last=False)
        else:
            self._sites.move_to_end(origin)
        return site

    async def _fetch_rules(self, origin: str, gate: RequestGate | None, fetcher: Fetcher) -> RobotsRules:
        name = f"robots.txt of {origin.partition('//')[2]}"
        recording = None if gate is None else _RecordingGate(gate)
        request = Request(url=f"{origin}/robots.txt", truncate=True)
        try:
            page = await fetcher.fetch(request, gate=recording, max_body=MAX_FILE_BYTES)
        except (Blocked, ExitFailed, EgressUnavailable):  # a proxy may forbid the site
            raise  # says nothing about the site
        except AttemptEnded as ended:
            if recording is not None and recording.refused:
                # Refused by the caller's gate, which says nothing about the site.
                raise
            if isinstance(ended, Permanent):
                # A redirect loop or an invalid target: by the RFC the file does not exist.
                return RobotsRules("", self._agent)
            raise _RulesUnavailable(Transient(f"{name} could not be fetched: {ended.message}")) from ended
        rules = await self._parse(page, name)
        if self._log is not None:
            for warning in rules.warnings:
                self._log.warning(f"{name} is followed only in part", why=warning)
        return rules

    async def _parse(self, page: Page, name: str) -> RobotsRules:
        if 200 <= page.status < 300:
            text = page.body.decode("utf-8-sig", "replace")
            if len(text) > _THREAD_CHARACTERS:
                return await asyncio.to_thread(RobotsRules, text, self._agent)
            return RobotsRules(text, self._agent)
        ended = classify_page(page)
        if isinstance(ended, Throttled):
            raise _RulesUnavailable(Throttled(f"{name} answered {ended.message}", retry_after=ended.retry_after))
        if page.status >= 500:
            raise _RulesUnavailable(Transient(f"{name} answered {ended.message if ended is not None else page.status}"))
        return RobotsRules("", self._agent)


def product_token(user_agent: str) -> str:
    """The name that robots.txt knows an agent by: `shoal` for `shoal/0.1 (+https://...)`."""
    match = re.match(r"[A-Za-z_-]+", user_agent)
    return match.group().lower() if match else user_agent


class _RulesUnavailable(Exception):
    """The rules are unavailable now; carries the error for the callers."""

    def __init__(self, ended: Transient | Throttled) -> None:
        super().__init__(ended.message)
        self.ended = ended


class _RecordingGate:
    """Forwards to a gate and records whether it ended the fetch."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate = gate
        self.refused = False

    @contextmanager
    def _recording(self) -> Iterator[None]:
        try:
            yield
        except AttemptEnded:
            self.refused = True
            raise

    async def before_request(self, url: str, hop: int) -> None:
        with self._recording():
            await self._gate.before_request(url, hop)

    async def on_redirect(self, url: str, method: str) -> None:
        """robots.txt is no page."""

    async def before_send(self, hop: int) -> None:
        with self._recording():
            await self._gate.before_send(hop)

    def after_send(self, hop: int) -> None:
        self._gate.after_send(hop)

    def request_done(self, hop: int) -> None:
        self._gate.request_done(hop)

    async def on_throttled(self, ended: Throttled) -> None:
        await self._gate.on_throttled(ended)


class _Site:
    """The cached rules or failure of one origin, and their expiry."""

    __slots__ = ("_failure", "_rules", "_until", "failures", "lock", "origin")

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.lock = asyncio.Lock()
        self._rules: RobotsRules | None = None
        self._failure: Transient | Throttled | None = None
        self._until = 0.0
        self.failures = 0

    def cached(self) -> RobotsRules | None:
        """The cached rules, None if they have expired. Raises the cached failure until it expires."""
        if monotonic() >= self._until:
            return None
        match self._failure:
            case None:
                return self._rules
            case Throttled() as throttled:
                raise Throttled(throttled.message, retry_after=max(self._until - monotonic(), 0.0))
            case failure:
                # An earlier retry would only meet the same cached failure.
                raise Transient(failure.message, retry_after=max(self._until - monotonic(), 0.0))

    def store(self, rules: RobotsRules, *, until: float) -> None:
        self._rules, self._failure, self._until = rules, None, until
        self.failures = 0

    def store_failure(self, failure: Transient | Throttled, *, until: float) -> None:
        self._rules, self._failure, self._until = None, failure, until
        self.failures += 1
