"""Runs a worker in this process: `work` for all runs in its scope; the parts are shared with `service/run.py`."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec

from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import EXIT_INTERRUPTED, LedgerError, NotFound
from shoal.fetch.page import Fetcher
from shoal.fleet.process import DRAINING, STOPPING_NOW
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import COLLECTION_KEY_PREFIX, Run, RunState
from shoal.model.worker import Scope
from shoal.notify.alert_thread import AlertThread
from shoal.notify.delivery import check_addresses
from shoal.notify.watch import ALERT_RAISED
from shoal.observe.failures import FailureCount
from shoal.observe.formatting import format_rate
from shoal.observe.logs import Logs, open_logs
from shoal.observe.meter import Reading
from shoal.observe.progress import LINE_SECONDS, FailureSource, LedgerFailures, follow_run
from shoal.observe.snapshot import Snapshot
from shoal.service.begin import mark_local_dead_workers, pause_abandoned_runs
from shoal.service.egress import fixed_parts
from shoal.service.events import Host, RunEnded, RunPaused, RunProgress
from shoal.service.lookup import find_run_of
from shoal.service.sinks import deliver_beside, finish_deliveries
from shoal.wiring import (
    build_alert_thread,
    build_fetcher,
    build_worker,
    check_ways_out,
    ledger_context,
    sqlite_path,
    worker_options,
)
from shoal.worker.claim import open_runs, report_idle_reason, runs_in_scope
from shoal.worker.failure_log import ATTEMPT_FAILED, MORE_ATTEMPTS_FAILED
from shoal.worker.hooks import RUNS_WATCHED, watch_finished_runs
from shoal.worker.single_lock import was_abandoned
from shoal.worker.state import StopReason, WorkerOptions, WorkSummary
from shoal.worker.worker import Worker
from shoal.worker.worker_limit import WorkerPlace, hold_worker_place

T = TypeVar("T")
# Every worker of a fleet polls the ledger for its progress: rarely enough for many, often enough for a person.
FOLLOW_SECONDS = 2.0
MAX_NAMED_RUNS = 5

# The operator asked the process to end: its unfinished runs are no alert.
_ON_REQUEST = (StopReason.STOPPED, StopReason.ORDERED, StopReason.TIMED_OUT)


class MetricsAddress(msgspec.Struct, frozen=True):
    """Where a worker exports its metrics; port 0: any that is free."""

    port: int
    host: str = "127.0.0.1"

    def of_worker(self, number: int) -> MetricsAddress:
        """The address of one worker of a pool: each has its own port."""
        return self if self.port == 0 else MetricsAddress(self.port + number, self.host)


async def work(
    scraper: Scraper,
    settings: Settings,
    scope: Scope,
    host: Host,
    *,
    timeout: float | None = None,  # noqa: ASYNC109 - it drains instead of cancelling
    shows_progress: bool = False,
    metrics: MetricsAddress | None = None,
    **options: Any,
) -> WorkSummary:
    """Run one worker on the runs of `scope` until nothing is left, it is stopped, or `timeout` seconds have passed.

    `options` are those of `WorkerOptions` that differ from the settings. With `shows_progress` it emits `RunProgress`
    events of the newest open run; otherwise it says every ten seconds what it did, or now and then why it is idle.
    `metrics`: where it exports its metrics.
    """
    await check_addresses(settings)
    await check_ways_out(scraper, settings)
    async with ledger_context(settings, on_waiting=host.notice) as ledger:
        found = [await find_run_of(ledger, scraper.name, name) for name in scope.run_ids]
        scope = msgspec.structs.replace(
            scope, run_ids=tuple(run.id for run in found), parts=fixed_parts(scraper, settings)
        )
        if sqlite_path(settings.ledger) is not None:
            await mark_local_dead_workers(ledger)
        fetcher = build_fetcher(settings)
        logs = open_run_logs(settings, f"{scraper.name}-worker", host)
        try:
            chosen = worker_options(scraper, settings, scope, **options)
            async with (
                worker_place(ledger, scraper, settings, host) as place,
                alerts(settings, logs.log) as alert_thread,
                deliver_beside(settings, logs.log) as sink_thread,
            ):
                worker = make_worker(
                    *(scraper, settings, ledger, fetcher, chosen, host, logs), log=logs.log, timeout=timeout
                )
                worker.keep_place(place)
                async with _finish_hooks(scraper, ledger, scope, logs.log):
                    host.notice(f"Working on {await _describe_runs(ledger, scope)} of {scraper.name}; Ctrl-C stops.")
                    with metrics_export(metrics, worker, scraper.name, host):
                        summary = await _work_and_report(
                            ledger, scope, worker, host, shows_progress=shows_progress, stays=chosen.forever
                        )
                    logs.log.info("worker stopped", **summary.log_fields())
                runs = await runs_in_scope(ledger, scope, newest=RUNS_WATCHED)
                await send_end_alerts(alert_thread, [run.id for run in runs], summary)
                with stop_signals(host):
                    await finish_deliveries(sink_thread, ledger, settings, host, stopped=host.stop.count > 0)
        finally:
            await fetcher.close()
            logs.close()
    return summary


def make_worker(  # noqa: PLR0913 - the parts of a worker
    scraper: Scraper,
    settings: Settings,
    ledger: Ledger,
    fetcher: Fetcher,
    options: WorkerOptions,
    host: Host,
    logs: Logs,
    *,
    log: Log,
    from_store: bool = False,
    timeout: float | None = None,
) -> Worker:
    """A worker that the host can stop, that drains after `timeout` seconds, and that ends the process when it hangs."""

    def end(code: int, why: str) -> None:
        logs.close()
        if host.end_process is not None:
            host.end_process(code, why)

    worker = build_worker(
        *(scraper, settings, ledger, fetcher, options),
        log=log,
        from_store=from_store,
        end_process=None if host.end_process is None else end,
    )
    host.stop.attach(worker.drain, worker.stop_now)
    if host.breakpoints is not None:
        host.breakpoints.on_prompt(worker.enter_debugger, worker.leave_debugger)
    if timeout is not None:
        asyncio.get_running_loop().call_later(timeout, worker.drain, StopReason.TIMED_OUT)
    tune_garbage_collector()
    return worker


def worker_place(
    ledger: Ledger, scraper: Scraper, settings: Settings, host: Host
) -> AbstractAsyncContextManager[WorkerPlace]:
    """A place among the workers of the scraper, if the setting `worker_limit` limits them."""
    limit, lease = settings.worker_limit, settings.lease
    return hold_worker_place(ledger, scraper.name, limit, lease=lease, report=host.notice)


def metrics_export(
    address: MetricsAddress | None, worker: Worker, scraper: str, host: Host
) -> AbstractContextManager[None]:
    """Export the metrics of a worker for the length of a block, if an address is given."""
    if address is None:
        return nullcontext()
    from shoal.service.worker_metrics import exported_metrics

    return exported_metrics(address, worker, scraper, host.notice)


def tune_garbage_collector() -> None:
    """Exempt what is loaded from collection, and collect less often.

    Parsed trees are many small objects and few cycles; collecting less often saves a tenth of the time of parsing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@contextmanager
