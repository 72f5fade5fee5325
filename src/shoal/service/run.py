"""Runs a scraper from its beginning to its end in this process, and enqueues runs for workers elsewhere.

`run_scraper` begins or resumes a run, stores its items while a worker works on them, and returns a `RunReport`.
`run_from_code` is the same for callers without an event loop: it is `Scraper.run()`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from shoal.config import Settings, load_settings
from shoal.define.scraper import Scraper
from shoal.errors import ShoalError, UsageError
from shoal.export import ExportReport, check_target, export_run
from shoal.export.coverage import CoverageWarning, check_coverage, has_only_failures
from shoal.ledger.protocols import Ledger, OnStored
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.views import Counts
from shoal.model.worker import Scope
from shoal.notify.conditions import coverage_rules
from shoal.notify.delivery import check_addresses
from shoal.observe.failures import Failures, read_failures
from shoal.observe.sinks import SinkStatus, read_sinks
from shoal.service.begin import (
    FillProgress,
    RunAlreadyEnded,
    RunChoice,
    RunPlan,
    UrlSource,
    begin_lock,
    check_start_items,
    do_nothing,
    fill_run,
    open_run,
    plan_by_idempotency_key,
    plan_owned_run,
    plan_run,
    removed_if_refused,
    set_replaced_aside,
)
from shoal.service.blocking import inside_event_loop, iterate_records, run_to_end
from shoal.service.console import Console
from shoal.service.database import put_views_or_notice
from shoal.service.events import Host, ItemsRefused, OnEvent, RunPaused, RunResumed, RunStarted
from shoal.service.lookup import configure, url_source
from shoal.service.sinks import deliver_beside, finish_deliveries, note_record_types
from shoal.service.work import (
    MetricsAddress,
    alerts,
    free_local_ledger,
    make_worker,
    metrics_export,
    open_run_logs,
    progress_events,
    run_beside,
    send_end_alerts,
    stop_signals,
    worker_place,
)
from shoal.wiring import build_fetcher, check_environment, check_ways_out, ledger_context, worker_options
from shoal.worker.hooks import call_finish_hooks, call_start_hooks
from shoal.worker.state import WorkSummary
from shoal.worker.worker import Worker

FOLLOW_SECONDS = 0.5
MAX_SHOWN_ERRORS = 5


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which run to execute and how far.

    `choice` and `idempotency_key`: which run is meant. `urls`: items besides those of the scraper. `limit`: stop after
    so many items; `timeout`: after so many seconds. `min_concurrency`: adapt the number of items at once, from this up
    to the setting. `prefetch`: claim more items than are worked on. `output`: export the records to this file at the
    end; a folder gets the files that the scraper itself writes. `metrics`: where its worker exports its metrics. `by`:
    who changed the run, as its events say.
    """

    choice: RunChoice = RunChoice.AUTO
    idempotency_key: str | None = None
    urls: UrlSource | None = None
    min_concurrency: int | None = None
    limit: int | None = None
    timeout: float | None = None
    from_store: bool = False
    output: str | None = None
    prefetch: bool = True
    metrics: MetricsAddress | None = None
    by: str = "shoal run"


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or how far it came.

    `work` is what this process did; None when the run of the idempotency key had ended before. `list_is_stored`: the
    file of URLs was stored to its end. `export` says what was exported; `export_error` why that failed. `coverage`: the
    fields that are empty in most records, or far more often than in the last finished run. `only_failures`: items died,
    and none ended well of the stages whose records are expected to have fields. `sinks`: how the sinks stand. `folder`:
    where the scraper wrote its files, and how many records are new there. `counters`: what the handlers of the run have
    counted.
    """

    run: Run
    counts: Counts
    failures: Failures
    settings: Settings
    work: WorkSummary | None = None
    resumed: bool = False
    list_is_stored: bool = True
    export: ExportReport | None = None
    export_error: ShoalError | None = None
    coverage: tuple[CoverageWarning, ...] = ()
    only_failures: bool = False
    sinks: tuple[SinkStatus, ...] = ()
    counters: Mapping[str, int] = {}
    folder: Path | None = None
    folder_records: int = 0

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def finished(self) -> bool:
        return self.run.state is RunState.FINISHED

    @property
    def too_many_dead(self) -> bool:
        """Whether more items are dead than the setting `max_dead` allows."""
        return self.settings.max_dead.exceeded(self.counts.dead, self.counts.wanted)

    @property
    def ok(self) -> bool:
        """Whether the run has finished with no more dead items than `max_dead` allows, and not only with failures."""
        return self.finished and not self.too_many_dead and not self.only_failures

    def records(self, *, stage: str | None = None) -> Iterator[dict[str, Any]]:
        """The stored records of the run, one by one, in the order of their items. Works inside an event loop too."""
        return iterate_records(self.settings, self.run.id, stage=stage)


async def run_scraper(scraper: Scraper, settings: Settings, request: RunRequest, host: Host) -> RunReport:
    """Begin or resume a run and work on it until it ends or is stopped.

    Raises NotAllowed when another process owns the scraper in single mode, UsageError when there is nothing to start
    from, LedgerError when the ledger is away for longer than its patience.
    """
    into_folder = check_output(scraper, request.output)
    if into_folder:
        scraper.output_folder = request.output or ""
    await check_addresses(settings)
    check_environment()
    if not request.from_store:
        await check_ways_out(scraper, settings)
    async with ledger_context(settings, on_waiting=host.notice) as ledger, AsyncExitStack() as held:
        async with begin_lock(ledger, settings, scraper.name):
            try:
                plan = await plan_owned_run(
                    *(ledger, scraper, settings),
                    choice=request.choice,
                    idempotency_key=request.idempotency_key,
                    held=held,
                    on_waiting=host.notice,
                )
            except RunAlreadyEnded as ended:
                report = await make_report(ledger, settings, ended.run.id, resumed=True)
                return await _with_folder(ledger, scraper, report) if into_folder else report
            await check_start_items(ledger, scraper, plan, request.urls)
            run = await begin_run(ledger, scraper, plan, request, host)
        progress = FillProgress()
        summary = await execute_run(ledger, scraper, settings, plan, run, request, progress, host)
        await ledger.health.check()  # a ledger file that is gone must not be a success
        report = await make_report(ledger, settings, run.id, work=summary, resumed=plan.run is not None)
        report = msgspec.structs.replace(report, list_is_stored=request.urls is None or progress.list_is_stored())
        if into_folder:
            return await _with_folder(ledger, scraper, report)
        return report if request.output is None else await _with_export(ledger, report, request.output)


async def begin_run(ledger: Ledger, scraper: Scraper, plan: RunPlan, request: RunRequest, host: Host) -> Run:
    """Create or resume the run of the plan, and report it."""
    spec = msgspec.structs.replace(scraper.run_spec(), idempotency_key=request.idempotency_key)
    run = await open_run(ledger, scraper, plan, spec, by=request.by)
    await note_record_types(ledger, scraper, run.id)
    await put_views_or_notice(ledger, scraper, host.notice)
    resumed = plan.run is not None
    host.on_event(RunStarted(run_id=run.id, scraper=scraper.name, resumed=resumed, remaining=plan.remaining))
    await report_plan(ledger, plan, host.on_event)
    if plan.run is not None and plan.run.code_version not in (None, scraper.code_version):
        host.notice("The scraper's code has changed since this run began.")
    return run


async def execute_run(
    ledger: Ledger,
    scraper: Scraper,
    settings: Settings,
    plan: RunPlan,
    run: Run,
    request: RunRequest,
    progress: FillProgress,
    host: Host,
) -> WorkSummary:
    """Store the items of a run and work on it, until it ends or is stopped. `progress` says what was stored."""
    fetcher = build_fetcher(settings, from_store=request.from_store)
    await free_local_ledger(settings, ledger, run, host, by=request.by)
    logs = open_run_logs(settings, run.id, host)
    log = logs.log.bind(run=run.id)
    try:
        async with removed_if_refused(ledger, plan, run, progress, by=request.by):
            await call_start_hooks(scraper, ledger, run, log)
            scope = Scope(scraper=scraper.name, run_ids=(run.id,), stages=tuple(scraper.stages))
            options = worker_options(
                *(scraper, settings, scope),
                limit=request.limit,
                min_concurrency=request.min_concurrency,
                prefetch=request.prefetch,
            )
            async with (
                worker_place(ledger, scraper, settings, host) as place,
                alerts(settings, logs.log) as alert_thread,
                deliver_beside(settings, logs.log) as sink_thread,
            ):
                worker = make_worker(
                    *(scraper, settings, ledger, fetcher, options, host, logs),
                    log=log,
                    from_store=request.from_store,
                    timeout=request.timeout,
                )
                worker.keep_place(place)
                log.info("run started", scraper=scraper.name, resumed=plan.run is not None, remaining=plan.remaining)
                with metrics_export(request.metrics, worker, scraper.name, host):
                    summary = await _work_while_filling(ledger, scraper, run, request, progress, worker, host)
                log.info("worker stopped", **summary.log_fields())
                await call_finish_hooks(scraper, ledger, run.id, log)
                await send_end_alerts(alert_thread, (run.id,), summary)
                with stop_signals(host):
                    await finish_deliveries(sink_thread, ledger, settings, host, stopped=host.stop.count > 0)
    finally:
        await fetcher.close()
        logs.close()
    return summary


async def make_report(
    ledger: Ledger, settings: Settings, run_id: str, *, work: WorkSummary | None = None, resumed: bool = False
) -> RunReport:
    """The report on a run as it stands now."""
    counts = await ledger.reads.stats(run_id)
    failures = await read_failures(ledger, run_id) if counts.dead else Failures(groups=(), items_read=0, complete=True)
    run = await ledger.runs.get(run_id)
    return RunReport(
        run=run,
        counts=counts,
        failures=failures,
        settings=settings,
        work=work,
        resumed=resumed,
        coverage=await check_coverage(ledger, run, coverage_rules(settings)),
        only_failures=await has_only_failures(ledger, run_id, counts),
        sinks=tuple(await read_sinks(ledger, settings)),
        counters=await ledger.reads.author_counts(run_id),
    )


class EnqueueReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored, and in which run."""

    run: Run
    enqueued: int
    duplicates: int
    invalid: int

    @property
    def run_id(self) -> str:
        return self.run.id


