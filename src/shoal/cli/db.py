"""`shoal db`: migrate, check, list and back up the ledger's database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import print_runs
from shoal.errors import LedgerCorrupt
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.service.database import PendingMigrations

BACKUP_NOTE_SECONDS = 2.0

app = typer.Typer(help="Migrate, check and look into the ledger.", no_args_is_help=True)


@app.command()
@with_options
def migrate(
    session: Session,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be applied, and change nothing.")] = False,
) -> None:
    """Create the schema, or bring it to this version's. Safe to repeat, and on several machines at once."""
    from shoal.service import database

    if dry_run:
        _print_pending(session, session.wait(database.find_pending_migrations(session.settings)))
        return
    before, after = session.wait(database.migrate(session.settings))
    shown = session.settings.shown()["ledger"]
    if session.json:
        session.record({"ledger": shown, "before": before, "after": after})
    elif before == after:
        session.data(f"{shown} has schema version {after} already.")
    else:
        session.data(f"{shown} went from schema version {before} to {after}.")


@app.command()
@with_options
def check(
    session: Session,
    deep: Annotated[bool, typer.Option("--deep", help="Check every rule on every row; findings: exit 1.")] = False,
) -> None:
    """Say whether the ledger answers, how fast, and whether its schema is this version's."""
    from shoal.service.database import check_database

    if deep:
        session.note("Checking every rule against every row; this reads the whole ledger.")
    checked = session.wait(check_database(session.settings, deep=deep))
    findings = checked.findings
    facts: dict[str, Any] = {
        "ledger": session.settings.shown()["ledger"],
        "reachable": True,
        "latency_ms": round(checked.latency * 1000, 2),
        "schema": checked.version,
        "current": checked.problem is None,
        "findings": findings,
    }
    if session.json:
        session.record(facts)
    else:
        _print_check(session, facts)
    if checked.problem is not None:
        raise checked.problem
    if findings:
        session.complain(f"The audit has {pluralize(len(findings), 'finding')}. {LedgerCorrupt.remedy}")
        raise typer.Exit(1)


@app.command()
@with_options
def views(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="SCRAPER", help="A file, module:scraper, or a name of shoal.toml.")],
) -> None:
    """Create the views that a scraper declares, or replace them after a change. Runs create them by themselves."""
    from shoal.service.database import put_views
    from shoal.service.lookup import load_configured

    scraper, session.settings = load_configured(target, session.settings)
    done = session.with_ledger(lambda ledger: put_views(ledger, scraper), create=True)
    if session.json:
        session.record({"scraper": scraper.name, "views": done.views, "changed": done.changed})
    elif not done.views:
        session.data(f"{scraper.name} declares no views.")
    else:
        names = ", ".join(done.views)
        session.data(f"Created the views {names}." if done.changed else f"The views {names} are there already.")


@app.command()
@with_options
def show(
    session: Session,
    scraper: Annotated[str | None, typer.Option(help="Only runs of this scraper.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many runs, newest first.")] = 20,
) -> None:
    """List runs, newest first, with how many of their items are in which state."""
    from shoal.service.inspect import list_runs

    page = session.with_ledger(lambda ledger: list_runs(ledger, scraper=scraper, limit=limit))
    print_runs(session, page.rows)
    if not page.rows and not session.json:
        session.note("The ledger has no runs yet." if scraper is None else f"There is no run of {scraper}.")
    if page.cursor is not None:
        session.note(f"Older runs are not shown: use --limit {limit * 10}.")


@app.command()
@with_options
def backup(
    session: Session,
    file: Annotated[Path, typer.Argument(help="The new file; it must not exist yet.")],
) -> None:
    """Copy a SQLite ledger while workers use it. For PostgreSQL: say which command does it."""
    from shoal.service.database import back_up

    session.wait(back_up(session.settings, file, on_pages=_backup_progress(session)))
    size = file.stat().st_size
    if session.json:
        session.record({"ledger": session.settings.shown()["ledger"], "path": str(file), "bytes": size})
    else:
        session.data(f"Wrote {file}, {size / (1 << 20):.1f} MiB.")


def _print_pending(session: Session, pending: PendingMigrations) -> None:
    shown = session.settings.shown()["ledger"]
    if session.json:
        session.record({"ledger": shown, "before": pending.before, "after": pending.after, "migrations": pending.names})
    elif not pending.names:
        session.data(f"{shown} has schema version {pending.after} already; nothing would be applied.")
    else:
        names = ", ".join(pending.names)
        session.data(f"{shown} would go from schema version {pending.before} to {pending.after}, by {names}.")


def _backup_progress(session: Session) -> Callable[[int, int], None]:
    next_at = time.monotonic() + BACKUP_NOTE_SECONDS

    def report(left: int, total: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at and total:
            next_at = time.monotonic() + BACKUP_NOTE_SECONDS
            session.note(f"copied {100 * (total - left) // total}% of {total} pages")

    return report


def _print_check(session: Session, facts: Mapping[str, Any]) -> None:
    findings = facts["findings"]
    session.data(f"ledger   {facts['ledger']}")
    session.data(f"answers  yes, within {facts['latency_ms']:g} ms")
    version = "none" if facts["schema"] is None else f"version {facts['schema']}"
    session.data(f"schema   {version}{', current' if facts['current'] else ''}")
    if findings is None:
        session.data("audit    not made" + (" (--deep makes it)" if facts["current"] else ""))
    else:
        session.data(f"audit    {pluralize(len(findings) or 'no', 'finding')}")
        for finding in findings:
            session.data(f"  {finding.rule}: {finding.detail}")
