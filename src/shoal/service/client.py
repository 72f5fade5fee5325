"""The operator's client: everything that can be read from and changed in a ledger, for Python programs.

```python
async with shoal.connect() as fleet:
    await fleet.enqueue("india", urls)
    print(await fleet.stats("india"))
```

A run is named by its id, by `latest`, or by `latest:SCRAPER`. What is changed is recorded in the ledger's events under
the name of the operator, which is `user@host` unless `connect(operator=...)` gives another.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoal.config import Settings, load_settings
from shoal.define.scraper import Scraper
from shoal.errors import UsageError
from shoal.export import ExportReport, IncrementReport, Layout, export_new, export_run
from shoal.export.records import decode_record, result_pages
from shoal.feeds.source import Source
from shoal.ledger.protocols import ALL_ITEMS, OWN_NOTE, Ledger
from shoal.model.egress import ExitView
from shoal.model.item import NewItem
from shoal.model.lane import LaneView
from shoal.model.run import Run
from shoal.model.views import Counts, CursorPage, IntakeReport, ItemFilter, ItemView, PartitionProgress
from shoal.observe.failures import Failures
from shoal.observe.snapshot import Snapshot, take_snapshot
from shoal.service import inspect, steer
from shoal.service.begin import RunChoice
from shoal.service.egress import list_exits
from shoal.service.events import Host, OnEvent, ignore
from shoal.service.feed import FeedReport, FeedRequest, feed_on
from shoal.service.inspect import Explanation, ItemDetail, RunDetail, RunSummary, WorkerStatus
from shoal.service.lookup import (
    LATEST,
    configure,
    find_run,
    find_selection,
    ledger_named_in_errors,
    load_configured,
    operator,
    url_source,
)
from shoal.service.replay import ReplaySummary, replay_items
from shoal.service.run import EnqueueReport, enqueue_on, flag_text
from shoal.service.steer import ReleasedLeases, RemovedRun, ResumedRun
from shoal.wiring import open_ledger


def connect(
    ledger: str | None = None, *, operator: str | None = None, on_event: OnEvent = ignore, **settings: Any
) -> Fleet:
    """A client for a ledger, to be used with `async with`.

    `ledger`: a file or a PostgreSQL URL; without it the settings of the environment and the configuration files apply,
    as for the command line. `settings` overrule them by name. `on_event` gets the events of what the client does.
    """
    flags = {name: flag_text(value) for name, value in {**settings, "ledger": ledger}.items()}
    return Fleet(load_settings(flags, environ=os.environ, folder=Path.cwd()), operator=operator, on_event=on_event)


class Fleet:
    """The runs, items, lanes and workers of one ledger. Made by `shoal.connect()`."""

    def __init__(
        self,
        settings: Settings,
        *,
        operator: str | None = None,
        on_event: OnEvent = ignore,
        opened: Ledger | None = None,
    ) -> None:
        """`opened`: a ledger that is open already, and stays open; then it needs no `async with`."""
        self.settings = settings
        self._operator = operator
        self._host = Host(on_event=on_event)
        self._ledger: Ledger | None = opened

    async def __aenter__(self) -> Self:
        self._ledger = await open_ledger(self.settings, on_waiting=self._host.notice)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ledger, self._ledger = self._open, None
        await ledger.close()

    @property
    def _open(self) -> Ledger:
        if self._ledger is None:
            raise UsageError(
                "The client is not connected.", remedy="Use it inside `async with shoal.connect() as fleet:`."
            )
        return self._ledger

    @property
    def _by(self) -> str:
        return self._operator or operator()

    # Enqueueing

    async def enqueue(
        self,
        scraper: str | Scraper,
        urls: str | Path | Iterable[str | NewItem] | AsyncIterable[str | NewItem] | None = None,
        *,
        stage: str | None = None,
        fresh: bool = False,
        resume: bool = False,
        idempotency_key: str | None = None,
        keep_open: bool = False,
    ) -> EnqueueReport:
        """Store items for workers: in the unfinished run of the scraper, or in a new one.

        `scraper`: a name of `shoal.toml`, a file, `module:scraper`, or the object. `urls`: the path of a file, or URLs
        and items, in constant memory; the scraper's own start items are stored too when the run is new. `fresh`: a new
        run in any case; `resume`: the last one though it has ended. `keep_open`: more items will follow, so the run
        does not finish yet. Raises UsageError when there is nothing valid to store.
        """
        choice = RunChoice.of(fresh=fresh, resume=resume)
        found, settings = self._configured(scraper)
        return await enqueue_on(
            *(self._open, found, settings, self._host),
            choice=choice,
            idempotency_key=idempotency_key,
            urls=None if urls is None else url_source(found, urls, stage),
            seal=not keep_open,
            by=self._by,
        )

    async def feed(  # noqa: PLR0913 - most by keyword
        self,
        scraper: str | Scraper,
        source: str | Source,
        *,
        stage: str | None = None,
        forever: bool = False,
        idle: float | None = None,
        backlog: int | None = None,
        batch: int | None = None,
        work: bool = False,
        reply: str | None = None,
        fresh: bool = False,
        resume: bool = False,
    ) -> FeedReport:
        """Feed a run from a queue, a stream, a list, a folder or standard input, until it is empty.

        `source`: an address as for `shoal feed`, with its password, or a source of your own. `forever`: the run stays
        open, and this goes on until its task is cancelled, which returns unacknowledged messages. `idle`, `backlog`
        and `batch` replace the settings `feed_idle`, `feed_backlog` and `feed_batch`. `work`: also work on the run.
        `reply`: a queue, or a stream of Redis, at the same broker that gets the scraper's records.
        """
        found, settings = self._configured(scraper)
        request = FeedRequest(
            source=source,
            stage=stage,
            forever=forever,
            idle=settings.feed_idle if idle is None else idle,
            backlog=settings.feed_backlog if backlog is None else backlog,
            batch=settings.feed_batch if batch is None else batch,
            works=work,
            reply=reply,
            choice=RunChoice.of(fresh=fresh, resume=resume),
            by=self._by,
        )
        return await feed_on(self._open, found, settings, request, self._host)

    async def add_items(self, run: str, items: Iterable[NewItem]) -> IntakeReport:
        """Store further items in a run that has not ended; one that is paused stays paused. Raises WrongState."""
        found = await find_run(self._open, run)
        return await self._open.intake.enqueue(found.id, list(items))

    def scraper(self, scraper: str | Scraper) -> Scraper:
        """A scraper as this project configures it: its `settings` are those of `shoal.toml`."""
        return self._configured(scraper)[0]

    def _configured(self, scraper: str | Scraper) -> tuple[Scraper, Settings]:
        if isinstance(scraper, str):
            return load_configured(scraper, self.settings)
        return scraper.check(), configure(scraper, self.settings)

    # Reading

    async def runs(
        self, *, scraper: str | None = None, state: str | None = None, cursor: str | None = None, limit: int = 20
    ) -> CursorPage[RunSummary]:
        """Runs with their counts, newest first; pass `cursor` of a page to get the next one."""
        return await inspect.list_runs(self._open, scraper=scraper, state=state, cursor=cursor, limit=limit)

    async def run(self, run: str = "latest") -> RunDetail:
        """One run with its counts and its newest events."""
        with ledger_named_in_errors(self.settings):
            return await inspect.read_run(self._open, run)

    async def stats(self, scraper: str | None = None, run: str = "latest", *, stage: str | None = None) -> Counts:
        """The items of a run per state: of the newest run of a scraper, or of the run with this id.

        `stats.by_status()` has the six counts of an older URL queue, and nothing else.
        """
        with ledger_named_in_errors(self.settings):
            return (await inspect.read_counts(self._open, run, scraper=scraper, stage=stage)).counts

    async def snapshot(self, run: str = "latest") -> Snapshot:
        """A run at this moment: counts per stage and partition, recent activity, and what it waits for."""
        with ledger_named_in_errors(self.settings):
            return await take_snapshot(self._open, (await find_run(self._open, run)).id)

    async def items(
        self, run: str = "latest", which: ItemFilter = ALL_ITEMS, *, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ItemView]:
        """Items in the order they were enqueued; pass `cursor` of a page to get the next one."""
        with ledger_named_in_errors(self.settings):
            return await inspect.list_items(self._open, run, which, cursor=cursor, limit=limit)

    async def item(
        self, run: str = "latest", *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> ItemDetail:
        """One item, by its id or by its key or URL, with its attempts and why it is not running."""
        with ledger_named_in_errors(self.settings):
            return await inspect.read_item(self._open, run, id=id, key=key, stage=stage)

    async def partitions(
        self, run: str = "latest", *, stage: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[PartitionProgress]:
        """The partitions of a run by stage and name, each with its counts."""
        with ledger_named_in_errors(self.settings):
            return await inspect.list_partitions(self._open, run, stage=stage, cursor=cursor, limit=limit)

    async def note(self, run: str, name: str) -> dict[str, Any] | None:
        """A value that `put_note` stored with the run; None when there is none."""
        return await self._open.runs.get_note((await find_run(self._open, run)).id, OWN_NOTE + name)

    async def why(
        self, run: str = "latest", *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> Explanation:
        """Why a run, or one item of it, is not running, and since when."""
        with ledger_named_in_errors(self.settings):
            if id is None and key is None:
                return await inspect.explain_run(self._open, run)
            return await inspect.explain_item(self._open, run, id=id, key=key, stage=stage)

    async def failures(self, run: str = "latest") -> Failures:
        """The dead items of a run, grouped by outcome and message, largest group first."""
        with ledger_named_in_errors(self.settings):
            return await inspect.list_failures(self._open, run)

    async def workers(self, *, present: bool = True) -> list[WorkerStatus]:
        """The workers, newest first; with `present=False` also those that have stopped or were declared dead."""
        return await inspect.list_workers(self._open, present=present)

    async def exits(self, pool: str | None = None) -> list[ExitView]:
        """The proxies, tokens and Tor circuits that workers have used, with their states; of one pool, or of all."""
        found = list_exits(self._open, ("proxies", "tokens", "tor"), pool=pool)
        return [each async for each in found]

    async def lanes(
        self, *, run: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[LaneView]:
        """The shared lanes by name, or with `run` the lanes of that run."""
        with ledger_named_in_errors(self.settings):
            return await inspect.list_lanes(self._open, run=run, cursor=cursor, limit=limit)

    # Records

    async def records(self, run: str = "latest", *, stage: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """The stored records of a run, in the order of their items, in constant memory."""
        with ledger_named_in_errors(self.settings):
            found = await find_run(self._open, run)
        async for rows in result_pages(self._open, found.id, stage=stage):
            for row in rows:
                yield decode_record(row)

    async def item_records(self, run: str, id: int, *, limit: int = 20) -> list[dict[str, Any]]:
        """The first records of one item, by its id."""
        found = await find_run(self._open, run)
        return [decode_record(row) for row in await self._open.reads.item_results(found.id, id, limit=limit)]

    async def export(
        self,
        path: str | Path,
        run: str = "latest",
        *,
        stage: str | None = None,
        columns: Iterable[str] = (),
        meta: bool = False,
    ) -> ExportReport:
        """Write the records of a run to a file, whole or not at all: JSONL, CSV or Parquet, as its suffix says."""
        with ledger_named_in_errors(self.settings):
            found = await find_run(self._open, run)
        layout = Layout(columns=tuple(columns), meta=meta)
        return await export_run(self._open, found.id, path, stage=stage, layout=layout)

    async def export_new(
        self,
        path: str,
        name: str,
        *,
        consumer: str | None = None,
        stage: str | None = None,
        columns: Iterable[str] = (),
        meta: bool = False,
    ) -> IncrementReport:
        """Write what a run, or any run of a scraper, has stored since the last such export; `{n}` becomes a number.

        `consumer`: exports with another one have a cursor of their own.
        """
        with ledger_named_in_errors(self.settings):
            which = await find_selection(self._open, name, stage=stage)
        layout = Layout(columns=tuple(columns), meta=meta)
        return await export_new(self._open, which, path, consumer=consumer, layout=layout)

    # Changing

    async def pause(self, run: str) -> Run:
        """Stop claims of a run; running attempts may end."""
        return await steer.pause_run(self._open, run, by=self._by)

    async def resume(self, run: str) -> ResumedRun:
        """Make a paused, finished or cancelled run active again."""
        return await steer.resume_run(self._open, run, by=self._by)

    async def seal(self, run: str) -> Run:
        """No more items will be added from outside: the run finishes when none is open."""
        return await steer.seal_run(self._open, run, by=self._by)

    async def cancel(self, run: str) -> int:
        """End every open item of a run as cancelled, leased ones too. Returns how many."""
        return await steer.cancel_run(self._open, run, by=self._by)

    async def remove(self, run: str) -> RemovedRun:
        """Delete a run with its items, attempts and results. This cannot be undone."""
        return await steer.remove_run(self._open, run, by=self._by)

    async def retry(
        self, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, limit: int | None = None
    ) -> int:
        """Queue dead items again, at most `limit`, or the one with this key or URL. Returns how many."""
        return await steer.retry_items(self._open, run, which, key=key, limit=limit, by=self._by)

    async def cancel_items(
        self, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None, limit: int | None = None
    ) -> int:
        """End open items as cancelled, at most `limit`, or the one with this key or URL. Returns how many."""
        return await steer.cancel_items(self._open, run, which, key=key, limit=limit, by=self._by)

    async def discard(self, run: str, which: ItemFilter = ALL_ITEMS, *, key: str | None = None) -> int:
        """Delete the records of done items, or of the one with this key or URL. This cannot be undone.

        The items stay done: they do not run again. Returns how many had records.
        """
        return await steer.discard_records(self._open, run, which, key=key, by=self._by)

    async def put_note(self, run: str, name: str, value: Mapping[str, Any]) -> None:
        """Store a JSON value of your own with the run, under a name; an earlier one is replaced."""
        await self._open.runs.put_note((await find_run(self._open, run)).id, OWN_NOTE + name, value)

    async def replay(
        self,
        scraper: Scraper | str,
        run: str = LATEST,
        which: ItemFilter = ALL_ITEMS,
        *,
        key: str | None = None,
        limit: int | None = None,
        follow_ups: bool = True,
    ) -> ReplaySummary:
        """Run the handlers of done items again on their stored pages, and replace their results."""
        code, settings = self._configured(scraper)
        if run == LATEST:
            run = f"{LATEST}:{code.name}"
        return await replay_items(
            *(self._open, code, settings, self._host, run, which),
            key=key,
            limit=limit,
            follow_ups=follow_ups,
            by=self._by,
        )

    async def release(self, *, older_than: float = 300.0, run: str | None = None) -> ReleasedLeases:
        """Return leases that were claimed more than `older_than` seconds ago, and those of dead workers."""
        return await steer.release_leases(self._open, older_than=older_than, run=run, by=self._by)

    async def set_lane(
        self,
        key: str,
        *,
        run: str | None = None,
        limit: int | None = None,
        delay: float | tuple[float, float] | None = None,
        paused: bool | None = None,
    ) -> LaneView:
        """Change a shared lane, or with `run` a lane of that run, for all workers; None leaves a value as it is."""
        spread = (delay, delay) if isinstance(delay, int | float) else delay
        return await steer.set_lane(self._open, key, run=run, limit=limit, delay=spread, paused=paused, by=self._by)

    async def drain(self, *, worker: str | None = None, run: str | None = None) -> list[str]:
        """Stop a worker, or the workers of a run, after their running items. Returns the ids of the workers."""
        if (worker is None) == (run is None):
            raise UsageError("drain() takes a worker or a run, one of the two.")
        if run is not None:
            return await steer.drain_workers_of_run(self._open, run, by=self._by)
        await steer.drain_worker(self._open, worker or "", by=self._by)
        return [worker or ""]