async def enqueue(
    scraper: Scraper,
    settings: Settings,
    host: Host,
    *,
    choice: RunChoice = RunChoice.AUTO,
    idempotency_key: str | None = None,
    urls: UrlSource | None = None,
    seal: bool = True,
    by: str = "shoal enqueue",
) -> EnqueueReport:
    """Create or resume a run and store its items, for workers in other processes.

    `seal`: no more items will follow. Raises RunAlreadyEnded when the run of the idempotency key has ended.
    """
    async with ledger_context(settings, on_waiting=host.notice) as ledger:
        return await enqueue_on(
            *(ledger, scraper, settings, host),
            choice=choice,
            idempotency_key=idempotency_key,
            urls=urls,
            seal=seal,
            by=by,
        )


async def enqueue_on(  # noqa: PLR0913 - most by keyword
    ledger: Ledger,
    scraper: Scraper,
    settings: Settings,
    host: Host,
    *,
    choice: RunChoice,
    idempotency_key: str | None,
    urls: UrlSource | None,
    seal: bool,
    by: str,
) -> EnqueueReport:
    """`enqueue` on a ledger that is open already."""
    if idempotency_key is None:
        plan = await plan_run(ledger, scraper, choice, ledger_name=settings.shown()["ledger"])
    else:
        plan = await plan_by_idempotency_key(ledger, scraper, idempotency_key, for_workers=True)
    await check_start_items(ledger, scraper, plan, urls)
    spec = msgspec.structs.replace(scraper.run_spec(), idempotency_key=idempotency_key)
    run = await open_run(ledger, scraper, plan, spec, by=by)
    await note_record_types(ledger, scraper, run.id)
    await put_views_or_notice(ledger, scraper, host.notice)
    await report_plan(ledger, plan, host.on_event)
    logs = open_run_logs(settings, run.id, host)
    on_stored = partial(set_aside_and_report, ledger, run, host, by=by)
    try:
        progress = await fill_and_report(
            *(ledger, scraper, plan, run, urls, host, logs.log), by=by, seal=seal, on_stored=on_stored
        )
    finally:
        logs.close()
    return EnqueueReport(run=run, enqueued=progress.enqueued, duplicates=progress.duplicates, invalid=progress.invalid)


