"""Scrapy at its usual work. `python -m bench.scrape_scrapy URLS OUT CONCURRENCY [--jobdir FOLDER] [--aiohttp] [--follow]`

`--jobdir`: with its queue and its seen URLs on disk, which is what lets a crawl be resumed. `--aiohttp`: with its
experimental aiohttp handler instead of Twisted's. `--follow`: crawl on along the links of each page.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import TextResponse

_AIOHTTP = "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler"


class Titles(scrapy.Spider):
    name = "titles"

    async def start(self) -> AsyncIterator[Any]:
        for url in Path(self.urls).read_text().split():
            yield scrapy.Request(url)

    def parse(self, response: TextResponse) -> Iterator[Any]:
        yield {"url": response.url, "title": response.css("title::text").get()}
        if self.follow:
            yield from response.follow_all(css="a")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("urls")
    parser.add_argument("out")
    parser.add_argument("concurrency", type=int)
    parser.add_argument("--jobdir")
    parser.add_argument("--aiohttp", action="store_true")
    parser.add_argument("--follow", action="store_true")
    given = parser.parse_args()
    settings: dict[str, Any] = {
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "ROBOTSTXT_OBEY": False,
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS": given.concurrency,
        "CONCURRENT_REQUESTS_PER_DOMAIN": given.concurrency,
        "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
        "FEEDS": {given.out: {"format": "jsonlines"}},
    }
    if given.jobdir:
        settings["JOBDIR"] = given.jobdir
    if given.aiohttp:
        settings["DOWNLOAD_HANDLERS"] = {"http": _AIOHTTP}
    process = AsyncCrawlerProcess(settings)
    process.crawl(Titles, urls=given.urls, follow=given.follow)
    process.start()


if __name__ == "__main__":
    main()
