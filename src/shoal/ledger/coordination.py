"""Locks, pools of workers, shared sessions and versioned settings, by which processes coordinate through the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.rows import Queryable, check_limit, lock_from, worker_pool_from
from shoal.model.egress import SessionView, SharedSession
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.url_key import check_text
from shoal.model.views import LockView, StoredSettingsView
from shoal.model.worker import WorkerPoolSpec, WorkerPoolView

MAX_LOCK_NAME_BYTES = 500
# Locks that are idempotency keys of requests begin so. They are many, and upkeep deletes them after a day.
REQUEST_KEY_PREFIX = "request-key/"
MAX_SESSION_BYTES = 4 << 20
FORGET_POOLS_SECONDS = 7 * 86_400.0


class SqlLocks:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def acquire(self, name: str, by: str, seconds: float) -> bool:
        check_text("lock", name, MAX_LOCK_NAME_BYTES)
        check_text("owner", by, MAX_LOCK_NAME_BYTES)
        return bool(await self._queryable.fetch(self._sql["acquire_lock"], name, by, float(seconds)))

    async def renew(self, name: str, by: str, seconds: float) -> bool:
        return bool(await self._queryable.fetch(self._sql["renew_lock"], name, by, float(seconds)))

    async def complete(self, name: str, by: str, value: Mapping[str, Any] | None = None) -> bool:
        text = json_text(value or {}, "lock's value", PAYLOAD_BYTES, InvalidSetting)
        return bool(await self._queryable.fetch(self._sql["complete_lock"], name, by, text))

    async def release(self, name: str, by: str) -> bool:
        return bool(await self._queryable.fetch(self._sql["release_lock"], name, by))

    async def get(self, name: str) -> LockView | None:
        rows = await self._queryable.fetch(self._sql["get_lock"], name)
        return lock_from(rows[0]) if rows else None

    async def list(self, prefix: str, *, limit: int = 50) -> list[LockView]:
        check_limit(limit)
        return [lock_from(row) for row in await self._queryable.fetch(self._sql["list_locks"], prefix, limit)]


class SqlWorkerPools:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def register(self, spec: WorkerPoolSpec) -> None:
        for what, text in (("pool", spec.id), ("node", spec.node), ("process", spec.process)):
            check_text(what, text, MAX_NAME_BYTES)
        await self._queryable.fetch(self._sql["forget_worker_pools"], FORGET_POOLS_SECONDS)
        await self._queryable.fetch(
            self._sql["register_worker_pool"],
            *(spec.id, spec.scraper, spec.run_id, spec.node, spec.pid, spec.process, spec.logs, spec.by, spec.wanted),
        )

    async def report(self, pool: str, *, workers: int, wanted: int, stopping: bool) -> bool:
        return bool(await self._queryable.fetch(self._sql["report_worker_pool"], pool, workers, wanted, int(stopping)))

    async def end(self, pool: str, why: str = "") -> bool:
        return bool(await self._queryable.fetch(self._sql["end_worker_pool"], pool, why))

    async def get(self, pool: str) -> WorkerPoolView | None:
        rows = await self._queryable.fetch(self._sql["get_worker_pool"], pool)
        return worker_pool_from(rows[0]) if rows else None

    async def list(self, *, scraper: str | None = None, ended: bool = False, limit: int = 100) -> list[WorkerPoolView]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["list_worker_pools"], scraper or "", int(ended), limit)
        return [worker_pool_from(row) for row in rows]


class SqlSessions:
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    async def put(self, scraper: str, identity: str, content: bytes, *, before: int) -> int | None:
        check_text("scraper", scraper, MAX_NAME_BYTES)
        check_text("identity", identity, MAX_NAME_BYTES)
        if len(content) > MAX_SESSION_BYTES:
            raise InvalidSetting(f"A session has {len(content):,} bytes; {MAX_SESSION_BYTES:,} are allowed.")
        if before:
            rows = await self._queryable.fetch(self._sql["replace_session"], scraper, identity, content, before)
        else:
            rows = await self._queryable.fetch(self._sql["put_session"], scraper, identity, content)
        return rows[0]["version"] if rows else None

    async def get(self, scraper: str, identity: str) -> SharedSession | None:
        rows = await self._queryable.fetch(self._sql["get_session"], scraper, identity)
        if not rows:
            return None
        return SharedSession(version=rows[0]["version"], age=rows[0]["age"], content=bytes(rows[0]["content"]))

    async def remove(self, scraper: str, identity: str) -> bool:
        return bool(await self._queryable.fetch(self._sql["remove_session"], scraper, identity))

    async def list(self, *, scraper: str | None = None, limit: int = 1000) -> list[SessionView]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["list_sessions"], scraper or "", limit)
        return [
            SessionView(scraper=row["scraper"], identity=row["identity"], version=row["version"], age=row["age"])
            for row in rows
        ]


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

    async def list(self, *, limit: int = 200) -> list[StoredSettingsView]:
        check_limit(limit)
        return [
            StoredSettingsView(
                scope=row["scope"],
                version=row["version"],
                value=msgspec.json.decode(row["value"]),
                by=row["set_by"],
                at=row["set_at"],
            )
            for row in await self._queryable.fetch(self._sql["list_settings"], limit)
        ]
