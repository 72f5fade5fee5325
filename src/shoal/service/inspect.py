"""Reads of the ledger for operators: runs, items, workers, lanes, failures and records.

`run` is a name as for `lookup.find_run`: an id, `latest` or `latest:SCRAPER`. Nothing here changes the ledger, counts
rows or reads an unbounded number of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InvalidSetting, NotFound, UnknownStage
from shoal.ledger.protocols import ALL_ITEMS
from shoal.model.item import FINAL_STATES, RETRYABLE_STATES
from shoal.model.run import Run, RunState
from shoal.model.views import CursorPage
from shoal.service.lookup import LATEST, find_item, find_run, find_run_id, find_run_of, ledger_now, scraper_name

if TYPE_CHECKING:
    from shoal.export import Coverage
    from shoal.ledger.protocols import Ledger
    from shoal.model.lane import LaneView
    from shoal.model.views import (
        AttemptView,
        AuditEvent,
        ChildItem,
        Counts,
        ItemCount,
        ItemFilter,
        ItemView,
        PartitionProgress,
        ResultRow,
        WaitReason,
    )
    from shoal.model.worker import WorkerView
    from shoal.observe.failures import Failures

RUN_STATES = tuple(state.value for state in RunState if state is not RunState.REMOVED)
RUNS_PAGE = 100
MAX_EVENTS = 20
MAX_SHOWN = 20
# A filter by error text may match few of very many items: the search ends after this time, with a cursor to continue.
MAX_SEARCH_SECONDS, ENOUGH_SECONDS, COUNT_SECONDS = 2.0, 0.2, 0.05


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its items per state."""

    run: Run
    counts: Counts


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its counts and its newest events, newest first."""

    run: Run
    counts: Counts
    events: tuple[AuditEvent, ...]


class ItemDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An item with its attempts, and the reasons why it is not running."""

    run: Run
    item: ItemView
    attempts: tuple[AttemptView, ...]
    reasons: tuple[WaitReason, ...]


class ItemPageDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An item as its page shows it: with its first records and the items that it enqueued."""

    detail: ItemDetail
    results: tuple[ResultRow, ...]
    children: tuple[ChildItem, ...]
    more_children: bool

    @property
    def waiting_text(self) -> str:
        """What it waits for in one sentence; empty when it has ended."""
        return "" if self.detail.item.state in FINAL_STATES or not self.detail.reasons else self.detail.reasons[0].text


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item, or with `item` None a run, is not running (faster); the most important reason first."""

    run: Run
    item: ItemView | None
    reasons: tuple[WaitReason, ...]

    @property
    def can_retry(self) -> bool:
        """Whether the item ended as dead, skipped or cancelled, so that a retry would run it again."""
        return self.item is not None and self.item.state in RETRYABLE_STATES


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker; `problem` says why it counts as dead although it did not sign off."""

    worker: WorkerView
    problem: str | None

    @property
    def state(self) -> str:
        """The state of the worker, or `dead`: its heartbeat is older than its lease."""
        return self.worker.state.value if self.problem is None else "dead"


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs are compared by. `deaths`: dead items per kind; incomplete when very many died."""

    run: Run
    counts: Counts
    minutes: float
    per_minute: float | None
    ok_percent: float | None
    deaths: Mapping[str, int]
    deaths_complete: bool


async def list_runs(
    ledger: Ledger,
    *,
    scraper: str | None = None,
    state: str | None = None,
    cursor: str | None = None,
    limit: int = 20,
) -> CursorPage[RunSummary]:
    """Return runs with their counts, newest first; `cursor` is None when no run follows.

    `scraper`: its name, or that of a member of a collection.
    Raises InvalidSetting for an unknown `state`.
    """
    if state is not None and state not in RUN_STATES:
        raise InvalidSetting(f"{state!r} is not one of {', '.join(RUN_STATES)}.", remedy="Choose one of them.")
    scraper = None if scraper is None else scraper_name(scraper)
    found: list[RunSummary] = []
    while True:
        page = await ledger.runs.list(scraper=scraper, cursor=cursor, limit=min(RUNS_PAGE, limit - len(found)))
        for run in page.rows:
            if state in (None, run.state):
                found.append(RunSummary(run=run, counts=await ledger.reads.stats(run.id)))
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            # A full page has a cursor even when it was the last.
            more = cursor and (await ledger.runs.list(scraper=scraper, cursor=cursor, limit=1)).rows
            return CursorPage(tuple(found), cursor if more else None)


async def read_run(ledger: Ledger, run: str) -> RunDetail:
    """Return a run with its counts and its newest events."""
    found = await find_run(ledger, run)
    events = (await ledger.reads.events(run_id=found.id, limit=MAX_EVENTS)).rows
    return RunDetail(run=found, counts=await ledger.reads.stats(found.id), events=events)


