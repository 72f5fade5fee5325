"""Runs on SQLite: create, seal, change of state."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import InvalidSetting
from shoal.ledger.bulk import BaseBulk
from shoal.ledger.catalog import Catalog
from shoal.ledger.runs import BaseRuns, check_change
from shoal.ledger.sqlite.bulk import truncate_if_only_run
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.ledger.sqlite.transaction import Transaction, json_text, to_datetime
from shoal.model.json_text import PAYLOAD_BYTES
from shoal.model.json_text import json_text as checked_json
from shoal.model.run import Run, RunSpec, RunState, run_id_at
from shoal.model.url_key import KEY_VERSION

_LANE_WORK = {RunState.PAUSED: "release", RunState.ACTIVE: "readmit"}


class SqliteRuns(BaseRuns):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog, bulk: BaseBulk) -> None:
        super().__init__(db, queries, catalog, bulk)
        self._db = db

    async def create(self, spec: RunSpec) -> Run:
        spec.checked()
        settings = checked_json(spec.stored_settings, "settings", PAYLOAD_BYTES, InvalidSetting)
        return await self.get(await self._db.write(lambda tx: _create(tx, spec, settings)))

    async def seal(self, run_id: str, *, by: str = "") -> None:
        no = (await self._catalog.run(run_id)).no

        def work(tx: Transaction) -> None:
            if tx.run("seal_run", no):
                tx.record_event(no, by, "run.sealed", run_id, {})

        await self._db.write(work)

    async def _truncate_if_only_run(self, no: int) -> None:
        await self._db.write(lambda tx: truncate_if_only_run(tx, no))

    async def _set_state(self, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> int:
        no = (await self._catalog.run(run_id)).no
        await self._db.write(lambda tx: _set_state(tx, no, run_id, wanted, allowed, by))
        return no


def _create(tx: Transaction, spec: RunSpec, settings: str) -> str:
    """Create a run. Its id is the ledger's time, with a suffix when that id exists."""
    if (
        spec.idempotency_key is not None
        and (existing := tx.value("run_by_idempotency_key", spec.idempotency_key)) is not None
    ):
        return str(existing)
    taken = 0
    while True:
        run_id = run_id_at(to_datetime(tx.now), taken)
        no = tx.value(
            "insert_run",
            run_id,
            spec.scraper,
            settings,
            spec.code_version,
            KEY_VERSION,
            spec.max_attempts,
            spec.max_rescues,
            tx.now,
            spec.idempotency_key,
        )
        if no is not None:
            break
        taken += 1
    stages = [
        (
            stage.name,
            stage.max_attempts,
            stage.lane.limit,
            float(stage.lane.delay_min),
            float(stage.lane.delay_max),
            stage.lane.ordered,
            stage.lane.shared,
        )
        for stage in spec.stages
    ]
    tx.run("insert_stages", no, json_text(stages))
    tx.record_event(no, "", "run.created", run_id, {"scraper": spec.scraper})
    return run_id


def _set_state(tx: Transaction, no: int, run_id: str, wanted: RunState, allowed: tuple[RunState, ...], by: str) -> None:
    was = tx.value("run_state", no)
    check_change(run_id, was, wanted, allowed)
    if was != wanted:
        tx.run("change_run_state", no, wanted.value, tx.now)
        tx.record_event(no, by, f"run.{wanted.value}", run_id, {"from": was})
        tx.should_notify = True
    tx.run("set_lane_work", no, _LANE_WORK.get(wanted), None)
