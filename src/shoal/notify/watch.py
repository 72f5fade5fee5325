"""Checks runs for alert conditions, raises each alert once across all processes, and lists raised alerts.

There is no leader. A lock lets one process check at a time. Each alert also has a lock, which stores the alert once it
is raised.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

import msgspec

from shoal.config.settings import Settings
from shoal.config.values import AlertKind
from shoal.errors import LedgerError, NotFound
from shoal.export.coverage import MIN_RECORDS, check_coverage, has_only_failures
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.views import LockView, WaitReason
from shoal.notify.conditions import (
    DELIVERY_PREFIX,
    RAISE_PREFIX,
    RECENT_MINUTES,
    Alert,
    AlertCondition,
    AlertRules,
    alert_rules,
    build_alert,
    coverage_condition,
    coverage_rules,
    delivery_lock,
    end_condition,
    handler_fails_condition,
    has_just_ended,
    is_waiting_as_configured,
    raise_lock,
    running_conditions,
    sink_condition,
)
from shoal.observe.sinks import read_sinks

MAX_RUNS_CHECKED = 200
MAX_RECENT_ALERTS = 300
MAX_ALERTS_READ = 1_000
MAX_EVENTS_READ = 50
CHECK_LOCK = "alert-check"
ALERT_RAISED = "alert raised"  # in the log
RAISE_SECONDS = 60.0
EVENT = "alert"
NOT_SENT, SENDING, INTERRUPTED = "not sent", "being sent", "interrupted"


class AlertChecker:
    """Raises alerts. `by` identifies this process in locks; a scraper's table overrides `settings`."""

    def __init__(self, settings: Settings, *, by: str, log: Log) -> None:
        self._settings = settings
        self._by = by
        self._log = log
        # Of each run: how many records it had when their fields were last checked, and whether it had ended.
        self._coverage_checked: dict[str, tuple[int, bool]] = {}

    async def run_if_due(self, ledger: Ledger, *, every: float) -> bool:
        """Check unless another process did within `every` seconds. Returns whether this process checked."""
        if not await ledger.locks.acquire(CHECK_LOCK, self._by, every):
            return False
        await self.check_recent_runs(ledger)
        return True

    async def check_recent_runs(self, ledger: Ledger) -> None:
        """Check the newest runs."""
        now = await ledger_now(ledger)
        known = {
            lock.name for lock in await ledger.locks.list(RAISE_PREFIX, limit=MAX_RECENT_ALERTS) if lock.finished_at
        }
        runs = (await ledger.runs.list(limit=MAX_RUNS_CHECKED)).rows
        for run in runs:
            await self._check_run(ledger, run, now, known)
        await self._check_sinks(ledger, runs, known)

    async def _check_sinks(self, ledger: Ledger, runs: Iterable[Run], known: Collection[str]) -> None:
        """A sink that is behind is an alert of the newest run that it gets records of."""
        for status in await read_sinks(ledger, self._settings):
            condition = sink_condition(status)
            run = next((run for run in runs if status.gets(run.scraper)), None)
            if condition is not None and run is not None and raise_lock(run.id, condition) not in known:
                with suppress(NotFound):
                    await self._raise_alert(ledger, run.id, condition)

    async def check_runs(self, ledger: Ledger, run_ids: Iterable[str]) -> None:
        """Check these runs now, without the lock."""
        now = await ledger_now(ledger)
        for run in await self._existing_runs(ledger, run_ids):
            await self._check_run(ledger, run, now, ())

    async def raise_handler_fails(self, ledger: Ledger, run_ids: Iterable[str], worker: str) -> None:
        """Raise that a worker stopped because the code of these runs always fails; ended runs are skipped."""
        condition = handler_fails_condition(worker, await ledger_now(ledger))
        for run in await self._existing_runs(ledger, run_ids):
            if run.finished_at is None:
                await self._raise_alert(ledger, run.id, condition)

    async def _existing_runs(self, ledger: Ledger, run_ids: Iterable[str]) -> list[Run]:
        """The runs that have not been removed."""
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
            if (about_fields := await self._coverage_condition(ledger, run, now)) is not None:
                await self._raise_alert(ledger, run.id, about_fields)
        except NotFound:  # the run was removed
            return

    async def _coverage_condition(self, ledger: Ledger, run: Run, now: dt.datetime) -> AlertCondition | None:
        """Check the fields of a run's records each time their number has doubled, and when it has finished."""
        ended = run.state is RunState.FINISHED
        if run.state is not RunState.ACTIVE and not (ended and has_just_ended(run, now)):
            return None
        checked, at_end = self._coverage_checked.get(run.id, (0, False))
        if at_end and ended:
            return None
        results = (await ledger.reads.stats(run.id)).results
        if results < MIN_RECORDS or not (ended or results >= 2 * checked):
            return None
        if len(self._coverage_checked) > 2 * MAX_RUNS_CHECKED:
            self._coverage_checked.clear()
        self._coverage_checked[run.id] = results, ended
        rules = coverage_rules(self._settings.with_scraper_table(run.scraper))
        return coverage_condition(await check_coverage(ledger, run, rules))

    async def _raise_alert(self, ledger: Ledger, run_id: str, condition: AlertCondition) -> None:
        name = raise_lock(run_id, condition)
        if not await ledger.locks.acquire(name, self._by, RAISE_SECONDS):
            return
        try:
            alert = await build_alert(ledger, run_id, condition, self._settings.secrets())
            await self._record_event(ledger, alert)
            log_event = self._log.debug if condition.kind is AlertKind.FINISH else self._log.warning
            log_event(ALERT_RAISED, kind=condition.kind.value, run=run_id, scraper=alert.scraper, why=condition.text)
        except BaseException:
            with suppress(LedgerError):
                await ledger.locks.release(name, self._by)
            raise
        await ledger.locks.complete(name, self._by, msgspec.to_builtins(alert))

    async def _record_event(self, ledger: Ledger, alert: Alert) -> None:
        """Record the alert as an event of the run, unless a process did so and died before it completed the lock."""
        events = (await ledger.reads.events(run_id=alert.run, limit=MAX_EVENTS_READ)).rows
        recorded = (EVENT, alert.kind.value, alert.episode)
        if not any((event.action, event.subject, event.detail.get("episode")) == recorded for event in events):
            detail = {"episode": alert.episode, "why": alert.body.partition("\n")[0]}
            await ledger.runs.record_event(alert.run, EVENT, alert.kind.value, detail, by=self._by)


