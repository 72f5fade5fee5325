"""The ledger's database: migrate, check, back up, diagnose; views of scrapers.

Most take Settings, because the ledger may not open.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InvalidScraper, LedgerError, LedgerNotMigrated, LedgerTooNew, UsageError
from shoal.ledger.protocols import Backup
from shoal.ledger.schema import parse_views
from shoal.model.ledger_url import without_password
from shoal.observe.doctor import Check, check_disk, check_ledger
from shoal.wiring import connect_ledger, ledger_context, sqlite_path

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.config import Settings
    from shoal.define.scraper import Scraper
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


class PendingMigrations(msgspec.Struct, frozen=True, kw_only=True):
    """What `migrate` would do. `before`: the schema's version, 0 when there is none. `names`: of the migrations."""

    before: int
    after: int
    names: tuple[str, ...]


async def find_pending_migrations(settings: Settings) -> PendingMigrations:
    """What `migrate` would do, without doing it: no SQLite file is created or begun. Raises LedgerTooNew."""
    path = sqlite_path(settings.ledger)
    if path is not None and not (path.exists() and path.stat().st_size):
        with TemporaryDirectory() as folder:
            empty = msgspec.structs.replace(settings, ledger=f"{folder}/empty.sqlite3")
            return await _pending(await connect_ledger(empty))
    return await _pending(await connect_ledger(settings, create=False))


async def _pending(ledger: Ledger) -> PendingMigrations:
    try:
        before = await ledger.schema.version() or 0
        return PendingMigrations(
            before=before, after=ledger.schema.known_version, names=tuple(await ledger.schema.pending())
        )
    finally:
        await ledger.close()


class PutViews(msgspec.Struct, frozen=True, kw_only=True):
    """The views of a scraper, by name. `changed`: False when they were there already as they are."""

    views: tuple[str, ...]
    changed: bool


async def put_views(ledger: Ledger, scraper: Scraper) -> PutViews:
    """Create or replace the views that a scraper declares. Raises InvalidScraper; nothing is changed then."""
    if scraper.views_folder is None:
        return PutViews(views=(), changed=False)
    file = scraper.views_folder / f"{ledger.schema.dialect}.sql"
    try:
        script = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidScraper(
            f"The views of {scraper.name} cannot be read from {file}: {reason}.",
            remedy="Each view is `-- name: NAME` and a select; there is a file for each kind of ledger.",
        ) from None
    views = parse_views(script, str(file))
    changed = await ledger.schema.put_views(views)
    return PutViews(views=tuple(view.name for view in views), changed=changed)


async def put_views_or_notice(ledger: Ledger, scraper: Scraper, notice: Callable[[str], None]) -> None:
    """Create the views at the begin of a run. A run is possible without them, so a failure is only reported."""
    try:
        await put_views(ledger, scraper)
    except (InvalidScraper, LedgerError) as error:
        again = f"`shoal db views {scraper.name}` tries again."
        notice(f"The views of {scraper.name} were not created: {error.message} {again}")


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


async def diagnose(
    settings: Settings,
    *,
    version: str,
    scraper: Scraper | None = None,
    on_notice: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Run the checks of `shoal doctor`: ledger, schema, server or disk, clocks, versions, workers, leases, egress.

    `version` is this code's, to compare the workers' with. A ledger that cannot be reached is a failed check. With
    `scraper`: only the pools that its stages use, and its browser. `on_notice` gets a sentence before a check that may
    take minutes.
    """
    from shoal.service.egress import check_egress, refused_tokens

    path = sqlite_path(settings.ledger)
    refused: Collection[str] = ()
    try:
        ledger = await connect_ledger(settings, create=False)
    except LedgerError as error:
        checks = [Check(name="ledger", ok=False, text=error.message, fix=error.remedy)]
    else:
        try:
            checks = await check_ledger(ledger, version=version)
            with suppress(LedgerError):
                refused = await refused_tokens(ledger)
        finally:
            await ledger.close()
        if path is not None:
            checks.append(check_disk(path))
    if settings.egress or scraper is not None:
        stages = [] if scraper is None else list(scraper.stages.values())
        pools = None if scraper is None else {stage.egress for stage in stages if stage.egress is not None}
        uses_browser = any(stage.client == "browser" for stage in stages)
        checks += await check_egress(settings, pools, browser=uses_browser, refused=refused, on_notice=on_notice)
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
