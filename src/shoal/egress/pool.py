"""What every pool of exits can do, what an attempt gets from it, and what the kinds of pools share."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Protocol

from shoal.config.egress import EgressConfig
from shoal.egress.choosing import Part
from shoal.egress.health import LocalExit, LocalHealth
from shoal.egress.sharing import fixed_part, part_of
from shoal.errors import EgressUnavailable, LedgerError, Transient
from shoal.fetch.page import Identity, Page
from shoal.ledger.protocols import Ledger
from shoal.model.egress import (
    EgressWait,
    Exit,
    ExitHealth,
    ExitReport,
    ExitSpec,
    ExitState,
    PoolChanges,
    PoolKind,
    ProxyAddress,
)
from shoal.model.log import Log

# A worker has so long for the one request after a ban; then another one may try.
TRIAL_SECONDS = 120.0
# An urgent sync comes so long after the last one at the earliest.
_MIN_SYNC_INTERVAL = 1.0
_REPORTS_PER_CALL = 1_000
# An item looks again after so long when it cannot be told when an exit comes back.
_UNKNOWN_WAIT = 60.0
# One that is being tried may be good soon.
_TRIAL_WAIT = 5.0
# What a wait for the first exit is at least: one that is due has to be tried first.
_MIN_WAIT = 2.0
# Above so many pairs of exits and workers, a thread finds out who has what.
_MANY_PAIRS = 50_000
_MANY_BANS = 5
_STATE_WORDS = {ExitState.BANNED: "banned", ExitState.RESTING: "resting", ExitState.TRIAL: "being tried"}


class ExitIdentity(Identity, Protocol):
    """An exit, as one attempt uses it. The attempt reports what happened; a fetcher sends through it.

    `trial`: this is the one request that tries an exit whose ban is over.
    """

    exit: Exit
    trial: bool

    async def choose_exit(self, url: str) -> Exit:
        """The exit that the next request of this task should have, so that its pace can be waited for. It may wait.
        Raises EgressUnavailable.
        """

    async def take_exit(self, url: str) -> bool:
        """Its start has come: the request gets it. False if it cannot be used any more; another one is chosen then."""

    def record_success(self, host: str) -> None:
        """The host answered, and did not block: whatever the status, exit and host did what they should."""

    def record_block(self, host: str, why: str) -> None:
        """The host refused this exit: a 403, a challenge, a soft block. Counts at this host only."""

    def record_failure(self, why: str) -> None:
        """The way failed before the site was reached. Counts everywhere."""

    def release(self) -> None:
        """The attempt has ended, whatever the end; a trial that told nothing is repeated soon. Called once."""

    def should_repeat(self, page: Page) -> bool:
        """Whether this answer is only about what the request went out as, such as a spent token, and another one can
        be used at once: the request is then sent again. Bounded by the identity.
        """

    async def judge(self, error: Transient) -> Transient:
        """What ended an attempt, as an ExitFailed if the pool finds out that the way was the reason."""

    @property
    def works_for_others(self) -> bool:
        """Whether its exit has succeeded for another attempt since it was chosen: then a failure of the way may be the
        item's own, and is charged.
        """


class ExitPool(Protocol):
    """A pool in this process. All methods run in the worker's event loop; `choose` is called for each attempt."""

    name: str
    kind: PoolKind

    async def start(self) -> None:
        """Read the exits. Raises UsageError for a pool that can never work, such as a file that does not exist."""

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> ExitIdentity:
        """The exit for an attempt at this host; one whose key is in `avoid` only if there is no other.

        `sticky`: attempts with the same text get the same exit while it is good, if the pool chooses so. Raises
        EgressUnavailable, with the reason and when it may end, when no exit can be used: never anything else. Takes
        microseconds.
        """

    def wait(self) -> EgressWait | None:
        """Why no exit can be used at any host now, with an empty stage; None when one can."""

    async def sync(self, ledger: Ledger, worker: str) -> None:
        """Report health to the ledger and learn what others reported. Called once per heartbeat interval, and soon
        after `needs_sync` became true. Raises LedgerError.
        """

    @property
    def needs_sync(self) -> bool:
        """Whether others should know at once, because an exit was banned."""

    async def close(self) -> None: ...