async def read_counts(ledger: Ledger, run: str, *, scraper: str | None = None, stage: str | None = None) -> RunSummary:
    """Return a run's items per state, of all stages or of one.

    With `scraper`, `latest` is its newest run, and a run of another scraper raises NotFound.
    """
    found = await (find_run(ledger, run) if scraper is None else find_run_of(ledger, scraper, run))
    if scraper not in (None, found.scraper):
        raise NotFound(
            f"The run {found.id} is not one of {scraper}, but of {found.scraper}.",
            remedy=f"Use `shoal stats {found.scraper} {found.id}`.",
        )
    return RunSummary(run=found, counts=await ledger.reads.stats(found.id, stage=stage))


async def newest_active_run(ledger: Ledger) -> Run:
    """Return the newest active run, or the newest run when none is active. Raises NotFound on an empty ledger."""
    for run in (await ledger.runs.list()).rows:
        if run.state is RunState.ACTIVE:
            return run
    return await find_run(ledger, LATEST)


async def list_items(
    ledger: Ledger,
    run: str,
    which: ItemFilter = ALL_ITEMS,
    *,
    cursor: str | None = None,
    limit: int = 50,
    seconds: float = MAX_SEARCH_SECONDS,
) -> CursorPage[ItemView]:
    """Return items of a run in the order they were enqueued; with a cursor more may follow.

    The page may be short, even empty: a filter that matches little is searched for about so many seconds.
    """
    found = await find_run(ledger, run)
    rows: list[ItemView] = []
    began = time.monotonic()
    while time.monotonic() - began < (min(ENOUGH_SECONDS, seconds) if rows else seconds):
        page = await ledger.reads.items(found.id, which, cursor=cursor, limit=limit - len(rows))
        rows += page.rows
        cursor = page.cursor
        if cursor is None or len(rows) == limit:
            break
    return CursorPage(tuple(rows), cursor)


async def count_items(
    ledger: Ledger, run: str, which: ItemFilter = ALL_ITEMS, *, seconds: float = COUNT_SECONDS
) -> ItemCount:
    """Return how many items match a filter, up to 10,000; exact for states, stage and partition.

    Others are counted for about so many seconds; then it is said that there are at least as many.
    """
    return await ledger.reads.count_items((await find_run(ledger, run)).id, which, seconds=seconds)


async def explain_items(
    ledger: Ledger, run: str, items: Sequence[int], *, workers: Sequence[WorkerView] | None = None
) -> dict[int, WaitReason]:
    """Return what each of these items waits for, in one sentence; for a list of up to 200.

    `workers`: the present ones, if they are known.
    """
    return await ledger.reads.why_items((await find_run(ledger, run)).id, items, workers=workers)


async def list_children(ledger: Ledger, run: str, item: int, *, limit: int = 50) -> tuple[ChildItem, ...]:
    """Return the items that an item enqueued."""
    return await ledger.reads.children((await find_run(ledger, run)).id, item, limit=limit)


async def list_partitions(
    ledger: Ledger, run: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 50
) -> CursorPage[PartitionProgress]:
    """Return the partitions of a run by stage and name, with counts and rates (`PartitionProgress.eta_seconds`)."""
    found = await find_run(ledger, run)
    return await ledger.reads.partition_page(found.id, stage=stage, cursor=cursor, limit=limit)


