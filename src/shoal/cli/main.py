"""The entry of the command line: which verbs there are, and how it ends.

Exit codes: 0 ok; 1 finished, but something is not as it should be; 2 usage or configuration; 3 ledger; 4 not allowed;
5 not found; 70 a bug; 124 out of time; 130 interrupted.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli.completion import prepare_answers
from shoal.cli.render.lazy_group import Verb, lazy_commands
from shoal.cli.render.session import RED, Session, stderr_as_asked
from shoal.cli.render.streams import flush_output, prepare_streams
from shoal.errors import OutputFailed, ShoalError, UsageError

BUG = 70
VERBS = {
    "init": Verb("shoal.cli.init", "Make a project: a scraper, its settings, a test."),
    "demo": Verb("shoal.cli.demo", "Scrape a bundled local shop and compare with the truth."),
    "run": Verb("shoal.cli.run", "Run a scraper to its end."),
    "try": Verb("shoal.cli.try_", "Put one item through one stage, without a ledger."),
    "shell": Verb("shoal.cli.shell", "Fetch a page and open a Python prompt on it."),
    "enqueue": Verb("shoal.cli.enqueue", "Store a run and its items for workers."),
    "worker": Verb("shoal.cli.worker", "Work on a scraper's runs until nothing is left."),
    "pool": Verb("shoal.cli.pool", "Several workers on this machine, kept going."),
    "schedule": Verb("shoal.cli.schedule", "Runs that begin by themselves, each slot once."),
    "status": Verb("shoal.cli.status", "Show how the newest runs stand, or one of them."),
    "alerts": Verb("shoal.cli.alerts", "What went wrong, who was told; a watch that stands alone."),
    "watch": Verb("shoal.cli.watch", "Watch a run until it ends."),
    "stats": Verb("shoal.cli.stats", "Count a run's items by state."),
    "runs": Verb("shoal.cli.runs", "List, show, pause, resume, cancel, remove and compare runs."),
    "items": Verb("shoal.cli.items", "Find items, ask why, retry, cancel, replay."),
    "lanes": Verb("shoal.cli.lanes", "See and change limits and delays while it runs."),
    "workers": Verb("shoal.cli.workers", "List workers, send them home."),
    "release": Verb("shoal.cli.release", "Give items that were claimed long ago to other workers."),
    "export": Verb("shoal.cli.export", "Write a run's records to a file."),
    "results": Verb("shoal.cli.results", "Look at records, and export them."),
    "db": Verb("shoal.cli.db", "Migrate, check, back up and look into the ledger."),
    "config": Verb("shoal.cli.config", "Show the configuration."),
    "doctor": Verb("shoal.cli.doctor", "Say whether all is well, and what to do if not."),
    "bench": Verb("shoal.cli.bench", "Measure how fast Shoal is on this machine."),
    "completion": Verb("shoal.cli.completion", "Print the script that makes your shell complete commands."),
}

app = typer.Typer(
    name="shoal",
    cls=lazy_commands(VERBS),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich would double its time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    if arguments is None:  # the process is ours
        prepare_streams()
    with stderr_as_asked(sys.argv[1:] if arguments is None else arguments):
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    session = Session()
    code = BUG
    prepare_answers()
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        ended = app(args=arguments, prog_name="shoal", obj=session, standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except ShoalError as error:
        _say_why(session, error, f"{error.message} {error.remedy}")
        code = error.exit_code
    except typer.Abort:
        session.complain("Aborted!")
        code = 1
    except Exception as error:
        code = _unexpected(session, error)
    if (lost := flush_output()) is not None:
        if code == 0 and isinstance(lost, OutputFailed):
            _say_why(session, lost, str(lost))
        code = code or 1
    if session.stubborn:
        os._exit(code)
    return code


def _check_text(arguments: Sequence[str]) -> None:
    """Bytes that are no UTF-8 cannot be names of anything in a ledger, nor be printed."""
    for argument in arguments:
        if not argument.isascii() and argument.encode(errors="replace").decode() != argument:
            raise UsageError(
                f"The argument {argument!a} is not valid UTF-8.",
                remedy="Write it in UTF-8; a file with such a name must be renamed.",
            )


def _unexpected(session: Session, error: Exception) -> int:
    """Usage errors of typer's, a reader that has left, and bugs."""
    if (show := getattr(error, "show", None)) is not None:
        said = io.StringIO()
        show(file=said)
        for line in filter(None, said.getvalue().splitlines()):
            session.complain(line)
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, BrokenPipeError):  # whoever read our output has left, and need not be told
        return 1
    if (damage := _damage(session)) is not None:
        _say_why(session, error, str(damage))
        return damage.exit_code
    hint = "" if session.verbose else " Run it again with -v for the details."
    _say_why(session, error, f"This is a bug in Shoal: {type(error).__name__}: {error}.{hint} Please report it.")
    return BUG


def _damage(session: Session) -> ShoalError | None:
    """A damaged ledger can make anything fail in any way: it is looked at before somebody is told to report a bug."""
    if (settings := session.__dict__.get("settings")) is None:
        return None
    from shoal.wiring import find_ledger_damage

    try:
        return find_ledger_damage(settings.ledger)
    except ShoalError as error:
        return error


def _say_why(session: Session, error: Exception, text: str) -> None:
    if session.verbose:
        session.complain("".join(traceback.format_exception(error)).rstrip())
    # Database servers answer in several lines; an error is one.
    session.complain(f"{session.styled('Error:', RED, sys.stderr)} {' '.join(text.split())}")


if __name__ == "__main__":
    sys.exit(main())
