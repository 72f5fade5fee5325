"""Replays items: their handlers run again on stored pages, and what they yield replaces the items' results.

No request is sent and no lane is used, unless egress is named: then the page is fetched anew. Each item is one
transaction: until it commits, the old results stay. An attempt that fails changes nothing; the item keeps its state and
its results, and the failure is reported.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from shoal.define.scraper import Scraper
from shoal.errors import UsageError
from shoal.export.coverage import store_coverage
from shoal.ledger.protocols import ALL_ITEMS
from shoal.model.item import ClaimedItem, ItemState
from shoal.model.outcome import DecisionKind
from shoal.model.run import Run
from shoal.model.views import ItemFilter, ItemView
from shoal.service.steer import ItemSelection, resolve_items, select_items
from shoal.service.work import open_run_logs
from shoal.wiring import build_attempts, build_fetcher

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger, OnProgress
    from shoal.service.events import Host
    from shoal.worker.attempt_runner import AttemptRunner

DEFAULT_STATES = (ItemState.DONE,)
REPLAYABLE = (ItemState.DONE, ItemState.DEAD)
PAGE = 100
MAX_AT_ONCE = 16
MAX_FAILURES = 20
# Instead of a pool: requests go out directly.
DIRECT = "direct"


class ReplayFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the results of an item were not replaced."""

    item: int
    name: str
    error: str


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did.

    `failed`: items whose handler failed, or whose page is not stored; `failures` has the first of them. `skipped`:
    items that changed meanwhile. `records`: what was yielded; `dropped_records` of them were duplicates. `enqueued`:
    follow-ups that were new.
    """

    run: Run
    replayed: int
    failed: int
    skipped: int
    records: int
    dropped_records: int
    enqueued: int
    failures: tuple[ReplayFailure, ...] = ()


async def preview_replay(
    ledger: Ledger, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, limit: int | None = None
) -> ItemSelection:
    """Count what `replay_items` with the same arguments would replay."""
    return await select_items(ledger, run, _check_states(which), key, limit, _default_states(which, key))


async def replay_items(  # noqa: PLR0913 - most by keyword
    ledger: Ledger,
    scraper: Scraper,
    settings: Settings,
    host: Host,
    run: str,
    which: ItemFilter = ALL_ITEMS,
    *,
    key: str | None = None,
    limit: int | None = None,
    follow_ups: bool = True,
    egress: str | None = None,
    by: str = "",
    on_progress: OnProgress = int,
) -> ReplaySummary:
    """Replay done items of a run, at most `limit`; dead ones when they are named one by one or by `which.states`.

    Follow-ups that are new are enqueued unless `follow_ups` is False; they make a run that has ended active again.
    `egress`: fetch the pages anew, one after another, through this pool or DIRECT; only for items that are named one by
    one, because no lane paces the requests. Raises UsageError for this, without a page store, and for the code of
    another scraper.
    """
    check_can_fetch(which, key, settings, egress)
    found, which = await resolve_items(ledger, run, _check_states(which), key, _default_states(which, key))
    check_can_replay(scraper, settings, found, from_store=egress is None)
    if egress is not None:
        for stage in scraper.stages.values():
            stage.policy = msgspec.structs.replace(stage.policy, egress="" if egress == DIRECT else egress)
    from_store = egress is None
    fetcher = build_fetcher(settings, from_store=from_store)
    logs = open_run_logs(settings, found.id, host)
    attempts = build_attempts(scraper, fetcher, settings, log=logs.log.bind(run=found.id), from_store=from_store)
    replay = _Replay(ledger, found, attempts, follow_ups=follow_ups)
    cursor: str | None = None
    began = 0
    at_once = min(MAX_AT_ONCE, settings.concurrency) if from_store else 1
    try:
        await attempts.start()
        while limit is None or began < limit:
            room = PAGE if limit is None else min(PAGE, limit - began)
            page = await ledger.reads.items(found.id, which, cursor=cursor, limit=room)
            began += len(page.rows)
            await replay.run_page(page.rows, at_once=at_once, on_progress=on_progress)
            cursor = page.cursor
            if cursor is None:
                break
    finally:
        await attempts.close()
        await fetcher.close()
        logs.close()
        summary = replay.summary()
        detail: dict[str, object] = {"items": summary.replayed, "failed": summary.failed}
        if egress is not None:
            detail["egress"] = egress
        await ledger.runs.record_event(found.id, "items.replayed", found.id, detail, by=by)
    if summary.replayed:
        await store_coverage(ledger, await ledger.runs.get(found.id))
    return summary


def check_can_fetch(which: ItemFilter, key: str | None, settings: Settings, egress: str | None) -> None:
    """Raise UsageError for egress that is not configured here, and unless the items are named one by one."""
    if egress is None:
        return
    if not (which.ids or key):
        raise UsageError(
            "Pages are fetched anew only for items that are named one by one.",
            remedy="Name the items, or retry them: a retry keeps to the limits of their lanes.",
        )
    if egress != DIRECT and egress not in settings.egress:
        known = ", ".join([DIRECT, *settings.egress])
        raise UsageError(f"There is no egress {egress!r} here.", remedy=f"Use one of: {known}.")


def check_can_replay(scraper: Scraper, settings: Settings, run: Run, *, from_store: bool = True) -> None:
    """Raise UsageError without the page store that is needed, and for the code of another scraper."""
    if run.scraper != scraper.name:
        raise UsageError(
            f"The run {run.id} is one of {run.scraper}, not of {scraper.name}.", remedy="Name the right scraper."
        )
    if from_store and not settings.store:
        raise UsageError(
            "There is no page store, so there is nothing to replay from.",
            remedy="Name the folder that the run kept its pages in with --store, or set `store`.",
        )


class _Replay:
    def __init__(self, ledger: Ledger, run: Run, attempts: AttemptRunner, *, follow_ups: bool) -> None:
        self._ledger = ledger
        self._run = run
        self._attempts = attempts
        self._follow_ups = follow_ups
        self._counts: Counter[str] = Counter()
        self._failures: list[ReplayFailure] = []

    async def run_page(self, rows: tuple[ItemView, ...], *, at_once: int, on_progress: OnProgress) -> None:
        slots = asyncio.Semaphore(at_once)

        async def one(view: ItemView) -> None:
            async with slots:
                await self._replay(view)
                on_progress(self._counts["replayed"])

        try:
            async with asyncio.TaskGroup() as group:
                for view in rows:
                    group.create_task(one(view))
        except BaseExceptionGroup as failed:  # a missing secret, or the ledger or the store is away: for all the same
            raise failed.exceptions[0] from None

    async def _replay(self, view: ItemView) -> None:
        finished, _ = await self._attempts.run(_claimed(self._run, view), time.monotonic())
        if finished.decision.kind is not DecisionKind.DONE:
            self._counts["failed"] += 1
            if len(self._failures) < MAX_FAILURES:
                error = finished.decision.error or finished.decision.outcome.value
                self._failures.append(ReplayFailure(item=view.id, name=view.key or view.url or "", error=error))
            return
        if not self._follow_ups:
            finished = msgspec.structs.replace(finished, follow_ups=())
        report = await self._ledger.steering.replay(finished)
        if not report.replayed:
            self._counts["skipped"] += 1
            return
        self._counts["replayed"] += 1
        self._counts["records"] += len(finished.records)
        self._counts["dropped_records"] += report.dropped_records
        self._counts["enqueued"] += report.enqueued

    def summary(self) -> ReplaySummary:
        names = ("replayed", "failed", "skipped", "records", "dropped_records", "enqueued")
        counts = {name: self._counts[name] for name in names}
        return ReplaySummary(run=self._run, failures=tuple(self._failures), **counts)


def _claimed(run: Run, view: ItemView) -> ClaimedItem:
    """The item as a worker would get it. No retry follows, so there is no last of several tries."""

    def text(value: object) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    return ClaimedItem(
        item=view.id,
        epoch=view.epoch,
        run_no=run.no,
        run_id=run.id,
        stage=view.stage,
        partition=view.partition,
        priority=view.priority,
        url=view.url,
        key=view.key,
        payload_json=text(view.payload),
        lane=view.lane,
        tries=0,
        rescues=0,
        max_attempts=2,
        request_json=text(view.request),
        depth=view.depth,
    )


def _default_states(which: ItemFilter, key: str | None) -> tuple[ItemState, ...]:
    return REPLAYABLE if which.ids or key is not None else DEFAULT_STATES


def _check_states(which: ItemFilter) -> ItemFilter:
    if not set(which.states) <= set(REPLAYABLE):
        raise UsageError("Only done and dead items can be replayed.", remedy="Use --state done, --state dead, or both.")
    return which
