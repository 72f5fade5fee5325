"""How `shoal run` and `shoal demo` work a run off."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import typer

from shoal.cli.idempotency_key import RunAlreadyEnded, plan_by_idempotency_key, refused_for
from shoal.cli.scrapers import command_line, ledger_flag, tell_complaints, tell_paused
from shoal.cli.session import Session
from shoal.cli.summary import exit_code, print_summary
from shoal.cli.watching import tell_end, watched
from shoal.cli.working import Signals, beside, end_when_hung, make_room, obeying_signals, open_logs_for, settle_memory
from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import NotAllowed, ShoalError
from shoal.feeds.url_file import UrlFile
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope, new_worker_id
from shoal.notify.delivery import check_addresses
from shoal.observe.formatting import pluralize
from shoal.observe.progress import ProgressDisplay, follow_run, open_display
from shoal.observe.snapshot import Snapshot
from shoal.service.begin import (
    FillProgress,
    RunChoice,
    RunPlan,
    check_has_start_items,
    check_list_is_complete,
    fill_run,
    mark_local_dead_workers,
    open_run,
    plan_run,
    remove_empty,
)
from shoal.wiring import build_fetcher, build_worker, ledger_context, sqlite_path, worker_options
from shoal.worker.hooks import call_finish_hooks, call_start_hooks
from shoal.worker.options import StopReason, WorkSummary
from shoal.worker.single_lock import hold_file_lock, hold_ledger_lock
from shoal.worker.worker import Worker

BY = "shoal run"
BEGIN_SECONDS = 30.0
BEGIN_NAP_SECONDS = 0.1


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the options asked for, and what has come of the filling. `prefetch`: claim more than is worked on.

    `kept`: the options that hold for the rest of the run too, as they were typed.
    """

    target: str
    choice: RunChoice = RunChoice.AUTO
    idempotency_key: str | None = None
    urls: UrlFile | None = None
    least: int | None = None
    limit: int | None = None
    timeout: float | None = None
    from_store: bool = False
    output: str | None = None
    name: str | None = None
    kept: str = ""
    prefetch: bool = True
    progress: FillProgress = msgspec.field(default_factory=FillProgress)

    @property
    def resumption(self) -> str:
        """What to say to `shoal run` to go on: a list that was not stored to its end is needed again."""
        again = (
            f" --urls-file {shlex.quote(self.urls.name)}" if self.urls and not self.progress.list_is_stored() else ""
        )
        which = "--resume" if self.idempotency_key is None else f"--idempotency-key {shlex.quote(self.idempotency_key)}"
        name = "" if self.name is None else f" --name {shlex.quote(self.name)}"
        return f"{shlex.quote(self.target)}{name} {which}{again}{self.kept}"


async def run_scraper(session: Session, scraper: Scraper, settings: Settings, wish: Wish) -> int:
    """One run from its beginning to its summary; returns the exit code."""
    await check_addresses(settings)
    async with ledger_context(settings, on_waiting=session.note) as ledger, AsyncExitStack() as held:
        async with beginning(ledger, settings, scraper.name):
            try:
                plan = await planned(session, scraper, settings, ledger, wish, held)
            except RunAlreadyEnded:
                return 0
            check_has_start_items(scraper, wish.urls, plan)
            await check_list_is_complete(ledger, plan, wish.urls)
            run = await begin_run(session, scraper, ledger, plan, wish)
        report = await work_off(session, scraper, settings, ledger, plan, run, wish)
        await ledger.health.check()  # never a success in a file that is gone
        run = await ledger.runs.get(run.id)
        failure = await _export(session, ledger, run, settings, wish.output) if wish.output is not None else None
        exported = wish.output is not None
        await print_summary(session, ledger, run, report, settings, wish.resumption, exported=exported)
        if failure is not None:
            raise failure
        return exit_code(run, await ledger.reads.stats(run.id), report, settings)


@asynccontextmanager
async def beginning(ledger: Ledger, settings: Settings, scraper: str) -> AsyncIterator[None]:
    """Of several processes that begin with a scraper at the same moment, one makes the run and the others find it."""
    if sqlite_path(settings.ledger) is not None:  # there one process owns the scraper
        yield
        return
    lock, me = f"begin:{scraper}", new_worker_id()
    while True:
        if await ledger.locks.acquire(lock, me, BEGIN_SECONDS):
            break
        await asyncio.sleep(BEGIN_NAP_SECONDS)
    try:
        yield
    finally:
        await ledger.locks.release(lock, me)


async def begin_run(session: Session, scraper: Scraper, ledger: Ledger, plan: RunPlan, wish: Wish) -> Run:
    """The run of the plan, made or taken up again, and told."""
    spec = msgspec.structs.replace(scraper.run_spec(), idempotency_key=wish.idempotency_key)
    run = await open_run(ledger, scraper, plan, spec, by=BY)
    _tell_beginning(session, scraper, plan, run)
    return run


