"""Ledgers on the bench for the conformance suite and the state machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from shoal.ledger.postgres.ledger import PostgresLedger, open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.testing.harness import LedgerHarness

# The clock of a test database: the real one plus a shift that tests move.
MOVABLE_CLOCK = """
create table shoal.test_clock (shift interval not null);
insert into shoal.test_clock values (interval '0');
create or replace function shoal.clock() returns timestamptz
language sql volatile as 'select pg_catalog.clock_timestamp() + (select shift from shoal.test_clock)';
"""


async def prepare_template(url: str) -> None:
    """Migrate a database and give it a movable clock; copies of it serve one test each."""
    ledger = await open_postgres(url)
    await ledger.schema.migrate()
    await ledger.db.script([MOVABLE_CLOCK])
    await ledger.close()


@asynccontextmanager
async def postgres_harness(url: str) -> AsyncIterator[LedgerHarness]:
    """A lab on a copy of the template."""
    opened: list[PostgresLedger] = []

    async def open_again() -> Ledger:
        opened.append(await open_postgres(url))
        return opened[-1]

    ledger = await open_postgres(url)

    async def advance_clock(seconds: float) -> None:
        await ledger.db.fetch("update shoal.test_clock set shift = shift + make_interval(secs => $1)", seconds)

    try:
        yield LedgerHarness(ledger, advance_clock=advance_clock, open_again=open_again)
    finally:
        await asyncio.gather(ledger.close(), *(other.close() for other in opened))


@asynccontextmanager
async def sqlite_harness(path: Path) -> AsyncIterator[LedgerHarness]:
    """A lab on a new file."""
    shift = 0.0

    def clock() -> float:
        return time.time() + shift

    async def advance_clock(seconds: float) -> None:
        nonlocal shift
        shift += seconds

    opened = [await open_sqlite(path, clock=clock)]
    await opened[0].schema.migrate()

    async def open_again() -> Ledger:
        opened.append(await open_sqlite(path, clock=clock))
        return opened[-1]

    try:
        yield LedgerHarness(opened[0], advance_clock=advance_clock, open_again=open_again)
    finally:
        await asyncio.gather(*(ledger.close() for ledger in opened))
