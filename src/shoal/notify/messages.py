"""Builds the message of an alert: condition, counts, bottleneck, main failure, and the next commands."""

from __future__ import annotations

import datetime as dt

from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.redaction import redacted
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, RunState
from shoal.model.views import FailedItem, ItemFilter
from shoal.notify.conditions import Alert, AlertCondition, AlertKind
from shoal.observe.failures import FailureGroup, group_failures, read_failures
from shoal.observe.formatting import format_rate, format_time, printable
from shoal.observe.meter import recent_rate
from shoal.observe.snapshot import Snapshot, find_bottleneck, take_snapshot

MAX_DEAD_READ = 2_000
MAX_DELAYED_READ = 200
MAX_MEMBERS_NAMED = 50
_TITLE_VERB = {
    AlertKind.FINISH: "finished",
    AlertKind.FAILURE: "failed",
    AlertKind.STALL: "stalled",
    AlertKind.ERRORS: "keeps failing",
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
        f"started {format_time(run.created_at)}: {counts.done} done, {counts.dead} dead, "
        f"{counts.remaining} left ({counts.leased} leased), "
        f"{counts.results} records, {format_rate(rate)}."
    )


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
