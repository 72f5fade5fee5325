"""What the API counts is what the ledger holds, after every step of random histories on both ledgers.

The histories are those of the ledger's own state machine. What the ledger holds is counted here by reading every item
and every record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from prometheus_client.parser import text_string_to_metric_families as parse_text

from shoal.config import load_settings
from shoal.control import metrics
from shoal.control.app import ControlOptions
from shoal.model.item import FINAL_STATES, ItemState
from shoal.model.views import ItemFilter, ItemView
from shoal.testing.harness import LedgerHarness
from shoal.testing.machine import LedgerMachine
from tests.ledger.conftest import postgres_template
from tests.ledger.test_machine import fresh_database, fresh_file
from tests.support import LONG
from tests.support.control import client_of, running_app
from tests.support.postgres import PostgresDatabases

__all__ = ["postgres_template"]

SCRAPER = 'from shoal import Scraper\n\nmachine = Scraper("machine")\n'
STATES = [state.value for state in ItemState]


class Held(msgspec.Struct, frozen=True):
    """What the ledger holds: items by state, records, and the live workers that have an item."""

    states: dict[str, int]
    records: int
    active: frozenset[str]

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def pending(self) -> int:
        return sum(self.states[state] for state in ("ready", "waiting", "delayed"))

    @property
    def ended(self) -> int:
        return sum(self.states[state] for state in FINAL_STATES)


class CountingMachine(LedgerMachine):
    """The state machine with a server on its ledger; `folder` has the project of the server."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.stack = AsyncExitStack()
        self.api: httpx.AsyncClient = self.run_sync(self.serve())

    async def serve(self) -> httpx.AsyncClient:
        options = ControlOptions(jobs="machine")
        project = load_settings({"ledger": str(self.folder / "unused.db")}, environ={}, folder=self.folder)
        app = await self.stack.enter_async_context(running_app(project, options, opened=lambda: self.ledger))
        app.state.live.hub._interval = 0.0  # nothing is kept, so that every answer is of this moment
        # It changes the ledger, as the model does not know.
        while not app.state.jobs.jobs.recovery.done:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return client_of(app)

    def teardown(self) -> None:
        try:
            if hasattr(self, "run"):
                self.run_sync(self.drain())
                self.run_sync(self.check_counts())
        finally:
            self.run_sync(self.stack.aclose())
            self.run_sync(self.opened.__aexit__(None, None, None))
            self.runner.close()

    @invariant()
    def the_api_counts_what_the_ledger_holds(self) -> None:
        if hasattr(self, "run"):
            self.run_sync(self.check_counts())

    async def check_counts(self) -> None:
        held = await self.read_ledger()
        run = self.run.id
        record = await self.get(f"/api/v1/runs/{run}")
        check_record(record, held)
        (row,) = (await self.get("/api/v1/runs"))["rows"]
        check_record(row, held)
        parts = (await self.get(f"/api/v1/runs/{run}/partitions", limit=200))["rows"]
        assert {state: sum(part[state] for part in parts) for state in STATES} == held.states
        assert sum(part["records"] for part in parts) == held.records
        for state in STATES:
            listed = await self.get(f"/api/v1/runs/{run}/items", state=state, limit=200)
            assert (len(listed["rows"]), listed["cursor"]) == (held.states[state], None), state
        (shown,) = (await self.get("/api/v1/overview"))["runs"]
        check_record(shown, held)
        await self.check_job(held)
        await self.check_metrics(held)

    async def check_job(self, held: Held) -> None:
        """S4.15-S4.17."""
        queue = await self.get("/jobs/queue/stats")
        assert (queue["pending"], queue["processing"]) == (held.pending, held.states["leased"])
        assert (queue["completed"], queue["failed"]) == (held.states["done"], held.states["dead"])
        assert (queue["skipped"], queue["cancelled"]) == (held.states["skipped"], held.states["cancelled"])
        assert (queue["delayed"], queue["total"]) == (held.states["delayed"], held.total)
        assert queue["remaining"] == held.pending + held.states["leased"]
        status = (await self.get("/jobs/workers/status"))["worker_status"]
        assert status["total_failed"] == held.states["dead"]
        assert status["total_processed"] == held.ended - held.states["cancelled"]
        performance = await self.get("/jobs/workers/performance")
        working = {worker["name"] for worker in performance["workers"] if worker["item"] is not None}
        # A lease may end while these are read.
        after = (await self.read_ledger()).active
        assert after <= working <= held.active
        assert len(after) <= status["active_workers"] <= len(held.active)

    async def check_metrics(self, held: Held) -> None:
        families = {family.name: family for family in parse_text((await self.api.get("/metrics")).text)}
        items = {sample.labels["state"]: sample.value for sample in families["shoal_items"].samples}
        assert items == held.states

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.api.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def read_ledger(self) -> Held:
        rows: list[ItemView] = []
        cursor = None
        while True:
            page = await self.ledger.reads.items(self.run.id, ItemFilter(), cursor=cursor, limit=500)
            rows += page.rows
            if (cursor := page.cursor) is None:
                break
        states = Counter(row.state.value for row in rows)
        results = await self.ledger.reads.results(self.run.id, limit=1_000)
        assert results.cursor is None
        alive = {worker.id for worker in await self.ledger.workers.list() if worker.alive}
        return Held(
            {state: states[state] for state in STATES},
            len(results.rows),
            frozenset(row.worker for row in rows if row.state is ItemState.LEASED and row.worker in alive),
        )


def check_record(record: dict[str, Any], held: Held) -> None:
    assert {state: record[state] for state in STATES} == held.states
    assert (record["total"], record["ended"], record["records"]) == (held.total, held.ended, held.records)


def run_histories(machine: type[CountingMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100 if LONG else examples,
            stateful_step_count=40 if LONG else 20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 0.0)
    (tmp_path / "machine.py").write_text(SCRAPER)
    (tmp_path / "shoal.toml").touch()
    return tmp_path


def test_counts_of_the_api_on_sqlite(folder: Path) -> None:
    class SqliteMachine(CountingMachine):
        def open_harness(self) -> AbstractAsyncContextManager[LedgerHarness]:
            return fresh_file()

    SqliteMachine.folder = folder
    run_histories(SqliteMachine, 6)


def test_counts_of_the_api_on_postgres(
    folder: Path, postgres_server: PostgresDatabases, postgres_template: str
) -> None:
    class PostgresMachine(CountingMachine):
        def open_harness(self) -> AbstractAsyncContextManager[LedgerHarness]:
            return fresh_database(postgres_server, postgres_template)

    PostgresMachine.folder = folder
    run_histories(PostgresMachine, 4)