async def planned(
    session: Session, scraper: Scraper, settings: Settings, ledger: Ledger, wish: Wish, held: AsyncExitStack
) -> RunPlan:
    """Which run it will be. In the mode single the scraper is ours from now on, as long as `held` is open."""
    file = sqlite_path(settings.ledger)
    is_single = file is not None or settings.mode == "single"
    if is_single:
        try:
            if file is not None:
                held.enter_context(hold_file_lock(scraper.name, file))
            else:
                await held.enter_async_context(hold_ledger_lock(scraper.name, ledger, session.note))
        except NotAllowed as error:
            if wish.idempotency_key is None:
                raise
            raise await refused_for(session, ledger, scraper.name, wish.idempotency_key) from error
    if wish.idempotency_key is None:
        return await plan_run(ledger, scraper, wish.choice, ledger_name=settings.shown()["ledger"])
    if file is not None:
        await mark_local_dead_workers(ledger)
    return await plan_by_idempotency_key(session, ledger, scraper, wish.idempotency_key, owned=is_single)


async def work_off(
    session: Session, scraper: Scraper, settings: Settings, ledger: Ledger, plan: RunPlan, run: Run, wish: Wish
) -> WorkSummary:
    """Fill the run and work on it, with its progress shown, until it ends or is stopped."""
    fetcher = build_fetcher(settings, from_store=wish.from_store)
    await make_room(session, settings, ledger, run, by=BY)
    with open_display(session.note, quiet=session.quiet, title=f"{scraper.name} {run.id}") as show:
        logs = open_logs_for(session, settings, run.id, show.print_line)
        log = logs.log.bind(run=run.id)
        try:
            await call_start_hooks(scraper, ledger, run, log)
            scope = Scope(scraper=scraper.name, run_ids=(run.id,), stages=tuple(scraper.stages))
            options = worker_options(
                scraper, settings, scope, limit=wish.limit, min_concurrency=wish.least, prefetch=wish.prefetch
            )
            end = end_when_hung(logs, session)
            worker = build_worker(
                scraper, settings, ledger, fetcher, options, log=log, from_store=wish.from_store, end_process=end
            )
            if wish.timeout is not None:
                asyncio.get_running_loop().call_later(wish.timeout, worker.drain, StopReason.TIMED_OUT)
            settle_memory()
            async with watched(settings, logs.log) as alert_thread:
                log.info("the run begins", scraper=scraper.name, resumed=plan.run is not None, left=plan.remaining)
                filling = asyncio.create_task(_fill(session, ledger, run, scraper, wish))
                following = asyncio.create_task(follow_run(ledger, run.id, show))
                try:
                    report = await _supervise(worker, filling, following, wish, show)
                except ShoalError:
                    await remove_empty(ledger, plan, run, wish.progress, by=BY)
                    raise
                log.info("the run ends here", **msgspec.to_builtins(report))
                await call_finish_hooks(scraper, ledger, run.id, log)
                await tell_end(alert_thread, (run.id,), report)
        finally:
            await fetcher.close()
            logs.close()
    return report


async def _supervise(
    worker: Worker, filling: asyncio.Task[None], following: asyncio.Task[Snapshot], wish: Wish, show: ProgressDisplay
) -> WorkSummary:
    """Let the worker work while the run is filled and watched."""
    try:
        with obeying_signals(worker, show.print_line) as signals:
            report = await beside(worker.work(), filling, following)
            await _finish_list(filling, wish, signals, show)
        return report
    finally:
        filling.cancel()
        following.cancel()
        await asyncio.gather(filling, following, return_exceptions=True)


async def _finish_list(filling: asyncio.Task[None], wish: Wish, signals: Signals, show: ProgressDisplay) -> None:
    """A list of URLs is stored to its end even when the work was stopped: it may not be there a second time."""
    if filling.done() or wish.urls is None or wish.progress.list_is_stored():
        return
    show.print_line("Storing the rest of the list of URLs; press Ctrl-C again to break off.")
    while not filling.done() and not wish.progress.list_is_stored() and signals.count < 2:
        await asyncio.wait((filling,), timeout=0.1)
    if filling.done():
        filling.result()


async def _fill(session: Session, ledger: Ledger, run: Run, scraper: Scraper, wish: Wish) -> None:
    try:
        await fill_run(ledger, run, scraper, wish.urls, wish.progress, in_lanes=not wish.from_store, by=BY)
    finally:
        tell_complaints(session, wish.urls, wish.progress)


def _tell_beginning(session: Session, scraper: Scraper, plan: RunPlan, run: Run) -> None:
    if plan.run is None:
        session.note(f"Run {run.id} of {scraper.name} begins.")
        tell_paused(session, plan)
    else:
        left = f"{pluralize(plan.remaining, 'item')} {'is' if plan.remaining == 1 else 'are'} left"
        session.note(f"Run {run.id} of {scraper.name} goes on: {left}. --fresh starts a new one.")
        if plan.run.code_version not in (None, scraper.code_version):
            session.note("The scraper's code has changed since this run began.")


async def _export(session: Session, ledger: Ledger, run: Run, settings: Settings, output: str) -> ShoalError | None:
    """Write the records, or return why that failed: the run itself is told about first."""
    from shoal.export import export_run

    try:
        report = await export_run(ledger, run.id, Path(output))
    except ShoalError as error:
        done = "complete" if run.state is RunState.FINISHED else "stored as far as it went"
        again = f"{command_line()} export {run.id} -o {shlex.quote(output)}{ledger_flag(settings)}"
        error.remedy = f"The run is {done}; export it with: {again}"
        return error
    except BrokenPipeError:  # whoever read standard output has left: there is nobody to tell
        raise typer.Exit(1) from None
    session.note(f"Wrote {pluralize(report.records, 'record')} to {output}.")
    return None
