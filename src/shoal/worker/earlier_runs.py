"""Finds the items that earlier runs of a scraper left undone, for `EarlierRuns`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from shoal.ledger.protocols import Ledger
from shoal.model.item import OPEN_STATES, ItemState
from shoal.model.log import Log
from shoal.model.outcome import OutcomeClass
from shoal.model.run import Run, RunState
from shoal.model.url_key import key_hash, url_key
from shoal.model.views import ItemFilter, ItemView

# Only so many runs are read, so that a handler asks for them with a bounded number of queries.
LOOK_BACK = 20
# What a handler gets at most, from so many pages of items.
MAX_LEFT = 10_000
PAGE = 1_000
MAX_PAGES = 100


async def find_left(ledger: Ledger, run_id: str, stage: str, log: Log) -> list[ItemView]:
    """The items of a stage that the scraper's last runs left: dead ones, without those with permanent errors, cancelled
    ones, and open ones of runs that are not active.

    Of a key that several runs left the newest item counts. What another run has finished is not among them, unless the
    last run left it.
    """
    run = await ledger.runs.get(run_id)
    before = (await ledger.runs.list(scraper=run.scraper, cursor=str(run.no), limit=LOOK_BACK)).rows
    left: dict[bytes, ItemView] = {}
    of_older_runs: set[bytes] = set()
    seen: set[bytes] = set()
    pages, is_cut = 0, False
    for other in before:
        async for views in _pages(ledger, other, stage):
            is_cut = pages == MAX_PAGES or len(left) > MAX_LEFT
            if is_cut:
                break
            pages += 1
            keys = {key_hash(view.key or url_key(view.url or "")): view for view in views}
            new = {hash_: view for hash_, view in keys.items() if hash_ not in seen and _may_end_well(view)}
            seen |= keys.keys()
            left |= new
            if other is not before[0]:
                of_older_runs |= new.keys()
        if is_cut:
            break
    if is_cut or len(left) > MAX_LEFT:
        log.warning("earlier runs left more items than a handler gets", stage=stage, items=min(len(left), MAX_LEFT))
    finished = await ledger.reads.finished_elsewhere(run_id, stage, list(of_older_runs)) if of_older_runs else set()
    return [view for hash_, view in left.items() if hash_ not in finished][:MAX_LEFT]


async def _pages(ledger: Ledger, run: Run, stage: str) -> AsyncIterator[Sequence[ItemView]]:
    """What a run left of a stage; nothing of a run that a counter shows to have left nothing."""
    if stage not in run.stages:
        return
    counts = await ledger.reads.stats(run.id, stage=stage)
    states = [ItemState.DEAD] * bool(counts.dead) + [ItemState.CANCELLED] * bool(counts.cancelled)
    if counts.remaining and run.state is not RunState.ACTIVE:
        states += OPEN_STATES
    cursor, which = None, ItemFilter(stage=stage, states=tuple(states))
    while states:
        page = await ledger.reads.items(run.id, which, cursor=cursor, limit=PAGE)
        yield page.rows
        cursor = page.cursor
        if cursor is None:
            return


def _may_end_well(view: ItemView) -> bool:
    return view.state is not ItemState.DEAD or view.outcome != OutcomeClass.PERMANENT
