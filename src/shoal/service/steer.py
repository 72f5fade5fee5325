"""Operator commands: change runs, items, leases, lanes and workers.

`run` is a name as for `lookup.find_run`: an id, `latest` or `latest:SCRAPER`. `by` names the operator in the ledger's
events. `on_progress` gets the number of rows changed so far; when the process dies meanwhile, the same call continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.errors import NotFound, WorkerLost
from shoal.ledger.protocols import ALL_ITEMS
from shoal.model.item import OPEN_STATES, RETRYABLE_STATES, ItemState
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, ItemFilter
from shoal.service.lookup import find_item, find_run, find_run_id, suggest

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger, OnProgress
    from shoal.model.lane import LaneView

RETRY_STATES = (ItemState.DEAD,)
# A preview counts exactly up to here; the number of pages bounds a filter that matches little.
MAX_COUNTED = 10_000
PAGE = 1_000
MAX_PAGES = 200


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


async def drain_worker(ledger: Ledger, worker: str, *, by: str = "") -> None:
    """Tell a worker, with its next heartbeat, to finish its running items and exit. Raises NotFound."""
    try:
        await ledger.workers.drain(worker, by=by)
    except WorkerLost as error:
        present = [view.id for view in await ledger.workers.list()]
        remedy = suggest(worker, present) + "`shoal workers ls` lists those that are present."
        raise NotFound(error.message, remedy=remedy) from None


async def drain_workers_of_run(ledger: Ledger, run: str, *, by: str = "") -> list[str]:
    """Drain the workers that were started for a run or hold items of it. Returns their ids."""
    found = await find_run(ledger, run)
    holders = {progress.worker for progress in await ledger.reads.workers(found.id) if progress.leased}
    drained = []
    for worker in await ledger.workers.list():
        if worker.id in holders or found.id in worker.scope.run_ids:
            await drain_worker(ledger, worker.id, by=by)
            drained.append(worker.id)
    return drained


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
    """Count from the ledger's counters where they suffice, otherwise by reading pages of items."""
    found, which = await resolve_items(ledger, run, which, key, states, named=named)
    if not (which.ids or which.partition or which.outcome or which.error):
        counts = await ledger.reads.stats(found.id, stage=which.stage)
        matching = sum(getattr(counts, state.value) for state in which.states)
        return ItemSelection(run=found, which=which, count=matching if limit is None else min(matching, limit))
    most = MAX_COUNTED if limit is None else limit
    counted, cursor = 0, None
    for _ in range(MAX_PAGES):
        page = await ledger.reads.items(found.id, which, cursor=cursor, limit=min(PAGE, most - counted))
        counted += len(page.rows)
        cursor = page.cursor
        if cursor is None or counted == most:
            break
    return ItemSelection(run=found, which=which, count=counted, exact=cursor is None or limit is not None)
