"""`shoal enqueue`: creates a run and stores its items, for workers in other processes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.run import print_already_ended, print_busy
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
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
    from shoal.service.run import EnqueueReport


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
                    seal=not keep_open,
                )
            )
        except RunAlreadyEnded as ended:
            print_already_ended(session, ended.run)
            return
        except RunBusy as busy:
            print_busy(session, busy)
            raise
    session.record(_answer(found, settings, report, scraper))
    if secrets_of(settings.ledger):
        session.note("The password is not in the command: set PGPASSWORD, or DB_PASSWORD_FILE, where the workers run.")


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
