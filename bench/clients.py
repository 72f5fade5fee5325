"""HTTP clients on one core: small pages by aiohttp, by clients that look like Chrome, and by Shoal with either kind.

`python -m bench.clients CLIENT URL PAGES` is one contender. It prints pages per second of processor time, all threads
included, because some of these clients have threads of their own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from bench.figures import Report
from bench.rounds import Contender, alternate, paired_ratio
from bench.scrape import CONCURRENCY, Entrant, shoal, take_turns
from bench.scrape_site import FastSite
from bench.scrape_trial import REPOSITORY, python
from bench.session import Effort, Session
from shoal.fetch.page import Fetcher, Request
from tests.support.certificates import Certificate

PAGES: dict[Effort, int] = {"quick": 6_000, "full": 30_000}
BASE = "aiohttp"
# Measured where they are installed.
OPTIONAL = ("primp", "wreq")
CERTIFICATE = Path(os.environ.get("SSL_CERT_FILE", ""))
Get = Callable[[str], Awaitable[int]]


def run(session: Session) -> Report:
    pages = session.size(PAGES)
    report = Report(
        "clients",
        "How many small pages does a second of processor time fetch with each client?",
        {"pages": pages, "concurrency": CONCURRENCY},
    )
    with TemporaryDirectory(prefix="shoal-certificate-") as folder:
        certificate = Certificate(Path(folder))
        with FastSite(certificate=certificate) as site:
            for scheme, origin in (("http", site.url), ("https", site.tls_url)):
                contenders = {
                    f"{scheme}: {name}": _contender(name, f"{origin}/small/1", pages, certificate)
                    for name in MAKERS
                    if name not in OPTIONAL or find_spec(name) is not None
                }
                rates = alternate(contenders, session.rounds)
                for name, of in rates.items():
                    report.add(name, "pages/s of processor time", of)
                for name, wanted in (("Shoal's HttpFetcher", 0.7), ("Shoal's ImpersonatingFetcher", 0.6)):
                    ratio = paired_ratio(rates[f"{scheme}: {name}"], rates[f"{scheme}: {BASE}"])
                    report.target(f"{scheme}: {name} / {BASE}", ratio, at_least=wanted)
            entrants = {
                "shoal run, client http": Entrant(shoal(), pages),
                "shoal run, client chrome": Entrant(shoal(client="chrome"), pages),
            }
            http, chrome = ([trial.rate for trial in of] for of in take_turns(site, entrants, session.rounds).values())
    report.add("shoal run, client http", "pages/s", http)
    report.add("shoal run, client chrome", "pages/s", chrome)
    report.target("shoal run, client chrome / client http", paired_ratio(chrome, http), at_least=0.7)
    report.bars(f"Pages of 1 KB, {CONCURRENCY} at once", "pages/s of processor time")
    return report


def _contender(name: str, url: str, pages: int, certificate: Certificate) -> Contender:
    def once() -> float:
        done = subprocess.run(
            python("clients", name, url, pages),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SSL_CERT_FILE": str(certificate.path)},
            check=True,
            capture_output=True,
            text=True,
        )
        return float(done.stdout)

    return once


async def _aiohttp() -> Get:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONCURRENCY), auto_decompress=False)

    async def get(url: str) -> int:
        async with session.get(url) as response:
            return len(await response.read())

    return get


async def _curl_cffi() -> Get:
    from curl_cffi import AsyncSession

    session: Any = AsyncSession(max_clients=CONCURRENCY, impersonate="chrome", verify=str(CERTIFICATE))  # type: ignore[arg-type]

    async def get(url: str) -> int:
        return len((await session.get(url)).content)

    return get


async def _wreq() -> Get:
    import wreq

    certificates = wreq.CertStore(pem_certs=[CERTIFICATE.read_text()])  # noqa: ASYNC240 - before it is measured
    client = wreq.Client(emulation=wreq.Emulation.Chrome137, tls_verify=certificates)

    async def get(url: str) -> int:
        return len(await (await client.get(url)).bytes())

    return get


async def _primp() -> Get:
    import primp

    client = primp.AsyncClient(impersonate="chrome_146", verify=False)  # it refuses self-signed certificates

    async def get(url: str) -> int:
        return len((await client.get(url)).content)

    return get


async def _plain() -> Get:
    from shoal.fetch.http import HttpFetcher

    return _fetch(HttpFetcher(connections=CONCURRENCY, user_agent="shoal"))


async def _chrome() -> Get:
    from shoal.fetch.impersonate import ImpersonatingFetcher

    return _fetch(ImpersonatingFetcher(connections=CONCURRENCY, user_agent="shoal"))


def _fetch(fetcher: Fetcher) -> Get:
    async def get(url: str) -> int:
        return len((await fetcher.fetch(Request(url=url))).body)

    return get


async def _rate(name: str, url: str, pages: int) -> float:
    get = await MAKERS[name]()
    size = await get(url)
    left = pages

    async def visit() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            if await get(url) != size:
                raise RuntimeError(f"{name} got another page")

    started = time.process_time()
    await asyncio.gather(*(visit() for _ in range(CONCURRENCY)))
    return pages / (time.process_time() - started)


MAKERS: dict[str, Callable[[], Awaitable[Get]]] = {
    BASE: _aiohttp,
    "curl_cffi's AsyncSession": _curl_cffi,
    "wreq": _wreq,
    "primp": _primp,
    "Shoal's HttpFetcher": _plain,
    "Shoal's ImpersonatingFetcher": _chrome,
}


def main() -> None:
    name, url, pages = sys.argv[1:]
    warnings.simplefilter("ignore")  # sessions are not closed
    print(uvloop.run(_rate(name, url, int(pages))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
