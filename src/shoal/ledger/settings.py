"""Versioned settings, the same on both ledgers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.rows import Queryable
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.jsontext import PAYLOAD_BYTES, json_text
from shoal.model.urlkey import check_text


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
