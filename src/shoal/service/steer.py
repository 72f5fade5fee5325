"""Operator commands: change runs, items, leases, lanes and workers.

`run` is a name as for `lookup.find_run`: an id, `latest` or `latest:SCRAPER`. `by` names the operator in the ledger's
events. `on_progress` gets the number of rows changed so far; when the process dies meanwhile, the same call continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import NotFound, WorkerLost
from shoal.ledger.protocols import ALL_ITEMS
from shoal.model.item import OPEN_STATES, RETRYABLE_STATES, ItemState, Lease
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, ItemFilter
from shoal.service.lookup import find_item, find_lane, find_run, find_run_id, suggest

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger, OnProgress
    from shoal.model.lane import LaneView
    from shoal.model.worker import WorkerView

RETRY_STATES = (ItemState.DEAD,)
DISCARD_STATES = (ItemState.DONE,)
DISCARD_PAGE = 500
# A preview counts exactly up to here, and for so long; longer when it has found nothing yet.
MAX_COUNTED = 10_000
COUNT_SECONDS, SEARCH_SECONDS = 0.1, 5.0


class ResumedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is active again. `had_ended`: it was finished or cancelled and accepts items again."""

    run: Run
    had_ended: bool


class RemovedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is gone, with the counts it had."""

    run: Run
    counts: Counts


class ItemSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The items of a run that a command would change. `exact` is False when there are `count` or more."""

    run: Run
    which: ItemFilter
    count: int
    exact: bool = True


class ReleasedLeases(msgspec.Struct, frozen=True, kw_only=True):
    """`released`: leases older than the limit. `rescued`: items taken from `dead_workers`, whatever their age."""

    run_id: str | None
    released: int
    rescued: int
    dead_workers: tuple[str, ...]


async def pause_run(ledger: Ledger, run: str, *, by: str = "") -> Run:
    """Stop claims of a run; running attempts may end. Returns the run as it is then."""
    found = await find_run(ledger, run)
    await ledger.runs.pause(found.id, by=by)
    return await ledger.runs.get(found.id)


async def seal_run(ledger: Ledger, run: str, *, by: str = "") -> Run:
    """No more items will be added from outside: the run finishes when none is open. Returns the run as it is then."""
    found = await find_run(ledger, run)
    await ledger.runs.seal(found.id, by=by)
    return await ledger.runs.get(found.id)


async def resume_run(ledger: Ledger, run: str, *, by: str = "") -> ResumedRun:
    """Make a paused, finished or cancelled run active again."""
    found = await find_run(ledger, run)
    await ledger.runs.resume(found.id, by=by)
    had_ended = found.state in (RunState.FINISHED, RunState.CANCELLED)
    return ResumedRun(run=await ledger.runs.get(found.id), had_ended=had_ended)


async def cancel_run(ledger: Ledger, run: str, *, by: str = "", on_progress: OnProgress = int) -> int:
    """End every open item of a run as cancelled, leased ones too. Returns how many."""
    found = await find_run(ledger, run)
    return await ledger.runs.cancel(found.id, by=by, on_progress=on_progress)


async def remove_run(ledger: Ledger, run: str, *, by: str = "", on_progress: OnProgress = int) -> RemovedRun:
    """Delete a run with its items, attempts and results. This cannot be undone."""
    found = await find_run(ledger, run)
    counts = await ledger.reads.stats(found.id)
    await ledger.runs.remove(found.id, by=by, on_progress=on_progress)
    return RemovedRun(run=found, counts=counts)


async def preview_retry(
    ledger: Ledger, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, limit: int | None = None
) -> ItemSelection:
    """Count what `retry_items` with the same arguments would change."""
    return await select_items(ledger, run, which, key, limit, RETRY_STATES, named=RETRYABLE_STATES)


async def retry_items(
    ledger: Ledger,
    run: str,
    which: ItemFilter = ALL_ITEMS,
    *,
    key: str | None = None,
    limit: int | None = None,
    by: str = "",
    on_progress: OnProgress = int,
) -> int:
    """Queue dead items again as if new, at most `limit`. Returns how many.

    Skipped and cancelled items are retried when `which.states` names them, or when one item is named: by its id in
    `which`, or by its key or URL.
    """
    found, which = await resolve_items(ledger, run, which, key, RETRY_STATES, named=RETRYABLE_STATES)
    return await ledger.steering.retry(found.id, which, limit=limit, by=by, on_progress=on_progress)


async def discard_records(
    ledger: Ledger, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, by: str = ""
) -> int:
    """Delete the records of done items. The items stay done and are not run again. Returns how many items had some."""
    found, which = await resolve_items(ledger, run, which, key, DISCARD_STATES)
    discarded, cursor = 0, None
    while True:
        page = await ledger.reads.items(found.id, which, cursor=cursor, limit=DISCARD_PAGE)
        for item in page.rows:
            if await ledger.reads.item_results(found.id, item.id, limit=1):
                emptied = FinishedAttempt(lease=Lease(item.id, item.epoch, found.no), decision=DONE)
                discarded += (await ledger.steering.replay(emptied)).replayed
        cursor = page.cursor
        if cursor is None:
            break
    await ledger.runs.record_event(found.id, "records.discarded", found.id, {"items": discarded}, by=by)
    return discarded


async def preview_cancel(
    ledger: Ledger, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, limit: int | None = None
) -> ItemSelection:
    """Count what `cancel_items` with the same arguments would change."""
    return await select_items(ledger, run, which, key, limit, OPEN_STATES)


