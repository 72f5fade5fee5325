"""A server with fewer connections than its clients would like."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from shoal.ledger.postgres import database
from shoal.ledger.postgres.ledger import open_postgres
from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from tests.support.postgres import PostgresServer

LONG = os.environ.get("SHOAL_CHAOS") == "long"
# Three of them are reserved for superusers; only the user that created the server is one.
CONNECTIONS = 100 if LONG else 12
CLIENTS = CONNECTIONS
POOL = 4
WORKERS = 50 if LONG else 4
ITEMS = 3_000 if LONG else 120
SCRAPER = """
import asyncio

from shoal import Item, Scraper

many = Scraper("many")


@many.stage(lane=None)
async def page(item: Item):
    await asyncio.sleep(0.05)
    yield {"n": item.payload["n"]}
"""


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    with PostgresServer(max_connections=CONNECTIONS) as server:
        asyncio.run(_prepare(server.admin_url))
        yield server.admin_url.replace("//shoal:", "//worker:", 1)


async def _prepare(url: str) -> None:
    password = urlsplit(url).password
    connection = await asyncpg.connect(url)
    await connection.execute(f"create role worker login password '{password}'")
    await connection.execute("grant create on database postgres to worker")
    await connection.close()


async def test_more_clients_than_connections_take_turns(small_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wants several connections at once; all of them get through, none is refused, each says so once."""
    monkeypatch.setattr(database, "MAX_HOLD_SECONDS", 0.2)
    told: list[list[str]] = [[] for _ in range(CLIENTS)]
    calls = [0] * CLIENTS
    until = time.monotonic() + 3

    async def client(number: int) -> None:
        ledger = await open_postgres(small_server, pool_size=POOL, patience=60)
        ledger.health.set_warning_handler(told[number].append)

        async def call() -> None:
            while time.monotonic() < until or not calls[number]:
                await ledger.db.fetch("select pg_sleep(0.01)")
                calls[number] += 1

        try:
            await asyncio.gather(*(call() for _ in range(POOL)))
        finally:
            await ledger.close()

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    assert all(calls), calls
    assert any(told), "each of them would like several"
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
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                others.append(await asyncpg.connect(small_server))
        began = time.monotonic()
        await ledger.upkeep.wait(0.3)
        assert 0.2 < time.monotonic() - began < 30
        assert await ledger.db.value("select 1") == 1, "the connection it has goes on working"
    finally:
        await asyncio.gather(*(other.close() for other in others))
        await ledger.close()


async def test_more_workers_than_connections_finish_the_run(small_server: str, tmp_path: Path) -> None:
    """Each worker would like three connections, and there are not as many: none is refused, none is lost."""
    (tmp_path / "many.py").write_text(SCRAPER)
    ledger = await open_postgres(small_server, pool_size=1)
    try:
        await ledger.schema.migrate()
        run = await ledger.runs.create(RunSpec(scraper="many", stages=(StageSpec("page"),)))
        await ledger.intake.enqueue(run.id, (NewItem(key=f"k{n}", payload={"n": n}) for n in range(ITEMS)))
        await ledger.runs.seal(run.id)
        workers = [
            await asyncio.create_subprocess_exec(
                *(str(Path(sys.executable).with_name("shoal")), "worker", "many.py", "--concurrency", "4"),
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHOAL_LEDGER": small_server},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            for _ in range(WORKERS)
        ]
        said = [(await worker.communicate())[1].decode() for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * WORKERS, said
        counts = await ledger.reads.stats(run.id)
        assert (counts.done, counts.results, counts.remaining) == (ITEMS, ITEMS, 0)
        states = {worker.state.value for worker in await ledger.workers.list(present=False)}
        assert states == {"stopped"}, "nobody was declared dead for want of a connection"
    finally:
        await ledger.close()
