"""What `shoal bench` measures: the same pages by a bare loop and by Shoal, and a ledger without any pages."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
from parsel import Selector

from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.fetch.page import Page
from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem
from shoal.model.json_text import record_text
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context, sqlite_path
from shoal.worker.options import WorkerOptions

BY = "shoal bench"
NAME = "shoal-bench"
CLAIMED_AT_ONCE = 200


def urls_of(site: str, pages: int) -> Iterator[str]:
    return (f"{site}/page/{number}" for number in range(pages))


async def bare_seconds(site: str, pages: int, concurrency: int, file: Path) -> float:
    """The limit: aiohttp in a loop, titles by parsel, records into a file at the end. Nothing survives a crash."""
    waiting = urls_of(site, pages)
    records: list[bytes] = []

    async def work(session: aiohttp.ClientSession) -> None:
        for url in waiting:
            async with session.get(url) as response:
                title = Selector(text=await response.text()).css("title::text").get()
            records.append(msgspec.json.encode({"url": url, "title": title}))

    began = time.perf_counter()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    await asyncio.to_thread(file.write_bytes, b"\n".join(records))
    return time.perf_counter() - began


def title_scraper() -> Scraper:
    """The same work as an author would write it; the site is our own, so no lane spares it."""
    scraper = Scraper(NAME, robots=False)

    @scraper.stage(lane=None)
    async def titles(page: Page) -> AsyncIterator[dict[str, str | None]]:
        yield {"url": page.url, "title": page.css("title::text").get()}

    return scraper


async def shoal_seconds(site: str, pages: int, settings: Settings, folder: Path) -> float:
    """A run on a new SQLite ledger from its first URL to its last commit."""
    settings = msgspec.structs.replace(settings, ledger=str(folder / "run.db"), store="")
    scraper = title_scraper()
    scraper.start(urls_of(site, pages))
    logs = open_logs(format="console", level="error", file=None, stream=None)
    began = time.perf_counter()
    async with ledger_context(settings) as ledger:
        fetcher = build_fetcher(settings)
        try:
            run = await ledger.runs.create(scraper.run_spec())
            options = WorkerOptions(
                scope=Scope(scraper=NAME, run_ids=(run.id,)),
                concurrency=settings.concurrency,
                batch_size=settings.batch_size,
            )
            await ledger.intake.enqueue(run.id, scraper.seeds())
            await ledger.runs.seal(run.id, by=BY)
            report = await build_worker(scraper, settings, ledger, fetcher, options, log=logs.log).work()
        finally:
            await fetcher.close()
            logs.close()
    if report.done != pages:
        raise RuntimeError(f"{report.done} of {pages} pages were done")
    return time.perf_counter() - began


async def ledger_seconds(settings: Settings, items: int) -> float:
    """Claims and commits of items that take no time, one record each. What was made for it is removed."""
    async with _ledger_like(settings) as ledger:
        run = await ledger.runs.create(RunSpec(scraper=NAME, stages=(StageSpec("nothing"),)))
        try:
            await ledger.intake.enqueue(run.id, (NewItem(key=f"item {number}") for number in range(items)))
            await ledger.runs.seal(run.id, by=BY)
            scope = Scope(scraper=NAME, run_ids=(run.id,))
            worker = f"{NAME}-{run.id}"
            await ledger.workers.register(
                WorkerSpec(id=worker, node=socket.gethostname(), pid=os.getpid(), scope=scope)
            )
            seconds = await _through(ledger, worker, scope)
            await ledger.workers.stop(worker)
            return seconds
        finally:
            await ledger.runs.remove(run.id, by=BY)


async def _through(ledger: Ledger, worker: str, scope: Scope) -> float:
    record = record_text({"title": "A small page"})
    began = time.perf_counter()
    while claimed := await ledger.claims.claim(worker, scope, CLAIMED_AT_ONCE):
        await ledger.commits.commit(
            worker, [FinishedAttempt(lease=item.lease, decision=DONE, records=(record,)) for item in claimed]
        )
    return time.perf_counter() - began


@asynccontextmanager
async def _ledger_like(settings: Settings) -> AsyncIterator[Ledger]:
    """The PostgreSQL itself; for a SQLite file a new one beside it, on the same disk."""
    file = sqlite_path(settings.ledger)
    if file is None:
        async with ledger_context(settings) as ledger:
            yield ledger
        return
    beside = file.parent if file.parent.is_dir() else None
    with TemporaryDirectory(prefix="shoal-bench-", dir=beside) as folder:
        async with ledger_context(msgspec.structs.replace(settings, ledger=str(Path(folder) / "ledger.db"))) as ledger:
            yield ledger
