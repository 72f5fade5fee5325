"""The entry of the command line: which verbs there are, and how it ends.

Exit codes: 0 ok; 1 finished, but something is not as it should be; 2 usage or configuration; 3 ledger; 4 not allowed;
5 not found; 70 a bug; 124 out of time; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli import completion, demo, doctor, enqueue, export, release, run, stats, status, watch, worker
from shoal.cli.groups import lazy_group
from shoal.cli.session import RED, Session
from shoal.errors import ShoalError

BUG = 70

app = typer.Typer(
    name="shoal",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich would double its time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("enqueue")(enqueue.enqueue)
app.command("worker")(worker.worker)
app.command("status")(status.status)
app.command("watch")(watch.watch)
app.command("stats")(stats.stats)
app.add_typer(lazy_group("shoal.cli.runs", "List, show, pause, resume, cancel, remove and compare runs."), name="runs")
app.add_typer(lazy_group("shoal.cli.items", "Find items, ask why, retry, cancel, replay."), name="items")
app.add_typer(lazy_group("shoal.cli.lanes", "See and change limits and delays while it runs."), name="lanes")
app.add_typer(lazy_group("shoal.cli.workers", "List workers, send them home."), name="workers")
app.command("release")(release.release)
app.command("export")(export.export)
app.add_typer(lazy_group("shoal.cli.results", "Look at records, and export them."), name="results")
app.add_typer(lazy_group("shoal.cli.db", "Migrate, check, back up and look into the ledger."), name="db")
app.add_typer(lazy_group("shoal.cli.config", "Show the configuration."), name="config")
app.command("doctor")(doctor.doctor)
app.command("completion")(completion.completion)


def _print_version(wanted: bool) -> None:
    if wanted:
        from shoal import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def shoal(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable, polite, distributed scraping."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No exception leaves it, and no secret does."""
    session = Session()
    code = BUG
    completion.prepare_answers()
    try:
        app(args=arguments, prog_name="shoal", obj=session)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except ShoalError as error:
        _say_why(session, error, f"{error.message} {error.remedy}")
        code = error.exit_code
    except Exception as error:
        hint = "" if session.verbose else " Run it again with -v for the details."
        _say_why(session, error, f"This is a bug in Shoal: {type(error).__name__}: {error}.{hint} Please report it.")
    return code if _flushed() else 1


def _say_why(session: Session, error: Exception, text: str) -> None:
    if session.verbose:
        session.complain("".join(traceback.format_exception(error)).rstrip())
    # Database servers answer in several lines; an error is one.
    session.complain(f"{session.styled('Error:', RED, sys.stderr)} {' '.join(text.split())}")


def _flushed() -> bool:
    """Hand the last data out. False when the reader has left, as `head` does; nothing is said about that."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
