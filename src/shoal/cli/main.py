"""The entry of the command line: its verbs, error reporting and exit codes.

Exit codes: 0 ok; 1 finished, but something failed; 2 usage or configuration; 3 ledger; 4 not allowed;
5 not found; 70 a bug; 124 out of time; 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from shoal.cli.completion import register_shells
from shoal.cli.render.lazy_group import Verb, lazy_commands
from shoal.cli.render.session import RED, Session, json_stderr_if_configured
from shoal.cli.render.streams import flush_output, prepare_streams
from shoal.errors import OutputFailed, ShoalError, UsageError

BUG = 70
GC_THRESHOLD = 50_000  # allocated objects between two collections
VERBS = {
    "init": Verb("shoal.cli.init", "Make a project: a scraper, its settings, a test."),
    "demo": Verb("shoal.cli.demo", "Scrape a bundled local shop and compare with the truth."),
    "run": Verb("shoal.cli.run", "Run a scraper to its end."),
    "start": Verb("shoal.cli.enqueue", "Start a scraper as its mode says: here, or for workers."),
    "try": Verb("shoal.cli.try_", "Run one item through one stage, without a ledger."),
    "shell": Verb("shoal.cli.shell", "Fetch a page and open a Python prompt on it."),
    "enqueue": Verb("shoal.cli.enqueue", "Store a run and its items for workers."),
    "feed": Verb("shoal.cli.feed", "Feed a run from RabbitMQ, Redis, a folder or standard input."),
    "worker": Verb("shoal.cli.worker", "Work on a scraper's runs until nothing is left."),
    "pool": Verb("shoal.cli.pool", "Keep several workers running on this machine."),
    "schedule": Verb("shoal.cli.schedule", "Start runs at set times, each slot once."),
    "newspapers": Verb("shoal.cli.newspapers", "Check a folder of newspapers, take over existing ones."),
    "status": Verb("shoal.cli.status", "Show how the newest runs stand, or one of them."),
    "alerts": Verb("shoal.cli.alerts", "List alerts, test addresses, raise alerts without a worker."),
    "watch": Verb("shoal.cli.watch", "Watch a run until it ends."),
    "stats": Verb("shoal.cli.stats", "Count a run's items by state."),
    "runs": Verb("shoal.cli.runs", "List, show, pause, resume, seal, cancel, remove, compare runs."),
    "items": Verb("shoal.cli.items", "Find items, explain, retry, cancel and replay them."),
    "lanes": Verb("shoal.cli.lanes", "See and change limits and delays while it runs."),
    "proxies": Verb("shoal.cli.egress", "See, test, rest, ban and free proxies and Tor circuits."),
    "tokens": Verb("shoal.cli.egress", "See API tokens and what is left of their budgets."),
    "sessions": Verb("shoal.cli.sessions", "List the sessions of logins, forget them."),
    "workers": Verb("shoal.cli.workers", "List workers, drain them."),
    "release": Verb("shoal.cli.release", "Return items that were claimed long ago to the queue."),
    "export": Verb("shoal.cli.export", "Write a run's records to a file."),
    "results": Verb("shoal.cli.results", "Show records and their fields, and export them."),
    "sinks": Verb("shoal.cli.sinks", "See sinks, deliver to them, retry what they refused."),
    "serve": Verb("shoal.cli.serve", "Serve the dashboard and the API; tokens for them."),
    "db": Verb("shoal.cli.db", "Migrate, check, list and back up the ledger."),
    "config": Verb("shoal.cli.config", "Show the configuration."),
    "doctor": Verb("shoal.cli.doctor", "Check everything that can be wrong, name remedies."),
    "bench": Verb("shoal.cli.bench", "Measure how fast Shoal is on this machine."),
    "plan": Verb("shoal.cli.plan", "Say what a large job needs: workers, database, disk, hours."),
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


def _print_version(given: bool) -> None:
    if given:
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
    """Run one command and return its exit code; raises nothing, prints no secret."""
    if arguments is not None:
        with json_stderr_if_configured(arguments):
            return _main(arguments)
    # Imported modules and classes are not garbage: searching them costs a short command a quarter of its time, most of
    # it when the interpreter exits.
    gc.set_threshold(GC_THRESHOLD)
    prepare_streams()
    with json_stderr_if_configured(sys.argv[1:]):
        code = _main(None)
    if "shoal.fetch.http" in sys.modules:
        gc.collect()  # pages hold objects of an extension that complains about those it never sees freed
    gc.freeze()
    return code


def _main(arguments: Sequence[str] | None) -> int:
    session = Session()
    code = BUG
    register_shells()
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        ended = app(args=arguments, prog_name="shoal", obj=session, standalone_mode=False)
        code = ended if isinstance(ended, int) else 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except ShoalError as error:
        _report_error(session, error, f"{error.message} {error.remedy}")
        code = error.exit_code
        if gc.get_freeze_count():
            # A worker ran. When the interpreter ends, the URL parser complains about URLs that a traceback still has.
            error.__traceback__ = None
            gc.unfreeze()
            gc.collect()
    except typer.Abort:
        session.complain("Aborted!")
        code = 1
    except Exception as error:
        code = _unexpected(session, error)
    if (lost := flush_output()) is not None:
        if code == 0 and isinstance(lost, OutputFailed):
            _report_error(session, lost, str(lost))
        code = code or 1
    if session.stubborn:
        os._exit(code)
    return code


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: they can be neither stored nor printed."""
    for argument in arguments:
        if not argument.isascii() and argument.encode(errors="replace").decode() != argument:
            raise UsageError(
                f"The argument {argument!a} is not valid UTF-8.",
                remedy="Write it in UTF-8; a file with such a name must be renamed.",
            )


def _unexpected(session: Session, error: Exception) -> int:
    """Report usage errors of typer, a closed pipe, a damaged ledger, and bugs."""
    if (show := getattr(error, "show", None)) is not None:
        text = io.StringIO()
        show(file=text)
        for line in filter(None, text.getvalue().splitlines()):
            session.complain(line)
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, BrokenPipeError):  # the reader of stdout is gone
        return 1
    if (damage := _damage(session)) is not None:
        _report_error(session, error, str(damage))
        return damage.exit_code
    hint = "" if session.verbose else " Run it again with -v for the details."
    _report_error(session, error, f"This is a bug in Shoal: {type(error).__name__}: {error}.{hint} Please report it.")
    return BUG


def _damage(session: Session) -> ShoalError | None:
    """Check the ledger before an error is called a bug: damage can make anything fail."""
    if (settings := session.__dict__.get("settings")) is None:
        return None
    from shoal.wiring import find_ledger_damage

    try:
        return find_ledger_damage(settings.ledger)
    except ShoalError as error:
        return error


def _report_error(session: Session, error: Exception, text: str) -> None:
    if session.verbose:
        session.complain("".join(traceback.format_exception(error)).rstrip())
    # Messages of database servers have several lines.
    session.complain(f"{session.styled('Error:', RED, sys.stderr)} {' '.join(text.split())}")


if __name__ == "__main__":
    sys.exit(main())
