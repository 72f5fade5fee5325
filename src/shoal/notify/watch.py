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
    DELIVERY_PREFIX,
    MINUTES,
    RAISE_PREFIX,
    Alert,
    AlertCondition,
    AlertKind,
    AlertRules,
    alert_rules,
    delivery_lock,
    end_condition,
    handler_fails_condition,
    has_just_ended,
    is_waiting_as_configured,
    raise_lock,
    running_conditions,
)
from shoal.notify.messages import build_alert

NEWEST_RUNS = 200
MAX_LISTED_ALERTS = 300
CHECK_TURN = "alert-check"
RAISE_SECONDS = 60.0
EVENT = "alert"
MAX_EVENTS_READ = 50
MAX_ALERTS_READ = 1_000
NOT_SENT, UNDER_WAY, WAITING = "not sent", "being sent", "waits for somebody who sends"


class AlertChecker:
    """`by` names this process and must be its own. `settings` are those of the process; a scraper's table counts."""

    def __init__(self, settings: Settings, *, by: str, log: Log) -> None:
        self._settings = settings
        self._by = by
        self._log = log

    async def run_if_due(self, ledger: Ledger, *, every: float) -> bool:
        """Look, unless somebody else did within the time given. Returns whether it was our turn."""
        if not await ledger.locks.acquire(CHECK_TURN, self._by, every):
            return False
        await self.check_recent_runs(ledger)
        return True

    async def check_recent_runs(self, ledger: Ledger) -> None:
        """Look at the newest runs."""
        now = await ledger_now(ledger)
        known = {
            lock.name for lock in await ledger.locks.list(RAISE_PREFIX, limit=MAX_LISTED_ALERTS) if lock.finished_at
        }
        for run in (await ledger.runs.list(limit=NEWEST_RUNS)).rows:
            await self._check_run(ledger, run, now, known)

    async def check_runs(self, ledger: Ledger, run_ids: Iterable[str]) -> None:
        """Look at these now, whoever else looks."""
        now = await ledger_now(ledger)
        for run in await self._existing_runs(ledger, run_ids):
            await self._check_run(ledger, run, now, ())

    async def raise_handler_fails(self, ledger: Ledger, run_ids: Iterable[str], worker: str) -> None:
        """A worker of these runs broke off because its code fails every time. Those that have ended do not mind."""
        condition = handler_fails_condition(worker, await ledger_now(ledger))
        for run in await self._existing_runs(ledger, run_ids):
            if run.finished_at is None:
                await self._raise_alert(ledger, run.id, condition)

    async def _existing_runs(self, ledger: Ledger, run_ids: Iterable[str]) -> list[Run]:
        """Those that were not removed meanwhile."""
        found = []
        for run_id in run_ids:
            with suppress(NotFound):
                found.append(await ledger.runs.get(run_id))
        return found

    async def _check_run(self, ledger: Ledger, run: Run, now: dt.datetime, known: Collection[str]) -> None:
        rules = alert_rules(self._settings.with_scraper_table(run.scraper))
        try:
            for condition in await read_conditions(
                ledger, run, now, rules, unless=lambda condition: raise_lock(run.id, condition) in known
            ):
                await self._raise_alert(ledger, run.id, condition)
        except NotFound:  # removed meanwhile
            return

    async def _raise_alert(self, ledger: Ledger, run_id: str, condition: AlertCondition) -> None:
        name = raise_lock(run_id, condition)
        if not await ledger.locks.acquire(name, self._by, RAISE_SECONDS):
            return
        try:
            alert = await build_alert(ledger, run_id, condition, self._settings.secrets())
            await self._record_event(ledger, alert)
            log_line = (
                self._log.debug if condition.kind is AlertKind.FINISH else self._log.warning
            )  # who ran it sees that it ended
            log_line(f"alert: {condition.kind.value}", run=run_id, scraper=alert.scraper, why=condition.text)
        except BaseException:
            with suppress(LedgerError):
                await ledger.locks.release(name, self._by)
            raise
        await ledger.locks.complete(name, self._by, msgspec.to_builtins(alert))

    async def _record_event(self, ledger: Ledger, alert: Alert) -> None:
        """Unless somebody did, and died before it could say that it had."""
        events = (await ledger.reads.events(run_id=alert.run, limit=MAX_EVENTS_READ)).rows
        mine = (EVENT, alert.kind.value, alert.episode)
        if not any((event.action, event.subject, event.detail.get("episode")) == mine for event in events):
            detail = {"episode": alert.episode, "why": alert.body.partition("\n")[0]}
            await ledger.runs.record_event(alert.run, EVENT, alert.kind.value, detail, by=self._by)


async def read_conditions(
    ledger: Ledger,
    run: Run,
    now: dt.datetime,
    rules: AlertRules,
    *,
    unless: Callable[[AlertCondition], bool] = lambda condition: False,
) -> list[AlertCondition]:
    """What holds for a run now; `unless` leaves out what need not be looked into."""
    if run.finished_at is not None:
        if not has_just_ended(run, now):
            return []
        condition = end_condition(run, await ledger.reads.stats(run.id), rules)
        return [] if condition is None or unless(condition) else [condition]
    counts = await ledger.reads.stats(run.id)
    recent = await ledger.reads.recent(run.id, minutes=MINUTES)
    conditions = [
        condition for condition in running_conditions(run, counts, recent, now, rules) if not unless(condition)
    ]
    if any(condition.kind is AlertKind.STALL for condition in conditions) and is_waiting_as_configured(
        counts, await ledger.reads.why_run(run.id), now
    ):
        return [condition for condition in conditions if condition.kind is not AlertKind.STALL]
    return conditions


async def ledger_now(ledger: Ledger) -> dt.datetime:
    """The ledger's time."""
    return (await ledger.health.check()).clock


class RaisedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """`delivery`: delivered, undelivered (given up), or how far it has come; `not sent` when nobody was to be told."""

    at: dt.datetime
    alert: Alert
    delivery: str


async def list_alerts(ledger: Ledger, run_id: str | None = None, *, limit: int = 50) -> list[RaisedAlert]:
    """The newest first, of one run or of the runs that began last."""
    suffix = "" if run_id is None else f"{run_id}:"
    found = await ledger.locks.list(RAISE_PREFIX + suffix, limit=MAX_ALERTS_READ)
    deliveries = {lock.name: lock for lock in await ledger.locks.list(DELIVERY_PREFIX + suffix, limit=MAX_ALERTS_READ)}
    now = await ledger_now(ledger)
    raised = [
        _to_raised_alert(lock, lock.finished_at, deliveries, now) for lock in found if lock.finished_at is not None
    ]
    return sorted(raised, key=lambda one: one.at, reverse=True)[:limit]


def _to_raised_alert(lock: LockView, at: dt.datetime, deliveries: dict[str, LockView], now: dt.datetime) -> RaisedAlert:
    alert = msgspec.convert(lock.value, Alert)
    delivery = deliveries.get(delivery_lock(alert))
    if delivery is None:
        state = NOT_SENT
    elif delivery.finished_at is not None:
        state = str(delivery.value["state"])
    else:
        state = UNDER_WAY if delivery.until > now else WAITING
    return RaisedAlert(at=at, alert=alert, delivery=state)
