"""`shoal pool`: several workers on this machine, supervised."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from shoal.cli.render.options import Yes, with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import (
    LOOPBACK,
    Fresh,
    MetricsHost,
    Resume,
    Target,
    UrlsFile,
    check_bounds,
    choice_of,
    load,
    metrics_address,
    url_file,
)
from shoal.errors import ShoalError, UsageError
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.cli.render.pool import PoolConsole
    from shoal.service.pool import PoolRequest

MAX_WORKERS = 1_000
TEST_WORKERS = 2
AUTO = "auto"
# Options that the command to resume the run repeats; after --test the whole plan runs, so not that one.
KEPT_OPTIONS = (
    *("workers", "least", "most", "assign", "partition", "only", "stagger", "max_restarts", "log_dir"),
    *("metrics_port", "metrics_host", "set"),
)


class _StartUnlessNamed(TyperGroup):
    """`shoal pool SCRAPER` is `shoal pool start SCRAPER`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_StartUnlessNamed)


@app.command()
@with_options
def start(
    session: Session,
    target: Target,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_WORKERS, help="How many; by default as `workers` says, else one per core."),
    ] = None,
    least: Annotated[
        int | None, typer.Option("--min", min=1, max=MAX_WORKERS, help="Workers, at least; needs --max.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, max=MAX_WORKERS, help="Workers, at most: as work and machine allow (excludes --workers)."
        ),
    ] = None,
    test: Annotated[
        bool,
        typer.Option("--test", help="Only workers 0 and 1 of the plan, each with its own partitions; without asking."),
    ] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the plan; start nothing.")] = False,
    run_id: Annotated[str | None, typer.Option(help="Work on this run.")] = None,
    urls_file: UrlsFile = None,
    resume: Resume = False,
    fresh: Fresh = False,
    assign: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Which worker gets which partitions: [0] CA, MT per line.")
    ] = None,
    partition: Annotated[
        list[str],
        typer.Option(
            "--partition", "--states", metavar="NAMES", help="Assign only these partitions: CA,TX; may be repeated."
        ),
    ] = [],  # noqa: B006
    only: Annotated[bool, typer.Option("--only", help="Each worker takes nothing but its own partitions.")] = False,
    stagger: Annotated[str, typer.Option(metavar="LOW-HIGH", help="Seconds between two starts.")] = "2-5",
    max_restarts: Annotated[int, typer.Option(min=0, max=1_000, help="Restarts of one worker that crashes.")] = 5,
    log_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the log files go.")] = Path("logs"),
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535 - MAX_WORKERS,
            metavar="PORT",
            help="Export metrics for Prometheus: worker 0 here, worker 1 at the next port; 0 takes free ports.",
        ),
    ] = None,
    metrics_host: MetricsHost = LOOPBACK,
) -> None:
    """Check everything, show the plan, start workers and restart those that crash, until the run has ended.

    `shoal pool SCRAPER` means the same.
    """
    if run_id is not None and (resume or fresh or urls_file is not None):
        raise typer.BadParameter("it excludes --resume, --fresh and --urls-file.", param_hint="--run-id")
    check_bounds(least, most, test or only or workers is not None, "--workers, --test or --only")
    from shoal.autoscale.rules import Bounds
    from shoal.cli.render.pool import PoolConsole
    from shoal.service.begin import RunChoice
    from shoal.service.pool import PoolRequest

    request = PoolRequest(
        target=target,
        choice=RunChoice(choice_of(resume, fresh)),
        run_id=run_id,
        workers=workers,
        bounds=None if most is None else Bounds(least or 1, most),
        assign=assign,
        partitions=_partitions(partition),
        only=only,
        first=TEST_WORKERS if test else None,
        stagger=_seconds(stagger),
        max_restarts=max_restarts,
        logs=log_dir.expanduser(),
        overrides=session.flags,
        reload=session.read_settings,
        metrics=metrics_address(metrics_port, metrics_host),
    )
    with PoolConsole(session) as console:
        try:
            asks = not (yes or test)
            code = session.wait(_start(session, console, request, urls_file, asks=asks, dry_run=dry_run))
        except ShoalError as error:
            if console.check_failed:  # which has printed the error
                raise typer.Exit(error.exit_code) from None
            raise
    if code:
        raise typer.Exit(code)


