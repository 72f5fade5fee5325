"""`python -m bench`: run all benchmarks, print ratios first, write JSON and SVG."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from bench import (
    browser,
    clients,
    control,
    drivers,
    egress,
    egress_tokens,
    enqueue,
    feeds,
    fleet,
    growth,
    killed_jobs,
    laned,
    memory,
    processes,
    removal,
    scale,
    scrape,
    scrape_links,
    scrape_memory,
    sinks,
    throughput,
    volume,
)
from bench.figures import Report
from bench.machine import machine_facts
from bench.places import SERVER_SETTINGS, PostgresPlace, SqlitePlace
from bench.plots import draw
from bench.session import Session
from bench.summary import write_summary
from bench.table import print_report, print_summary
from tests.support import MissingPartError
from tests.support.postgres import PostgresServer

BENCHMARKS: dict[str, Callable[[Session], Report]] = {
    "throughput": throughput.run,
    "enqueue": enqueue.run,
    "growth": growth.run,
    "processes": processes.run,
    "laned": laned.run,
    "memory": memory.run,
    "drivers": drivers.run,
    "egress_tokens": egress_tokens.run,
    "removal": removal.run,
    "scrape": scrape.run,
    "clients": clients.run,
    "browser": browser.run,
    "egress": egress.run,
    "crawl": scrape_links.run,
    "footprint": scrape_memory.run,
    "fleet": fleet.run,
    "control": control.run,
    "killed_jobs": killed_jobs.run,
    "sinks": sinks.run,
    "feeds": feeds.run,
    "scale": scale.run,
    "volume": volume.run,
}


def main() -> None:
    arguments = _arguments()
    logging.disable(logging.INFO)  # peers report every job
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    reports = []
    # A hundred workers open up to 700.
    with PostgresServer(fsync=True, max_connections=800, settings=SERVER_SETTINGS) as server:
        postgres = PostgresPlace(server)
        facts = machine_facts(server.admin_url)
        session = Session(postgres, SqlitePlace(), "full" if arguments.full else "quick")
        for name in arguments.only or BENCHMARKS:
            began = time.monotonic()
            try:
                report = BENCHMARKS[name](session)
            except MissingPartError as missing:
                print(f"\n== {name}: skipped, because {missing}")
                continue
            seconds = round(time.monotonic() - began, 1)
            report.sizes["seconds"] = seconds
            print_report(report, seconds)
            (out / f"{name}.json").write_text(json.dumps(report.as_json(facts), indent=1) + "\n")
            draw(report, out)
            reports.append(report)
    write_summary(out)
    print_summary(reports)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="one benchmark; may be repeated")
    parser.add_argument("--full", action="store_true", help="the sizes of the targets (up to 5M items); takes hours")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where results go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
