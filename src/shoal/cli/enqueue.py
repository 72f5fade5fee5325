"""`shoal enqueue`: a run and its items, for workers that come when they come."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from shoal.cli.idempotency_key import IdempotencyKey, RunAlreadyEnded, check_alone, plan_by_idempotency_key
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
    Fresh,
    Resume,
    Target,
    UrlsFile,
    check_can_resume,
    choice_of,
    command_line,
    ledger_flag,
    load,
    tell_complaints,
    tell_paused,
    url_file,
)
from shoal.errors import ShoalError
from shoal.model.ledger_url import secrets_of

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.model.run import Run, RunSpec
    from shoal.service.begin import FillProgress

BY = "shoal enqueue"


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
    made_for = msgspec.structs.replace(found.run_spec(), idempotency_key=idempotency_key)
    try:
        run, progress = session.wait(_enqueue(session, found, settings, choice, urls, made_for, seal=not keep_open))
    except RunAlreadyEnded:
        return
    session.record(_answer(found, settings, run, progress, scraper))
    if secrets_of(settings.ledger):
        session.note("The password is not in the command: set PGPASSWORD, or DB_PASSWORD_FILE, where the workers run.")


async def _enqueue(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    choice: str,
    urls: UrlFile | None,
    spec: RunSpec,
    *,
    seal: bool,
) -> tuple[Run, FillProgress]:
    from shoal.cli.working import open_logs_for
    from shoal.service.begin import (
        FillProgress,
        RunChoice,
        check_has_start_items,
        check_list_is_complete,
        fill_run,
        open_run,
        plan_run,
        remove_empty,
    )
    from shoal.wiring import ledger_context
    from shoal.worker.hooks import call_start_hooks

    async with ledger_context(settings) as ledger:
        if spec.idempotency_key is None:
            plan = await plan_run(ledger, scraper, RunChoice(choice), ledger_name=settings.shown()["ledger"])
        else:
            plan = await plan_by_idempotency_key(session, ledger, scraper, spec.idempotency_key, for_workers=True)
        check_has_start_items(scraper, urls, plan)
        await check_list_is_complete(ledger, plan, urls)
        run = await open_run(ledger, scraper, plan, spec, by=BY)
        tell_paused(session, plan)
        logs = open_logs_for(session, settings, run.id, session.note)
        try:
            await call_start_hooks(scraper, ledger, run, logs.log.bind(run=run.id))
        finally:
            logs.close()
        progress = FillProgress()
        try:
            await fill_run(ledger, run, scraper, urls, progress, by=BY, seal=seal)
        except ShoalError:
            await remove_empty(ledger, plan, run, progress, by=BY)
            raise
        finally:
            tell_complaints(session, urls, progress)
        return run, progress


def _answer(scraper: Scraper, settings: Settings, run: Run, progress: FillProgress, target: str) -> dict[str, Any]:
    """S1.5: what an orchestrator needs to know."""
    flag = ledger_flag(settings, elsewhere=True)
    return {
        "status": "queued",
        "mode": settings.mode,
        "run_id": run.id,
        "scraper": scraper.name,
        "enqueued": progress.enqueued,
        "duplicates": progress.duplicates,
        "invalid": progress.invalid,
        "worker_command": f"{command_line()} worker {shlex.quote(target)} --run-id {run.id}{flag}",
    }