async def list_events(
    ledger: Ledger,
    *,
    run: str | None = None,
    actor: str | None = None,
    action: str | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> CursorPage[AuditEvent]:
    """Return events, newest first: of a run, by an actor, of an action (`run.` means all that begin so).

    With `actor` or `action` a page may be short while its cursor says that more follow.
    """
    run_id = await find_run_id(ledger, run)
    return await ledger.reads.events(run_id=run_id, actor=actor, action=action, cursor=cursor, limit=limit)


async def read_item(
    ledger: Ledger, run: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
) -> ItemDetail:
    """Return an item, named as for `lookup.find_item`, with its attempts and why it is not running."""
    found = await find_run(ledger, run)
    item = await find_item(ledger, found, id=id, key=key, stage=stage)
    attempts = await ledger.reads.attempts(found.id, item.id)
    reasons = await ledger.reads.why_item(found.id, item.id)
    return ItemDetail(run=found, item=item, attempts=tuple(attempts), reasons=tuple(reasons))


async def read_item_page(ledger: Ledger, run: str, item: int) -> ItemPageDetail:
    """Return an item with its attempts, reasons, first records and first children."""
    detail = await read_item(ledger, run, id=item)
    children = await ledger.reads.children(detail.run.id, item, limit=MAX_SHOWN + 1)
    results = await ledger.reads.item_results(detail.run.id, item, limit=MAX_SHOWN)
    return ItemPageDetail(
        detail=detail, results=results, children=children[:MAX_SHOWN], more_children=len(children) > MAX_SHOWN
    )


async def explain_item(
    ledger: Ledger, run: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
) -> Explanation:
    """Return why an item is not running, and since when."""
    found = await find_run(ledger, run)
    item = await find_item(ledger, found, id=id, key=key, stage=stage)
    return Explanation(run=found, item=item, reasons=tuple(await ledger.reads.why_item(found.id, item.id)))


async def explain_run(ledger: Ledger, run: str) -> Explanation:
    """Return what limits a run, the most important reason first."""
    found = await find_run(ledger, run)
    return Explanation(run=found, item=None, reasons=tuple(await ledger.reads.why_run(found.id)))


async def list_workers(ledger: Ledger, *, present: bool = True) -> list[WorkerStatus]:
    """Return the workers, newest first; with `present=False` also those that stopped or were declared dead."""
    from shoal.ledger.explain import heartbeat_problem

    workers = await ledger.workers.list(present=present)
    return [WorkerStatus(worker=worker, problem=heartbeat_problem(worker)) for worker in workers]


async def list_lanes(
    ledger: Ledger, *, run: str | None = None, cursor: str | None = None, limit: int = 50
) -> CursorPage[LaneView]:
    """Return the shared lanes by name, or with `run` the lanes of that run."""
    return await ledger.lanes.list(run_id=await find_run_id(ledger, run), cursor=cursor, limit=limit)


async def list_failures(ledger: Ledger, run: str, *, limit: int = 2_000) -> Failures:
    """Return the dead items of a run by outcome and message, largest group first.

    At most `limit` items that are in no group of the ledger yet are read. See `service.failures` for the groups.
    """
    from shoal.observe.failures import read_failures
    from shoal.service.failures import group_dead_items

    run_id = (await find_run(ledger, run)).id
    await group_dead_items(ledger, run_id)
    return await read_failures(ledger, run_id, limit=limit)


async def compare_runs(ledger: Ledger, first: str | None = None, second: str = LATEST) -> tuple[RunFigures, RunFigures]:
    """Return the figures of two runs: counts, rate, share of successes and why items died.

    Without `first` it is the scraper's run before the second.
    """
    later = await find_run(ledger, second)
    earlier = await run_before(ledger, later) if first is None else await find_run(ledger, first)
    return await _figures(ledger, earlier), await _figures(ledger, later)


async def run_before(ledger: Ledger, run: Run) -> Run:
    """Return the scraper's run before this one. Raises NotFound."""
    cursor = None
    while True:
        page = await ledger.runs.list(scraper=run.scraper, cursor=cursor, limit=RUNS_PAGE)
        for other in page.rows:
            if other.no < run.no:
                return other
        cursor = page.cursor
        if cursor is None:
            raise NotFound(
                f"Run {run.id} is the first one of {run.scraper}: there is none to compare it with.",
                remedy="Name two runs; `shoal runs ls` lists them.",
            )


async def _figures(ledger: Ledger, run: Run) -> RunFigures:
    from shoal.observe.failures import read_failures
    from shoal.observe.meter import overall_rate
    from shoal.observe.snapshot import take_snapshot

    snapshot = await take_snapshot(ledger, run.id, gates=())
    clock = await ledger_now(ledger)
    counts, rate, failures = snapshot.counts, overall_rate(snapshot, clock), await read_failures(ledger, run.id)
    judged = counts.done + counts.dead
    return RunFigures(
        run=run,
        counts=counts,
        minutes=round(((run.finished_at or clock) - run.created_at).total_seconds() / 60, 1),
        per_minute=None if rate is None else round(rate, 1),
        ok_percent=round(100 * counts.done / judged, 1) if judged else None,
        deaths={f"{group.outcome}, {group.message or 'no message'}": group.items for group in failures.groups},
        deaths_complete=failures.complete,
    )


async def sample_results(ledger: Ledger, run: str, *, count: int = 5, stage: str | None = None) -> list[ResultRow]:
    """Return the first `count` records of a run, of all stages or of one."""
    from shoal.export import first_results

    return await first_results(ledger, (await find_run(ledger, run)).id, count, stage=stage)


async def measure_run_coverage(
    ledger: Ledger, run: str, *, stage: str | None = None, every_record: bool = False
) -> tuple[Run, Coverage]:
    """Return which fields the records have, how often they are filled, and their types.

    Reads a sample spread evenly over the run, or with `every_record` all records.
    """
    from shoal.export import SAMPLE, measure_coverage

    found = await find_run(ledger, run)
    return found, await measure_coverage(ledger, found.id, stage=stage, sample=None if every_record else SAMPLE)


def check_stage(run: Run, stage: str | None) -> None:
    """Raise UnknownStage for a stage that the run does not have."""
    if stage is not None and stage not in run.stages:
        raise UnknownStage(f"Run {run.id} has no stage {stage!r}; it has {', '.join(run.stages)}.")
