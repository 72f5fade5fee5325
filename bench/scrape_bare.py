"""The limit: a bare aiohttp loop. `python -m bench.scrape_bare URLS OUT CONCURRENCY [--unparsed] [PROXIES]`

PROXIES is a file with a proxy per line; each request goes through the next one. It keeps its records in memory until
the end; killed, it has nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import aiohttp
import uvloop
from parsel import Selector

Record = dict[str, str | None]


async def _visit(
    session: aiohttp.ClientSession,
    urls: Iterator[str],
    records: list[Record],
    proxies: Iterator[str | None],
    *,
    parsed: bool,
) -> None:
    for url in urls:
        async with session.get(url, proxy=next(proxies)) as response:
            text = await response.text()
        title = Selector(text=text).css("title::text").get() if parsed else None
        records.append({"url": url, "title": title})


async def _scrape(urls: list[str], out: Path, concurrency: int, proxies: list[str], *, parsed: bool) -> None:
    records: list[Record] = []
    shared, ways = iter(urls), cycle(proxies or [None])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        await asyncio.gather(*(_visit(session, shared, records, ways, parsed=parsed) for _ in range(concurrency)))
    with out.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def main() -> None:
    urls, out, concurrency, *options = sys.argv[1:]
    proxies = [line for option in options if option != "--unparsed" for line in Path(option).read_text().split()]
    parsed = "--unparsed" not in options
    uvloop.run(_scrape(Path(urls).read_text().split(), Path(out), int(concurrency), proxies, parsed=parsed))


if __name__ == "__main__":
    main()
