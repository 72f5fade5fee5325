"""A crawl along links: Shoal with `follow=True` beside Scrapy following every link."""

from __future__ import annotations

from functools import partial

from bench.figures import Report
from bench.rounds import alternate, paired_ratio
from bench.scrape import CONCURRENCY, tell_costs
from bench.scrape_shoal import shoal_program
from bench.scrape_site import FastSite
from bench.scrape_trial import OUT, URLS, Program, Trial, attempt, python
from bench.session import Effort, Session

DEPTH: dict[Effort, int] = {"quick": 4, "full": 5}
# A crawl is long, and the ratio far from its bound.
ROUNDS = 2


def run(session: Session) -> Report:
    with FastSite(depth=session.size(DEPTH)) as site:
        report = Report(
            "crawl",
            "How fast is a site crawled along its links, each page once?",
            {"pages": site.tree_pages, "concurrency": CONCURRENCY},
        )
        programs = {
            "shoal on SQLite": shoal_program(CONCURRENCY, follow=True),
            "shoal on SQLite, host lane": shoal_program(CONCURRENCY, follow=True, by_host=True),
            "Scrapy in memory": Program(python("scrape_scrapy", URLS, OUT, CONCURRENCY, "--follow")),
        }
        trials: dict[str, list[Trial]] = {name: [] for name in programs}

        def crawl(name: str) -> float:
            trials[name].append(attempt(site, programs[name], [f"{site.url}/tree/"], site.tree_pages))
            return trials[name][-1].rate

        rates = alternate({name: partial(crawl, name) for name in programs}, ROUNDS)
    for name, samples in rates.items():
        report.add(name, "pages/s", samples)
    tell_costs(report, trials)
    for ours in ("shoal on SQLite", "shoal on SQLite, host lane"):
        ratio = paired_ratio(rates[ours], rates["Scrapy in memory"])
        report.target(f"{ours} / Scrapy in memory", ratio, at_least=5)
    report.bars("A crawl along links", "pages/s")
    return report
