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
from shoal.observe.formatting import counted, percent, span

RAISED = "alert:"
TOLD = "tell:"
MINUTES = 5
LEAST_ATTEMPTS = 20
# An end that nobody told of within this time is history.
JUST_ENDED = dt.timedelta(hours=1)
NO_DEAD = DeadLimit(Decimal(0), False)
_OF_THE_AUTHOR = {"delayed_not_before", "delayed_lane", "delayed_order"}


class Kind(StrEnum):
    FINISH = "finish"
    FAILURE = "failure"
    STALL = "stall"
    ERRORS = "errors"


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run needs attention: one sentence. `episode` tells one time that it happens from the next."""

    kind: Kind
    episode: str
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of one run, put into words for somebody who reads it on a telephone."""

    kind: Kind
    run: str
    scraper: str
    episode: str
    title: str
    body: str


def raising(run: str, sign: Sign) -> str:
    """The lock of raising it. Names sort by run, so the newest runs' alerts are the last."""
    return f"{RAISED}{run}:{sign.kind.value}:{sign.episode}"


def telling(alert: Alert) -> str:
    """The lock of telling people about it."""
    return f"{TOLD}{alert.run}:{alert.kind.value}:{alert.episode}"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """From when on something is an alert."""

    stall_after: float
    error_share: DeadLimit
    max_dead: DeadLimit


def rules_of(settings: Settings) -> Rules:
    return Rules(stall_after=settings.stall_after, error_share=settings.error_share, max_dead=settings.max_dead)


def end_sign(run: Run, counts: Counts, rules: Rules) -> Sign | None:
    """How an ended run ended; None when somebody else tells."""
    if run.finished_at is None:
        return None
    took = span((run.finished_at - run.created_at).total_seconds())
    if run.state is RunState.CANCELLED:
        kind, text = Kind.FAILURE, f"It was cancelled after {took}, with {counted(counts.cancelled, 'item')} open."
    elif (allowed := NO_DEAD if _is_collection(run) else rules.max_dead).exceeded(counts.dead, counts.total):
        kind = Kind.FAILURE
        text = f"Too many items are dead: {counts.dead} of {counts.total}; allowed: {allowed}."
    else:
        kind, text = Kind.FINISH, f"It has finished after {took}: {counts.done} done, {counts.dead} dead."
    if (run.idempotency_key or "").startswith(COLLECTION_KEY_PREFIX):
        return None  # how the members of a collection ended is told by the collection, once for all
    return Sign(kind=kind, episode=_stamp(run.finished_at), text=text)


def has_just_ended(run: Run, now: dt.datetime) -> bool:
    return run.finished_at is not None and now - run.finished_at < JUST_ENDED


def signs_under_way(run: Run, counts: Counts, recent: RecentActivity, now: dt.datetime, rules: Rules) -> list[Sign]:
    """What is wrong with a run that goes on. A stall may be excused by its gates: see `is_excused`."""
    if run.state is not RunState.ACTIVE:
        return []
    signs = []
    quiet = (now - recent.quiet_since).total_seconds()
    if counts.remaining and quiet >= rules.stall_after and not _is_collection(run):
        text = f"Nothing has ended for {span(quiet)}, and {counted(counts.remaining, 'item')} remain."
        signs.append(Sign(kind=Kind.STALL, episode=_stamp(recent.quiet_since), text=text))
    failed = recent.dead + recent.retried
    attempts = recent.done + failed
    if attempts >= LEAST_ATTEMPTS and rules.error_share.exceeded(failed, attempts):
        text = f"{percent(failed / attempts)} of {attempts} attempts in the last {MINUTES} minutes failed."
        signs.append(Sign(kind=Kind.ERRORS, episode=now.strftime("%Y%m%dT%H"), text=text))
    return signs


def is_excused(counts: Counts, gates: Sequence[WaitReason], now: dt.datetime) -> bool:
    """Whether all that remains waits for a time that its author set, or for the pace the author asked for."""
    if counts.leased or counts.ready:
        return False
    delays = {gate.code: gate for gate in gates if gate.code.startswith("delayed_")}
    due = [gate.until for gate in delays.values() if gate.until is not None]
    return bool(due) and delays.keys() <= _OF_THE_AUTHOR and min(due) > now


def broken_sign(worker: str, now: dt.datetime) -> Sign:
    """A worker broke off. Every worker does where the code is wrong, so one sign an hour is enough."""
    text = f"{worker} broke off: the scraper's code fails every time. Others would fail as well."
    return Sign(kind=Kind.FAILURE, episode=f"broke-off-{now:%Y%m%dT%H}", text=text)


def _is_collection(run: Run) -> bool:
    """Each of its items is a run of its own, which is watched itself."""
    return run.scraper.startswith(COLLECTION_SCRAPER_PREFIX)


def _stamp(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
