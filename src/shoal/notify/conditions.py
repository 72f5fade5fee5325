"""Alerts: the conditions under which they are raised, and their messages. Time and counts are passed in."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from decimal import Decimal

import msgspec

from shoal.config.settings import Settings
from shoal.config.values import AlertKind
from shoal.export.coverage import CoverageRules, CoverageWarning, summarize_warnings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.redaction import redacted
from shoal.model.run import COLLECTION_KEY_PREFIX, COLLECTION_SCRAPER_PREFIX, DeadLimit, Run, RunState
from shoal.model.views import Counts, FailedItem, ItemFilter, RecentActivity, WaitReason
from shoal.observe.failures import FailureGroup, group_failures, read_failures
from shoal.observe.formatting import (
    format_duration,
    format_ends,
    format_percent,
    format_rate,
    format_time,
    pluralize,
    printable,
)
from shoal.observe.meter import recent_rate
from shoal.observe.sinks import SinkStatus
from shoal.observe.snapshot import Snapshot, find_bottleneck, take_snapshot

RAISE_PREFIX = "alert:"
DELIVERY_PREFIX = "deliver:"
RECENT_MINUTES = 5
MIN_ATTEMPTS = 20
# The end of a run that is older than this raises no alert.
MAX_END_AGE = dt.timedelta(hours=1)
NO_DEAD = DeadLimit(Decimal(0), False)
_CONFIGURED_DELAYS = {"delayed_not_before", "delayed_lane", "delayed_order"}


class AlertCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run needs attention, in one sentence. `episode` distinguishes repeated occurrences."""

    kind: AlertKind
    episode: str
    text: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of a run as a message that can be read without access to the ledger."""

    kind: AlertKind
    run: str
    scraper: str
    episode: str
    title: str
    body: str


def raise_lock(run: str, condition: AlertCondition) -> str:
    """The lock for raising the alert. Names sort by run, so the alerts of the newest runs come last."""
    return f"{RAISE_PREFIX}{run}:{condition.kind.value}:{condition.episode}"


def delivery_lock(alert: Alert) -> str:
    """The lock for delivering the alert."""
    return f"{DELIVERY_PREFIX}{alert.run}:{alert.kind.value}:{alert.episode}"


class AlertRules(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of alerts."""

    stall_after: float
    error_share: DeadLimit
    max_dead: DeadLimit


def alert_rules(settings: Settings) -> AlertRules:
    return AlertRules(stall_after=settings.stall_after, error_share=settings.error_share, max_dead=settings.max_dead)


def end_condition(run: Run, counts: Counts, rules: AlertRules, *, only_failures: bool = False) -> AlertCondition | None:
    """The condition of an ended run; None while it runs, and for members of a collection."""
    if run.finished_at is None:
        return None
    took = format_duration((run.finished_at - run.created_at).total_seconds())
    if run.state is RunState.CANCELLED:
        kind, text = (
            AlertKind.FAILURE,
            f"The run was cancelled after {took}, with {pluralize(counts.cancelled, 'item')} open.",
        )
    elif (allowed := NO_DEAD if _is_collection(run) else rules.max_dead).exceeded(counts.dead, counts.wanted):
        kind = AlertKind.FAILURE
        text = f"Too many items are dead: {counts.dead} of {counts.total}; allowed: {allowed}."
    elif only_failures:
        kind = AlertKind.FAILURE
        text = f"Nothing was found, and {pluralize(counts.dead, 'item')} of {counts.total} failed."
    else:
        kind, text = AlertKind.FINISH, f"The run finished after {took}: {_ends(counts)}."
    if (run.idempotency_key or "").startswith(COLLECTION_KEY_PREFIX):
        return None  # the collection's own alert lists its members
    return AlertCondition(kind=kind, episode=_timestamp(run.finished_at), text=text)


def has_just_ended(run: Run, now: dt.datetime) -> bool:
    return run.finished_at is not None and now - run.finished_at < MAX_END_AGE


