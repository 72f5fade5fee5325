"""The same pages fetched, parsed and kept by Shoal, by a bare aiohttp loop, by Scrapy and by Crawlee."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from bench.figures import Report
from bench.places import PostgresPlace
from bench.rounds import Contender, alternate, paired_ratio
from bench.scrape_shoal import shoal_program
from bench.scrape_site import FastSite
from bench.scrape_trial import OUT, URLS, Program, Trial, attempt, python
from bench.session import Effort, Session

CONCURRENCY = 32
PAGES: dict[Effort, int] = {"quick": 20_000, "full": 60_000}
LARGE_PAGES: dict[Effort, int] = {"quick": 6_000, "full": 20_000}
# Peers take longer, so they get less to do; their speed does not depend on it.
SCRAPY_PAGES: dict[Effort, int] = {"quick": 2_500, "full": 10_000}
CRAWLEE_PAGES: dict[Effort, int] = {"quick": 500, "full": 2_000}
SITE_SHARE = 0.8

Opened = Callable[[], AbstractContextManager[Program]]
Trials = Mapping[str, list[Trial]]


@dataclass(frozen=True)
class Entrant:
    """Who scrapes how many pages of which kind. `program` opens what it needs, such as an empty database."""

    program: Opened
    pages: int
    kind: str = "small"


def run(session: Session) -> Report:
    sizes = {name: session.size(s) for name, s in (("pages", PAGES), ("large_pages", LARGE_PAGES))}
    sizes |= {name: session.size(s) for name, s in (("scrapy", SCRAPY_PAGES), ("crawlee", CRAWLEE_PAGES))}
    report = Report(
        "scrape",
        "How many pages per second are fetched from loopback, parsed and kept by one process?",
        {**sizes, "concurrency": CONCURRENCY, "small_bytes": 1_000, "large_bytes": 20_000},
    )
    entrants = _on_small_pages(session.postgres, sizes) | _on_large_pages(sizes)
    if session.effort == "full":
        entrants |= _twice_at_once(sizes)
    with FastSite() as site:
        trials = take_turns(site, entrants, session.rounds)
    _tell(report, trials)
    _compare(report, trials)
    report.bars(f"Pages of 1 KB and 20 KB, {CONCURRENCY} at once", "pages/s")
    return report


def take_turns(site: FastSite, entrants: Mapping[str, Entrant], rounds: int) -> dict[str, list[Trial]]:
    """The trials of every entrant, in rounds."""
    trials: dict[str, list[Trial]] = {name: [] for name in entrants}

    def contender(name: str, entrant: Entrant) -> Contender:
        def once() -> float:
            with entrant.program() as program:
                trial = attempt(site, program, site.urls(entrant.kind, entrant.pages), entrant.pages)
            trials[name].append(trial)
            return trial.rate

        return once

    alternate({name: contender(name, entrant) for name, entrant in entrants.items()}, rounds)
    return trials


def bare(concurrency: int, *options: str) -> Opened:
    return _plain(Program(python("scrape_bare", URLS, OUT, concurrency, *options)))


def scrapy(*options: str) -> Opened:
    return _plain(Program(python("scrape_scrapy", URLS, OUT, CONCURRENCY, *options)))


def crawlee(*options: str) -> Opened:
    return _plain(Program(python("scrape_crawlee", URLS, OUT, CONCURRENCY, *options)))


def shoal(
    concurrency: int = CONCURRENCY, *, by_host: bool = False, robots: bool = False, client: str = "http"
) -> Opened:
    return _plain(shoal_program(concurrency, by_host=by_host, robots=robots, client=client))


def shoal_on_postgres(place: PostgresPlace, *, by_host: bool = False) -> Opened:
    @contextmanager
    def opened() -> Iterator[Program]:
        with place.fresh() as url:
            yield shoal_program(CONCURRENCY, ledger=url, by_host=by_host)

    return opened


def _plain(program: Program) -> Opened:
    return lambda: nullcontext(program)


def _on_small_pages(postgres: PostgresPlace, sizes: Mapping[str, int]) -> dict[str, Entrant]:
    pages = sizes["pages"]
    return {
        "bare aiohttp, not parsed": Entrant(bare(CONCURRENCY, "--unparsed"), pages),
        "bare aiohttp": Entrant(bare(CONCURRENCY), pages),
        "shoal on SQLite": Entrant(shoal(), pages),
        "shoal on SQLite, host lane": Entrant(shoal(by_host=True), pages),
        "shoal on SQLite, robots.txt obeyed": Entrant(shoal(robots=True), pages),
        "shoal on PostgreSQL": Entrant(shoal_on_postgres(postgres), pages),
        "shoal on PostgreSQL, host lane": Entrant(shoal_on_postgres(postgres, by_host=True), pages),
        "Scrapy in memory": Entrant(scrapy(), sizes["scrapy"]),
        "Scrapy with JOBDIR": Entrant(scrapy("--jobdir", "job"), sizes["scrapy"] // 2),
        "Crawlee in memory": Entrant(crawlee(), sizes["scrapy"]),
        "Crawlee on its SQLite": Entrant(crawlee("--sqlite"), sizes["crawlee"]),
    }


def _on_large_pages(sizes: Mapping[str, int]) -> dict[str, Entrant]:
    pages = sizes["large_pages"]
    return {
        "20 KB: bare aiohttp": Entrant(bare(CONCURRENCY), pages, "large"),
        "20 KB: shoal on SQLite": Entrant(shoal(), pages, "large"),
        "20 KB: Scrapy in memory": Entrant(scrapy(), sizes["scrapy"], "large"),
    }


def _twice_at_once(sizes: Mapping[str, int]) -> dict[str, Entrant]:
    twice = 2 * CONCURRENCY
    return {
        f"{twice} at once: bare aiohttp": Entrant(bare(twice), sizes["pages"]),
        f"{twice} at once: shoal on SQLite": Entrant(shoal(twice), sizes["pages"]),
    }


def _tell(report: Report, trials: Trials) -> None:
    for name, of in trials.items():
        report.add(name, "pages/s", [trial.rate for trial in of])
    on_sqlite = trials["shoal on SQLite"]
    report.add("shoal on SQLite, JSON lines written", "pages/s", [t.pages / t.exported for t in on_sqlite])
    for name, of in trials.items():
        report.add(name, "pages/s, start-up included", [trial.pages / trial.process for trial in of])
    tell_costs(report, trials)


def tell_costs(report: Report, trials: Trials) -> None:
    """What a page costs its visitor in processor time and memory, and who was the limit."""
    for name, of in trials.items():
        report.add(name, "us of processor per page", [1e6 * trial.busy / trial.pages for trial in of])
    for name, of in trials.items():
        report.add(name, "MB at most", [trial.peak for trial in of])
    shares = {name: statistics.median(trial.server_busy / trial.seconds for trial in of) for name, of in trials.items()}
    name, share = max(shares.items(), key=lambda pair: pair[1])
    limit = "the visitor was the limit everywhere" if share < SITE_SHARE else f"the site was the limit of {name}"
    report.notes.append(f"nginx used one core to {share:.0%} at most (with {name}): {limit}.")


def _compare(report: Report, trials: Trials) -> None:
    def compare(ours: str, theirs: str, wanted: float) -> None:
        ratio = paired_ratio([trial.rate for trial in trials[ours]], [trial.rate for trial in trials[theirs]])
        report.target(f"{ours} / {theirs}", ratio, at_least=wanted)

    compare("shoal on SQLite", "bare aiohttp", 0.6)
    compare("shoal on SQLite", "Scrapy in memory", 5)
    compare("shoal on SQLite", "Crawlee on its SQLite", 20)
    compare("20 KB: shoal on SQLite", "20 KB: bare aiohttp", 0.6)
    compare("shoal on SQLite, host lane", "shoal on SQLite", 0.7)
    compare("shoal on SQLite, robots.txt obeyed", "shoal on SQLite", 0.8)
    compare("shoal on PostgreSQL", "bare aiohttp", 0.6)
    peaks = [trial.peak for name, of in trials.items() if "shoal" in name for trial in of]
    report.target("shoal: memory at most, MB", max(peaks), at_most=200)
