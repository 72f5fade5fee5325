"""Random histories on both ledgers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from shoal.testing.harness import LedgerHarness
from shoal.testing.machine import LedgerMachine
from tests.support import LONG
from tests.support.ledgers import postgres_harness, sqlite_harness
from tests.support.postgres import PostgresDatabases, unique_name

SHRINK = os.environ.get("SHOAL_CHAOS") == "shrink"


def run_histories(machine: type[LedgerMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=400 if LONG else examples,
            stateful_step_count=60 if LONG else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            # Shrinking costs minutes with a database behind each step: do it by hand, with SHOAL_CHAOS=shrink.
            phases=tuple(Phase) if SHRINK else (Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )


@pytest.mark.slow
def test_random_histories_on_sqlite() -> None:
    class SqliteMachine(LedgerMachine):
        def open_harness(self) -> AbstractAsyncContextManager[LedgerHarness]:
            return fresh_file()

    run_histories(SqliteMachine, 25)


def test_random_histories_on_postgres(postgres_server: PostgresDatabases, postgres_template: str) -> None:
    class PostgresMachine(LedgerMachine):
        def open_harness(self) -> AbstractAsyncContextManager[LedgerHarness]:
            return fresh_database(postgres_server, postgres_template)

    run_histories(PostgresMachine, 12)


@asynccontextmanager
async def fresh_file() -> AsyncIterator[LedgerHarness]:
    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_harness(Path(folder) / "ledger.db") as harness:
            yield harness


@asynccontextmanager
async def fresh_database(server: PostgresDatabases, template: str) -> AsyncIterator[LedgerHarness]:
    name = unique_name()
    server.create_database(name, template)
    try:
        async with postgres_harness(server.url(name)) as harness:
            yield harness
    finally:
        server.drop_database(name)


@pytest.fixture(autouse=True)
def no_example_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis keeps its notes in the test's own folder."""
    monkeypatch.chdir(tmp_path)
