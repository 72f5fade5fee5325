"""All roles on one SQLite file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from shoal.ledger.catalog import Catalog
from shoal.ledger.coordination import SqlLocks, SqlSessions, SqlSettings, SqlWorkerPools
from shoal.ledger.reads import SqlReads
from shoal.ledger.schema import load_queries
from shoal.ledger.sqlite.access import SqliteAccess
from shoal.ledger.sqlite.backup import Progress, back_up
from shoal.ledger.sqlite.budgets import SqliteBudgets
from shoal.ledger.sqlite.changes import SqliteChanges
from shoal.ledger.sqlite.claims import SqliteClaims, SqliteWorkers
from shoal.ledger.sqlite.commits import SqliteCommits
from shoal.ledger.sqlite.connection import SqliteClock
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.errors import no_space_message
from shoal.ledger.sqlite.exits import SqliteExits
from shoal.ledger.sqlite.failures import SqliteFailures
from shoal.ledger.sqlite.intake import SqliteIntake
from shoal.ledger.sqlite.lanes import SqliteLanes
from shoal.ledger.sqlite.runs import SqliteBulk, SqliteRuns
from shoal.ledger.sqlite.schema import SqliteSchema
from shoal.ledger.sqlite.steering import SqliteSteering
from shoal.ledger.sqlite.upkeep import SqliteSampler, SqliteUpkeep
from shoal.ledger.upkeep import SqlHealth
from shoal.model.views import HealthReport

DEFAULT_BUSY_TIMEOUT = 30.0
_PARAMETER = re.compile(r"\$(\d+)")


class SqliteHealth(SqlHealth):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._file = db

    async def check(self) -> HealthReport:
        self._file.check_still_there()
        return await super().check()


class SqliteLedger:
    def __init__(self, db: SqliteDatabase) -> None:
        sql = named_queries()
        self.db = db
        self.schema = SqliteSchema(db)
        catalog = Catalog(db, sql)
        bulk = SqliteBulk(db, sql)
        self.runs = SqliteRuns(db, sql, catalog, bulk)
        self.intake = SqliteIntake(db, catalog)
        self.claims = SqliteClaims(db, sql, catalog)
        self.commits = SqliteCommits(db, catalog)
        self.changes = SqliteChanges(db, sql, catalog)
        self.workers = SqliteWorkers(db, sql, catalog, self.claims)
        self.lanes = SqliteLanes(db, sql, catalog)
        self.budgets = SqliteBudgets(db, sql)
        self.exits = SqliteExits(db, sql, catalog, self.budgets)
        self.settings = SqlSettings(db, sql)
        self.locks = SqlLocks(db, sql)
        self.sessions = SqlSessions(db, sql)
        self.pools = SqlWorkerPools(db, sql)
        self.access = SqliteAccess(db, sql)
        self.reads = SqlReads(db, sql, catalog, self.runs, self.workers, full=lambda: no_space_message(db.path))
        self.steering = SqliteSteering(db, catalog, self.reads)
        self.failures = SqliteFailures(db, sql, catalog)
        sampler = SqliteSampler(db, sql, catalog, self.reads)
        self.upkeep = SqliteUpkeep(db, sql, bulk, sampler, self.failures, self.lanes)
        self.health = SqliteHealth(db, sql)

    async def back_up(self, target: Path, progress: Progress) -> None:
        await back_up(self.db, target, progress)

    async def close(self) -> None:
        await self.db.close()


@cache
def named_queries() -> dict[str, str]:
    """Without leading comments: Python's sqlite3 recognises a write by its first word."""
    queries = load_queries(__package__, translate=_to_sqlite)
    return {name: _without_comments(text) for name, text in queries.items()}


async def open_sqlite(
    path: Path,
    *,
    busy_timeout: float = DEFAULT_BUSY_TIMEOUT,
    clock: Callable[[], float] | None = None,
    readers: int = 1,
) -> SqliteLedger:
    """Open the file; it and its folder are created if needed. The schema is not checked: see `ledger.schema`.

    `readers`: how many connections read, so that one slow query does not delay the others. `clock` replaces the
    ledger's clock (seconds since 1970); for tests.
    """
    queries = named_queries()
    db = SqliteDatabase(path, queries, busy_timeout=busy_timeout, clock=SqliteClock(queries, clock), readers=readers)
    try:
        await db.connect()
    except BaseException:
        await db.close()
        raise
    return SqliteLedger(db)


def _to_sqlite(shared: str) -> str:
    """A query in PostgreSQL's form for SQLite: tables without a schema, and `?1` instead of `$1`.

    SQLite accepts `$1` as well, but as a name: the numbers would then mean the order of first use.
    """
    return _PARAMETER.sub(r"?\1", shared.replace("shoal.", ""))


def _without_comments(text: str) -> str:
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
