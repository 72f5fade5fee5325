"""Crawlee at its usual work. `python -m bench.scrape_crawlee URLS OUT CONCURRENCY [--sqlite]`

In memory unless `--sqlite` asks for its SQL storage on a SQLite file beside OUT. The concurrency is fixed from the
start: left to itself, Crawlee takes a while to find out how much the machine can bear.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path

import uvloop
from crawlee import ConcurrencySettings
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.storage_clients import MemoryStorageClient, SqlStorageClient


async def _scrape(urls: list[str], out: Path, concurrency: int, *, on_sqlite: bool) -> None:
    file = out.with_name("crawlee.db")
    storage = SqlStorageClient(connection_string=f"sqlite+aiosqlite:///{file}") if on_sqlite else MemoryStorageClient()
    crawler = ParselCrawler(
        storage_client=storage,
        concurrency_settings=ConcurrencySettings(
            min_concurrency=concurrency, desired_concurrency=concurrency, max_concurrency=concurrency
        ),
        configure_logging=False,
    )

    async def title(context: ParselCrawlingContext) -> None:
        await context.push_data({"url": context.request.url, "title": context.selector.css("title::text").get()})

    crawler.router.default_handler(title)
    await crawler.run(urls)
    dataset = await crawler.get_dataset()
    with out.open("w") as written:
        async for record in dataset.iterate_items():
            written.write(json.dumps(record) + "\n")
    if isinstance(storage, SqlStorageClient):
        await storage.close()


def main() -> None:
    urls, out, concurrency, *options = sys.argv[1:]
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", UserWarning)  # that its SQL storage is experimental
    work = _scrape(Path(urls).read_text().split(), Path(out), int(concurrency), on_sqlite="--sqlite" in options)
    uvloop.run(work)


if __name__ == "__main__":
    main()
