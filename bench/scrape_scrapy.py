"""Scrapy at its usual work. `python -m bench.scrape_scrapy URLS OUT CONCURRENCY [--jobdir FOLDER] [--follow]`

`--jobdir`: with its queue and its seen URLs on disk, which is what lets a crawl be resumed. `--follow`: crawl on
along the links of each page.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import TextResponse


class Titles(scrapy.Spider):  # type: ignore[misc]  # types of peers are not looked at
    name = "titles"

    async def start(self) -> AsyncIterator[Any]:
        for url in self.urls:
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
    process = CrawlerProcess(settings)
    process.crawl(Titles, urls=Path(given.urls).read_text().split(), follow=given.follow)
    process.start()


if __name__ == "__main__":
    main()