async def _start(
    session: Session, console: PoolConsole, request: PoolRequest, urls_file: str | None, *, asks: bool, dry_run: bool
) -> int:
    """Returns the exit code."""
    import msgspec

    from shoal.cli.render.options import says_yes
    from shoal.cli.render.pool import format_size, pool_exit_code, print_end, print_plan, print_workers
    from shoal.cli.render.run import print_summary
    from shoal.service.pool import prepare_pool, preview_pool, run_check
    from shoal.service.pool_run import run_pool

    host = console.host(ends_hung_process=False)
    with run_check("settings", host) as passed:
        passed(f"ledger {session.settings.shown()['ledger']} (from {session.settings.origins['ledger']})")
    with run_check("scraper", host) as passed:
        scraper, settings = load(session, request.target)
        request = msgspec.structs.replace(request, urls=url_file(scraper, urls_file, None))
        passed(f"{scraper.name}, {pluralize(len(scraper.stages), 'stage')}, mode {settings.mode}")
    if asks and not dry_run and (session.no_input or not sys.stdin.isatty()):
        raise UsageError(
            "stdin is not a terminal, so the plan cannot be confirmed.", remedy="Add --yes to start without asking."
        )
    if dry_run:
        print_plan(session, await preview_pool(scraper, settings, request, host))
        return 0
    async with prepare_pool(scraper, settings, request, host) as prepared:
        plan, run = prepared.plan, prepared.run
        print_plan(session, plan)
        size = format_size(len(plan.assignment), plan.bounds)
        if asks and not says_yes(session, f"{size} will work on run {run.id}."):
            await prepared.discard()
            kept = f"; run {run.id} is as it was" if not prepared.is_new else ""
            session.complain(f"Nothing was started{kept}.")
            return 1
        report = await run_pool(prepared, host)
    print_workers(session, report.workers)
    print_summary(session, report.run, None)
    print_end(session, report, request.target, session.typed(*KEPT_OPTIONS))
    return pool_exit_code(report)


@app.command()
@with_options
def scale(
    session: Session,
    target: Target,
    workers: Annotated[str, typer.Argument(metavar="N", help="How many from now on, or auto.")],
) -> None:
    """Set the number of workers of all running pools of a scraper; the highest numbers stop first.

    A pool with --min and --max then no longer chooses by itself; `auto` lets it choose again.
    """
    from shoal.service.lookup import operator
    from shoal.service.pool import scale_pools

    number = None if workers == AUTO else _workers(workers)
    scraper, settings = load(session, target)
    present = session.wait(scale_pools(settings, scraper.name, number, by=operator()))
    if session.json:
        session.record({"scraper": scraper.name, "workers": number or AUTO, "present": present})
    elif number is None:
        session.data(
            f"Pools of {scraper.name} with --min and --max choose by themselves; workers there now: {present}."
        )
    else:
        session.data(f"Pools of {scraper.name} go to {pluralize(number, 'worker')}; those there now: {present}.")


def _partitions(texts: Sequence[str]) -> tuple[str, ...]:
    """Names that are separated by commas, each once."""
    names = dict.fromkeys(name for text in texts for each in text.split(",") if (name := each.strip()))
    if texts and not names:
        raise typer.BadParameter("it names no partition.", param_hint="--partition")
    return tuple(names)


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_WORKERS:
        raise typer.BadParameter(f"{text!r} is not auto and not from 1 to {MAX_WORKERS}.", param_hint="N")
    return int(text)


def _seconds(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        pair = float(low), float(high if dash else low)
    except ValueError:
        pair = math.nan, math.nan
    if not 0 <= pair[0] <= pair[1] <= 3_600:
        raise typer.BadParameter(f"{text!r} is not seconds such as 2-5 or 0.", param_hint="--stagger")
    return pair
