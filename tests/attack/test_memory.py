"""Large pages, and small ones that become large: together they stay within the budget, and none waits for ever."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal import Page, Scraper
from shoal.config import Settings
from shoal.errors import Permanent
from shoal.fetch.http import HttpFetcher
from shoal.fetch.memory import MemoryBudget, reservation
from shoal.fetch.page import Request
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.state import WorkerOptions
from tests.support.raw_site import Seen, Site, reply

LOG = open_logs(format="console", level="error", file=None, stream=None).log
SIZE = 100_000
WEIGHT = 20 * SIZE
PAGE = b"<p>" + b"x" * (SIZE - 3)


class Crowd:
    """Attempts that fetch at once, each holding its page for a moment."""

    def __init__(self, fetcher: HttpFetcher, limit: int) -> None:
        self.fetcher = fetcher
        self.budget = MemoryBudget(limit)
        self.peak = 0
        self.most_at_once = 0
        self.longest_suspension = 0.0
        self._inside = 0

    async def attempt(self, url: str, *, seconds: float = 60.0, hold: float = 0.01) -> None:
        async with asyncio.timeout(seconds) as deadline:
            before = deadline.when()
            share = self.budget.open_share(deadline)
            try:
                page = await self.fetcher.fetch(Request(url=url))
                after = deadline.when()
                assert before is not None
                assert after is not None
                self.longest_suspension = max(self.longest_suspension, after - before)
                self._inside += 1
                self.peak = max(self.peak, self.budget.used)
                self.most_at_once = max(self.most_at_once, self._inside)
                await asyncio.sleep(hold)
                self._inside -= 1
                del page
            finally:
                share.close()


async def test_pages_wait_until_there_is_memory_for_them(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(PAGE)
    crowd = Crowd(fetcher, 3 * WEIGHT)
    await asyncio.gather(*(crowd.attempt(site.url("/")) for _ in range(12)))
    assert crowd.peak == 3 * WEIGHT
    assert crowd.most_at_once == 3
    assert crowd.budget.used == 0


async def test_waiting_for_memory_suspends_the_timeout(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(PAGE)
    crowd = Crowd(fetcher, WEIGHT)
    await asyncio.gather(*(crowd.attempt(site.url("/"), hold=0.1) for _ in range(8)))
    assert crowd.most_at_once == 1
    assert crowd.longest_suspension > 0.1, "the last one waited for seven others"


async def test_pages_of_unknown_size_cannot_wait_for_each_other(site: Site, fetcher: HttpFetcher) -> None:
    """They reserve step by step, and each holds a part of what the others need."""

    async def in_pieces(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"%x\r\n%s\r\n" % (20_000, b"x" * 20_000))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    site.answers["/"] = in_pieces
    crowd = Crowd(fetcher, 12 * WEIGHT)
    await asyncio.gather(*(crowd.attempt(site.url("/")) for _ in range(12)))
    assert crowd.peak <= 12 * WEIGHT + 6 * WEIGHT
    assert crowd.budget.used == 0


async def test_a_page_larger_than_the_budget_passes_alone(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply(PAGE)
    crowd = Crowd(fetcher, WEIGHT // 10)
    await asyncio.gather(*(crowd.attempt(site.url("/")) for _ in range(4)))
    assert (crowd.most_at_once, crowd.budget.used) == (1, 0)


async def test_the_decompressed_size_counts(site: Site, fetcher: HttpFetcher) -> None:
    bomb = gzip.compress(b"<p>" * (SIZE // 3))
    assert len(bomb) < 1_000
    site.answers["/"] = reply(bomb, Content_Encoding="gzip")
    site.answers["/sitemap.xml.gz"] = reply(bomb, content_type="application/gzip")
    crowd = Crowd(fetcher, 1 << 40)
    await crowd.attempt(site.url("/"))
    assert crowd.peak >= WEIGHT // 2
    await crowd.attempt(site.url("/sitemap.xml.gz"))
    assert crowd.peak >= 50 << 20


async def test_memory_is_free_again_however_a_page_ends(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/long"] = reply(b"x" * (2 << 20))
    site.answers["/"] = reply(PAGE)
    budget = MemoryBudget(10 * WEIGHT)
    share = budget.open_share()
    with pytest.raises(Permanent, match="larger than"):
        await fetcher.fetch(Request(url=site.url("/long")))
    for _ in range(30):
        # Pages that a handler has forgotten do not count, or one that fetches many would fill the budget alone.
        await fetcher.fetch(Request(url=site.url("/")))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert budget.used <= WEIGHT
    waiting = asyncio.create_task(_take(budget, 100 * WEIGHT))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    share.close()
    assert budget.used == 0


async def _take(budget: MemoryBudget, size: int) -> None:
    share = budget.open_share()
    held = reservation()
    assert held is not None
    try:
        await held.reserve(size, "image/png")
    finally:
        share.close()


async def test_a_worker_stays_within_its_memory_budget(site: Site, tmp_path: Path) -> None:
    site.answers["/robots.txt"] = reply(status=404)
    big = Scraper("big")
    at_once = most = 0

    @big.stage(lane=None, timeout=20)
    async def page(page: Page) -> AsyncIterator[dict[str, int]]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        yield {"bytes": len(page.body)}

    settings = Settings(ledger=str(tmp_path / "ledger.db"), memory_budget=16)
    async with ledger_context(settings) as ledger:
        run = await ledger.runs.create(big.run_spec())
        for number in range(6):
            site.answers[f"/{number}"] = reply(b"x" * (1 << 20))
        await ledger.intake.enqueue(run.id, [page.item(site.url(f"/{number}")) for number in range(6)])
        await ledger.runs.seal(run.id)
        fetcher = build_fetcher(settings)
        options = WorkerOptions(scope=Scope(scraper="big"), concurrency=6)
        report = await build_worker(big, settings, ledger, fetcher, options, log=LOG).work()
        await fetcher.close()
    assert (report.done, most) == (6, 1)
