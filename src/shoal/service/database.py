"""The ledger's database: migrate, check, back up, diagnose. Takes Settings, because the ledger may not open."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import LedgerError, LedgerNotMigrated, LedgerTooNew, UsageError
from shoal.ledger.protocols import Backup
from shoal.model.ledger_url import without_password
from shoal.observe.doctor import Check, check_disk, check_ledger
from shoal.wiring import connect_ledger, ledger_context, sqlite_path

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.views import Finding

LATENCY_SAMPLES = 5

OnPages = Callable[[int, int], None]


class LedgerCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger that answered. `version`: of its schema, None when it has none. `latency`: seconds, the best of five.

    `problem`: the schema is not this code's. `findings`: of the audit; None when it was not made.
    """

    version: int | None
    latency: float
    problem: LedgerError | None = None
    findings: tuple[Finding, ...] | None = None


async def migrate(settings: Settings) -> tuple[int, int]:
    """Create the schema, or bring it to this version's. Returns the versions before and after.

    Safe to repeat, and on several machines at once.
    """
    ledger = await connect_ledger(settings)
    try:
        return await ledger.schema.migrate()
    finally:
        await ledger.close()


async def check_database(settings: Settings, *, deep: bool = False) -> LedgerCheck:
    """Connect and measure the latency; with `deep` check every rule on every row, which reads the whole ledger.

    Raises LedgerError when the ledger cannot be reached.
    """
    ledger = await connect_ledger(settings, create=False)
    try:
        version = await ledger.schema.version()
        latency = min([await _latency(ledger) for _ in range(LATENCY_SAMPLES)])
        try:
            await ledger.schema.require_current()
        except (LedgerNotMigrated, LedgerTooNew) as problem:
            return LedgerCheck(version=version, latency=latency, problem=problem)
        findings = tuple(await ledger.upkeep.audit(content=True)) if deep else None
        return LedgerCheck(version=version, latency=latency, findings=findings)
    finally:
        await ledger.close()


async def diagnose(settings: Settings, *, version: str) -> list[Check]:
    """Run the checks of `shoal doctor`: ledger, schema, server or disk, clocks, versions, workers, leases, egress.

    `version` is this code's, to compare the workers' with. A ledger that cannot be reached is a failed check.
    """
    path = sqlite_path(settings.ledger)
    try:
        ledger = await connect_ledger(settings, create=False)
    except LedgerError as error:
        checks = [Check(name="ledger", ok=False, text=error.message, fix=error.remedy)]
    else:
        try:
            checks = await check_ledger(ledger, version=version)
        finally:
            await ledger.close()
        if path is not None:
            checks.append(check_disk(path))
    if settings.egress:
        from shoal.service.egress import check_egress

        checks += await check_egress(settings)
    return checks


async def back_up(settings: Settings, file: Path, *, on_pages: OnPages) -> None:
    """Copy a SQLite ledger to a new file while workers use it.

    `on_pages` gets the pages left and the pages in all, from the thread that copies. Raises UsageError for PostgreSQL;
    its remedy is the command that makes the backup.
    """
    if sqlite_path(settings.ledger) is None:
        raise UsageError("PostgreSQL has its own tool for backups.", remedy=f"Run: {pg_dump_command(settings, file)}")
    async with ledger_context(settings, migrate=False) as ledger:
        if not isinstance(ledger, Backup):
            raise UsageError("This ledger has no backup command.", remedy="Use the tools of its database.")
        await ledger.back_up(file, on_pages)


def pg_dump_command(settings: Settings, file: Path) -> str:
    """Return the command that backs up a PostgreSQL ledger; PGPASSWORD or ~/.pgpass gives the password."""
    where = without_password(settings.ledger)
    return shlex.join(["pg_dump", "--schema=shoal", "--format=custom", f"--file={file}", where])


async def _latency(ledger: Ledger) -> float:
    began = time.perf_counter()
    await ledger.schema.version()
    return time.perf_counter() - began