async def fill_and_report(  # noqa: PLR0913 - most by keyword
    ledger: Ledger,
    scraper: Scraper,
    plan: RunPlan,
    run: Run,
    urls: UrlSource | None,
    host: Host,
    log: Log,
    *,
    by: str,
    seal: bool = True,
    on_stored: OnStored = do_nothing,
) -> FillProgress:
    """Call the start hooks, store the items of a run and report those that were refused.

    A new run that got none is removed.
    """
    progress = FillProgress()
    async with removed_if_refused(ledger, plan, run, progress, by=by):
        await call_start_hooks(scraper, ledger, run, log.bind(run=run.id))
        try:
            await fill_run(ledger, run, scraper, urls, progress, by=by, seal=seal, on_stored=on_stored)
        finally:
            report_refused(urls, progress, host.on_event)
    return progress


async def set_aside_and_report(ledger: Ledger, run: Run, host: Host, *, by: str) -> None:
    """Pause the unfinished runs that this one replaces, and report them."""
    for paused in await set_replaced_aside(ledger, run, by=by):
        why = f"a new run replaces it; `shoal runs resume {paused.id}` resumes it"
        host.on_event(RunPaused(run_id=paused.id, scraper=paused.scraper, why=why))


async def report_plan(ledger: Ledger, plan: RunPlan, on_event: OnEvent) -> None:
    """Report that the run of the plan had been paused, and by whom."""
    if plan.run is not None and plan.run.state is RunState.PAUSED:
        pause = await ledger.reads.last_pause(plan.run)
        on_event(
            RunResumed(
                run_id=plan.run.id,
                scraper=plan.run.scraper,
                paused_by=pause.actor if pause is not None else "",
                paused_at=pause.at if pause is not None else None,
                why=str(pause.detail.get("because") or "") if pause is not None else "",
            )
        )


