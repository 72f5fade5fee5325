"""Alerts and the conditions under which they are raised.

An alert: something about a run that a person should know of.

Which alerts hold, from what the ledger says about a run. Pure: nothing is read here, and time is handed in.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

import msgspec

from shoal.config.settings import Settings
from shoal.model.run import COLLECTION_KEY_PREFIX, COLLECTION_SCRAPER_PREFIX, DeadLimit, Run, RunState
from shoal.model.views import Counts, RecentActivity, WaitReason
from shoal.observe.formatting import format_duration, format_percent, pluralize

RAISE_PREFIX = "alert:"
DELIVERY_PREFIX = "deliver:"
MINUTES = 5
MIN_ATTEMPTS = 20
# An end that nobody told of within this time is history.
MAX_END_AGE = dt.timedelta(hours=1)
NO_DEAD = DeadLimit(Decimal(0), False)
_CONFIGURED_DELAYS = {"delayed_not_before", "delayed_lane", "delayed_order"}


class AlertKind(StrEnum):
    FINISH = "finish"
    FAILURE = "failure"
    STALL = "stall"
    ERRORS = "errors"


class AlertCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run needs attention: one sentence. `episode` tells one time that it happens from the next."""

    kind: AlertKind
    episode: str
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of one run, put into words for somebody who reads it on a telephone."""

    kind: AlertKind
    run: str
    scraper: str
    episode: str
    title: str
    body: str


def raise_lock(run: str, condition: AlertCondition) -> str:
    """The lock of raising it. Names sort by run, so the newest runs' alerts are the last."""
    return f"{RAISE_PREFIX}{run}:{condition.kind.value}:{condition.episode}"


def delivery_lock(alert: Alert) -> str:
    """The lock of telling people about it."""
    return f"{DELIVERY_PREFIX}{alert.run}:{alert.kind.value}:{alert.episode}"


class AlertRules(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something is an alert."""

    stall_after: float
    error_share: DeadLimit
    max_dead: DeadLimit


def alert_rules(settings: Settings) -> AlertRules:
    return AlertRules(stall_after=settings.stall_after, error_share=settings.error_share, max_dead=settings.max_dead)


def end_condition(run: Run, counts: Counts, rules: AlertRules) -> AlertCondition | None:
    """How an ended run ended; None when somebody else tells."""
    if run.finished_at is None:
        return None
    took = format_duration((run.finished_at - run.created_at).total_seconds())
    if run.state is RunState.CANCELLED:
        kind, text = (
            AlertKind.FAILURE,
            f"It was cancelled after {took}, with {pluralize(counts.cancelled, 'item')} open.",
        )
    elif (allowed := NO_DEAD if _is_collection(run) else rules.max_dead).exceeded(counts.dead, counts.total):
        kind = AlertKind.FAILURE
        text = f"Too many items are dead: {counts.dead} of {counts.total}; allowed: {allowed}."
    else:
        kind, text = AlertKind.FINISH, f"It has finished after {took}: {counts.done} done, {counts.dead} dead."
    if (run.idempotency_key or "").startswith(COLLECTION_KEY_PREFIX):
        return None  # how the members of a collection ended is told by the collection, once for all
    return AlertCondition(kind=kind, episode=_stamp(run.finished_at), text=text)


def has_just_ended(run: Run, now: dt.datetime) -> bool:
    return run.finished_at is not None and now - run.finished_at < MAX_END_AGE


def running_conditions(
    run: Run, counts: Counts, recent: RecentActivity, now: dt.datetime, rules: AlertRules
) -> list[AlertCondition]:
    """What is wrong with a run that goes on. A stall may be excused by its gates: see `is_waiting_as_configured`."""
    if run.state is not RunState.ACTIVE:
        return []
    conditions = []
    quiet = (now - recent.quiet_since).total_seconds()
    if counts.remaining and quiet >= rules.stall_after and not _is_collection(run):
        text = f"Nothing has ended for {format_duration(quiet)}, and {pluralize(counts.remaining, 'item')} remain."
        conditions.append(AlertCondition(kind=AlertKind.STALL, episode=_stamp(recent.quiet_since), text=text))
    failed = recent.dead + recent.retried
    attempts = recent.done + failed
    if attempts >= MIN_ATTEMPTS and rules.error_share.exceeded(failed, attempts):
        text = f"{format_percent(failed / attempts)} of {attempts} attempts in the last {MINUTES} minutes failed."
        conditions.append(AlertCondition(kind=AlertKind.ERRORS, episode=now.strftime("%Y%m%dT%H"), text=text))
    return conditions


def is_waiting_as_configured(counts: Counts, gates: Sequence[WaitReason], now: dt.datetime) -> bool:
    """Whether all that remains waits for a time that its author set, or for the pace the author asked for."""
    if counts.leased or counts.ready:
        return False
    delays = {gate.code: gate for gate in gates if gate.code.startswith("delayed_")}
    due = [gate.until for gate in delays.values() if gate.until is not None]
    return bool(due) and delays.keys() <= _CONFIGURED_DELAYS and min(due) > now


def handler_fails_condition(worker: str, now: dt.datetime) -> AlertCondition:
    """A worker broke off. Every worker does where the code is wrong, so one condition an hour is enough."""
    text = f"{worker} broke off: the scraper's code fails every time. Others would fail as well."
    return AlertCondition(kind=AlertKind.FAILURE, episode=f"broke-off-{now:%Y%m%dT%H}", text=text)


def _is_collection(run: Run) -> bool:
    """Each of its items is a run of its own, which is watched itself."""
    return run.scraper.startswith(COLLECTION_SCRAPER_PREFIX)


def _stamp(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
