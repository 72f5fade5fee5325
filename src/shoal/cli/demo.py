"""`shoal demo`: a made-up scraper on a real ledger, and what the ledger says about it afterwards."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.options import with_options
from shoal.cli.session import BOLD, Session

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.demo.story import Summary


@with_options
def demo(session: Session) -> None:
    """Run a made-up scraper with three workers, one of which dies, and show what the ledger says about it.

    It uses a fresh SQLite ledger in a temporary folder, unless --ledger, --db-... or SHOAL_LEDGER names one.
    """
    settings = _demo_settings(session.settings)
    session.note(f"A bookshop in three countries, two stages, three workers. Ledger: {settings.shown()['ledger']}")
    summary = session.wait(_run(session, settings))
    if session.json:
        session.record(summary)
    else:
        _print(session, summary)
    _print_next(session, settings)
    if summary.findings:
        raise typer.Exit(1)


def _demo_settings(settings: Settings) -> Settings:
    """Never a project's own ledger by accident: only one that was named for this very command or shell."""
    import msgspec

    origin = settings.origins["ledger"]
    if origin.kind == "flag" or (origin.name == "SHOAL_LEDGER" and origin.kind == "environment"):
        return settings
    return msgspec.structs.replace(settings, ledger=str(Path(tempfile.mkdtemp(prefix="shoal-demo-")) / "ledger.db"))


async def _run(session: Session, settings: Settings) -> Summary:
    from shoal import __version__
    from shoal.demo.progress import watching
    from shoal.demo.story import tell_story
    from shoal.wiring import opened

    async with opened(settings) as ledger:
        with watching(session.note, quiet=session.quiet) as watcher:
            return await tell_story(ledger, watcher, code_version=__version__)


def _print(session: Session, summary: Summary) -> None:
    """The table comes last: on a small terminal it is what stays in sight."""
    _title(session, f"Some of the {summary.counts.results} records")
    if summary.records:
        session.table(
            [name.upper() for name in summary.records[0]], [list(record.values()) for record in summary.records]
        )
    _print_stories(session, summary)
    _print_states(session, summary)
    if summary.findings:
        _title(session, f"The audit has {len(summary.findings)} findings")
        for finding in summary.findings:
            session.data(f"  {finding.rule}: {finding.detail}")
    else:
        _title(session, "Nothing lost, nothing stored twice: the audit has no findings")


def _print_stories(session: Session, summary: Summary) -> None:
    if summary.waiting_item is not None:
        _title(session, f"Why {summary.waiting_item.name} was not running, asked on the way")
        for gate in summary.waiting_item.gates:
            session.data(f"  {gate.text}")
    _title(session, f"{summary.retried} items were tried again, {summary.rescued} rescued, {len(summary.dead)} died")
    for failed in summary.dead:
        session.data(f"  {failed.url} died: {failed.outcome}, {failed.error_message}")
    if summary.rescued_item is not None:
        session.data(f"  {summary.rescued_item.name}")
        for attempt in summary.rescued_item.attempts:
            error = f": {attempt.error}" if attempt.error else ""
            session.data(f"    {attempt.worker} held it for {attempt.seconds:.2f} s, {attempt.outcome}{error}")


def _print_states(session: Session, summary: Summary) -> None:
    run = summary.run
    seconds = (run.finished_at - run.created_at).total_seconds() if run.finished_at else 0.0
    _title(session, f"Run {run.id} is {run.state} after {seconds:.1f} s")
    columns = ("ready", "waiting", "delayed", "leased", "done", "dead", "results", "duplicates")
    rows = [
        (progress.stage, progress.partition, *(getattr(progress.counts, name) for name in columns))
        for progress in summary.partitions
    ]
    rows.append(("all", "", *(getattr(summary.counts, name) for name in columns)))
    session.table(["STAGE", "PARTITION", *map(str.upper, columns)], rows)


def _print_next(session: Session, settings: Settings) -> None:
    from shoal.wiring import sqlite_path

    shown, origin = settings.shown()["ledger"], settings.origins["ledger"]
    flag = "" if origin.kind == "environment" else f" --ledger {shown}"
    file = sqlite_path(settings.ledger)
    session.note("\nNext:")
    program = _program()
    session.note(f"  {program} db show{flag}")
    session.note(f"  {program} db check --deep{flag}")
    if file is None:
        address = f"'{shown}'" if flag else '"$SHOAL_LEDGER"'
        session.note(f"  psql {address} -c 'select * from shoal.failed_items'")
    else:
        session.note(f"  sqlite3 {file} 'select * from failed_items'")
    if origin.kind == "default":
        session.note(f"  rm -r {file and file.parent}")


def _program() -> str:
    """What to type for Shoal: its name, or where it lies when it is not on the path (as after `make demo`)."""
    called = Path(sys.argv[0])
    if called.name != "shoal":
        return "python -m shoal"
    if shutil.which("shoal") is not None:
        return "shoal"
    return os.path.relpath(called)


def _title(session: Session, text: str) -> None:
    session.data("\n" + session.styled(text, BOLD))
