"""`shoal run`: a scraper from its start to its end, here and now."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.options import with_options
from shoal.cli.scrapers import (
    Concurrency,
    Fresh,
    Resume,
    Target,
    UrlsFile,
    choice_of,
    command_line,
    load,
    tell_complaints,
    url_file,
)
from shoal.cli.session import Session
from shoal.cli.summary import exit_code, print_summary
from shoal.cli.working import beside, obeying_signals, open_logs_for

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.enqueue.begin import Plan
    from shoal.enqueue.urlfile import UrlFile
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.worker.options import WorkReport

BY = "shoal run"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the options asked for."""

    target: str
    choice: str
    urls: Any
    limit: int | None
    timeout: float | None
    from_store: bool
    output: str | None


@with_options
def run(
    session: Session,
    target: Target,
    urls_file: UrlsFile = None,
    stage: Annotated[str | None, typer.Option(help="The stage that the URLs are for; the first by default.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    concurrency: Concurrency = None,
    sequential: Annotated[bool, typer.Option("--sequential", help="One item at a time, for debugging.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many items; go on later.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="Stop after so many seconds, exit 124.")] = None,
    store: Annotated[
        str | None, typer.Option(help="Keep pages in this folder; ask only for changed ones.")
    ] = None,
    from_store: Annotated[bool, typer.Option("--from-store", help="Parse kept pages again, fetch nothing.")] = False,
    max_dead: Annotated[str | None, typer.Option(help="More dead items than this: exit 1 (1%, 25).")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Export to this file at the end.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Run a scraper to its end. Interrupted or killed, it goes on where it was.

    An unfinished run is taken up again; --fresh starts a new one instead.
    """
    jobs = 1 if sequential else concurrency
    scraper, settings = load(session, target, concurrency=jobs, store=store, max_dead=max_dead)
    wish = Wish(
        target=target,
        choice=choice_of(resume, fresh),
        urls=url_file(scraper, urls_file, stage),
        limit=limit,
        timeout=timeout,
        from_store=from_store,
        output=output,
    )
    if dry_run:
        from shoal.cli.plan import print_plan

        print_plan(session, scraper, settings, wish.choice, wish.urls)
        return
    code = session.wait(_run(session, scraper, settings, wish), fast=True)
    if code:
        raise typer.Exit(code)


async def _run(session: Session, scraper: Scraper, settings: Settings, wish: Wish) -> int:
    from shoal.enqueue.begin import Choice, check_there_is_a_start, plan_run
    from shoal.wiring import opened, sqlite_path
    from shoal.worker.lock import owning

    async with opened(settings) as ledger:
        with ExitStack() as held:
            file = sqlite_path(settings.ledger)
            if file is not None:
                held.enter_context(owning(scraper.name, file))
            plan = await plan_run(ledger, scraper, Choice(wish.choice))
            check_there_is_a_start(scraper, wish.urls, plan)
            run, report = await _work(session, scraper, settings, ledger, plan, wish)
            run = await ledger.runs.get(run.id)
            await print_summary(session, ledger, run, report, settings, wish.target)
            counts = await ledger.reads.stats(run.id)
            if wish.output is not None:
                await _export(session, ledger, run, wish.output)
            return exit_code(run, counts, report, settings)


async def _work(
    session: Session, scraper: Scraper, settings: Settings, ledger: Ledger, plan: Plan, wish: Wish
) -> tuple[Run, WorkReport]:
    from shoal import __version__
    from shoal.enqueue.begin import open_run, set_abandoned_aside
    from shoal.model.worker import Scope
    from shoal.observe.progress import follow, showing
    from shoal.wiring import build_fetcher, build_worker
    from shoal.worker.hooks import call_finish_hooks, call_start_hooks
    from shoal.worker.options import Ending, WorkerOptions

    fetcher = build_fetcher(settings, from_store=wish.from_store)
    run = await open_run(ledger, scraper, plan, scraper.run_spec(), by=BY)
    _tell_beginning(session, scraper, plan, run)
    if settings.mode == "single":
        for other in await set_abandoned_aside(ledger, run.id, by=BY):
            session.note(f"Run {other.id} of {other.scraper} is unfinished and was paused: nobody works on it.")
    with showing(session.note, quiet=session.quiet, title=f"{scraper.name} {run.id}") as show:
        logs = open_logs_for(session, settings, run.id, show.tell)
        log = logs.log.bind(run=run.id)
        try:
            await call_start_hooks(scraper, ledger, run, log)
            options = WorkerOptions(
                scope=Scope(scraper=scraper.name, run_ids=(run.id,)),
                concurrency=settings.concurrency,
                batch_size=settings.batch_size,
                lease=settings.lease,
                drain=settings.drain,
                limit=wish.limit,
                patience=settings.patience,
                version=__version__,
            )
            worker = build_worker(scraper, settings, ledger, fetcher, options, log=log, from_store=wish.from_store)
            if wish.timeout is not None:
                asyncio.get_running_loop().call_later(wish.timeout, worker.drain, Ending.TIMED_OUT)
            filling = asyncio.create_task(_fill(session, ledger, run, scraper, wish))
            following = asyncio.create_task(follow(ledger, run.id, show))
            log.info("the run begins", scraper=scraper.name, resumed=plan.run is not None, left=plan.left)
            with obeying_signals(worker, show.tell):
                report: WorkReport = await beside(worker.work(), filling, following)
            log.info("the run ends here", **msgspec.to_builtins(report))
            await call_finish_hooks(scraper, ledger, run.id, log)
        finally:
            await fetcher.close()
            logs.close()
    return run, report


async def _fill(session: Session, ledger: Ledger, run: Run, scraper: Scraper, wish: Wish) -> None:
    from shoal.enqueue.begin import fill_run

    urls: UrlFile | None = wish.urls
    _, listed = await fill_run(ledger, run, scraper, urls, in_lanes=not wish.from_store, by=BY)
    tell_complaints(session, urls, listed)


def _tell_beginning(session: Session, scraper: Scraper, plan: Plan, run: Run) -> None:
    if plan.run is None:
        session.note(f"Run {run.id} of {scraper.name} begins.")
        if plan.unfinished is not None:
            program = command_line()
            session.note(
                f"Run {plan.unfinished.id} is unfinished and was paused; `{program} runs resume {plan.unfinished.id}` "
                f"takes it up again."
            )
    else:
        session.note(f"Run {run.id} of {scraper.name} goes on: {plan.left} items are left. --fresh starts a new one.")
        if plan.run.code_version not in (None, scraper.code_version):
            session.note("The scraper's code has changed since this run began.")


async def _export(session: Session, ledger: Ledger, run: Run, output: str) -> None:
    from shoal.export import export_run

    report = await export_run(ledger, run.id, Path(output))
    session.note(f"Wrote {report.records} records to {output}.")
