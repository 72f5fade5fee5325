"""`shoal pool`: several workers on this machine under one roof."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from shoal.cli.render.confirm import Yes
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.scrapers import Fresh, Resume, Target, UrlsFile, check_bounds, choice_of, load
from shoal.errors import NotFound, UsageError

if TYPE_CHECKING:
    from shoal.config import Settings

MOST_WORKERS = 1_000
TEST_WORKERS = 2
# What was said for a run and holds for its rest too; after a test comes the whole plan.
KEPT_OPTIONS = ("workers", "least", "most", "assign", "partition", "only", "stagger", "max_restarts", "log_dir", "set")


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
        typer.Option(min=1, max=MOST_WORKERS, help="How many; by default as `workers` says, else one per core."),
    ] = None,
    least: Annotated[
        int | None, typer.Option("--min", min=1, max=MOST_WORKERS, help="Workers, at least; needs --max.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, max=MOST_WORKERS, help="Workers, at most: as work and machine allow (excludes --workers)."
        ),
    ] = None,
    test: Annotated[
        bool, typer.Option("--test", help="Only workers 0 and 1 of the plan, each with its own partitions; asks not.")
    ] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the plan; start nothing.")] = False,
    run_id: Annotated[str | None, typer.Option(help="Work on this run.")] = None,
    urls_file: UrlsFile = None,
    resume: Resume = False,
    fresh: Fresh = False,
    assign: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who gets which partitions: [0] CA, MT a line.")
    ] = None,
    partition: Annotated[list[str], typer.Option(help="Deal out this partition instead of all; may be repeated.")] = [],  # noqa: B006
    only: Annotated[bool, typer.Option("--only", help="Each worker nothing but its own partitions, ever.")] = False,
    stagger: Annotated[str, typer.Option(metavar="LOW-HIGH", help="Seconds between two starts.")] = "2-5",
    max_restarts: Annotated[int, typer.Option(min=0, max=1_000, help="Restarts of one worker that crashes.")] = 5,
    log_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the log files go.")] = Path("logs"),
) -> None:
    """Check everything, show the plan, start workers and keep them going until the run has ended.

    `shoal pool SCRAPER` means the same.
    """
    if run_id is not None and (resume or fresh or urls_file is not None):
        raise typer.BadParameter("it excludes --resume, --fresh and --urls-file.", param_hint="--run-id")
    check_bounds(least, most, test or only or workers is not None, "--workers, --test or --only")
    if not (yes or test or dry_run) and (session.no_input or not sys.stdin.isatty()):
        raise UsageError("Nobody is there to confirm the plan.", remedy="Add --yes to start without asking.")
    from shoal.autoscale.rules import Bounds
    from shoal.cli.pool_start import PoolWish, run_pool

    bounds = None if most is None else Bounds(least or 1, most)
    wish = PoolWish(
        target=target,
        choice=choice_of(resume, fresh),
        run_id=run_id,
        urls_file=urls_file,
        workers=workers if bounds is None else bounds.least,
        bounds=bounds,
        cores=_cores(),
        assign=assign,
        partitions=tuple(dict.fromkeys(partition)),
        only=only,
        first=TEST_WORKERS if test else None,
        kept=session.typed(*KEPT_OPTIONS),
        stagger=_seconds(stagger),
        max_restarts=max_restarts,
        logs=log_dir.expanduser(),
        asks=not (yes or test),
        dry_run=dry_run,
    )
    code = session.wait(run_pool(session, wish))
    if code:
        raise typer.Exit(code)


@app.command()
@with_options
def scale(
    session: Session,
    target: Target,
    workers: Annotated[str, typer.Argument(metavar="N", help="How many from now on, or auto.")],
) -> None:
    """Give the pools of a scraper that run now another number of workers, those with the highest numbers go first.

    A pool with --min and --max then no longer chooses by itself; `auto` lets it choose again.
    """
    from shoal.fleet.autoscale import AUTO

    wanted = AUTO if workers == "auto" else _workers(workers)
    scraper, settings = load(session, target)
    served = session.wait(_wish_for(settings, scraper.name, wanted))
    if session.json:
        session.record({"scraper": scraper.name, "workers": wanted or "auto", "present": served})
    elif wanted == AUTO:
        session.data(f"Pools of {scraper.name} with --min and --max choose by themselves; workers there now: {served}.")
    else:
        session.data(f"Pools of {scraper.name} go to {workers} workers; those there now: {served}.")


async def _wish_for(settings: Settings, scraper: str, workers: int) -> int:
    """Returns how many workers of the scraper are present."""
    from shoal.cli.finding import operator
    from shoal.fleet.autoscale import set_desired_size
    from shoal.wiring import ledger_context

    async with ledger_context(settings, migrate=False) as ledger:
        present = sum(worker.alive and worker.scope.scraper == scraper for worker in await ledger.workers.list())
        if not present:
            raise NotFound(
                f"No worker of {scraper} is there, so no pool would hear it.", remedy="Start one with `shoal pool`."
            )
        await set_desired_size(ledger, scraper, workers, by=operator())
        return present


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise typer.BadParameter(f"{text!r} is not auto and not from 1 to {MOST_WORKERS}.", param_hint="N")
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


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