async def read_conditions(
    ledger: Ledger,
    run: Run,
    now: dt.datetime,
    rules: AlertRules,
    *,
    unless: Callable[[AlertCondition], bool] = lambda condition: False,
    gates: Sequence[WaitReason] | None = None,
) -> list[AlertCondition]:
    """The current conditions of a run, without those for which `unless` is true. `gates`: if they were just read."""
    if run.finished_at is not None:
        if not has_just_ended(run, now):
            return []
        ended = await ledger.reads.stats(run.id)
        only_failures = await has_only_failures(ledger, run.id, ended)
        condition = end_condition(run, ended, rules, only_failures=only_failures)
        return [] if condition is None or unless(condition) else [condition]
    counts = await ledger.reads.stats(run.id)
    recent = await ledger.reads.recent(run.id, minutes=RECENT_MINUTES)
    conditions = [
        condition for condition in running_conditions(run, counts, recent, now, rules) if not unless(condition)
    ]
    if any(condition.kind is AlertKind.STALL for condition in conditions):
        gates = await ledger.reads.why_run(run.id) if gates is None else gates
        if is_waiting_as_configured(counts, gates, now):
            return [condition for condition in conditions if condition.kind is not AlertKind.STALL]
    return conditions


async def ledger_now(ledger: Ledger) -> dt.datetime:
    """The current time by the ledger's clock."""
    return dt.datetime.fromtimestamp(await ledger.lanes.clock(), dt.UTC)


class RaisedAlert(msgspec.Struct, frozen=True, kw_only=True):
    """`delivery`: delivered, undelivered (given up), being sent, interrupted, or `not sent` when no address was set."""

    at: dt.datetime
    alert: Alert
    delivery: str


async def list_alerts(ledger: Ledger, run_id: str | None = None, *, limit: int = 50) -> list[RaisedAlert]:
    """Raised alerts of one run or of the newest runs, newest first."""
    run_prefix = "" if run_id is None else f"{run_id}:"
    found = await ledger.locks.list(RAISE_PREFIX + run_prefix, limit=MAX_ALERTS_READ)
    deliveries = {
        lock.name: lock for lock in await ledger.locks.list(DELIVERY_PREFIX + run_prefix, limit=MAX_ALERTS_READ)
    }
    now = await ledger_now(ledger)
    raised = [
        _to_raised_alert(lock, lock.finished_at, deliveries, now) for lock in found if lock.finished_at is not None
    ]
    return sorted(raised, key=lambda alert: alert.at, reverse=True)[:limit]


def _to_raised_alert(lock: LockView, at: dt.datetime, deliveries: dict[str, LockView], now: dt.datetime) -> RaisedAlert:
    alert = msgspec.convert(lock.value, Alert)
    delivery = deliveries.get(delivery_lock(alert))
    if delivery is None:
        state = NOT_SENT
    elif delivery.finished_at is not None:
        state = str(delivery.value["state"])
    else:
        state = SENDING if delivery.until > now else INTERRUPTED
    return RaisedAlert(at=at, alert=alert, delivery=state)
