"""Measures pages per second of a bare loop and of Shoal, and claims and commits per second of the ledger."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
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
from shoal.service.events import Notice, OnEvent, ignore
from shoal.wiring import build_fetcher, build_worker, ledger_context, sqlite_path
from shoal.worker.state import WorkerOptions

BY = "shoal bench"
NAME = "shoal-bench"
BATCH = 200


ROUNDS = 3
LEDGER_ITEMS = 10_000


class BenchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, best of the rounds. `ratio`: Shoal's pages per second as a share of the bare loop's."""

    pages: int
    concurrency: int
    bare_pages_per_second: float
    shoal_pages_per_second: float
    ratio: float
    ledger: str
    ledger_items_per_second: float
    cores: int | None
    python: str


async def measure(settings: Settings, *, pages: int, on_event: OnEvent = ignore) -> BenchFigures:
    """Fetch `pages` pages of a local site in three rounds by a bare loop and by Shoal; then measure the ledger.

    The ledger is a new file beside the SQLite one of the settings, or their PostgreSQL with a run that is removed.
    """
    _warn_when_busy(on_event)
    bare, shoal = [], []
    with _local_site() as site, TemporaryDirectory(prefix="shoal-bench-") as place:
        await bare_seconds(site, pages // 10, settings.concurrency, Path(place) / "warm-up.jsonl")
        # In turns, so that a short load on the machine does not fall on one of them alone.
        for number in range(ROUNDS):
            folder = Path(place) / str(number)
            folder.mkdir()
            bare.append(await bare_seconds(site, pages, settings.concurrency, folder / "records.jsonl"))
            on_event(Notice(message=f"bare loop   {pages / bare[-1]:>8.0f} pages/s"))
            shoal.append(await shoal_seconds(site, pages, settings, folder))
            on_event(Notice(message=f"Shoal       {pages / shoal[-1]:>8.0f} pages/s"))
    ledger = await ledger_seconds(settings, LEDGER_ITEMS)
    return BenchFigures(
        pages=pages,
        concurrency=settings.concurrency,
        bare_pages_per_second=round(pages / min(bare), 1),
        shoal_pages_per_second=round(pages / min(shoal), 1),
        ratio=round(min(bare) / min(shoal), 3),
        ledger=str(settings.shown()["ledger"]),
        ledger_items_per_second=round(LEDGER_ITEMS / ledger, 1),
        cores=os.cpu_count(),
        python=platform.python_version(),
    )


@contextmanager
def _local_site() -> Iterator[str]:
    """The address of the site, served by a process of its own; it ends when its stdin is closed."""
    with subprocess.Popen(
        [sys.executable, "-m", "shoal.service.bench_site"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def _warn_when_busy(on_event: OnEvent) -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores / 2:
        text = f"The machine is busy (load {load:.1f} on {cores} cores): the figures will be too low."
        on_event(Notice(message=text))


def urls_of(site: str, pages: int) -> Iterator[str]:
    return (f"{site}/page/{number}" for number in range(pages))


async def bare_seconds(site: str, pages: int, concurrency: int, file: Path) -> float:
    """The upper bound: aiohttp in a loop, titles by parsel, records written to a file at the end."""
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
    """The same work as a scraper, without a lane: the site is local."""
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
        fetcher = build_fetcher(settings, environment={})  # the site is on this machine
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
    """Claims and commits of items without work, one record each; the run is removed afterwards."""
    async with _scratch_ledger(settings) as ledger:
        run = await ledger.runs.create(RunSpec(scraper=NAME, stages=(StageSpec("nothing"),)))
        try:
            await ledger.intake.enqueue(run.id, (NewItem(key=f"item {number}") for number in range(items)))
            await ledger.runs.seal(run.id, by=BY)
            scope = Scope(scraper=NAME, run_ids=(run.id,))
            worker = f"{NAME}-{run.id}"
            await ledger.workers.register(
                WorkerSpec(id=worker, node=socket.gethostname(), pid=os.getpid(), scope=scope)
            )
            seconds = await _claim_and_commit(ledger, worker, scope)
            await ledger.workers.stop(worker)
            return seconds
        finally:
            await ledger.runs.remove(run.id, by=BY)


async def _claim_and_commit(ledger: Ledger, worker: str, scope: Scope) -> float:
    record = record_text({"title": "A small page"})
    began = time.perf_counter()
    while claimed := await ledger.claims.claim(worker, scope, BATCH):
        await ledger.commits.commit(
            worker, [FinishedAttempt(lease=item.lease, decision=DONE, records=(record,)) for item in claimed]
        )
    return time.perf_counter() - began


@asynccontextmanager
async def _scratch_ledger(settings: Settings) -> AsyncIterator[Ledger]:
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
