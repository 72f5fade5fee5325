"""Looks into the server of a ledger: bytes of its write-ahead log, sizes of its tables, connections."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import asyncpg

_WAL = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
# Its own connection is not counted.
_CONNECTIONS = """
select count(*) from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""
_TABLES = """
select relname, pg_total_relation_size(oid)::bigint from pg_class
where relnamespace = 'shoal'::regnamespace and relkind = 'r' order by 1
"""


class Probe:
    """One connection to the database of a ledger, beside those that are measured. Use it as a context."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._connection: Any = self._runner.run(asyncpg.connect(self._url))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()

    def wal_bytes(self) -> int:
        """Bytes that the server has written to its log since it was made."""
        return int(self._runner.run(self._connection.fetchval(_WAL)))

    def connections(self) -> int:
        """Sessions that others have in this database now."""
        return int(self._runner.run(self._connection.fetchval(_CONNECTIONS)))

    def table_bytes(self) -> dict[str, int]:
        """Bytes of each table of the ledger, its indexes included."""
        return {name: int(size) for name, size in self._runner.run(self._connection.fetch(_TABLES))}