def report_refused(urls: UrlSource | None, progress: FillProgress, on_event: OnEvent) -> None:
    """Which lines and which starting items were refused, the first few of them."""
    if progress.nothing_was_valid and progress.invalid == 1:
        return  # the error that follows says it
    listed, seeds = progress.listed, progress.seeds
    if urls is not None and listed is not None and listed.invalid:
        errors = tuple(urls.describe_error(*entry) for entry in listed.invalid_entries[:MAX_SHOWN_ERRORS])
        on_event(ItemsRefused(source=f"of {urls.name}", unit="line", count=listed.invalid, errors=errors))
    if seeds is not None and seeds.invalid:
        errors = tuple(f"number {at + 1}: {text}" for at, text in seeds.invalid_entries[:MAX_SHOWN_ERRORS])
        on_event(ItemsRefused(source="to start from", unit="item", count=seeds.invalid, errors=errors))


async def _work_while_filling(
    ledger: Ledger,
    scraper: Scraper,
    run: Run,
    request: RunRequest,
    progress: FillProgress,
    worker: Worker,
    host: Host,
) -> WorkSummary:
    async def fill() -> None:
        try:
            await fill_run(
                *(ledger, run, scraper, request.urls, progress),
                in_lanes=not request.from_store,
                by=request.by,
                on_stored=partial(set_aside_and_report, ledger, run, host, by=request.by),
            )
        finally:
            report_refused(request.urls, progress, host.on_event)

    filling = asyncio.create_task(fill())
    try:
        async with progress_events(ledger, run.id, host, every=FOLLOW_SECONDS, worker=worker) as following:
            with stop_signals(host):
                summary = await run_beside(worker.work(), filling, following)
                if request.urls is not None:
                    await _finish_list(filling, progress, host)
        return summary
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)


