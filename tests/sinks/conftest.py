"""A SQLite ledger for every test; deliveries are closed after it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.testing.harness import LedgerHarness
from tests.support.ledgers import sqlite_harness
from tests.support.sinks import close_deliveries


@pytest.fixture
async def harness(sqlite_path: Path) -> AsyncIterator[LedgerHarness]:
    async with sqlite_harness(sqlite_path) as harness:
        yield harness
        await close_deliveries()