def running_conditions(
    run: Run, counts: Counts, recent: RecentActivity, now: dt.datetime, rules: AlertRules
) -> list[AlertCondition]:
    """The conditions of a run that has not ended. A stall may be intended: see `is_waiting_as_configured`."""
    if run.state is not RunState.ACTIVE:
        return []
    conditions = []
    quiet = (now - recent.quiet_since).total_seconds()
    if counts.remaining and quiet >= rules.stall_after and not _is_collection(run):
        remain = "1 item remains" if counts.remaining == 1 else f"{counts.remaining} items remain"
        text = f"Nothing has ended for {format_duration(quiet)}, and {remain}."
        conditions.append(AlertCondition(kind=AlertKind.STALL, episode=_timestamp(recent.quiet_since), text=text))
    failed = recent.dead + recent.retried
    attempts = recent.done + recent.skipped + failed
    if attempts >= MIN_ATTEMPTS and rules.error_share.exceeded(failed, attempts):
        text = (
            f"{format_percent(failed / attempts)} of {attempts} attempts in the last {RECENT_MINUTES} minutes failed."
        )
        conditions.append(AlertCondition(kind=AlertKind.ERRORS, episode=now.strftime("%Y%m%dT%H"), text=text))
    return conditions


def is_waiting_as_configured(counts: Counts, gates: Sequence[WaitReason], now: dt.datetime) -> bool:
    """Whether every open item waits for a time or a rate that the author configured."""
    if counts.leased or counts.ready:
        return False
    delays = {gate.code: gate for gate in gates if gate.code.startswith("delayed_")}
    due = [gate.until for gate in delays.values() if gate.until is not None]
    return bool(due) and delays.keys() <= _CONFIGURED_DELAYS and min(due) > now


def coverage_rules(settings: Settings) -> CoverageRules:
    return CoverageRules(empty_share=settings.empty_share, coverage_drop=settings.coverage_drop)


def coverage_condition(warnings: Sequence[CoverageWarning]) -> AlertCondition | None:
    """Fields that are empty too often. The same fields are one episode, however often they are found."""
    if not warnings:
        return None
    fields = "\0".join(sorted(f"{warning.stage}.{warning.field}" for warning in warnings))
    episode = hashlib.sha256(fields.encode()).hexdigest()[:16]
    return AlertCondition(kind=AlertKind.COVERAGE, episode=episode, text=f"{summarize_warnings(warnings)}.")


def handler_fails_condition(worker: str, now: dt.datetime) -> AlertCondition:
    """A worker stopped because its code always fails. Other workers will too, so one alert an hour is enough."""
    text = f"Worker {worker} stopped: the scraper's code fails every time. Other workers will fail too."
    return AlertCondition(kind=AlertKind.FAILURE, episode=f"broke-off-{now:%Y%m%dT%H}", text=text)


def sink_condition(status: SinkStatus) -> AlertCondition | None:
    """A sink is further behind than its `lag_alert` allows. `episode`: since when."""
    if status.lag_seconds < status.lag_alert or status.behind_since is None:
        return None
    return AlertCondition(
        kind=AlertKind.SINK, episode=f"{status.name}-{_timestamp(status.behind_since)}", text=f"{status.sentence}."
    )


def _is_collection(run: Run) -> bool:
    """Whether the items of the run are members of a collection, each with its own run and alerts."""
    return run.scraper.startswith(COLLECTION_SCRAPER_PREFIX)


def _timestamp(time: dt.datetime) -> str:
    return time.astimezone(dt.UTC).strftime("%Y%m%dT%H%M%S.%f")


MAX_DEAD_READ = 2_000
MAX_DELAYED_READ = 200
MAX_MEMBERS_NAMED = 50
_TITLE_VERB = {
    AlertKind.FINISH: "finished",
    AlertKind.FAILURE: "failed",
    AlertKind.STALL: "stalled",
    AlertKind.ERRORS: "keeps failing",
    AlertKind.COVERAGE: "yields empty fields",
    AlertKind.SINK: "has a sink that is behind",
}


