"""From a sign to an alert: what a person needs who reads it far from a terminal."""

from __future__ import annotations

import datetime as dt

from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.redaction import redacted
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, RunState
from shoal.model.views import FailedItem, ItemFilter
from shoal.notify.conditions import Alert, Kind, Sign
from shoal.observe.failures import FailureGroup, failures, grouped
from shoal.observe.formatting import per_minute, printable, stamp
from shoal.observe.meter import recent_rate
from shoal.observe.snapshot import Moment, holdup, look

DEAD_LOOKED_AT = 2_000
DELAYED_LOOKED_AT = 200
MEMBERS_NAMED = 50
_SHORT = {Kind.FINISH: "finished", Kind.FAILURE: "failed", Kind.STALL: "stalled", Kind.ERRORS: "keeps failing"}


async def put_into_words(ledger: Ledger, run_id: str, sign: Sign, secrets: tuple[str, ...]) -> Alert:
    moment = await look(ledger, run_id)
    now = (await ledger.health.check()).clock
    lines = [
        sign.text,
        _standing(moment, await recent_rate(ledger, moment), now),
        *_reason(moment),
        *await _failures(ledger, moment),
        *_commands(moment),
    ]
    return Alert(
        kind=sign.kind,
        run=run_id,
        scraper=moment.run.scraper,
        episode=sign.episode,
        title=f"Shoal: {moment.run.scraper} {_SHORT[sign.kind]} (run {run_id})",
        body=redacted("\n".join(printable(line) for line in lines), secrets),
    )


def _standing(moment: Moment, rate: float | None, now: dt.datetime) -> str:
    run, counts = moment.run, moment.counts
    return (
        f"{stamp(now)}: run {run.id} of {run.scraper} is {run.state.value}, begun {stamp(run.created_at)}: "
        f"{counts.done} done, {counts.dead} dead, {counts.remaining} left ({counts.leased} leased), "
        f"{counts.results} records, {per_minute(rate)}."
    )


def _reason(moment: Moment) -> list[str]:
    """What it waits for. Of a run that has ended, nothing holds anything back."""
    if moment.ended:
        return []
    found = holdup(moment.counts, moment.gates)
    cause = "" if found.cause == "nothing" else f"It waits for {found.cause}. "
    return [cause + found.text] if cause or found.text else []


async def _largest_failure(ledger: Ledger, moment: Moment) -> FailureGroup | None:
    """Of the dead; as long as nothing is dead, of what is to be tried again."""
    run = moment.run
    if moment.counts.dead:
        groups = (await failures(ledger, run.id, limit=DEAD_LOOKED_AT)).groups
    elif run.state is RunState.ACTIVE and moment.counts.delayed:
        which = ItemFilter(states=(ItemState.DELAYED,))
        delayed = (await ledger.reads.items(run.id, which, limit=DELAYED_LOOKED_AT)).rows
        groups = grouped(
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


async def _failures(ledger: Ledger, moment: Moment) -> list[str]:
    """What failed: of a collection every member by its name, of other runs the largest group."""
    if moment.run.scraper.startswith(COLLECTION_SCRAPER_PREFIX):
        dead = (await ledger.reads.failed(moment.run.id, limit=MEMBERS_NAMED)).rows
        return [f"{item.url}: {item.error_message}" for item in dead]
    group = await _largest_failure(ledger, moment)
    return [_told(group)] if group is not None else []


def _told(group: FailureGroup) -> str:
    return f"Most that failed ({group.items}): {group.outcome}, {group.told}"


def _commands(moment: Moment) -> list[str]:
    run = moment.run.id
    lines = [f"Look further: shoal status {run}"]
    if moment.counts.dead:
        lines.append(f"The dead: shoal items ls {run} --state dead")
    return lines