async def cancel_items(
    ledger: Ledger,
    run: str,
    which: ItemFilter = ALL_ITEMS,
    *,
    key: str | None = None,
    limit: int | None = None,
    by: str = "",
    on_progress: OnProgress = int,
) -> int:
    """End open items as cancelled, leased ones too, at most `limit`. Returns how many."""
    found, which = await resolve_items(ledger, run, which, key, OPEN_STATES)
    return await ledger.steering.cancel(found.id, which, limit=limit, by=by, on_progress=on_progress)


async def release_leases(
    ledger: Ledger, *, older_than: float = 300.0, run: str | None = None, by: str = ""
) -> ReleasedLeases:
    """Return leases claimed more than `older_than` seconds ago; their holders can no longer commit them.

    Items of dead workers return too, whatever their age and run. `run` limits only the release by age.
    """
    run_id = await find_run_id(ledger, run)
    upkeep = await ledger.upkeep.run_once()
    released = await ledger.steering.release(older_than=older_than, run_id=run_id, by=by)
    return ReleasedLeases(
        run_id=run_id,
        released=released,
        rescued=upkeep.rescued + upkeep.quarantined,
        dead_workers=upkeep.lost_workers,
    )


async def set_lane(
    ledger: Ledger,
    key: str,
    *,
    run: str | None = None,
    limit: int | None = None,
    delay: tuple[float, float] | None = None,
    paused: bool | None = None,
    by: str = "",
) -> LaneView:
    """Change a shared lane, or with `run` a lane of that run, for all workers; None leaves a value as it is.

    `limit`: items that run at once. `delay`: seconds between two starts, from .. to. What is set here outranks what
    scrapers declare. Resuming (`paused=False`) does not lift a block that the site asked for.
    """
    run_id = await find_run_id(ledger, run)
    return await ledger.lanes.set(key, run_id=run_id, limit=limit, delay=delay, paused=paused, by=by)


async def block_lane(
    ledger: Ledger, key: str, seconds: float, *, why: str, run: str | None = None, by: str = ""
) -> LaneView:
    """Start no item of a lane for so many seconds; 0 lifts a block, also one that the site asked for."""
    run_id = (await find_lane(ledger, key, run=run)).run_id
    return await ledger.lanes.block(key, seconds, why, run_id=run_id, by=by)


async def drain_worker(ledger: Ledger, worker: str, *, by: str = "") -> None:
    """Tell a worker, with its next heartbeat, to finish its running items and exit. Raises NotFound."""
    try:
        await ledger.workers.drain(worker, by=by)
    except WorkerLost as error:
        remedy = _worker_remedy(worker, await ledger.workers.list())
        raise NotFound(error.message, remedy=remedy) from None


async def find_worker(ledger: Ledger, worker: str) -> WorkerView:
    """Return a worker that is present. Raises NotFound."""
    present = await ledger.workers.list()
    found = next((view for view in present if view.id == worker), None)
    if found is None:
        raise NotFound(f"There is no worker {worker!r}.", remedy=_worker_remedy(worker, present))
    return found


async def workers_of_run(ledger: Ledger, run: Run) -> list[WorkerView]:
    """Return the workers that were started for a run or hold items of it."""
    holders = {progress.worker for progress in await ledger.reads.workers(run.id) if progress.leased}
    present = await ledger.workers.list()
    return [worker for worker in present if worker.id in holders or run.id in worker.scope.run_ids]


async def drain_workers_of_run(ledger: Ledger, run: str, *, by: str = "") -> list[str]:
    """Drain the workers that were started for a run or hold items of it. Returns their ids."""
    workers = await workers_of_run(ledger, await find_run(ledger, run))
    for worker in workers:
        await drain_worker(ledger, worker.id, by=by)
    return [worker.id for worker in workers]


def _worker_remedy(worker: str, present: Iterable[WorkerView]) -> str:
    return suggest(worker, (view.id for view in present)) + "`shoal workers ls` lists those that are present."


async def resolve_items(
    ledger: Ledger,
    run: str,
    which: ItemFilter,
    key: str | None,
    states: tuple[ItemState, ...],
    *,
    named: tuple[ItemState, ...] = (),
) -> tuple[Run, ItemFilter]:
    """The run, and the filter with default states (`named` for an item that is named alone, which must exist)."""
    found = await find_run(ledger, run)
    if key is not None or len(which.ids) == 1:
        item = await find_item(ledger, found, id=which.ids[0] if which.ids else None, key=key, stage=which.stage)
        which, states = msgspec.structs.replace(which, ids=(item.id,)), named or states
    return found, msgspec.structs.replace(which, states=which.states or states)


async def select_items(
    ledger: Ledger,
    run: str,
    which: ItemFilter,
    key: str | None,
    limit: int | None,
    states: tuple[ItemState, ...],
    *,
    named: tuple[ItemState, ...] = (),
) -> ItemSelection:
    """Count from the ledger's counters where they suffice, otherwise up to a number and for a short time."""
    found, which = await resolve_items(ledger, run, which, key, states, named=named)
    most = MAX_COUNTED if limit is None else min(limit, MAX_COUNTED)
    counted = await ledger.reads.count_items(found.id, which, at_most=most, seconds=COUNT_SECONDS)
    if counted.is_at_least and not counted.count:
        # Nobody knows yet whether anything matches.
        counted = await ledger.reads.count_items(found.id, which, at_most=most, seconds=SEARCH_SECONDS)
    count = counted.count if limit is None else min(counted.count, limit)
    exact = not counted.is_at_least or count == limit
    return ItemSelection(run=found, which=which, count=count, exact=exact)
