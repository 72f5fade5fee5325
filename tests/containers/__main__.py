"""`make containers`: build the images of deploy/, run what deploy/ describes against stand-in sites, print a report.

Needs root, docker.io, debootstrap, tor and podman. All traffic stays in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.containers import browser_run, github_run, images, kube_run, tor_run
from tests.containers.engine import Engine, enter_network
from tests.containers.parts import package_server, prepare
from tests.containers.report import Report
from tests.support.tor_network import SITE, TorNetwork

PACKAGES_PORT = 8080
SECTIONS = {
    "images": "Images",
    "github": "The recipe github by Compose",
    "tor": "Workers behind PgBouncer and Tor by Compose",
    "browser": "The target with Chromium",
    "kubernetes": "The manifests of Kubernetes by podman",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--folder", type=Path, default=Path("~/.cache/shoal-containers").expanduser(), help="for what is fetched once"
    )
    options.add_argument("--only", action="append", choices=list(SECTIONS), help="these parts; all without it")
    options.add_argument("--report", type=Path, help="write the report here, as Markdown")
    chosen = options.parse_args()
    report = Report()
    parts = prepare(chosen.folder)
    with TorNetwork() as network:
        enter_network(network.pid)
        with package_server(parts, SITE, PACKAGES_PORT) as server, Engine(parts) as engine:
            engine.environment |= images.BASES
            images.make_bases(engine, parts, server)
            steps: dict[str, Callable[[], None]] = {
                "images": lambda: images.build_and_check(engine, report),
                "github": lambda: github_run.run(engine, report, SITE),
                "tor": lambda: tor_run.run(engine, report, network, SITE),
                "browser": lambda: browser_run.run(engine, report, SITE),
                "kubernetes": lambda: kube_run.run(engine, report, SITE),
            }
            for name in chosen.only or SECTIONS:
                with report.section(SECTIONS[name]):
                    steps[name]()
    if chosen.report:
        chosen.report.parent.mkdir(parents=True, exist_ok=True)
        chosen.report.write_text(report.markdown())
    good = sum(line.good is True for line in report.lines)
    print(f"\n{good} checks are good, {len(report.misses)} are not", flush=True)
    return 1 if report.misses else 0


if __name__ == "__main__":
    sys.exit(main())
