"""`shoal enqueue` stores a run for workers in other processes; `shoal start` does so, or runs it, as the mode says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.run import print_already_ended, print_busy
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
    Concurrency,
    Fresh,
    IdempotencyKey,
    Resume,
    Target,
    UrlsFile,
    check_alone,
    check_can_resume,
    choice_of,
    command_line,
    ledger_flag,
    load,
    url_file,
)
from shoal.model.ledger_url import secrets_of

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.ledger.protocols import Ledger
    from shoal.service.run import EnqueueReport, RunReport


@with_options
def enqueue(
    session: Session,
    scraper: Target,
    urls_file: UrlsFile = None,
    stage: Annotated[str | None, typer.Option(help="The stage that the URLs of --urls-file are for.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    idempotency_key: IdempotencyKey = None,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="More items will follow: the run does not finish yet.")
    ] = False,
) -> None:
    """Store a run and its items, and print (as JSON) how to start workers for it.

    Without --resume or --fresh, an unfinished run gets the new items, or a new run is made.
    """
    check_alone(idempotency_key, resume=resume, fresh=fresh)
    found, settings = load(session, scraper)
    urls = url_file(found, urls_file, stage)
    choice = choice_of(resume, fresh)
    enqueue_loaded(
        *(session, found, settings, scraper, urls), choice=choice, idempotency_key=idempotency_key, seal=not keep_open
    )


def enqueue_loaded(
    session: Session,
    found: Scraper,
    settings: Settings,
    target: str,
    urls: UrlFile | None,
    *,
    choice: str,
    idempotency_key: str | None,
    seal: bool = True,
) -> str | None:
    """Store a run for workers and print the answer of S1.5. Returns its id; None when the key's run has ended."""
    check_can_resume(found, settings, choice)
    from shoal.service.begin import RunAlreadyEnded, RunBusy, RunChoice
    from shoal.service.run import enqueue as enqueue_run

    with session.console() as console:
        try:
            report = session.wait(
                enqueue_run(
                    *(found, settings, console.host()),
                    choice=RunChoice(choice),
                    idempotency_key=idempotency_key,
                    urls=urls,
                    seal=seal,
                )
            )
        except RunAlreadyEnded as ended:
            print_already_ended(session, ended.run)
            return None
        except RunBusy as busy:
            print_busy(session, busy)
            raise
    session.record(_answer(found, settings, report, target))
    if secrets_of(settings.ledger):
        session.note("The password is not in the command: set PGPASSWORD, or DB_PASSWORD_FILE, where the workers run.")
    return report.run_id


def _answer(scraper: Scraper, settings: Settings, report: EnqueueReport, target: str) -> dict[str, Any]:
    """S1.5: what an orchestrator needs to know."""
    flag = ledger_flag(settings, elsewhere=True)
    return {
        "status": "queued",
        "mode": settings.mode,
        "run_id": report.run_id,
        "scraper": scraper.name,
        "enqueued": report.enqueued,
        "duplicates": report.duplicates,
        "invalid": report.invalid,
        "worker_command": f"{command_line()} worker {shlex.quote(target)} --run-id {report.run_id}{flag}",
    }


@with_options
def start(
    session: Session,
    scraper: Target,
    urls_file: UrlsFile = None,
    stage: Annotated[str | None, typer.Option(help="The stage that the URLs of --urls-file are for.")] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    idempotency_key: IdempotencyKey = None,
    concurrency: Concurrency = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Distributed: stay until workers have finished the run, with progress.")
    ] = False,
) -> None:
    """Start a scraper as its mode says.

    Single: as `shoal run`, here and now. Distributed: as `shoal enqueue`, the run waits for workers, and the JSON says
    how to start them; with --wait this command stays until they have finished, and its exit code is that of the run.
    """
    check_alone(idempotency_key, resume=resume, fresh=fresh)
    choice = choice_of(resume, fresh)
    found, settings = load(session, scraper, concurrency=concurrency)
    urls = url_file(found, urls_file, stage)
    if settings.mode == "distributed":
        run_id = enqueue_loaded(
            *(session, found, settings, scraper, urls), choice=choice, idempotency_key=idempotency_key
        )
        code = _wait(session, settings, run_id) if wait and run_id is not None else 0
    else:
        from shoal.cli.run import run_loaded
        from shoal.service.begin import RunChoice
        from shoal.service.run import RunRequest

        request = RunRequest(choice=RunChoice(choice), idempotency_key=idempotency_key, urls=urls, by="shoal start")
        code = run_loaded(session, found, settings, request, scraper)
    if code:
        raise typer.Exit(code)


def _wait(session: Session, settings: Settings, run_id: str) -> int:
    """Show the run until it has ended. Returns its exit code."""
    from shoal.cli.render.run import exit_code
    from shoal.observe.formatting import format_ends
    from shoal.observe.progress import LedgerFailures, follow_run, open_display
    from shoal.service.run import make_report

    async def follow(ledger: Ledger) -> RunReport:
        with open_display(session.note, quiet=session.quiet or session.json, title=run_id) as display:
            display.print_line("Waiting for workers; Ctrl-C stops waiting, not the run.")
            await follow_run(ledger, run_id, display, failures=LedgerFailures(ledger, run_id))
        return await make_report(ledger, settings, run_id)

    session.settings = settings
    report = session.with_ledger(follow)
    counts = report.counts
    ends = format_ends(counts.done, counts.dead, counts.skipped)
    session.note(f"Run {run_id} is {report.run.state.value}: {ends}, {counts.results} records.")
    return exit_code(report)
