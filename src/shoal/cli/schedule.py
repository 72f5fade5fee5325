"""`shoal schedule`: runs that start at set times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session

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
    """Run the schedules of shoal.toml until stopped. Start it on as many machines as you like: each slot runs once."""
    from shoal.cli.render.schedule import ScheduleConsole
    from shoal.errors import EXIT_INTERRUPTED
    from shoal.service.schedule import ScheduleRequest, run_scheduler

    request = ScheduleRequest(
        logs=log_dir.expanduser(), at_once=at_once, overrides=session.flags, reload=session.read_settings
    )
    with ScheduleConsole(session) as console:
        session.wait(run_scheduler(session.settings, request, console.host(ends_hung_process=False)))
    raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
@with_options
def ls(session: Session) -> None:
    """List the schedules: when their next slot is, and how the last one ended."""
    from shoal.cli.render.schedule import print_schedules
    from shoal.service.schedule import read_schedules, schedules_of

    schedules = schedules_of(session.settings)
    if not schedules:
        session.note("No scraper has a schedule.")
        return
    print_schedules(session, schedules, session.wait(read_schedules(session.settings, schedules)))


@app.command("next")
@with_options
def next_(
    session: Session,
    name: Name,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1_000, help="How many.")] = 5,
) -> None:
    """Show the next slots of a schedule."""
    from shoal.cli.render.schedule import print_next
    from shoal.service.schedule import find_schedule, read_schedules

    config = find_schedule(session.settings, name)
    found = session.wait(read_schedules(session.settings, {name: config}))
    print_next(session, name, config, found[name], number)


@app.command()
@with_options
def now(session: Session, name: Name, log_dir: LogDir = Path("logs")) -> None:
    """Run a slot of its own right now, whatever the schedule says; refused while another one is going."""
    from shoal.cli.render.schedule import ScheduleConsole
    from shoal.errors import EXIT_INTERRUPTED, NotAllowed
    from shoal.service.schedule import ScheduleRequest, run_slot_now

    request = ScheduleRequest(logs=log_dir.expanduser(), overrides=session.flags)
    with ScheduleConsole(session) as console:
        report = session.wait(run_slot_now(session.settings, name, request, console.host(ends_hung_process=False)))
    own = int(report.value.get("exit_code", 1))
    code = {"skipped": NotAllowed.exit_code, "lost": EXIT_INTERRUPTED}.get(report.state, own)
    if code:
        raise typer.Exit(code)
