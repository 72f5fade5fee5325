"""`shoal feed`: messages of a queue, a stream, a list, a folder or standard input become items of a run."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
    Concurrency,
    Fresh,
    Least,
    Most,
    Resume,
    check_bounds,
    check_can_resume,
    choice_of,
    command_line,
    ledger_flag,
    load,
)
from shoal.errors import EXIT_INTERRUPTED, UsageError
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.service.feed import FeedReport


@with_options
def feed(
    session: Session,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SOURCE]",
            help="amqp://HOST/VHOST?queue=NAME, redis://HOST/0?stream=NAME or ?list=NAME, a folder, or - for stdin. "
            "Omit it when the address is in SHOAL_FEED_URL, or in the variable of --url-env.",
        ),
    ],
    scraper: Annotated[
        str | None,
        typer.Argument(metavar="SCRAPER", help="A file (books.py, x.yaml), module:scraper, or a name of shoal.toml."),
    ] = None,
    url_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable with the address and its password.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="The stage of messages that name none.")] = None,
    forever: Annotated[bool, typer.Option("--forever", help="Keep the run open and wait for more messages.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, max=86_400, help="End when it has been empty for so many seconds.")
    ] = None,
    backlog: Annotated[
        int | None, typer.Option(min=1, help="Take no messages while the run has more open items.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, max=10_000, help="Messages stored at a time, at most.")] = None,
    reply: Annotated[
        str | None, typer.Option(metavar="NAME", help="Send the records to this queue (Redis: stream) of the broker.")
    ] = None,
    work: Annotated[bool, typer.Option("--work", help="Work on the run too, in this process.")] = False,
    resume: Resume = False,
    fresh: Fresh = False,
    concurrency: Concurrency = None,
    least: Least = None,
    most: Most = None,
) -> None:
    """Feed a scraper's run: each message is a URL, or JSON with the fields of an item.

    A message is acknowledged when its item is stored. The newest open run gets the items, or a new one is made. Start
    `shoal worker` or `shoal pool` to work on them, here or elsewhere, or give --work.
    """
    from shoal.feeds.source import open_source
    from shoal.service.begin import RunChoice
    from shoal.service.feed import FeedRequest
    from shoal.service.feed import feed as feed_run

    if not work and not (concurrency is least is most is None):
        raise typer.BadParameter("it needs --work.", param_hint="-j, --min, --max")
    check_bounds(least, most, concurrency is not None, "-j")
    if scraper is None and (source == "-" or "://" in source):
        raise typer.BadParameter("it is missing: shoal feed SOURCE SCRAPER.", param_hint="SCRAPER")
    typed, target = (source, scraper) if scraper is not None else (None, source)
    found, settings = load(
        *(session, target),
        concurrency=most or concurrency,
        feed_idle=idle,
        feed_backlog=backlog,
        feed_batch=batch,
    )
    address = _address(typed, url_env, settings)
    choice = choice_of(resume, fresh)
    check_can_resume(found, settings, choice)
    open_source(address)  # a wrong address is an error before anything is created
    request = FeedRequest(
        source=address,
        stage=stage,
        forever=forever,
        idle=settings.feed_idle,
        backlog=settings.feed_backlog,
        batch=settings.feed_batch,
        choice=RunChoice(choice),
        works=work,
        reply=reply,
        min_concurrency=None if most is None else least or 1,
    )
    with session.console() as console:
        report = session.wait(feed_run(found, settings, request, console.host()), fast=True)
    if session.json:
        session.record(_answer(report, settings, target))
    else:
        _print_end(session, report, settings, target)
    raise typer.Exit(_exit_code(report))


def _address(typed: str | None, url_env: str | None, settings: Settings) -> str:
    """The address that was typed, or the one of a variable. A password must not be typed: every user would see it."""
    if typed is not None:
        if url_env is not None:
            raise typer.BadParameter("give SOURCE or --url-env, one of the two.", param_hint="--url-env")
        from shoal.feeds.source import is_broker, parse_address

        if is_broker(typed) and parse_address(typed).password is not None:
            raise UsageError(
                "A password on the command line can be seen by all users of this machine.",
                remedy="Put the address into SHOAL_FEED_URL and omit SOURCE, or name another variable by --url-env.",
            )
        return typed
    address = settings.feed_url if url_env is None else os.environ.get(url_env, "")
    if not address:
        variable = url_env or "SHOAL_FEED_URL"
        raise UsageError(
            f"There is no source: {variable} is not set.",
            remedy=f"Give it as `shoal feed SOURCE SCRAPER`, or set {variable}.",
        )
    return address


def _answer(report: FeedReport, settings: Settings, target: str) -> dict[str, Any]:
    return {
        "run_id": report.run_id,
        "scraper": report.run.scraper,
        "state": report.run.state.value,
        "source": report.source,
        "messages": report.feed.messages,
        "enqueued": report.feed.enqueued,
        "duplicates": report.feed.duplicates,
        "dead_letters": report.feed.dead_letters,
        "remaining": report.counts.remaining,
        "sealed": report.sealed,
        "stopped": report.stopped,
        "seconds": round(report.seconds, 3),
        "worker_command": _worker_command(report, settings, target),
    }


def _print_end(session: Session, report: FeedReport, settings: Settings, target: str) -> None:
    fed = report.feed
    session.note(
        f"{pluralize(fed.messages, 'message')} from {report.source} in {report.seconds:.1f} s: {fed.enqueued} new, "
        f"{pluralize(fed.duplicates, 'duplicate')}, {pluralize(fed.dead_letters, 'dead letter')}."
    )
    left = report.counts.remaining
    state = "" if report.sealed else " It stays open for more messages."
    session.note(f"Run {report.run_id} has {pluralize(left, 'open item')}.{state}")
    if left and report.work is None:
        session.note(f"Work on it with: {_worker_command(report, settings, target)}")


def _worker_command(report: FeedReport, settings: Settings, target: str) -> str:
    flag = ledger_flag(settings, elsewhere=True)
    return f"{command_line()} worker {shlex.quote(target)} --run-id {report.run_id}{flag}"


def _exit_code(report: FeedReport) -> int:
    if report.work is not None:
        from shoal.cli.render.run import exit_code_of_worker

        if code := exit_code_of_worker(report.work):
            return code
        if report.sealed and report.too_many_dead:
            return 1
    return EXIT_INTERRUPTED if report.stopped else 0
