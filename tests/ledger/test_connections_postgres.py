"""A server with fewer connections than its clients would like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import asyncpg
import pytest

from shoal.ledger.postgres import database
from shoal.ledger.postgres.ledger import PostgresLedger, open_postgres
from tests.parts.postgres import PostgresServer

# Three of them are kept for superusers, which nobody here is but the one who made the server.
CONNECTIONS = 12
CLIENTS = 12
POOL = 4


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    with PostgresServer(max_connections=CONNECTIONS) as server:
        asyncio.run(_prepare(server.admin_url))
        yield server.admin_url.replace("shoal:", "worker:", 1)


async def _prepare(url: str) -> None:
    password = url.split(":")[2].split("@", maxsplit=1)[0]
    connection = await asyncpg.connect(url)
    await connection.execute(f"create role worker login password '{password}'")
    await connection.close()


async def test_more_clients_than_connections_take_turns(small_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wants several connections at once; all of them get through, none is refused, each says so once."""
    monkeypatch.setattr(database, "TURN_SECONDS", 0.2)
    told: list[list[str]] = [[] for _ in range(CLIENTS)]
    calls = [0] * CLIENTS
    until = time.monotonic() + 3

    async def client(number: int) -> PostgresLedger:
        ledger = await open_postgres(small_server, pool_size=POOL, patience=60)
        ledger.health.report_to(told[number].append)

        async def call() -> None:
            while time.monotonic() < until or not calls[number]:
                await ledger.db.fetch("select pg_sleep(0.01)")
                calls[number] += 1

        await asyncio.gather(*(call() for _ in range(POOL)))
        return ledger

    ledgers = await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    await asyncio.gather(*(ledger.close() for ledger in ledgers))
    assert all(calls), calls
    assert any(told), "twelve times four are more than twelve"
    assert all(len(lines) <= 1 for lines in told), told
    assert all("max_connections" in line for lines in told for line in lines)


async def test_connections_that_are_not_used_are_closed(small_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "IDLE_CONNECTION_SECONDS", 0.2)
    watcher = await open_postgres(small_server, pool_size=1)
    ledger = await open_postgres(small_server, pool_size=POOL)
    try:
        await asyncio.gather(*(ledger.db.fetch("select pg_sleep(0.2)") for _ in range(POOL)))
        count = "select count(*)::int from pg_stat_activity where usename = 'worker'"
        give_up_at = time.monotonic() + 30
        while await watcher.db.value(count) > 1:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.05)
    finally:
        await ledger.close()
        await watcher.close()


async def test_a_client_without_a_connection_does_not_listen(small_server: str) -> None:
    """Listening is a convenience: when there are too few connections, it is the first to go."""
    ledger = await open_postgres(small_server, pool_size=1, patience=5)
    others = []
    try:
        await ledger.db.fetch("select 1")
        with pytest.raises(asyncpg.TooManyConnectionsError):
            while True:
                others.append(await asyncpg.connect(small_server))
        began = time.monotonic()
        await ledger.upkeep.wait(0.3)
        assert 0.2 < time.monotonic() - began < 30
        assert await ledger.db.value("select 1") == 1, "the connection it has goes on working"
    finally:
        await asyncio.gather(*(other.close() for other in others))
        await ledger.close()