class UsedExit:
    """An exit in use by one attempt, which adds nothing to its requests. It measures how fast sites answer."""

    __slots__ = (
        "_chosen_at",
        "_has_result",
        "_health",
        "_now",
        "_sent_at",
        "_succeeded_at",
        "exit",
        "key",
        "proxy",
        "trial",
    )

    def __init__(self, exit_: Exit, *, trial: bool, health: LocalHealth, now: Callable[[], float]) -> None:
        self.exit = exit_
        self.key = exit_.key
        self.proxy: ProxyAddress | None = exit_.proxy
        self.trial = trial
        self._health = health
        self._now = now
        self._sent_at: float | None = None
        self._has_result = False
        self._chosen_at = now()
        self._succeeded_at: float | None = None

    async def choose_exit(self, url: str) -> Exit:
        return self.exit

    async def take_exit(self, url: str) -> bool:
        return True

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        self._sent_at = self._now()
        return {}

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        if self._sent_at is not None:
            self._health.measure(self.exit.key, self._now() - self._sent_at)
            self._sent_at = None

    def record_success(self, host: str) -> None:
        self._has_result = True
        self._succeeded_at = now = self._now()
        self._health.succeed(self.exit.key, host, now, trial=self.trial)

    def record_block(self, host: str, why: str) -> None:
        self._has_result = True
        self._health.block(self.exit.key, host, why, self._now(), trial=self.trial)

    def record_failure(self, why: str) -> None:
        self._has_result = True
        self._health.fail(self.exit.key, why, self._now(), trial=self.trial)

    def release(self) -> None:
        if not self._has_result:
            self._health.give_up(self.exit.key, self._now(), trial=self.trial)

    def should_repeat(self, page: Page) -> bool:
        return False

    async def judge(self, error: Transient) -> Transient:
        return error

    @property
    def works_for_others(self) -> bool:
        succeeded_at = self._health.last_success(self.exit.key)
        return succeeded_at >= self._chosen_at and succeeded_at != self._succeeded_at

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.exit.name})"


