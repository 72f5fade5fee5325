"""Tokens and browser sessions on PostgreSQL."""

from __future__ import annotations

from shoal.ledger.access import BaseAccess
from shoal.ledger.rows import Row
from shoal.model.access import Role


class PostgresAccess(BaseAccess):
    async def _add_token(self, name: str, role: Role, digest: bytes, seconds: float | None, by: str) -> Row | None:
        rows: list[Row] = await self._queryable.fetch(self._sql["add_token"], name, role.value, digest, seconds, by)
        if rows:
            return rows[0]
        # The first answer of a statement that was sent twice may have been lost.
        found = await self.find_token(digest)
        if found is None or found.name != name:
            return None
        listed: list[Row] = await self._queryable.fetch(self._sql["list_tokens"])
        return next((row for row in listed if row["name"] == name), None)

    async def remove_token(self, name: str, *, by: str = "") -> bool:
        return bool(await self._queryable.fetch(self._sql["remove_token"], name, by))

    async def _start_session(self, token_id: int, digest: bytes, seconds: float, idle_seconds: float, by: str) -> None:
        await self._queryable.fetch(self._sql["start_session"], token_id, digest, seconds, idle_seconds, by)

    async def end_session(self, digest: bytes, *, by: str = "") -> bool:
        return bool(await self._queryable.fetch(self._sql["end_session"], digest, by))
