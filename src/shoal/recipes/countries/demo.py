"""`shoal demo countries`: four registers through local exits, single and distributed, and what the registers saw."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.demo.database import PrivateDatabase, private_postgres
from shoal.demo.recipe import DemoStep, RecipeDemo, SiteReport, closest_line
from shoal.demo.stand_in import LOOPBACK, RunningStandIn, Visit
from shoal.fetch.chromium import check_browser
from shoal.recipes.countries.exits import EXITS, NETWORK, local_exits
from shoal.recipes.countries.stand_in import ADDRESS_PATH, PriceRegisters
from shoal.service.client import Fleet

URLS = {"argentina": 60, "india": 60, "malaysia": 20, "russia": 30}
DISTRIBUTED = ("india", "malaysia", "russia")
FAULTS = ("blocks", "resets", "gone")


class CountriesDemo(RecipeDemo):
    name = "countries"
    about = (
        "Four registers of drug prices; two of them are empty until their script has run in a browser.\n"
        f"Public Tor cannot reach a site on this machine: {EXITS} local exits with addresses of their own stand for it."
    )

    def __init__(self, urls: Mapping[str, int] = URLS) -> None:
        """`urls`: how many of each country."""
        self._urls = urls
        self._port = 0
        self._database: PrivateDatabase | None = None
        self._has_postgres = False

    def stand_in(self) -> PriceRegisters:
        return PriceRegisters(latency=(0.02, 0.06), faults=FAULTS)

    @contextmanager
    def serving(self, folder: Path) -> Iterator[RunningStandIn[PriceRegisters]]:
        """The site, the exits, lists of URLs, and a private PostgreSQL unless one was named for the demo.

        Raises ClientMissing without a browser.
        """
        asyncio.run(check_browser(os.environ.get("SHOAL_CHROMIUM", "")))
        with self.stand_in().serving() as site, local_exits() as self._port, _database() as self._database:
            named = os.environ.get("SHOAL_LEDGER", "")
            self._has_postgres = self._database is not None or named.startswith(("postgresql:", "postgres:"))
            for country, count in self._urls.items():
                lines = "".join(f"{url}\n" for url in site.site.urls(country, count))
                (folder / "urls" / f"{country}.txt").write_text(lines)
            yield site

    def environment(self, site: RunningStandIn[Any]) -> Mapping[str, str]:
        database = {} if self._database is None else self._database.variables
        return {"TOR_SOCKS_PORT": str(self._port), "ADDRESS_URL": site.url + ADDRESS_PATH, **database}

    def steps(self, site: RunningStandIn[Any]) -> Sequence[DemoStep]:
        def start(country: str) -> tuple[str, ...]:
            return ("shoal", "start", country, "--urls-file", f"urls/{country}.txt")

        single = DemoStep(start("argentina"), "Argentina has no mode in the registry: it runs here and now")
        if not self._has_postgres:
            why = "Only Argentina: the distributed scrapers need PostgreSQL, and this machine has no programs of it"
            return [DemoStep(start("argentina"), why)]
        pool = ("--yes", "--set", "concurrency=4")
        return [
            DemoStep(
                ("shoal", "db", "migrate", "-q"),
                "A private PostgreSQL, which ends with this demo (--serve keeps both)",
                prepares=True,
            ),
            single,
            DemoStep(start("india"), "India is distributed: its URLs are stored, and wait for workers"),
            DemoStep(
                ("shoal", "pool", "start", "india", "--workers", "3", *pool),
                "Three workers, each with a browser of its own; first the checks: does the exit have another address?",
            ),
            DemoStep(start("russia"), "Russia is distributed, with one worker at a time"),
            DemoStep(("shoal", "pool", "start", "russia", "--workers", "3", *pool), "Three are wanted, one may work"),
            DemoStep(start("malaysia"), "The worker takes the flags of the old system"),
            DemoStep(("shoal", "worker", "--scraper", "malaysia", "--run-id", "latest", "--batch-size", "10")),
            DemoStep(("shoal", "stats", "india", "latest")),
        ]

    def next_commands(self) -> Sequence[str]:
        """The private database has ended with the demo."""
        return super().next_commands() if self._database is None else ("demo countries --serve",)

    async def site_report(self, site: RunningStandIn[Any], fleet: Fleet) -> SiteReport:
        ran = ("argentina", *(DISTRIBUTED if self._has_postgres else ()))
        visits = site.log()
        lines, problems = [_addresses(visits), _closest(visits), _answers(visits)], _direct(visits)
        figures: dict[str, Any] = {}
        for country in ran:
            counts = await fleet.stats(country)
            records = {record["url"]: record async for record in fleet.records(f"latest:{country}")}
            wrong = [url for url, record in records.items() if not _is_correct(site.site, country, record)]
            figures[country] = {**counts.by_status(), "wrong": len(wrong)}
            lines.append(
                f"{country}: {len(records)} of {self._urls[country]} prices stored, {len(wrong)} wrong, "
                f"{counts.failed} gone, {counts.remaining} left"
            )
            if wrong or counts.remaining or len(records) + counts.failed != self._urls[country]:
                problems.append(f"{country}: {counts.by_status()}, {len(wrong)} wrong")
        return SiteReport(lines=lines, problems=problems, figures=figures)


@contextmanager
def _database() -> Iterator[PrivateDatabase | None]:
    if "SHOAL_LEDGER" in os.environ:
        yield None
        return
    with private_postgres() as database:
        yield database


def _addresses(visits: Sequence[Visit]) -> str:
    pages = [visit for visit in visits if visit.path != ADDRESS_PATH]
    peers = Counter(visit.peer for visit in pages)
    return f"{len(pages)} visits from {len(peers)} addresses, {peers[LOOPBACK]} from this machine's own ({LOOPBACK})"


def _closest(visits: Sequence[Visit]) -> str:
    """A page in a browser is three requests: of itself, its script and its data."""
    pages = [visit for visit in visits if visit.path != ADDRESS_PATH]
    return closest_line(pages, lambda visit: visit.peer, "of an exit to a register")


def _answers(visits: Sequence[Visit]) -> str:
    """What was not given out, and through which exit it was asked for next. Two circuits may have the same exit."""
    notes = Counter(visit.note for visit in visits)
    later: dict[str, Visit] = {}
    again: Counter[bool] = Counter()
    for visit in sorted(visits, key=lambda each: each.at, reverse=True):
        if visit.note in ("blocked", "reset") and visit.path in later:
            again[later[visit.path].peer != visit.peer] += 1
        later[visit.path] = visit
    return (
        f"{notes['blocked']} were refused with 403, {notes['reset']} cut off; asked for again: "
        f"{again[True]} from another address, {again[False]} from the same one"
    )


def _direct(visits: Sequence[Visit]) -> list[str]:
    """Only the page that says the address may be asked directly."""
    paths = [visit.path for visit in visits if not visit.peer.startswith(NETWORK) and visit.path != ADDRESS_PATH]
    return [f"{len(paths)} direct visits, the first of {paths[0]}"] if paths else []


def _is_correct(site: PriceRegisters, country: str, record: Mapping[str, Any]) -> bool:
    facts = site.facts(country, int(record["url"].rpartition("/")[2]))
    names = ("name", "strength", "pack", "updated", "price")
    return all(record[name] == getattr(facts, name) for name in names)


DEMO = CountriesDemo()
