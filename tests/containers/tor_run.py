"""deploy/compose.yaml: workers behind PgBouncer that go out through Tor, and the server.

The site sees only addresses of exits. Tor and PgBouncer are killed while it works.
"""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from typing import Any

from shoal.demo.stand_in import RunningStandIn
from tests.containers.engine import Engine
from tests.containers.people_site import LIST, PeopleStandIn
from tests.containers.project import ComposeProject
from tests.containers.report import Report
from tests.support.deployments import DEPLOY
from tests.support.tor_network import EXITS, TorNetwork

PEOPLE = 60
WORKERS = 10
# A name that only the exits can look up: a worker that asks for it itself, finds nothing.
SITE_NAME = "people.example"
EGRESS = """
[egress.onion]
kind = "tor"
socks = "tor:9050"
""" + "".join(f'[scrapers.people.stages.{stage}]\negress = "onion"\n' for stage in ("username", "profile", "social"))


def run(engine: Engine, report: Report, network: TorNetwork, address: str) -> None:
    network.wait_until_ready()
    site = PeopleStandIn(people=PEOPLE, latency=(0.05, 0.3))
    with (
        site.serving(port=80, hosts=(address,)) as running,
        ComposeProject(engine, DEPLOY / "compose.yaml", "people", "shoal") as project,
    ):
        files = {
            "shoal.toml": EGRESS,
            "urls.txt": f"http://{SITE_NAME}{LIST}\n",
            "torrc": (DEPLOY / "tor" / "torrc").read_text() + network.torrc.read_text(),
        }
        for name, text in files.items():
            project.write(name, text)
        mounts = [f"{project.folder}/{name}:/app/{name}:ro" for name in ("shoal.toml", "urls.txt")]
        project.override(
            {
                **{name: {"volumes": mounts} for name in ("worker", "enqueue")},
                "tor": {"volumes": [f"{project.folder}/torrc:/etc/shoal/torrc:ro"]},
            }
        )
        _work(project, running, report)
        _serve(project, report)


def _work(project: ComposeProject, site: RunningStandIn[PeopleStandIn], report: Report) -> None:
    project.compose("--profile", "tor", "up", "--detach", f"--scale=worker={WORKERS}")
    report.check("10 workers run", project.running("worker") == {"worker": WORKERS})
    project.compose("run", "--rm", "-T", "enqueue")
    project.wait_until(lambda: len(site.log()) > 10, "the first pages through Tor", 600)
    pooled = project.query("select count(*) from pg_stat_activity where client_addr is not null and datname = 'shoal'")
    live = project.query("select count(*) from shoal.worker where state = 'live'")
    report.figure("connections of PostgreSQL, behind PgBouncer", f"{pooled[0]} for {live[0]} workers")
    for service in ("tor", "pgbouncer"):
        _kill(project, site, report, service)
    active = "select count(*) from shoal.run where state = 'active'"
    project.wait_until(lambda: project.query(active) == ["0"], "the end of the run", 1800)
    _compare(site, report, [*project.records("worker", "profile"), *project.records("worker", "social")])
    began, ended = time.monotonic(), len(project.ended)
    project.compose("stop", "worker")
    codes = project.exit_codes(ended, WORKERS, "worker")
    report.check(
        "`stop` ends all workers well", codes == {130: WORKERS}, f"{time.monotonic() - began:.1f} s, {dict(codes)}"
    )


def _kill(project: ComposeProject, site: RunningStandIn[PeopleStandIn], report: Report, service: str) -> None:
    (container,) = project.containers(service)
    project.engine.docker("kill", container["Id"])
    time.sleep(3)
    began, seen = time.monotonic(), len(site.log())
    project.compose("start", service)
    project.wait_until(lambda: len(site.log()) > seen + 8, f"pages after the kill of {service}", 600)
    seconds = f"{time.monotonic() - began:.0f}"
    report.figure(f"seconds until more pages came, after `docker kill` and `start` of {service}", seconds)


def _compare(site: RunningStandIn[PeopleStandIn], report: Report, records: list[dict[str, Any]]) -> None:
    pages = site.site.paths()
    answered = Counter(visit.path for visit in site.log() if visit.status == 200)
    lost = pages - set(answered)
    report.check("no page is lost", not lost, f"{len(pages)} pages, {len(lost)} lost")
    stored = Counter(record.get("profile") or record["link"] for record in records)
    expected = {f"http://{SITE_NAME}{path}" for path in pages if path != LIST}
    report.check("each result is stored, once", stored == dict.fromkeys(expected, 1), f"{len(records)} results")
    report.figure("pages that were fetched again, after a kill", sum(answered.values()) - len(answered))
    peers = Counter(visit.peer for visit in site.log())
    direct = sum(count for peer, count in peers.items() if peer not in EXITS)
    report.check("no direct request", not direct, f"{direct} of {len(site.log())}; {len(peers)} exits were used")


def _serve(project: ComposeProject, report: Report) -> None:
    added = project.compose("run", "--rm", "-T", "serve", "serve", "token", "add", "me", "--role", "operator")
    report.check("a token is added by a command", bool(added.strip()))
    project.compose("--profile", "serve", "up", "--detach", "serve")

    def is_healthy() -> bool:
        return [each["State"]["Health"]["Status"] for each in project.containers("serve")] == ["healthy"]

    seconds = project.wait_until(is_healthy, "the health of the server", 300)
    report.check("the server is healthy by its own check", True, f"{seconds:.0f} s")
    with urllib.request.urlopen("http://127.0.0.1:8642/readyz", timeout=10) as answer:
        report.check("it answers at the port of the host, and the ledger is ready", answer.status == 200)
