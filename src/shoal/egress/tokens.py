"""Pools of API tokens: `[egress.NAME]` with kind = "tokens".

A token is chosen for each request. Its budget is shared by all workers through the ledger; a worker has a share of it
(`shares.py`), so that no request waits for the ledger.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from shoal.config.egress import EgressConfig
from shoal.egress.health import LocalExit
from shoal.egress.pool import BasePool
from shoal.egress.rate_limits import DEFAULT_RESOURCE, Resources, site_budget
from shoal.egress.shares import IDLE_SECONDS, Call, LedgerTime, SharedBudget
from shoal.errors import EgressUnavailable, InvalidSetting, LedgerError, Transient
from shoal.fetch.page import Page
from shoal.ledger.protocols import Ledger
from shoal.model.egress import (
    BAD_TOKEN,
    BudgetCorrection,
    BudgetGrant,
    BudgetKey,
    EgressWait,
    Exit,
    ExitState,
    PoolKind,
    ProxyAddress,
    SiteBudget,
    exit_key,
)
from shoal.model.lane import is_loopback_lane
from shoal.model.log import Log
from shoal.model.redaction import hide_everywhere
from shoal.model.url_key import host_or_none

# A request waits so long for a call; then its item does.
WAIT_SECONDS = 1.0
# A site that refuses a token for its limits, and does not say for how long.
PAUSE_SECONDS = 60.0
# The ledger did not answer: it is asked again after so long.
_LEDGER_SECONDS = 1.0
# Workers that have calls ask so often for what the site has told others, all of them together no more than a hundred
# times a second.
_STOPS_SECONDS = 0.1
_STOPS_SECONDS_PER_MEMBER = 0.01
# Tokens that rest for less are not reported as spent.
_BRIEF_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_LIMIT_BODY = 4_096
_LIMIT_WORDS = (b"rate limit", b"ratelimit", b"abuse detection", b"quota exceeded")
_STATES = {ExitState.BANNED: "banned", ExitState.RESTING: "resting", ExitState.TRIAL: "being tried"}
_REFUSED = "refused with 401"
_MAX_NAMED = 3
# The task that follows what others were told is one for all tokens.
_STOPS = ("", "")
_MAX_DOUBTED = 10_000
# Suspended time counts for the ledger and for sites.
_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _since_boot() -> float:
    return time.clock_gettime(_CLOCK)


class TokenCall:
    """A call that an identity makes. `refused`: the site refused it because of its token."""

    __slots__ = ("budget", "call", "host", "record", "refused", "resource", "url")

    def __init__(self, record: LocalExit, resource: str, budget: SharedBudget, call: Call) -> None:
        self.record = record
        self.resource = resource
        self.budget = budget
        self.call = call
        self.refused = ""
        self.url = ""
        self.host: str | None = None


class TokenIdentity:
    """The tokens of a pool, as one attempt uses them. `exit`: the token of its last request."""

    proxy: ProxyAddress | None = None

    def __init__(self, pool: TokenPool, record: LocalExit, host: str, *, trial: bool) -> None:
        self.exit = record.exit
        self.key = record.key
        self.trial = trial
        self._pool = pool
        self._record = record
        self._host = host
        # Several requests of an attempt may be under way at once, each in a task of its own.
        self._calls: dict[Any, TokenCall] = {}
        self._bad: dict[Any, list[str]] = {}
        # For requests whose pace is kept: the token of the next one, and then its call.
        self._chosen: dict[Any, LocalExit] = {}
        self._taken: dict[Any, TokenCall] = {}
        self._repeats = 0

    async def choose_exit(self, url: str) -> Exit:
        task, record = asyncio.current_task(), self._record
        self._give_up_taken(task)
        if self._may_have_token(url):
            resource = self._pool.resource_of(url, host_or_none(url))
            record = await self._pool.next_token(resource, record, self._bad.get(task, ()), trial=self.trial)
        self._chosen[task] = record
        return record.exit

    async def take_exit(self, url: str) -> bool:
        task = asyncio.current_task()
        record = self._chosen.pop(task)
        if not self._may_have_token(url):
            return True
        resource = self._pool.resource_of(url, host_or_none(url))
        made = await self._pool.take_call_of(record, resource, trial=self.trial and record is self._record)
        if made is not None:
            self._taken[task] = made
        return made is not None

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        task = asyncio.current_task()
        failed = self._calls.pop(task, None)
        if failed is not None:
            self._pool.give_up(failed)
        host = host_or_none(url)
        if not self._may_have_token(url):
            self._pool.warn_of_plain_http(url, host, self._host)
            return {}
        made = self._taken.pop(task, None)
        if made is None:
            made = await self.take_call(self._pool.resource_of(url, host), self._bad.get(task, ()))
        else:
            self._use(made)
        made.url, made.host = url, host
        self._calls[task] = made
        return self._pool.header(made.record.exit)

    async def take_call(self, resource: str, avoid: Collection[str] = ()) -> TokenCall:
        """A call of this kind, which is about to be sent. Raises EgressUnavailable."""
        made = await self._pool.take_call(resource, self._record, avoid, trial=self.trial)
        self._use(made)
        return made

    def _use(self, made: TokenCall) -> None:
        if made.record is self._record:
            self.trial = False  # one request tries a token whose ban is over
        self.exit = made.record.exit

    def _may_have_token(self, url: str) -> bool:
        host = host_or_none(url)
        self._host = self._host or host or ""
        return self._pool.may_have_token(url, host, self._host)

    def _give_up_taken(self, task: Any) -> None:
        """The call of a request that was not sent."""
        made = self._taken.pop(task, None)
        if made is not None:
            self._pool.give_up(made)

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        made = self._calls.get(asyncio.current_task())
        if made is None:
            # A browser's answers come in other tasks than its requests.
            unanswered = (call for call in self._calls.values() if call.url == url and call.call.answered_at is None)
            made = next(unanswered, None)
        if made is not None:
            self._pool.answer(made, url, status, site_budget(headers))

    def token(self) -> Token:
        """For requests that Shoal does not send."""
        return Token(self, self._pool)

    def should_repeat(self, page: Page) -> bool:
        """Whether the answer is about the token, and another one can be used. Raises EgressUnavailable when the site
        refused all of them, for their limits or because they may be bad.
        """
        task = asyncio.current_task()
        made = self._calls.pop(task, None)
        if made is None:
            return False
        if page.status == 401:
            bad = self._bad.setdefault(task, [])
            bad.append(made.record.key)
            if self._pool.has_other(bad):
                return True
            self._pool.judge_refusal(page.url, self._bad.pop(task), made.call.sent_at)
            return False
        for key in self._bad.pop(task, ()):
            self._pool.ban(key, BAD_TOKEN)
        if not self._pool.was_limited(made, page):
            return False
        self._repeats += 1
        if self._repeats > self._pool.most_repeats:
            raise EgressUnavailable(
                f"{host_or_none(page.url)} refuses every token of {self._pool.name}", retry_after=PAUSE_SECONDS
            )
        return True

    def record_success(self, host: str) -> None:
        """Every response was counted."""

    def record_block(self, host: str, why: str) -> None:
        """A refusal that says nothing about limits is about the page."""

    def record_failure(self, why: str) -> None:
        """A token is no way that could fail."""

    async def judge(self, error: Transient) -> Transient:
        return error

    def release(self) -> None:
        for task in list(self._taken):
            self._give_up_taken(task)
        if self.trial:
            self._pool.give_up_trial(self._record.key)

    @property
    def works_for_others(self) -> bool:
        return True  # a failure of the way, such as of a proxy of the environment, is not the token's

    def __repr__(self) -> str:
        return f"TokenIdentity({self.exit.name})"


class Token:
    """API tokens for requests that Shoal does not send, such as those of a library. A handler asks for it with a
    parameter `token: Token`; its stage names the pool with `egress=`.
    """

    def __init__(self, identity: TokenIdentity, pool: TokenPool) -> None:
        self._identity = identity
        self._pool = pool
        self._calls: list[TokenCall] = []

    async def take(self, resource: str = DEFAULT_RESOURCE) -> str:
        """The value of a token, for one call. Waits a moment for the budget; without one the item waits, uncharged."""
        made = await self._identity.take_call(resource)
        self._calls.append(made)
        return made.record.exit.token

    def report(self, status: int, headers: Mapping[str, str]) -> None:
        """What the site answered to the last call: its limits are shared with all workers. Worth it, not needed."""
        if self._calls:
            made = self._calls.pop()
            self._pool.answer(made, "", status, site_budget(headers))
            if status == 401:
                self._pool.refuse(made.record.key)

    def close(self) -> None:
        """The attempt has ended: all its calls were made."""
        for made in self._calls:
            self._pool.give_up(made)

    def __repr__(self) -> str:
        return f"Token({self._identity.exit.name})"


def tokens_of(config: EgressConfig) -> list[Exit]:
    """The tokens of a pool, each value once. Raises InvalidSetting when there is none, or one that is no token."""
    exits: dict[str, Exit] = {}
    for label, value in config.given.items():
        token = value.strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidSetting(
                f"egress.{config.name}: the value of {label} is no token: it has spaces or other characters that no "
                "header can have.",
                remedy=f"Set {label} to the token alone.",
            )
        hide_everywhere(token)
        key = exit_key("token", token)
        exits.setdefault(key, Exit(pool=config.name, key=key, label=label, token=token))
    if not exits:
        names = " and ".join(config.env)
        raise InvalidSetting(
            f"egress.{config.name} has no token: {names} {'is' if len(config.env) == 1 else 'are'} not set.",
            remedy="Set one in the environment, or in the .env file of the project.",
        )
    return list(exits.values())


class TokenPool(BasePool):
    """API tokens from environment variables."""

    kind: PoolKind = "tokens"
    noun: ClassVar[str] = "tokens"
    one: ClassVar[str] = "token"

    def __init__(
        self,
        config: EgressConfig,
        *,
        log: Log,
        alone: bool = False,
        now: Callable[[], float] = _since_boot,
        rng: random.Random | None = None,
    ) -> None:
        # The pool decides itself when a 401 is the token's fault.
        super().__init__(msgspec.structs.replace(config, ban_after=1), log=log, alone=alone, now=now, rng=rng)
        self._refusals_to_ban = config.ban_after
        # The pages that a token was refused at since it was last accepted; when pages were first refused to all tokens.
        self._refused: defaultdict[str, list[str]] = defaultdict(list)
        self._doubted: OrderedDict[str, float] = OrderedDict()
        self._hosts = tuple(_AllowedHost(text) for text in config.hosts)
        self._header_name, _, self._header_value = config.header.partition(": ")
        self._warned_hosts: set[str] = set()
        self._headers: dict[str, Mapping[str, str]] = {}
        self._resources = Resources(config.budget, config.budgets)
        self._budgets: dict[tuple[str, str], SharedBudget] = {}
        self._locks: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._spent: dict[str, float] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._to_tell: set[tuple[str, str]] = set()
        self._time = LedgerTime()
        self._ledger: Ledger | None = None

    async def start(self) -> None:
        self._list_exits(tokens_of(self._config))

    async def close(self) -> None:
        """Give back what is not used."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for budget in self._budgets.values():
            budget.end_shares()
        if self._ledger is not None:
            try:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._settle_all()
            except (LedgerError, TimeoutError) as error:
                self._log.debug("calls not given back; they count as made", error=str(error))

    async def sync(self, ledger: Ledger, worker: str) -> None:
        self._ledger = ledger
        await super().sync(ledger, worker)
        now = self._now()
        for budget in self._budgets.values():
            if now - budget.used_at > IDLE_SECONDS:
                budget.end_shares()
        await self._settle_all()
        await self._look_for_returned_calls(ledger)

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> TokenIdentity:
        self._advance(self._now())
        identity = super().choose(host, sticky=sticky, avoid=avoid)
        assert isinstance(identity, TokenIdentity)
        identity._host = host
        return identity

    def wait(self) -> EgressWait | None:
        self._advance(self._now())
        return super().wait()

    def _identity(self, record: LocalExit, *, trial: bool) -> TokenIdentity:
        return TokenIdentity(self, record, "", trial=trial)

    def _is_usable(self, record: LocalExit, host: str) -> bool:
        return record.key not in self._spent and self.health.is_usable(record, "")

    # For identities.

    @property
    def most_repeats(self) -> int:
        return 2 * len(self.health.records) + 2

    def header(self, exit_: Exit) -> Mapping[str, str]:
        header = self._headers.get(exit_.key)
        if header is None:
            header = self._headers[exit_.key] = {self._header_name: self._header_value.replace("{token}", exit_.token)}
        return header

    def may_have_token(self, url: str, host: str | None, first_host: str) -> bool:
        """Whether a token may be sent there: to the hosts of the pool, or else to the host of the first request."""
        if self._hosts:
            return any(host.allows(url) for host in self._hosts)
        return host is not None and host == first_host and (url.startswith("https:") or is_loopback_lane(host))

    def warn_of_plain_http(self, url: str, host: str | None, first_host: str) -> None:
        """Log, once for each host, that requests have no token only because they are not encrypted."""
        scheme, separator, rest = url.partition("://")
        if host is None or host in self._warned_hosts or scheme != "http":
            return
        if self.may_have_token(f"https{separator}{rest}", host, first_host):
            self._warned_hosts.add(host)
            self._log.warning(
                "requests go out without a token: it is not sent over plain http",
                host=host,
                pool=self.name,
                remedy=f'Use https, or allow it: hosts = ["http://{host}"] in [egress.{self.name}].',
            )

    def resource_of(self, url: str, host: str | None) -> str:
        return self._resources.of(url, host)

    async def take_call(self, resource: str, own: LocalExit, avoid: Collection[str], *, trial: bool) -> TokenCall:
        """A call of the first token that has one; waits a moment for it. Raises EgressUnavailable."""
        while True:
            record = await self.next_token(resource, own, avoid, trial=trial)
            made = self._spend(record, resource, self._now())
            if made is not None:
                return made

    async def next_token(self, resource: str, own: LocalExit, avoid: Collection[str], *, trial: bool) -> LocalExit:
        """The first token that has a call; waits a moment for one. Raises EgressUnavailable."""
        now = self._now()
        deadline = now + WAIT_SECONDS
        while True:
            self.health.advance(now)
            # That of the attempt, or meanwhile another one.
            if (trial or own.state is ExitState.GOOD) and own.key not in avoid and self._has_call(own, resource, now):
                return own
            budgets = []
            for record in self._candidates(own, avoid, trial=trial):
                budget = self._budget(record.key, resource)
                if record is not own and budget.calls_left(now):
                    return record
                budgets.append((record, budget))
            if not budgets:
                raise self._unavailable("", now)
            await self._wait_for_call(budgets, resource, deadline)
            now = self._now()

    async def take_call_of(self, record: LocalExit, resource: str, *, trial: bool) -> TokenCall | None:
        """A call of this token, if need be of its next share. None when it has none, or must not be used any more."""
        for _ in range(2):
            now = self._now()
            self.health.advance(now)
            if not (trial or record.state is ExitState.GOOD):
                return None
            made = self._spend(record, resource, now)
            budget = self._budget(record.key, resource)
            if made is not None or budget.is_resting(now):
                return made
            await self._wait_for_call([(record, budget)], resource, now + WAIT_SECONDS)
        return None

    def _has_call(self, record: LocalExit, resource: str, now: float) -> bool:
        """Whether this token has a call now. If not, more are asked for."""
        budget = self._budget(record.key, resource)
        has_call = budget.calls_left(now) > 0
        if not has_call and budget.needs_more(now):
            self._ask(record.key, resource)
        return has_call

    def _spend(self, record: LocalExit, resource: str, now: float) -> TokenCall | None:
        """A call of this token if it has one now. More are asked for before they are used up."""
        budget = self._budget(record.key, resource)
        call = budget.spend(now)
        if budget.needs_more(now):
            self._ask(record.key, resource)
        return None if call is None else TokenCall(record, resource, budget, call)

    async def _wait_for_call(
        self, budgets: Sequence[tuple[LocalExit, SharedBudget]], resource: str, deadline: float
    ) -> None:
        now = self._now()
        awake = [(record, budget) for record, budget in budgets if not budget.is_resting(now)]
        first_back = min((budget.rests_until for _, budget in budgets), default=math.inf)
        if (not awake and first_back > deadline) or now >= deadline:
            raise self._all_rest(budgets, resource, now)
        if not awake:
            await asyncio.sleep(first_back - now)
            return
        record, budget = awake[0]
        budget.waiting += 1
        try:
            await asyncio.wait([self._ask(record.key, resource)], timeout=deadline - now)
        finally:
            budget.waiting -= 1

    def answer(self, made: TokenCall, url: str, status: int, said: SiteBudget | None) -> None:
        """The headers of an answer are there."""
        now = self._now()
        key, budget, resource = made.record.key, made.budget, made.resource
        named = None if said is None or not url else said.resource
        if named is not None and named != resource and self._resources.learn(url, made.host, named):
            resource = named
        if resource == made.resource:
            budget.answer(made.call, said, now)
        else:
            budget.answer(made.call, None, now)
            budget = self._budget(key, resource)
            told = Call(None, made.call.sent_at)
            budget.answer(told, said, now)
        if status != 401:
            self._refused.pop(key, None)
            self.health.succeed(key, made.host or "", now, trial=made.record.state is ExitState.TRIAL)
        if said is not None and said.remaining is not None and said.remaining < budget.calls_left(now):
            budget.end_shares()  # somebody else uses the token, too
            self._tell(key, resource)
        if said is not None and said.remaining == 0:
            seconds = said.reset_seconds if said.reset_seconds is not None else said.retry_after or PAUSE_SECONDS
            if seconds > 0:
                budget.stop(now + seconds, "spent")
                self._tell(key, resource)
        if status in (403, 429):
            if said is not None and said.remaining == 0:
                made.refused = "spent"
            elif said is not None and said.retry_after is not None:
                made.refused = "asked to pause"
                self._rest_token(key, now, said.retry_after)
            elif status == 429:
                made.refused = "asked to pause"
                self._rest_token(key, now, PAUSE_SECONDS)
        if key in self._spent or budget.is_resting(now):
            self._update_spent(key, now)

    def give_up(self, made: TokenCall) -> None:
        """No answer to the call will come; the site may have counted it."""
        made.budget.answer(made.call, None, self._now())

    def was_limited(self, made: TokenCall, page: Page) -> bool:
        """Whether the site refused the call because of its limits; a text may be all that says so."""
        if not made.refused and page.status == 403:
            beginning = page.body[:_LIMIT_BODY].lower()
            if any(words in beginning for words in _LIMIT_WORDS):
                made.refused = "asked to pause"
                now = self._now()
                self._rest_token(made.record.key, now, PAUSE_SECONDS)
                self._update_spent(made.record.key, now)
        return bool(made.refused)

    def has_other(self, avoid: Collection[str]) -> bool:
        return self._part is not None and any(
            record.key not in avoid and record.state is ExitState.GOOD for record in self._part.records
        )

    def judge_refusal(self, url: str, keys: Collection[str], sent_at: float) -> None:
        """A page answered 401 to all of these tokens. Raises EgressUnavailable when they may be the reason.

        The page is the reason when one of them was accepted elsewhere since the page was first refused, or before, and
        this page alone is refused again.
        """
        if urlsplit(url).path == "/robots.txt":
            return  # nothing else is asked for before it
        first = self._doubted.setdefault(url, sent_at)
        accepted_at = max(self.health.last_success(key) for key in keys)
        elsewhere = {page for key in keys for page in self._refused[key]} - {url}
        if accepted_at > first or (first < sent_at and accepted_at > -math.inf and not elsewhere):
            del self._doubted[url]
            return
        if len(self._doubted) > _MAX_DOUBTED:
            self._doubted.popitem(last=False)
        labels = [self.health.records[key].exit.label for key in keys if key in self.health.records]
        for key in keys:
            self.refuse(key, url)
        raise EgressUnavailable(f"{host_or_none(url)} answers 401 to every token of {self.name}; {_to_correct(labels)}")

    def refuse(self, key: str, url: str = "") -> None:
        """A 401 that may be the token's fault: after some in a row, it is."""
        self._refused[key].append(url)
        record = self.health.records.get(key)
        is_trial = record is not None and record.state is ExitState.TRIAL
        if is_trial or len(self._refused[key]) >= self._refusals_to_ban:
            del self._refused[key][: -self._refusals_to_ban]
            self.ban(key, BAD_TOKEN)

    def ban(self, key: str, why: str) -> None:
        record = self.health.records.get(key)
        if record is not None:
            self._log.warning("token refused; it is not used for a while", token=record.exit.label, why=why)
            self.health.fail(key, why, self._now(), trial=record.state is ExitState.TRIAL)
            for (owner, _), budget in self._budgets.items():
                if owner == key:
                    budget.end_shares()

    # Budgets.

    def _candidates(self, own: LocalExit, avoid: Collection[str], *, trial: bool) -> list[LocalExit]:
        """The tokens that a request may use, that of its attempt first."""
        records = [] if self._part is None else list(self._part.records)
        if own in records:
            place = records.index(own)
            records = records[place:] + records[:place]
        return [
            record
            for record in records
            if record.key not in avoid and (record.state is ExitState.GOOD or (trial and record is own))
        ]

    def _budget(self, key: str, resource: str) -> SharedBudget:
        budget = self._budgets.get((key, resource))
        if budget is None:
            budget = self._budgets[key, resource] = SharedBudget(self._resources.policy(resource))
        return budget

    def _ask(self, key: str, resource: str) -> asyncio.Task[None]:
        """Ask the ledger for the next share of a budget."""
        return self._in_background((key, resource), self._take_share)

    def _tell(self, key: str, resource: str) -> None:
        """Tell the ledger at once what the site said."""
        if self._ledger is not None:
            self._to_tell.add((key, resource))
            self._in_background((key, f"{resource}\0"), self._tell_now)

    async def _tell_now(self, key: str, resource: str) -> None:
        while (key, resource) in self._to_tell:  # again, if the site said more meanwhile
            self._to_tell.discard((key, resource))
            await self._settle(key, resource)

    def _in_background(self, place: tuple[str, str], work: Callable[[str, str], Any]) -> asyncio.Task[None]:
        task = self._tasks.get(place)
        if task is None or task.done():
            name = f"budget of {self.name}"
            task = self._tasks[place] = asyncio.create_task(work(place[0], place[1].rstrip("\0")), name=name)
        return task

    async def _take_share(self, key: str, resource: str) -> None:
        budget = self._budget(key, resource)
        async with self._locks[key, resource]:
            asked = self._now()
            request = budget.ask(self._rng.getrandbits(62), self._sharers, asked)
            used, said = budget.settlement(self._time, asked)
            try:
                if self._ledger is None:
                    granted = BudgetGrant(calls=request.calls, seconds=request.seconds)
                else:
                    place = BudgetKey(self.name, key, resource)
                    granted = await self._ledger.budgets.take(place, request, used=used, said=said)
            except BaseException as error:
                budget.fail(self._now() + _LEDGER_SECONDS, "waiting for the ledger")
                if not isinstance(error, LedgerError):
                    raise
                self._log.debug("no share of a budget: ledger unreachable", error=error.message)
                return
            now = self._now()
            if self._ledger is not None:
                self._time.learn(asked, now, granted.at)
            budget.settled()
            budget.receive(granted, now)
        self._update_spent(key, now)
        if granted.calls and self._ledger is not None:
            self._in_background(_STOPS, self._follow_stops)

    async def _follow_stops(self, key: str, resource: str) -> None:
        """Make no more calls of budgets that others found spent, although this worker has taken some ahead.

        Ends when it has none.
        """
        assert self._ledger is not None
        while any(budget.calls_left(self._now()) for budget in self._budgets.values()):
            await asyncio.sleep(max(_STOPS_SECONDS, _STOPS_SECONDS_PER_MEMBER * len(self._members)))
            if len(self._members) < 2:
                continue
            asked = self._now()
            try:
                stops = await self._ledger.budgets.stops(self.name)
            except LedgerError as error:
                self._log.debug("stopped budgets not asked for: ledger unreachable", error=error.message)
                continue
            for stop in stops:
                why = "spent" if stop.resource else "asked to pause"
                for (owner, kind), budget in self._budgets.items():
                    if owner == stop.key and stop.resource in ("", kind) and budget.calls_left(asked):
                        budget.stop(asked + stop.seconds, why)
                        self._update_spent(owner, self._now())

    async def _settle(self, key: str, resource: str) -> None:
        budget = self._budgets.get((key, resource))
        if self._ledger is None or budget is None or not self._time.is_known:
            return
        async with self._locks[key, resource]:
            used, said = budget.settlement(self._time, self._now())
            try:
                await self._ledger.budgets.settle(BudgetKey(self.name, key, resource), used, said=said)
            except LedgerError as error:
                self._log.debug("budget not settled: ledger unreachable", error=error.message)
            else:
                budget.settled()

    async def _settle_all(self) -> None:
        for (key, resource), budget in list(self._budgets.items()):
            if budget.has_news(self._now()):
                await self._settle(key, resource)

    async def _look_for_returned_calls(self, ledger: Ledger) -> None:
        """Others may have given back calls of a budget that is spent for us."""
        now = self._now()
        resting = {
            place: budget
            for place, budget in self._budgets.items()
            if budget.why == "spent" and budget.rests_until > now + _BRIEF_SECONDS
        }
        if not resting:
            return
        for key, view in await ledger.budgets.list(self.name):
            budget = resting.get((key, view.resource))
            if budget is not None and view.free > 0:
                budget.rest(-math.inf, "")
                self._update_spent(key, now)

    @property
    def _sharers(self) -> int:
        """How many workers spend one token."""
        members, tokens = max(1, len(self._members)), max(1, len(self.health.records))
        return members if self._config.share == "shared" else -(-members // tokens)

    def _rest_token(self, key: str, now: float, seconds: float) -> None:
        """The site asked for a pause: of all kinds of calls, everywhere."""
        self._budget(key, DEFAULT_RESOURCE)
        for (owner, _), budget in self._budgets.items():
            if owner == key:
                budget.stop(now + seconds, "asked to pause")
        if self._ledger is not None and self._time.is_known:
            at = self._time.latest(now)
            said = BudgetCorrection(sent_at=at, rests_until=at + seconds)
            self._in_background((key, ""), lambda key, _: self._tell_pause(key, said))

    async def _tell_pause(self, key: str, said: BudgetCorrection) -> None:
        assert self._ledger is not None
        try:
            await self._ledger.budgets.settle(BudgetKey(self.name, key, ""), (), said=said)
        except LedgerError as error:
            self._log.debug("pause of a token not shared: ledger unreachable", error=error.message)

    # Tokens that have nothing left.

    def _update_spent(self, key: str, now: float) -> None:
        """A token is spent when nothing is left of its common budget, nor of another one that was used."""
        budgets = [budget for (owner, _), budget in self._budgets.items() if owner == key]
        rests = [budget.rests_until for budget in budgets if budget.is_resting(now)]
        until = min(rests, default=now) if (key, DEFAULT_RESOURCE) in self._budgets else now
        has_calls = any(budget.calls_left(now) for budget in budgets)
        is_spent = len(rests) == len(budgets) and not has_calls and until - now > _BRIEF_SECONDS
        if is_spent:
            if self._spent.get(key) != until:
                self._spent[key] = until
                self.health.changes += 1
        elif self._spent.pop(key, None) is not None:
            self.health.returns += 1
            self.health.changes += 1

    def _advance(self, now: float) -> None:
        if self._spent:
            for key in [key for key, until in self._spent.items() if until <= now + _BRIEF_SECONDS]:
                self._update_spent(key, now)

    def _find_wait(self, now: float) -> tuple[EgressWait | None, float | None]:
        if self._part is None or not self._part.records:
            return super()._find_wait(now)
        records = self._part.records
        if any(self._is_usable(record, "") for record in records):
            return None, None
        counts: Counter[str] = Counter(self._state_of(record, DEFAULT_RESOURCE, now) for record in records)
        back = [self._spent.get(record.key, record.until) for record in records]
        first = min(back)
        why = self._none_usable(counts)
        if bad := [record.exit.label for record in records if _is_refused(record)]:
            why = f"{why}; {_to_correct(bad)}"
        return self._wait_for(why), None if first == math.inf else first

    def _state_of(self, record: LocalExit, resource: str, now: float) -> str:
        if record.state is not ExitState.GOOD:
            return _REFUSED if _is_refused(record) else _STATES.get(record.state, "unusable")
        budgets = [budget for (owner, _), budget in self._budgets.items() if owner == record.key]
        named = self._budgets.get((record.key, resource))
        resting = [budget for budget in (named, *budgets) if budget is not None and budget.is_resting(now)]
        return resting[0].why if resting else "spent"

    def _all_rest(
        self, budgets: Sequence[tuple[LocalExit, SharedBudget]], resource: str, now: float
    ) -> EgressUnavailable:
        for record, _ in budgets:
            self._update_spent(record.key, now)
        counts = Counter(budget.why if budget.is_resting(now) else "busy" for _, budget in budgets)
        first = min(budget.rests_until for _, budget in budgets)
        why = self._none_usable(counts)
        if resource != DEFAULT_RESOURCE:
            why += f" for {resource}"
        return EgressUnavailable(why, retry_after=max(0.1, first - now))


def _is_refused(record: LocalExit) -> bool:
    return record.state is ExitState.BANNED and BAD_TOKEN in record.why


def _to_correct(labels: Sequence[str]) -> str:
    """What to do about tokens that are refused, by the names of their variables."""
    more = len(labels) - _MAX_NAMED
    names = ", ".join(labels[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"correct {names} in .env or the environment, and start again"


class _AllowedHost:
    """A host of the option `hosts`: `api.example.com`, `*.example.com`, `host:8080`, or with http:// before it."""

    def __init__(self, text: str) -> None:
        scheme, separator, host = text.strip().lower().rpartition("://")
        self._plain = separator and scheme == "http"
        self._host = host.rstrip("/")

    def allows(self, url: str) -> bool:
        parts = urlsplit(url)
        name = (parts.hostname or "").lower()
        with_port = host_or_none(url) or ""
        is_host = self._host in (name, with_port) or (self._host.startswith("*.") and name.endswith(self._host[1:]))
        return is_host and (parts.scheme == "https" or bool(self._plain) or is_loopback_lane(with_port))
