"""The public conformance suite, on every ledger and through PgBouncer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.testing.conformance import LedgerConformance
from shoal.testing.harness import LedgerHarness
from tests.support.ledgers import postgres_harness, sqlite_harness


class TestSqlite(LedgerConformance):
    @pytest.fixture
    async def harness(self, sqlite_path: Path) -> AsyncIterator[LedgerHarness]:
        async with sqlite_harness(sqlite_path) as harness:
            yield harness


class TestPostgres(LedgerConformance):
    @pytest.fixture
    async def harness(self, postgres_url: str) -> AsyncIterator[LedgerHarness]:
        async with postgres_harness(postgres_url) as harness:
            yield harness


class TestPgBouncer(LedgerConformance):
    """Transaction pooling in between: no session state may be needed (S0.23)."""

    @pytest.fixture
    async def harness(self, pgbouncer_url: str) -> AsyncIterator[LedgerHarness]:
        async with postgres_harness(pgbouncer_url) as harness:
            yield harness

    async def test_a_sleeper_is_woken_by_new_work(self, harness: LedgerHarness) -> None:
        """No hint passes PgBouncer: the sleep ends by itself, and the work is found by asking."""
        run = await harness.run()
        worker = await harness.worker()
        await harness.put(run, "a")
        await harness.ledger.upkeep.wait(0.05)
        assert await harness.claim_keys(worker) == ["a"]