async def build_alert(ledger: Ledger, run_id: str, condition: AlertCondition, secrets: tuple[str, ...]) -> Alert:
    snapshot = await take_snapshot(ledger, run_id)
    now = (await ledger.health.check()).clock
    lines = [
        condition.text,
        _status_line(snapshot, await recent_rate(ledger, snapshot), now),
        *_bottleneck_lines(snapshot),
        *await _failure_lines(ledger, snapshot),
        *_command_lines(snapshot),
    ]
    return Alert(
        kind=condition.kind,
        run=run_id,
        scraper=snapshot.run.scraper,
        episode=condition.episode,
        title=f"Shoal: {snapshot.run.scraper} {_TITLE_VERB[condition.kind]} (run {run_id})",
        body=redacted("\n".join(printable(line) for line in lines), secrets),
    )


def _status_line(snapshot: Snapshot, rate: float | None, now: dt.datetime) -> str:
    run, counts = snapshot.run, snapshot.counts
    return (
        f"{format_time(now)}: run {run.id} of {run.scraper} is {run.state.value}, "
        f"started {format_time(run.created_at)}: {_ends(counts)}, "
        f"{counts.remaining} left ({counts.leased} leased), "
        f"{pluralize(counts.results, 'record')}, {format_rate(rate)}."
    )


def _ends(counts: Counts) -> str:
    return format_ends(counts.done, counts.dead, counts.skipped, counts.cancelled)


def _bottleneck_lines(snapshot: Snapshot) -> list[str]:
    """What the run waits for; nothing after its end."""
    if snapshot.ended:
        return []
    bottleneck = find_bottleneck(snapshot.counts, snapshot.gates)
    cause = "" if bottleneck.cause == "nothing" else f"It waits for {bottleneck.cause}. "
    return [cause + bottleneck.text] if cause or bottleneck.text else []


async def _largest_failure(ledger: Ledger, snapshot: Snapshot) -> FailureGroup | None:
    """The largest group of dead items or, while there are none, of items that wait for a retry."""
    run = snapshot.run
    if snapshot.counts.dead:
        groups = (await read_failures(ledger, run.id, limit=MAX_DEAD_READ)).groups
    elif run.state is RunState.ACTIVE and snapshot.counts.delayed:
        which = ItemFilter(states=(ItemState.DELAYED,))
        delayed = (await ledger.reads.items(run.id, which, limit=MAX_DELAYED_READ)).rows
        groups = group_failures(
            FailedItem(
                item=item.id,
                stage=item.stage,
                url=item.url or item.key or "",
                outcome=item.outcome,
                error_message=item.error,
                retry_count=item.tries,
                failed_at=item.since,
            )
            for item in delayed
            if item.outcome is not None
        )
    else:
        groups = ()
    return groups[0] if groups else None


async def _failure_lines(ledger: Ledger, snapshot: Snapshot) -> list[str]:
    """For a collection each failed member, for other runs the largest group of failures."""
    if snapshot.run.scraper.startswith(COLLECTION_SCRAPER_PREFIX):
        dead = (await ledger.reads.failed(snapshot.run.id, limit=MAX_MEMBERS_NAMED)).rows
        return [f"{item.url}: {item.error_message}" for item in dead]
    group = await _largest_failure(ledger, snapshot)
    return [_failure_line(group)] if group is not None else []


def _failure_line(group: FailureGroup) -> str:
    return f"Most common failure ({group.items}): {group.outcome}, {group.display_text}"


def _command_lines(snapshot: Snapshot) -> list[str]:
    run = snapshot.run.id
    lines = [f"Details: shoal status {run}"]
    if snapshot.counts.dead:
        lines.append(f"Dead items: shoal items ls {run} --state dead")
    return lines
