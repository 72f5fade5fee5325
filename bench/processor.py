"""CPU time, which a busy neighbour disturbs far less than wall time."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import psutil


class CpuClock:
    """CPU seconds used by this process and by all processes of the PostgreSQL server at `url`."""

    def __init__(self, url: str) -> None:
        self._postmaster = asyncio.run(_postmaster(url))

    def read(self) -> tuple[float, float]:
        return time.process_time(), self._server_seconds()

    def _server_seconds(self) -> float:
        own = self._postmaster.cpu_times()
        # What ended children used has been added to the postmaster's account.
        total: float = own.user + own.system + own.children_user + own.children_system
        for child in self._postmaster.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total


async def _postmaster(url: str) -> psutil.Process:
    connection = await asyncpg.connect(url)
    try:
        backend = await connection.fetchval("select pg_backend_pid()")
        return psutil.Process(backend).parent()
    finally:
        await connection.close()
