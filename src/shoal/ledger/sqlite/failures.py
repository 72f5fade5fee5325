"""Groups of dead items on SQLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.catalog import Catalog
from shoal.ledger.failures import BaseFailures, GroupedItem
from shoal.ledger.sqlite.connection import Transaction, json_text
from shoal.ledger.sqlite.database import SqliteDatabase


def group_failures(tx: Transaction, no: int, keys: str, items: str) -> int:
    """Put dead items into the groups of their keys, creating those that are missing."""
    if tx.value("run_state", no) in (None, "removed"):
        return 0
    tx.run("group_add", no, keys)
    if grouped := tx.run("group_pick", no, items):
        tx.run("group_outcomes")
        tx.run("group_minutes")
        tx.run("group_counts")
        tx.run("group_end")
    return grouped


def mute(tx: Transaction, no: int, failure: int, muted: bool, by: str) -> None:
    if tx.run("mute_failure_set", no, failure, muted, by, tx.now):
        group = tx.rows("get_failure", no, failure)[0]
        detail = {"outcome": group["outcome"], "message": group["shape"]}
        tx.record_event(no, by, "failure.muted" if muted else "failure.unmuted", str(failure), detail)


class SqliteFailures(BaseFailures):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog) -> None:
        super().__init__(db, queries, catalog)
        self._db = db

    async def _store(self, run_no: int, items: Sequence[GroupedItem]) -> int:
        keys = json_text([[key.stage, key.outcome, key.host, key.shape] for key in {each.key for each in items}])
        rows = json_text(
            [[each.item, each.epoch, each.key.stage, each.key.outcome, each.key.host, each.key.shape] for each in items]
        )
        return await self._db.write(lambda tx: group_failures(tx, run_no, keys, rows))

    async def _set_muted(self, run_no: int, failure: int, muted: bool, by: str) -> None:
        await self._db.write(lambda tx: mute(tx, run_no, failure, muted, by))
