"""The public conformance suite, on every ledger and through PgBouncer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.testing.conformance import LedgerConformance
from shoal.testing.lab import Lab
from tests.support.ledgers import postgres_lab, sqlite_lab


class TestSqlite(LedgerConformance):
    @pytest.fixture
    async def lab(self, sqlite_path: Path) -> AsyncIterator[Lab]:
        async with sqlite_lab(sqlite_path) as lab:
            yield lab


class TestPostgres(LedgerConformance):
    @pytest.fixture
    async def lab(self, postgres_url: str) -> AsyncIterator[Lab]:
        async with postgres_lab(postgres_url) as lab:
            yield lab


class TestPgBouncer(LedgerConformance):
    """Transaction pooling in between: no session state may be needed (S0.23)."""

    @pytest.fixture
    async def lab(self, pgbouncer_url: str) -> AsyncIterator[Lab]:
        async with postgres_lab(pgbouncer_url) as lab:
            yield lab

    async def test_a_sleeper_is_woken_by_new_work(self, lab: Lab) -> None:
        """No hint passes PgBouncer: the sleep ends by itself, and the work is found by asking."""
        run = await lab.run()
        worker = await lab.worker()
        await lab.put(run, "a")
        await lab.ledger.upkeep.wait(0.05)
        assert await lab.claim_keys(worker) == ["a"]
