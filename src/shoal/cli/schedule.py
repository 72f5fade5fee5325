"""`shoal schedule`: runs that begin by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.errors import NotFound, UsageError

if TYPE_CHECKING:
    from shoal.config.schedules import ScheduleConfig

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="A scraper of shoal.toml that has a schedule.")]
LogDir = Annotated[Path, typer.Option(metavar="DIR", help="Where the log files go.")]


@app.command()
@with_options
def start(
    session: Session,
    at_once: Annotated[int, typer.Option(min=1, max=1_000, help="Slots that this node works on at a time.")] = 8,
    log_dir: LogDir = Path("logs"),
) -> None:
    """Keep the schedules of shoal.toml until stopped. Start it on as many machines as you like: each slot runs once."""
    if not _schedules(session):
        raise UsageError(
            "No scraper has a schedule.", remedy='Write schedule = "0 2 * * *" below [scrapers.NAME] in shoal.toml.'
        )
    from shoal.cli.schedule_start import keep_schedules

    code = session.wait(keep_schedules(session, at_once=at_once, logs=log_dir.expanduser()))
    if code:
        raise typer.Exit(code)


@app.command()
@with_options
def ls(session: Session) -> None:
    """List the schedules: when they come due next, and what became of the last slot."""
    schedules = _schedules(session)
    if not schedules:
        session.note("No scraper has a schedule.")
        return
    from shoal.cli.schedule_shown import print_schedules

    print_schedules(session, schedules)


@app.command("next")
@with_options
def next_(
    session: Session,
    name: Name,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1_000, help="How many.")] = 5,
) -> None:
    """Show when a schedule comes due."""
    from shoal.cli.schedule_shown import print_next

    print_next(session, name, _schedule(session, name), number)


@app.command()
@with_options
def now(session: Session, name: Name, log_dir: LogDir = Path("logs")) -> None:
    """Run a slot of its own right now, whatever the schedule says; refused while another one is going."""
    from shoal.cli.schedule_start import run_slot_now

    code = session.wait(run_slot_now(session, name, _schedule(session, name), logs=log_dir.expanduser()))
    if code:
        raise typer.Exit(code)


def _schedules(session: Session) -> dict[str, ScheduleConfig]:
    from shoal.cli.schedule_start import schedules_of

    return schedules_of(session.settings)


def _schedule(session: Session, name: str) -> ScheduleConfig:
    schedules = _schedules(session)
    if name not in schedules:
        known = f"Those that have one: {', '.join(schedules)}." if schedules else "None has one."
        raise NotFound(f"There is no schedule of {name!r}.", remedy=known)
    return schedules[name]
