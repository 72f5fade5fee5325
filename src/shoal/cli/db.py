"""`shoal db`: the ledger's database."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import print_runs
from shoal.errors import LedgerCorrupt, LedgerError, LedgerNotMigrated, LedgerTooNew

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.model.run import Run
    from shoal.model.views import Counts, Finding

LATENCY_SAMPLES = 5
PAGE = 50

app = typer.Typer(help="Migrate, check and look into the ledger.", no_args_is_help=True)


@app.command()
@with_options
def migrate(session: Session) -> None:
    """Create the schema, or bring it to this version's. Safe to repeat, and on several machines at once."""
    before, after = session.wait(_migrate(session.settings))
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
    if deep:
        session.note("Checking every rule against every row; this reads the whole ledger.")
    version, latency, problem, findings = session.wait(_check(session.settings, deep))
    facts: dict[str, Any] = {
        "ledger": session.settings.shown()["ledger"],
        "reachable": True,
        "latency_ms": round(latency * 1000, 2),
        "schema": version,
        "current": problem is None,
        "findings": findings,
    }
    if session.json:
        session.record(facts)
    else:
        _print_check(session, facts)
    if problem is not None:
        raise problem
    if findings:
        many = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
        session.complain(f"The audit has {many}. {LedgerCorrupt.remedy}")
        raise typer.Exit(1)


@app.command()
@with_options
def show(
    session: Session,
    scraper: Annotated[str | None, typer.Option(help="Only runs of this scraper.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many runs, newest first.")] = 20,
) -> None:
    """List runs, newest first, with how many of their items are in which state."""
    found, more = session.wait(_show(session.settings, scraper, limit))
    print_runs(session, found)
    if not found and not session.json:
        session.note("The ledger has no runs yet." if scraper is None else f"There is no run of {scraper}.")
    if more:
        session.note(f"Older runs are not shown: use --limit {limit * 10}.")


@app.command()
@with_options
def backup(
    session: Session,
    file: Annotated[Path, typer.Argument(help="The new file; it must not exist yet.")],
) -> None:
    """Copy a SQLite ledger while workers use it. For PostgreSQL: say which command does it."""
    from shoal.cli.backup import back_up

    session.wait(back_up(session, file))
    size = file.stat().st_size
    if session.json:
        session.record({"ledger": session.settings.shown()["ledger"], "file": str(file), "bytes": size})
    else:
        session.data(f"Wrote {file}, {size / (1 << 20):.1f} MiB.")


async def _migrate(settings: Settings) -> tuple[int, int]:
    from shoal.wiring import connect_ledger

    ledger = await connect_ledger(settings)
    try:
        return await ledger.schema.migrate()
    finally:
        await ledger.close()


async def _check(settings: Settings, deep: bool) -> tuple[int | None, float, LedgerError | None, list[Finding] | None]:
    from shoal.wiring import connect_ledger

    ledger = await connect_ledger(settings, create=False)
    try:
        version = await ledger.schema.version()
        latency = min([await _seconds_to_answer(ledger.schema.version) for _ in range(LATENCY_SAMPLES)])
        try:
            await ledger.schema.require_current()
        except (LedgerNotMigrated, LedgerTooNew) as problem:
            return version, latency, problem, None
        return version, latency, None, await ledger.upkeep.audit(content=True) if deep else None
    finally:
        await ledger.close()


async def _show(settings: Settings, scraper: str | None, limit: int) -> tuple[list[tuple[Run, Counts]], bool]:
    from shoal.wiring import ledger_context

    found: list[tuple[Run, Counts]] = []
    async with ledger_context(settings, migrate=False) as ledger:
        cursor = None
        while True:
            page = await ledger.runs.list(scraper=scraper, cursor=cursor, limit=min(PAGE, limit - len(found)))
            found += [(run, await ledger.reads.stats(run.id)) for run in page.rows]
            cursor = page.cursor
            if cursor is None or len(found) == limit:
                more = cursor and (await ledger.runs.list(scraper=scraper, cursor=cursor, limit=1)).rows
                return found, bool(more)


async def _seconds_to_answer(question: Callable[[], Awaitable[object]]) -> float:
    asked = time.perf_counter()
    await question()
    return time.perf_counter() - asked


def _print_check(session: Session, facts: Mapping[str, Any]) -> None:
    findings = facts["findings"]
    session.data(f"ledger   {facts['ledger']}")
    session.data(f"answers  yes, within {facts['latency_ms']:g} ms")
    version = "none" if facts["schema"] is None else f"version {facts['schema']}"
    session.data(f"schema   {version}{', current' if facts['current'] else ''}")
    if findings is None:
        session.data("audit    not made" + (" (--deep makes it)" if facts["current"] else ""))
    else:
        session.data(f"audit    {len(findings) or 'no'} findings")
        for finding in findings:
            session.data(f"  {finding.rule}: {finding.detail}")