class BasePool:
    """What kinds of pools share: the health of their exits, this worker's part of them, and what the ledger knows.

    `alone`: no other process uses the pool, as in `shoal try`; no ledger is needed. Otherwise no exit is used before
    the first `sync`, because bans and the parts of other workers are not known.
    """

    kind: PoolKind
    noun: ClassVar[str] = "exits"
    one: ClassVar[str] = "exit"

    def __init__(
        self,
        config: EgressConfig,
        *,
        log: Log,
        alone: bool = False,
        now: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.name = config.name
        self._config = config
        self._log = log.bind(egress=config.name)
        self._now = now
        self._rng = rng or random.Random()
        self._alone = alone
        self.health = LocalHealth(config.health)
        self._part: Part | None = None
        self._worker = ""
        self._members: tuple[str, ...] = ()
        self._listed_to_ledger = False
        self._since: float | None = None
        self._synced_at: float | None = None
        self._tried_at = -math.inf
        self._numbers = itertools.count(time.monotonic_ns())
        self._unsent: list[tuple[int, list[ExitReport]]] = []
        self._syncing = asyncio.Lock()
        self._was_asked = False
        self._warned_too_few = False
        self._wait_known: tuple[int, EgressWait | None, float | None] = (-1, None, None)
        self._waits_since: float | None = None
        self._usable: LocalExit | None = None
        self._banned: set[str] = set()
        self._renewed: set[str] = set()

    # For the kinds of pools.

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing is open."""

    async def _refresh(self) -> None:
        """Called at the begin of each sync; may call `_list_exits`."""

    def _identity(self, record: LocalExit, *, trial: bool) -> ExitIdentity:
        return UsedExit(record.exit, trial=trial, health=self.health, now=self._now)

    def _is_usable(self, record: LocalExit, host: str) -> bool:
        return self.health.is_usable(record, host)

    def _no_exits_why(self) -> str:
        return f"{self.name} has no {self.noun}"

    def _list_exits(self, exits: Sequence[Exit]) -> None:
        """Use these exits from now on."""
        records = self.health.records
        known = [each for each in exits if each.key in records]
        self._renewed |= {each.key for each in known if each.proxy != records[each.key].exit.proxy}
        if self.health.list_exits(exits):
            self._since = None  # what the ledger knows about the new ones was not asked for yet
        self._listed_to_ledger = False
        if self._alone:
            self._set_part(list(self.health.records))
        elif self._part is not None:
            # The new ones may be banned, or belong to others: the next sync tells.
            self._set_part([key for key in self.health.records if key in self._part.keys])

    # For workers.

    @property
    def needs_sync(self) -> bool:
        if self._alone:
            return False
        if self._synced_at is None:
            return True
        if self._now() - self._tried_at < _MIN_SYNC_INTERVAL:
            return False
        return (
            self.health.is_urgent
            or bool(self._unsent)
            or (self.health.has_due and self._was_asked and self.wait() is not None)
        )

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> ExitIdentity:
        now = self._now()
        self._was_asked = True
        self.health.advance(now)
        part = self._part
        if part is not None:
            record = part.choose(host, sticky, avoid, now)
            if record is None and avoid:
                record = part.choose(host, sticky, (), now)
            if record is not None:
                return self._identity(record, trial=self.health.hand_out(record))
        raise self._unavailable(host, now)

    def wait(self) -> EgressWait | None:
        now = self._now()
        self.health.advance(now)
        known, found, until = self._wait_known
        if known != self.health.changes:
            found, until = self._find_wait(now)
            self._wait_known = self.health.changes, found, until
        if found is None:
            self._waits_since = None
            return None
        if self._waits_since is None:
            self._waits_since = now
        self._was_asked = True
        return EgressWait(
            stage="",
            pool=self.name,
            why=found.why,
            since=now - self._waits_since,
            until=None if until is None else max(0.0, until - now),
        )

    async def sync(self, ledger: Ledger, worker: str) -> None:
        async with self._syncing:
            self._tried_at = self._now()
            await self._refresh()
            if not self._listed_to_ledger or worker != self._worker or worker not in self._members:
                await self._register(ledger, worker)
            await self._report(ledger, worker)
            await self._end_bans(ledger)
            changes = await ledger.exits.changes(worker, self.name, self._since)
            now = self._now()
            self._since = changes.at
            self.health.apply(changes, now)
            self._log_bans(changes)
            await self._share(tuple(sorted({*changes.members, worker})), worker)
            self._members = changes.members
            self._synced_at = now
            self.health.advance(self._now())
            await self._start_trials(ledger, worker)

    def give_up_trial(self, key: str) -> None:
        """The attempt that tried the exit has ended without a result."""
        self.health.give_up(key, self._now(), trial=True)

    # The parts of a sync.

    async def _register(self, ledger: Ledger, worker: str) -> None:
        if worker != self._worker:
            self._since = None
        specs = [ExitSpec(record.key, record.exit.label) for record in self.health.records.values()]
        self._listed_to_ledger = True
        try:
            await ledger.exits.register(worker, self.name, self.kind, specs, complete=True)
        except LedgerError:
            self._listed_to_ledger = False
            raise

    async def _report(self, ledger: Ledger, worker: str) -> None:
        if not self._unsent:
            reports = self.health.take_reports()
            self._unsent = [
                (next(self._numbers), reports[start : start + _REPORTS_PER_CALL])
                for start in range(0, len(reports), _REPORTS_PER_CALL)
            ]
        while self._unsent:
            # Repeated with the same number until the ledger has it, and counted once.
            number, some = self._unsent[0]
            await ledger.exits.report(worker, self.name, some, self._config.health, number=number)
            del self._unsent[0]

    async def _end_bans(self, ledger: Ledger) -> None:
        """Banned exits that have other credentials now are tried soon: the old ones may have been the reason."""
        records = self.health.records
        banned = [key for key in self._renewed if key in records and records[key].state is ExitState.BANNED]
        if banned:
            await ledger.exits.end_bans(self.name, banned)
        self._renewed.clear()

    def _log_bans(self, changes: PoolChanges) -> None:
        """Log which exits are banned and which are good again, each once; only their numbers when there are many."""
        banned: list[ExitHealth] = []
        freed: list[str] = []
        for told in changes.exits:
            if told.key not in self.health.records:
                continue
            if told.state is ExitState.BANNED and told.key not in self._banned:
                self._banned.add(told.key)
                banned.append(told)
            elif told.state is ExitState.GOOD and told.key in self._banned:
                self._banned.discard(told.key)
                freed.append(told.key)
        if len(banned) > _MANY_BANS:
            self._log.warning(f"{self.noun} banned", count=len(banned))
        else:
            for told in banned:
                label = self.health.records[told.key].exit.label
                until = None if told.until is None else round(told.until)
                self._log.warning(f"{self.one} banned", exit=label, seconds=until, why=told.why)
        if len(freed) > _MANY_BANS:
            self._log.info(f"{self.noun} good again", count=len(freed))
        else:
            for key in freed:
                self._log.info(f"{self.one} good again", exit=self.health.records[key].exit.label)

    async def _share(self, members: tuple[str, ...], worker: str) -> None:
        keys = list(self.health.records)
        place = members.index(worker)
        if self._config.share == "fixed" and self._config.place is not None:
            keys, start = fixed_part(*self._config.place, keys), 0
        elif self._config.share in ("split", "fixed"):
            if len(keys) * len(members) > _MANY_PAIRS:
                mine = await asyncio.to_thread(part_of, worker, members, keys)
            else:
                mine = part_of(worker, members, keys)
            if len(keys) < len(members) and keys and not self._warned_too_few:
                self._log.warning(
                    f"fewer {self.noun} than workers; some share one", exits=len(keys), workers=len(members)
                )
            self._warned_too_few = len(keys) < len(members)
            keys = [key for key in mine if key in self.health.records]
            start = 0
        else:
            start = place * len(keys) // len(members)
        self._worker = worker
        if self._part is None or self._part.keys != frozenset(keys):
            self._set_part(keys, start)

    def _set_part(self, keys: Sequence[str], start: int = 0) -> None:
        self._part = Part(
            self.health,
            keys,
            choose=self._config.choose,
            rotate=self._config.rotate,
            start=start,
            previous=self._part,
            rng=self._rng,
            is_usable=self._is_usable,
        )
        self.health.changes += 1

    async def _start_trials(self, ledger: Ledger, worker: str) -> None:
        """Ask to try exits whose ban is over, if attempts want exits."""
        if self._part is None or not self._was_asked:
            return
        self._was_asked = False
        for record in self.health.due(self._part.keys):
            granted = await ledger.exits.start_trial(worker, self.name, record.key, TRIAL_SECONDS)
            now = self._now()
            if granted:
                self.health.start_trial(record, now + TRIAL_SECONDS)
            else:
                self.health.refuse_trial(record, now)

    # Why no exit can be used.

    def _find_wait(self, now: float) -> tuple[EgressWait | None, float | None]:
        """Why no exit can be used anywhere, and when that may end by this process's clock."""
        if self._part is None:
            return self._wait_for(f"{self.name} is not ready: the ledger has not told its state yet"), now
        records = self._part.records
        if not records:
            return self._wait_for(self._no_exits_why()), None
        # Usually the one that was usable the last time still is.
        last = self._usable
        if last is None or not self._part.has(last) or not self._is_usable(last, ""):
            self._usable = next((record for record in records if self._is_usable(record, "")), None)
        if self._usable is not None:
            return None, None
        why = self._none_usable(Counter(_STATE_WORDS.get(record.state, "unusable") for record in records))
        # Alone there is no list of exits in a ledger that tells the reason.
        if self._alone and (reason := next((record.why for record in records if record.why), "")):
            why = f"{why}: {reason}"
        elif not self._alone and self.kind != "tokens" and any(each.state is ExitState.BANNED for each in records):
            why = f"{why}; `shoal proxies free {self.name}` ends bans now"
        seconds = self.health.first_return(records, now)
        return self._wait_for(why), None if seconds is None else now + seconds

    def _wait_for(self, why: str) -> EgressWait:
        return EgressWait(stage="", pool=self.name, why=why)

    def _unavailable(self, host: str, now: float) -> EgressUnavailable:
        wait = self.wait()
        if wait is not None:
            seconds = _UNKNOWN_WAIT if wait.until is None else max(_MIN_WAIT, wait.until)
            if self._part is not None and any(record.state is ExitState.TRIAL for record in self._part.records):
                seconds = min(seconds, _TRIAL_WAIT)
            return EgressUnavailable(wait.why, retry_after=seconds)
        assert self._part is not None
        blocked = self.health.blocks.get(host, {})
        counts: Counter[str] = Counter()
        for record in self._part.records:
            is_blocked = self._is_usable(record, "") and record.key in blocked
            counts[f"blocked by {host}" if is_blocked else _STATE_WORDS.get(record.state, "unusable")] += 1
        first = min((blocked[record.key] for record in self._part.records if record.key in blocked), default=now)
        return EgressUnavailable(self._none_usable(counts), retry_after=max(_MIN_WAIT, first - now))

    def _none_usable(self, counts: Counter[str]) -> str:
        total = counts.total()
        belong = " that this worker has" if total < len(self.health.records) else ""
        if total == 1:
            return f"the only {self.one} of {self.name}{belong} is {next(iter(counts))}"
        if len(counts) == 1:
            return f"all {total} {self.noun} of {self.name}{belong} are {next(iter(counts))}"
        states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        return f"none of the {total} {self.noun} of {self.name}{belong} can be used: {states}"
