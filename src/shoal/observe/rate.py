"""How fast a run went lately, for those who look only once: from what the ledger notes per minute."""

from __future__ import annotations

import datetime as dt

from shoal.ledger.protocols import Ledger
from shoal.observe.moment import Moment

MINUTES = 5
LEAST_SECONDS = 2.0


async def recent_rate(ledger: Ledger, moment: Moment) -> float | None:
    """Items ended per minute: over the whole run when it has ended, otherwise over the last five minutes."""
    run, counts = moment.run, moment.counts
    if run.finished_at is not None:
        return _rate(counts.done + counts.dead, (run.finished_at - run.created_at).total_seconds())
    clock = (await ledger.health.examine()).clock
    workers = await ledger.reads.workers(run.id, minutes=MINUTES)
    # The ledger counts by whole minutes: the oldest of the five begins four full ones before the current one.
    covered = (MINUTES - 1) * 60 + clock.second + clock.microsecond / 1e6
    seconds = min(covered, (clock - run.created_at).total_seconds())
    return _rate(sum(worker.done + worker.dead for worker in workers), seconds)


def overall_rate(moment: Moment, until: dt.datetime) -> float | None:
    """Items ended per minute since the run began."""
    counts = moment.counts
    ended = moment.run.finished_at or until
    return _rate(counts.done + counts.dead, (ended - moment.run.created_at).total_seconds())


def _rate(items: int, seconds: float) -> float | None:
    return None if seconds < LEAST_SECONDS else items * 60 / seconds
