"""All roles on one PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from shoal.ledger.catalog import Catalog
from shoal.ledger.coordination import SqlLocks, SqlSessions, SqlSettings, SqlWorkerPools
from shoal.ledger.postgres.access import PostgresAccess
from shoal.ledger.postgres.budgets import PostgresBudgets
from shoal.ledger.postgres.changes import PostgresChanges
from shoal.ledger.postgres.claims import PostgresClaims, PostgresWorkers
from shoal.ledger.postgres.commits import PostgresCommits
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.ledger.postgres.exits import PostgresExits
from shoal.ledger.postgres.failures import PostgresFailures
from shoal.ledger.postgres.intake import PostgresIntake
from shoal.ledger.postgres.lanes import PostgresLanes
from shoal.ledger.postgres.runs import PostgresBulk, PostgresRuns
from shoal.ledger.postgres.schema import PostgresSchema
from shoal.ledger.postgres.steering import PostgresSteering
from shoal.ledger.postgres.upkeep import PostgresSampler, PostgresUpkeep
from shoal.ledger.reads import SqlReads
from shoal.ledger.schema import load_queries
from shoal.ledger.upkeep import SqlHealth

DEFAULT_POOL_SIZE = 4
DEFAULT_PATIENCE = 60.0
DEFAULT_COMMAND_TIMEOUT = 60.0


class PostgresHealth(SqlHealth):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    def set_warning_handler(self, warn: Callable[[str], object]) -> None:
        self._db.warn = warn


class PostgresLedger:
    def __init__(self, db: PostgresDatabase) -> None:
        sql = named_queries()
        self.db = db
        self.schema = PostgresSchema(db)
        catalog = Catalog(db, sql)
        bulk = PostgresBulk(db, sql)
        self.runs = PostgresRuns(db, sql, catalog, bulk)
        self.intake = PostgresIntake(db, sql, catalog)
        self.claims = PostgresClaims(db, sql, catalog)
        self.commits = PostgresCommits(db, sql, catalog)
        self.changes = PostgresChanges(db, sql, catalog)
        self.workers = PostgresWorkers(db, sql, catalog, self.claims)
        self.lanes = PostgresLanes(db, sql, catalog)
        self.budgets = PostgresBudgets(db, sql)
        self.exits = PostgresExits(db, sql, catalog, self.budgets)
        self.settings = SqlSettings(db, sql)
        self.locks = SqlLocks(db, sql)
        self.sessions = SqlSessions(db, sql)
        self.pools = SqlWorkerPools(db, sql)
        self.access = PostgresAccess(db, sql)
        self.reads = SqlReads(db, sql, catalog, self.runs, self.workers)
        self.steering = PostgresSteering(db, sql, catalog, self.reads)
        self.failures = PostgresFailures(db, sql, catalog)
        sampler = PostgresSampler(db, sql, catalog, self.reads)
        self.upkeep = PostgresUpkeep(db, sql, bulk, sampler, self.failures, self.lanes)
        self.health = PostgresHealth(db, sql)

    async def close(self) -> None:
        await self.db.close()


@cache
def named_queries() -> dict[str, str]:
    return load_queries(__package__)


async def open_postgres(
    url: str,
    *,
    pool_size: int = DEFAULT_POOL_SIZE,
    patience: float = DEFAULT_PATIENCE,
    command_timeout: float = DEFAULT_COMMAND_TIMEOUT,
) -> PostgresLedger:
    """Connect. The schema is not checked: see `ledger.schema`."""
    db = PostgresDatabase(url, pool_size=pool_size, patience=patience, command_timeout=command_timeout)
    await db.connect()
    return PostgresLedger(db)
