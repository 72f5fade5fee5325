"""`shoal worker`: one process that helps with a run; start as many as you like, on any machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.observe.formatting import format_ends, pluralize

if TYPE_CHECKING:
    from shoal.worker.state import WorkSummary
from shoal.cli.scrapers import (
    LOOPBACK,
    Concurrency,
    Least,
    MetricsHost,
    MetricsPort,
    Most,
    check_bounds,
    load,
    metrics_address,
)


@with_options
def worker(
    session: Session,
    scraper: Annotated[
        str | None,
        typer.Argument(metavar="SCRAPER", help="A file (books.py, x.yaml), module:scraper, or a name of shoal.toml."),
    ] = None,
    named: Annotated[str | None, typer.Option("--scraper", metavar="SCRAPER", help="The same as an option.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Only this run; otherwise all runs of the scraper.")] = None,
    stage: Annotated[list[str], typer.Option(help="Only this stage; may be repeated.")] = [],  # noqa: B006
    partition: Annotated[list[str], typer.Option(help="This partition first; may be repeated.")] = [],  # noqa: B006
    only: Annotated[bool, typer.Option("--only", help="Only the partitions given.")] = False,
    batch_size: Annotated[int | None, typer.Option(min=1, max=10_000, help="Items per claim, at most.")] = None,
    concurrency: Concurrency = None,
    least: Least = None,
    most: Most = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Exit after so many items.")] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="End after so many seconds, exit 124.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Exit as soon as nothing is claimable.")] = False,
    forever: Annotated[bool, typer.Option("--forever", help="Wait for future runs when nothing is left.")] = False,
    place: Annotated[
        str | None, typer.Option(metavar="N/OF", help='This worker is number N, from 0, of OF: for share = "fixed".')
    ] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Work on a scraper's runs until nothing is left. Join and leave at any time.

    With --stage it also stays until the whole run has ended, as other stages may feed it; --drain leaves earlier.
    """
    if (scraper is None) == (named is None):
        raise typer.BadParameter("give it once: as an argument, or with --scraper.", param_hint="SCRAPER")
    if drain and forever:
        raise typer.BadParameter("give one of --drain and --forever.", param_hint="--drain")
    if only and not partition:
        raise typer.BadParameter("say with --partition which ones.", param_hint="--only")
    check_bounds(least, most, concurrency is not None, "-j")
    from shoal.cli.render.run import MAX_FAILURES, exit_code_of_worker, print_deaths
    from shoal.model.worker import Scope
    from shoal.service.lookup import check_stage_names, ledger_named_in_errors
    from shoal.service.work import work

    found, settings = load(session, scraper or named or "", concurrency=most or concurrency, batch_size=batch_size)
    check_stage_names(found, stage)
    if place is not None:
        settings = settings.at_place(*_place(place))

    scope = Scope(
        scraper=found.name,
        run_ids=(run_id,) if run_id else (),
        # Never a stage that this code does not know: an older copy of it must not spoil the items of a newer one.
        stages=tuple(stage or found.stages),
        partitions=tuple(partition),
        steal=not only,
    )
    at_first = None if most is None else least or 1
    chosen: dict[str, Any] = {"metrics": metrics_address(metrics_port, metrics_host), "min_concurrency": at_first}
    chosen |= {"limit": limit, "stop_when_idle": drain, "forever": forever}
    with (
        session.console() as console,
        ledger_named_in_errors(settings),
    ):
        shows_progress = sys.stderr.isatty()
        summary = session.wait(
            work(found, settings, scope, console.host(), timeout=timeout, shows_progress=shows_progress, **chosen),
            fast=True,
        )
    _print_end(session, summary)
    if session.quiet:
        causes = [failure for failure in summary.failures if failure.dead][:MAX_FAILURES]
        print_deaths(session, summary.dead, [failure.text for failure in causes])
    if session.json:
        session.record(summary)
    raise typer.Exit(exit_code_of_worker(summary))


def _place(text: str) -> tuple[int, int]:
    number, _, workers = text.partition("/")
    if not (number.isdecimal() and workers.isdecimal() and int(number) < int(workers)):
        raise typer.BadParameter(f"{text!r} is not a place such as 3/10.", param_hint="--place")
    return int(number), int(workers)


def _print_end(session: Session, summary: WorkSummary) -> None:
    from shoal.worker.state import StopReason

    if summary.stop_reason is StopReason.NOTHING_LEFT:
        session.note("No more records to claim.")  # S0.22
    session.note(
        f"{summary.worker} stops ({summary.stop_reason.value}): "
        f"{format_ends(summary.done, summary.dead, summary.skipped)}, "
        f"{summary.retried} to be retried, {summary.given_back} returned, {pluralize(summary.records, 'record')} "
        f"in {summary.seconds:.1f} s."
    )
