"""The limit: a bare aiohttp loop. `python -m bench.scrape_bare URLS OUT CONCURRENCY [--unparsed]`

It keeps its records in memory until the end; killed, it has nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import uvloop
from parsel import Selector

Record = dict[str, str | None]


async def _visit(session: aiohttp.ClientSession, urls: Iterator[str], records: list[Record], *, parsed: bool) -> None:
    for url in urls:
        async with session.get(url) as response:
            text = await response.text()
        title = Selector(text=text).css("title::text").get() if parsed else None
        records.append({"url": url, "title": title})


async def _scrape(urls: list[str], out: Path, concurrency: int, *, parsed: bool) -> None:
    records: list[Record] = []
    shared = iter(urls)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:
        await asyncio.gather(*(_visit(session, shared, records, parsed=parsed) for _ in range(concurrency)))
    with out.open("w") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def main() -> None:
    urls, out, concurrency, *options = sys.argv[1:]
    uvloop.run(_scrape(Path(urls).read_text().split(), Path(out), int(concurrency), parsed="--unparsed" not in options))


if __name__ == "__main__":
    main()