async def _finish_list(filling: asyncio.Task[None], progress: FillProgress, host: Host) -> None:
    """Store a list of URLs to its end even when the work was stopped: it may not be readable a second time."""
    if filling.done() or progress.list_is_stored():
        return
    host.notice("Storing the rest of the list of URLs; press Ctrl-C again to stop at once.")
    while not filling.done() and not progress.list_is_stored() and host.stop.count < 2:
        await asyncio.wait((filling,), timeout=0.1)
    if filling.done():
        filling.result()


def check_output(scraper: Scraper, output: str | None) -> bool:
    """Whether the output is a folder that this scraper writes its files to. Raises UsageError for an impossible one."""
    if output is None:
        return False
    if scraper.write_folder is not None and (output.endswith("/") or Path(output).is_dir()):
        return True
    check_target(output)
    return False


async def _with_folder(ledger: Ledger, scraper: Scraper, report: RunReport) -> RunReport:
    assert scraper.write_folder is not None
    try:
        folder, records = await scraper.write_folder(ledger, report.run, Path(scraper.output_folder))
    except ShoalError as error:
        return msgspec.structs.replace(report, export_error=error)
    except OSError as error:
        problem = UsageError(f"The files cannot be written: {error.strerror} ({error.filename}).")
        return msgspec.structs.replace(report, export_error=problem)
    return msgspec.structs.replace(report, folder=folder, folder_records=records)


async def _with_export(ledger: Ledger, report: RunReport, output: str) -> RunReport:
    """An export that fails does not fail the run: the report carries the error."""
    try:
        exported = await export_run(ledger, report.run_id, output)
    except ShoalError as error:
        return msgspec.structs.replace(report, export_error=error)
    return msgspec.structs.replace(report, export=exported)


def run_from_code(  # noqa: PLR0913 - all by keyword
    scraper: Scraper,
    *,
    fresh: bool,
    resume: bool,
    urls: str | Path | Iterable[str | NewItem] | AsyncIterable[str | NewItem] | None,
    stage: str | None,
    limit: int | None,
    timeout: float | None,
    output: str | Path | None,
    idempotency_key: str | None,
    quiet: bool,
    settings: Mapping[str, object],
) -> RunReport:
    """`Scraper.run()`: see there.

    In the main thread of a program that has no signal handlers of its own, SIGINT and SIGTERM drain.
    """
    choice = RunChoice.of(fresh=fresh, resume=resume)
    scraper.check()
    flags = {name: flag_text(value) for name, value in settings.items()}
    own = configure(scraper, load_settings(flags, environ=os.environ, folder=Path.cwd()))
    check_output(scraper, None if output is None else str(output))
    request = RunRequest(
        choice=choice,
        idempotency_key=idempotency_key,
        urls=None if urls is None else url_source(scraper, urls, stage),
        limit=limit,
        timeout=timeout,
        output=None if output is None else str(output),
        by=f"{scraper.name}.run()",
    )
    collector = gc.get_threshold()
    try:
        with Console(quiet=quiet) as console:
            host = console.host(handles_signals=_may_handle_signals(), ends_hung_process=False)
            report = run_to_end(lambda: run_scraper(scraper, own, request, host), host.stop)
    finally:
        gc.set_threshold(*collector)  # the process is the caller's
        gc.unfreeze()
    if host.handles_signals and host.stop.count:
        raise KeyboardInterrupt
    if report.export_error is not None:
        raise report.export_error
    return report


def flag_text(value: object) -> str | None:
    """A setting given by a program, as the command line would give it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value is None else str(value)


def _may_handle_signals() -> bool:
    """Only in the main thread, outside an event loop, and where the program has no handlers of its own."""
    return (
        threading.current_thread() is threading.main_thread()
        and not inside_event_loop()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
