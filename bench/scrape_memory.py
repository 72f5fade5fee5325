"""The memory of one `shoal run` while very many pages pass through it."""

from __future__ import annotations

from contextlib import nullcontext

from bench.figures import Lines, Report
from bench.scrape import CONCURRENCY
from bench.scrape_shoal import shoal_program
from bench.scrape_site import FastSite
from bench.scrape_trial import attempt
from bench.session import Effort, Session

PAGES: dict[Effort, int] = {"quick": 100_000, "full": 1_000_000}
POINTS = 40


def run(session: Session) -> Report:
    pages = session.size(PAGES)
    report = Report(
        "footprint",
        "Does the memory of a scrape stay flat?",
        {"pages": pages, "concurrency": CONCURRENCY},
    )
    series = []
    with FastSite() as site:
        for place in session.places:
            on_postgres = place.name == "postgres"
            with place.fresh() if on_postgres else nullcontext(None) as ledger:
                trial = attempt(site, shoal_program(CONCURRENCY, ledger=ledger), site.urls("small", pages), pages)
            # What follows is the export, which is not the worker's.
            megabytes = [size for at, size in trial.course if at <= trial.safe_at]
            # By then every code path has run once and all URLs are stored; what comes later would be a leak.
            settled = megabytes[len(megabytes) // 3]
            report.add(f"{place.name}: largest", "MB", [max(megabytes)])
            report.add(f"{place.name}: largest, export included", "MB", [trial.peak])
            report.add(f"{place.name}: after a third of the time", "MB", [settled])
            report.add(f"{place.name}: at the end", "MB", [megabytes[-1]])
            report.add(place.name, "pages/s", [trial.rate])
            report.target(f"{place.name}: largest, MB", trial.peak, at_most=200)
            report.target(f"{place.name}: end / after a third", megabytes[-1] / settled, at_most=1.1)
            step = max(1, len(trial.course) // POINTS)
            series.append((place.name, trial.course[::step]))
    report.plots.append(Lines("Memory of one scrape", "seconds", "MB", tuple(series)))
    return report
