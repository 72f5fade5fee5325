"""Checks runs for alert conditions and raises each alert once across all processes.

One look at the runs of a ledger: what is wrong with them, each thing raised once over the whole fleet.

Nobody is the leader. Whoever looks takes the lock of looking for a while, so that a thousand workers do not all look
at once; each alert is a lock too, so that it is raised once however many see it.

Alerts that were raised, and what became of telling people about them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import msgspec

from shoal.config.settings import Settings
from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run
from shoal.model.views import LockView
from shoal.notify.conditions import (
    MINUTES,
    RAISED,
    TOLD,
    Alert,
    Kind,
    Rules,
    Sign,
    broken_sign,
    end_sign,
    has_just_ended,
    is_excused,
    raising,
    rules_of,
    signs_under_way,
    telling,
)
from shoal.notify.messages import put_into_words

NEWEST_RUNS = 200
LISTED = 300
LOOKING = "alert-look"
RAISE_SECONDS = 60.0
EVENT = "alert"
EVENTS_LOOKED_AT = 50
LOOKED_AT = 1_000
NOT_SENT, UNDER_WAY, WAITING = "not sent", "being sent", "waits for somebody who sends"


class Watch:
    """`by` names this process and must be its own. `settings` are those of the process; a scraper's table counts."""

    def __init__(self, settings: Settings, *, by: str, log: Log) -> None:
        self._settings = settings
        self._by = by
        self._log = log

    async def take_turn(self, ledger: Ledger, *, every: float) -> bool:
        """Look, unless somebody else did within the time given. Returns whether it was our turn."""
        if not await ledger.locks.acquire(LOOKING, self._by, every):
            return False
        await self.look(ledger)
        return True

    async def look(self, ledger: Ledger) -> None:
        """Look at the newest runs."""
        now = await clock(ledger)
        known = {lock.name for lock in await ledger.locks.list(RAISED, limit=LISTED) if lock.finished_at}
        for run in (await ledger.runs.list(limit=NEWEST_RUNS)).rows:
            await self._look_at(ledger, run, now, known)

    async def look_at(self, ledger: Ledger, run_ids: Iterable[str]) -> None:
        """Look at these now, whoever else looks."""
        now = await clock(ledger)
        for run in await self._found(ledger, run_ids):
            await self._look_at(ledger, run, now, ())

    async def tell_broken(self, ledger: Ledger, run_ids: Iterable[str], worker: str) -> None:
        """A worker of these runs broke off because its code fails every time. Those that have ended do not mind."""
        sign = broken_sign(worker, await clock(ledger))
        for run in await self._found(ledger, run_ids):
            if run.finished_at is None:
                await self._raise(ledger, run.id, sign)

    async def _found(self, ledger: Ledger, run_ids: Iterable[str]) -> list[Run]:
        """Those that were not removed meanwhile."""
        found = []
        for run_id in run_ids:
            with suppress(NotFound):
                found.append(await ledger.runs.get(run_id))
        return found

    async def _look_at(self, ledger: Ledger, run: Run, now: dt.datetime, known: Collection[str]) -> None:
        rules = rules_of(self._settings.with_table_of(run.scraper))
        try:
            for sign in await signs_of(ledger, run, now, rules, unless=lambda sign: raising(run.id, sign) in known):
                await self._raise(ledger, run.id, sign)
        except NotFound:  # removed meanwhile
            return

    async def _raise(self, ledger: Ledger, run_id: str, sign: Sign) -> None:
        name = raising(run_id, sign)
        if not await ledger.locks.acquire(name, self._by, RAISE_SECONDS):
            return
        try:
            alert = await put_into_words(ledger, run_id, sign, self._settings.secrets())
            await self._leave_event(ledger, alert)
            say = self._log.debug if sign.kind is Kind.FINISH else self._log.warning  # who ran it sees that it ended
            say(f"alert: {sign.kind.value}", run=run_id, scraper=alert.scraper, why=sign.text)
        except BaseException:
            with suppress(LedgerError):
                await ledger.locks.release(name, self._by)
            raise
        await ledger.locks.complete(name, self._by, msgspec.to_builtins(alert))

    async def _leave_event(self, ledger: Ledger, alert: Alert) -> None:
        """Unless somebody did, and died before it could say that it had."""
        events = (await ledger.reads.events(run_id=alert.run, limit=EVENTS_LOOKED_AT)).rows
        mine = (EVENT, alert.kind.value, alert.episode)
        if not any((event.action, event.subject, event.detail.get("episode")) == mine for event in events):
            detail = {"episode": alert.episode, "why": alert.body.partition("\n")[0]}
            await ledger.runs.record_event(alert.run, EVENT, alert.kind.value, detail, by=self._by)


async def signs_of(
    ledger: Ledger, run: Run, now: dt.datetime, rules: Rules, *, unless: Callable[[Sign], bool] = lambda sign: False
) -> list[Sign]:
    """What holds for a run now; `unless` leaves out what need not be looked into."""
    if run.finished_at is not None:
        if not has_just_ended(run, now):
            return []
        sign = end_sign(run, await ledger.reads.stats(run.id), rules)
        return [] if sign is None or unless(sign) else [sign]
    counts = await ledger.reads.stats(run.id)
    recent = await ledger.reads.recent(run.id, minutes=MINUTES)
    signs = [sign for sign in signs_under_way(run, counts, recent, now, rules) if not unless(sign)]
    if any(sign.kind is Kind.STALL for sign in signs) and is_excused(counts, await ledger.reads.why_run(run.id), now):
        return [sign for sign in signs if sign.kind is not Kind.STALL]
    return signs


async def clock(ledger: Ledger) -> dt.datetime:
    """The ledger's time."""
    return (await ledger.health.check()).clock


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """`told`: delivered, undelivered (given up), or how far it has come; `not sent` when nobody was to be told."""

    at: dt.datetime
    alert: Alert
    told: str


async def raised_alerts(ledger: Ledger, run_id: str | None = None, *, limit: int = 50) -> list[Raised]:
    """The newest first, of one run or of the runs that began last."""
    suffix = "" if run_id is None else f"{run_id}:"
    found = await ledger.locks.list(RAISED + suffix, limit=LOOKED_AT)
    told = {lock.name: lock for lock in await ledger.locks.list(TOLD + suffix, limit=LOOKED_AT)}
    now = await clock(ledger)
    raised = [_raised(lock, lock.finished_at, told, now) for lock in found if lock.finished_at is not None]
    return sorted(raised, key=lambda one: one.at, reverse=True)[:limit]


def _raised(lock: LockView, at: dt.datetime, told: dict[str, LockView], now: dt.datetime) -> Raised:
    alert = msgspec.convert(lock.value, Alert)
    telling_it = told.get(telling(alert))
    if telling_it is None:
        state = NOT_SENT
    elif telling_it.finished_at is not None:
        state = str(telling_it.value["state"])
    else:
        state = UNDER_WAY if telling_it.until > now else WAITING
    return Raised(at=at, alert=alert, told=state)
