"""Crawlee at its usual work. `python -m bench.scrape_crawlee URLS OUT CONCURRENCY [--sqlite]`

In memory unless `--sqlite` asks for its SQL storage on a SQLite file beside OUT. The concurrency is fixed from the
start: left to itself, Crawlee would take a while to find out how much the machine can bear.
"""

from __future__ import annotations

import asyncio
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
    if on_sqlite:
        await _crawl(SqlStorageClient(connection_string=f"sqlite+aiosqlite:///{out.with_name('crawlee.db')}"), urls, out, concurrency)
