"""Tokens and browser sessions on SQLite."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.ledger.access import BaseAccess
from shoal.ledger.rows import Row
from shoal.ledger.sqlite.connection import Transaction
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.model.access import Role


class SqliteAccess(BaseAccess):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _add_token(self, name: str, role: Role, digest: bytes, seconds: float | None, by: str) -> Row | None:
        def work(tx: Transaction) -> Row | None:
            rows = tx.rows("add_token", name, role.value, digest, seconds, by)
            if rows:
                tx.record_event(None, by, "token.added", name, {"role": role.value})
            return rows[0] if rows else None

        return await self._db.write(work)

    async def remove_token(self, name: str, *, by: str = "") -> bool:
        def work(tx: Transaction) -> bool:
            tx.run("remove_token_sessions", name)
            if removed := tx.run("remove_token", name) > 0:
                tx.record_event(None, by, "token.removed", name, {})
            return removed

        return await self._db.write(work)

    async def _start_session(self, token_id: int, digest: bytes, seconds: float, idle_seconds: float, by: str) -> None:
        def work(tx: Transaction) -> None:
            if tx.run("start_session", token_id, digest, seconds, idle_seconds):
                tx.record_event(None, by, "session.started", tx.value("session_token", digest), {})

        await self._db.write(work)

    async def end_session(self, digest: bytes, *, by: str = "") -> bool:
        def work(tx: Transaction) -> bool:
            name = tx.value("session_token", digest)
            if ended := tx.run("end_session", digest) > 0:
                tx.record_event(None, by, "session.ended", name, {})
            return ended

        return await self._db.write(work)