def stop_signals(host: Host) -> Iterator[None]:
    """SIGINT and SIGTERM request a stop: the first drains, the second returns running items, a third ends the process.

    Python's own signal handlers are used, not the loop's: they run even while a handler blocks the loop. While it goes
    on blocking, the worker's watchdog ends the process.
    """
    if not host.handles_signals:
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        host.stop.request()
        if host.stop.count > 2:
            os._exit(EXIT_INTERRUPTED)  # nothing is lost: what was not committed goes to others when the lease ends
        # The signal may have interrupted this thread while it wrote to the terminal, so another thread writes.
        text = DRAINING if host.stop.count == 1 else STOPPING_NOW
        threading.Thread(target=host.notice, args=(text,), daemon=True).start()

    with handled_signals(on_signal):
        yield


@contextmanager
def handled_signals(on_signal: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """For the length of a block, call this for each SIGINT and SIGTERM."""
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_run_logs(settings: Settings, name: str, host: Host) -> Logs:
    """The log of a run or a worker: JSON lines in its file under `log_dir`, and what the host's stream gets."""
    level: str = settings.log_level
    skips: tuple[str, ...] = ()
    if host.log_level is not None and settings.origins["log_level"].kind == "default":
        level = host.log_level
        # The display and the summary say the same in fewer words.
        skips = (ATTEMPT_FAILED, MORE_ATTEMPTS_FAILED, ALERT_RAISED) if host.shows_failures else ()
    file = Path(settings.log_dir).expanduser() / f"{name}.log" if settings.log_dir else None
    return open_logs(
        format=settings.log_format,
        level=level,
        file=file,
        stream=host.log_stream,
        secrets=settings.secrets(),
        stream_skips=skips,
    )


@asynccontextmanager
async def alerts(settings: Settings, log: Log) -> AsyncIterator[AlertThread]:
    """Check all runs of the ledger for alert conditions for the length of a block, in a thread."""
    alert_thread = build_alert_thread(settings, log)
    alert_thread.start()
    try:
        yield alert_thread
    finally:
        await alert_thread.close(drain=0)


async def send_end_alerts(alert_thread: AlertThread, run_ids: Sequence[str], summary: WorkSummary) -> None:
    """Before the process ends: deliver the alerts about how its runs ended, for some seconds at most."""
    if summary.stop_reason not in _ON_REQUEST:
        await alert_thread.close(run_ids, broken=summary.worker if summary.stop_reason is StopReason.BROKEN else "")


async def free_local_ledger(settings: Settings, ledger: Ledger, run: Run, host: Host, *, by: str) -> None:
    """On a ledger of this machine: return what dead processes hold, and pause the runs that they left unfinished.

    Those of the members of `run` are resumed by it, so nobody is told of them.
    """
    file = sqlite_path(settings.ledger)
    if file is None:
        return
    await mark_local_dead_workers(ledger)
    for other in await pause_abandoned_runs(ledger, run.id, lambda name: was_abandoned(name, file), by=by):
        if not (other.idempotency_key or "").startswith(f"{COLLECTION_KEY_PREFIX}{run.id} "):
            host.on_event(RunPaused(run_id=other.id, scraper=other.scraper, why="nobody works on it"))


async def run_beside(main: Coroutine[Any, Any, T], *others: asyncio.Task[Any]) -> T:
    """Await `main`. When one of the others fails first, cancel it and raise that error."""
    task = asyncio.create_task(main)
    waiting: set[asyncio.Task[Any]] = {task, *others}
    try:
        while not task.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for other in done - {task}:
                other.result()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def progress_events(
    ledger: Ledger, run_id: str, host: Host, *, every: float, worker: Worker | None = None
) -> AsyncIterator[asyncio.Task[Any]]:
    """Emit `RunProgress` for the length of a block. The task fails when the run is removed meanwhile.

    Failures are those of the `worker`; without one those of the ledger's dead items.
    """
    failures = LedgerFailures(ledger, run_id) if worker is None else _failures_of(worker)
    following = asyncio.create_task(
        follow_run(ledger, run_id, _EventDisplay(run_id, host), every=every, failures=failures)
    )
    try:
        yield following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        host.on_event(RunEnded(run_id=run_id))


def _failures_of(worker: Worker) -> FailureSource:
    async def read(_: Snapshot) -> tuple[FailureCount, ...]:
        return worker.failures

    return read


class _EventDisplay:
    """Turns what would be displayed into events."""

    def __init__(self, run_id: str, host: Host) -> None:
        self._run_id = run_id
        self._host = host

    def update(self, reading: Reading) -> None:
        self._host.on_event(RunProgress(run_id=self._run_id, reading=reading))

    def print_line(self, text: str) -> None:
        self._host.notice(text)


async def _work_and_report(
    ledger: Ledger, scope: Scope, worker: Worker, host: Host, *, shows_progress: bool, stays: bool
) -> WorkSummary:
    reports = [_show_runs(ledger, scope, worker, host) if shows_progress else _report_work(worker, host)]
    if not shows_progress or len(scope.run_ids) != 1:
        reports.append(report_idle_reason(ledger, scope, lambda: worker.idle, host.notice, stays=stays))
    reporting = [asyncio.create_task(report) for report in reports]
    try:
        with stop_signals(host):
            return await worker.work()
    finally:
        for task in reporting:
            task.cancel()
        await asyncio.gather(*reporting, return_exceptions=True)


async def _show_runs(ledger: Ledger, scope: Scope, worker: Worker, host: Host) -> None:
    """Emit the progress of the newest open run of the scope, and of the next one when it has ended; until cancelled."""
    while True:
        with suppress(LedgerError, NotFound):  # the worker itself reports it
            runs = [run for run in await open_runs(ledger, scope) if run.state is RunState.ACTIVE]
            if runs:
                async with progress_events(ledger, runs[0].id, host, every=FOLLOW_SECONDS, worker=worker) as following:
                    await following
        await asyncio.sleep(FOLLOW_SECONDS)


async def _report_work(worker: Worker, host: Host) -> None:
    """Say every ten seconds what this worker has done, as long as it does something; until cancelled."""
    before, since = worker.summary.attempts, time.monotonic()
    while True:
        await asyncio.sleep(LINE_SECONDS)
        done, now, summary = worker.summary.attempts - before, time.monotonic(), worker.summary
        if done:
            rate = format_rate(done * 60 / (now - since))
            host.notice(
                f"{worker.id}: done {summary.done} dead {summary.dead} retried {summary.retried} {rate} "
                f"running {worker.running}"
            )
        before, since = summary.attempts, now


async def _describe_runs(ledger: Ledger, scope: Scope) -> str:
    """The runs that the worker will serve, each that is not active with its state."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return f"run {', '.join(scope.run_ids)}" if scope.run_ids else "the runs to come"
    shown = runs[:MAX_NAMED_RUNS]
    named = [run.id if run.state is RunState.ACTIVE else f"{run.id} ({run.state.value})" for run in shown]
    more = f" and {len(runs) - MAX_NAMED_RUNS} more" if len(runs) > MAX_NAMED_RUNS else ""
    return f"{'run' if len(runs) == 1 else 'runs'} {', '.join(named)}{more}"


@asynccontextmanager
async def _finish_hooks(scraper: Scraper, ledger: Ledger, scope: Scope, log: Log) -> AsyncIterator[None]:
    """During the block and when it has ended, call the author's hooks for runs that finished."""
    ended = asyncio.Event()
    watching = asyncio.create_task(watch_finished_runs(scraper, ledger, scope, log, until=ended))
    try:
        yield
        ended.set()
        await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
