"""Locks and versioned settings: how processes coordinate through the ledger.

Errands, the same on both ledgers.

Versioned settings, the same on both ledgers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.checks import check_limit
from shoal.ledger.rows import Queryable, errand_from
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.url_key import check_text
from shoal.model.views import Errand

MAX_LOCK_NAME_BYTES = 500


class SqlErrands:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def take(self, name: str, by: str, seconds: float) -> bool:
        check_text("errand", name, MAX_LOCK_NAME_BYTES)
        check_text("taker", by, MAX_LOCK_NAME_BYTES)
        return bool(await self._queryable.fetch(self._sql["take_errand"], name, by, float(seconds)))

    async def keep(self, name: str, by: str, seconds: float) -> bool:
        return bool(await self._queryable.fetch(self._sql["keep_errand"], name, by, float(seconds)))

    async def finish(self, name: str, by: str, value: Mapping[str, Any] | None = None) -> bool:
        text = json_text(value or {}, "errand's value", PAYLOAD_BYTES, InvalidSetting)
        return bool(await self._queryable.fetch(self._sql["finish_errand"], name, by, text))

    async def drop(self, name: str, by: str) -> bool:
        return bool(await self._queryable.fetch(self._sql["drop_errand"], name, by))

    async def get(self, name: str) -> Errand | None:
        rows = await self._queryable.fetch(self._sql["get_errand"], name)
        return errand_from(rows[0]) if rows else None

    async def list(self, prefix: str, *, limit: int = 50) -> list[Errand]:
        check_limit(limit)
        return [errand_from(row) for row in await self._queryable.fetch(self._sql["list_errands"], prefix, limit)]


class SqlSettings:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def put(self, scope: str, value: Mapping[str, Any], *, by: str = "") -> int:
        check_text("scope", scope, MAX_NAME_BYTES)
        text = json_text(value, "setting", PAYLOAD_BYTES, InvalidSetting)
        version: int = await self._queryable.value(self._sql["put_setting"], scope, text, by)
        return version

    async def get(self, scope: str) -> tuple[int, dict[str, Any]] | None:
        rows = await self._queryable.fetch(self._sql["get_setting"], scope)
        return (rows[0]["version"], msgspec.json.decode(rows[0]["value"])) if rows else None
