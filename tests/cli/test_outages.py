"""A database that is away when commands start, and goes away again while they work."""

import time
from pathlib import Path

from tests.support.pools import until
from tests.support.postgres import PostgresServer
from tests.support.project import Project

ITEMS = 80
SHOP = f"""
    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def page(item: Item):
        await asyncio.sleep(0.1)
        yield {{"key": item.key}}

    shop.start(*(page.item(key=str(n)) for n in range({ITEMS})))
"""
NOISE = ("Traceback", "never retrieved", "asyncpg")


def test_workers_wait_for_a_server_that_restarts(
    tmp_path: Path, durable_postgres: PostgresServer, durable_postgres_url: str
) -> None:
    with Project(tmp_path, ledger=durable_postgres_url) as project:
        project.write(SHOP)
        project.shoal("db", "migrate")
        durable_postgres.stop("fast")
        try:
            began = time.monotonic()
            run = project.start("run", "shop.py", "-j", "4", SHOAL_LEASE="10")
            watch = project.start("alerts", "watch")
            # A person who only asks is not kept waiting.
            asked = project.shoal("status", code=3)
            assert "does not answer" in asked.stderr
            assert time.monotonic() - began < 20
            for command in (run, watch):
                command.wait_until_it_says("Waiting for it, up to 60 s.")
        finally:
            durable_postgres.start()
        watch.wait_until_it_says("Watching")
        run.wait_until_it_says("begins")
        until(lambda: project.counts().done, lambda done: done > 0, "nothing is done")
        durable_postgres.restart_immediate()
        assert run.wait() == 0
        assert project.counts().done == ITEMS
        for command in (run, watch):
            assert not [noise for noise in NOISE if noise in command.stderr], command.stderr
