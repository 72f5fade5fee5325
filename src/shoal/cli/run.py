"""`shoal run`: a scraper from its start to its end, here and now."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.options import with_options
from shoal.cli.scrapers import Concurrency, Fresh, Resume, Target, UrlsFile, check_can_resume, choice_of, load, url_file
from shoal.cli.session import Session


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
    store: Annotated[str | None, typer.Option(help="Keep pages in this folder; ask only for changed ones.")] = None,
    from_store: Annotated[bool, typer.Option("--from-store", help="Parse kept pages again, fetch nothing.")] = False,
    max_dead: Annotated[str | None, typer.Option(help="More dead items than this: exit 1 (1%, 25).")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Export to this file at the end.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Run a scraper to its end. Interrupted or killed, it goes on where it was.

    An unfinished run is taken up again; --fresh starts a new one instead.
    """
    from shoal.cli.running import Wish, run_scraper
    from shoal.enqueue.begin import Choice

    if output is not None:
        from shoal.export import check_target

        check_target(output)
    jobs = 1 if sequential else concurrency
    scraper, settings = load(session, target, concurrency=jobs, store=store, max_dead=max_dead)
    choice = choice_of(resume, fresh)
    check_can_resume(scraper, settings, choice)
    wish = Wish(
        target=target,
        choice=Choice(choice),
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
    code = session.wait(run_scraper(session, scraper, settings, wish), fast=True)
    if code:
        raise typer.Exit(code)
