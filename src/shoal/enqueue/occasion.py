"""Runs that are made for an occasion, once: taken up again as long as they are unfinished, never made a second time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

from shoal.define.scraper import Scraper
from shoal.enqueue.begin import UNFINISHED, Plan, check_stages
from shoal.errors import UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import WorkerView

MOST_RUNS = 200
YOUNG = dt.timedelta(seconds=10)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand for an occasion.

    `own`: the run that was made for it. `going`: while there is none, another run that must not be disturbed. `left`:
    one that nobody works on.
    """

    own: Run | None = None
    going: Run | None = None
    left: Run | None = None

    @property
    def is_over(self) -> bool:
        return self.own is not None and self.own.state not in UNFINISHED


async def standing(ledger: Ledger, scraper: str, occasion: str, *, for_workers: bool, owned: bool) -> Standing:
    """Look, and change nothing.

    A run is going when a live worker serves it. `for_workers`: what is active waits for workers that come when they
    come, so it is going without any. `owned`: nobody else can be about to work on the scraper, so what was made
    a moment ago and has no worker is left. Raises UsageError when the occasion is another scraper's.
    """
    own = await ledger.runs.of_occasion(occasion)
    if own is not None:
        if own.scraper != scraper:
            raise UsageError(
                f"The run {own.id}, made for {occasion!r}, belongs to {own.scraper}, not to {scraper}.",
                remedy="Name another occasion.",
            )
        return Standing(own=own)
    runs = (await ledger.runs.list(scraper=scraper, limit=MOST_RUNS)).rows
    active = [run for run in runs if run.state is RunState.ACTIVE]
    workers = await ledger.workers.list() if active else []
    now = (await ledger.health.examine()).clock
    going = next(
        (run for run in active if for_workers or _is_served(run, workers) or (not owned and _is_young(run, now))), None
    )
    return Standing(going=going, left=active[0] if active and going is None else None)


async def plan_for(ledger: Ledger, scraper: Scraper, found: Standing) -> Plan:
    """The occasion's own run, or a new one, for which a run that nobody works on is set aside."""
    if found.own is not None:
        check_stages(scraper, found.own)
    left = (await ledger.reads.stats(found.own.id)).remaining if found.own is not None else 0
    return Plan(run=found.own, left=left, unfinished=found.left)


def _is_young(run: Run, now: dt.datetime) -> bool:
    """Whoever made it may not have come to work on it yet."""
    return now - run.created_at < YOUNG


def _is_served(run: Run, workers: Sequence[WorkerView]) -> bool:
    return any(worker.alive and worker.scope.takes_from(run.id, run.scraper) for worker in workers)
