"""deploy/github/compose.yaml on the stand-in of GitHub: scaled, followed, killed, stopped and updated while it works.

The stand-in's log and the records have to agree at the end: nothing lost, nothing stored twice.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from datetime import date
from typing import Any

from shoal.demo.stand_in import RunningStandIn
from shoal.recipes.github.demo import make_site_report, profile_answers, social_answers
from shoal.recipes.github.stand_in import GitHubStandIn
from tests.containers.engine import Engine
from tests.containers.project import ComposeProject
from tests.containers.report import Report
from tests.support.deployments import DEPLOY

PORT = 8002
PLACES = (("Suva, Fiji", 200), ("Apia, Samoa", 160))
TOKENS = ("first-token-aa11", "other-token-bb22", "third-token-cc33")
DELAY = 0.5
STAGES = ("username", "profile", "social")
SERVICES = tuple(f"{stage}_scraper" for stage in STAGES)
SCALE = {"username_scraper": 1, "profile_scraper": 5, "social_scraper": 10}
GRACE_SECONDS = 45
# STOPPED: the process got SIGTERM before its worker had begun, so there was nothing to drain.
INTERRUPTED, STOPPED, KILLED = 130, 143, 137
FAULTS = ("missing", "errors", "secondary", "throttled")


def make_site() -> GitHubStandIn:
    limits = {"core": (5_000, 3_600), "search": (300, 60)}
    return GitHubStandIn(latency=(0.05, 0.4), faults=FAULTS, places=PLACES, limits=limits)


def run(engine: Engine, report: Report, address: str) -> None:
    with (
        make_site().serving(port=PORT, hosts=(address,)) as site,
        ComposeProject(engine, DEPLOY / "github" / "compose.yaml", "github", "github") as project,
    ):
        settings = {
            **{f"GITHUB_TOKEN_{number}": token for number, token in enumerate(TOKENS, start=1)},
            "GITHUB_API": site.url,
            "LOCATIONS": "; ".join(place for place, _ in PLACES),
            "RATE_LIMIT_DELAY": str(DELAY),
            "RETRY_DELAY": "2",
        }
        # The tokens are meant for HTTPS only, unless the project says otherwise.
        shown = engine.docker("run", "--rm", "--entrypoint=cat", "shoal-github", "shoal.toml")
        project.write("shoal.toml", shown.replace("[egress.github]", f'[egress.github]\nhosts = ["{site.url}"]'))
        changed = {"environment": settings, "volumes": [f"{project.folder}/shoal.toml:/app/shoal.toml:ro"]}
        project.override(dict.fromkeys((*SERVICES, "enqueue"), changed))
        scenario = Scenario(project, site, report)
        scenario.start()
        scenario.follow_logs()
        scenario.scale()
        scenario.stop_a_service()
        scenario.kill_workers()
        scenario.kill_database()
        scenario.update_images()
        scenario.finish()


class Scenario:
    """The steps, in this order. Each waits until work goes on."""

    def __init__(self, project: ComposeProject, site: RunningStandIn[GitHubStandIn], report: Report) -> None:
        self._project = project
        self._site = site
        self._report = report
        self._scale = dict(SCALE)

    def start(self) -> None:
        began = time.monotonic()
        self._project.up(SCALE)
        self._report.figure("seconds of `docker compose up -d`, 18 containers", f"{time.monotonic() - began:.0f}")
        running = self._project.running(*SERVICES)
        self._report.check("5 profile_scraper and 10 social_scraper run", running == SCALE, str(running))
        self._more_visits("/users/", 20, 600)
        workers = int(self._project.query("select count(*) from shoal.worker where state = 'live'")[0])
        self._report.check("the ledger has a worker for each container", workers == 16, f"{workers} workers")
        (migrate,) = self._project.containers("migrate", all=True)
        self._report.check("the migration ended well", migrate["State"]["ExitCode"] == 0)

    def follow_logs(self) -> None:
        """S0.28: `docker compose logs -f profile_scraper`."""
        logs = self._project.follow("logs", "--follow", "--no-color", "profile_scraper")
        time.sleep(15)
        logs.terminate()
        lines = logs.communicate()[0].splitlines()
        found = [match for line in lines if (match := re.search(r"profile_scraper-(\d+) +\| (.*)", line))]
        containers = {match[1] for match in found}
        texts = [match[2] for match in found]
        wrong = [text for text in texts if not _is_json(text)]
        detail = f"{len(lines)} lines of {len(containers)} containers"
        self._report.check(
            "`logs -f profile_scraper` has the lines of all its containers", len(containers) == 5, detail
        )
        self._report.check("each line is JSON", bool(texts) and not wrong, wrong[0][:200] if wrong else "")

    def scale(self) -> None:
        ended = len(self._project.ended)
        self._set_scale(social_scraper=13)
        self._wait_for_workers()
        self._set_scale(profile_scraper=2, social_scraper=6)
        running = self._project.running(*SERVICES)
        self._report.check(
            "scaled up to 13 and down to 6 social_scraper while it works", running == self._scale, str(running)
        )
        codes = self._codes(ended, 10)
        self._report.check("those that went drained (exit code 130)", codes == {INTERRUPTED: 10}, str(dict(codes)))
        self._more_visits("/users/", 10, 600)

    def stop_a_service(self) -> None:
        self._wait_for_workers()
        ended = len(self._project.ended)
        began = time.monotonic()
        self._project.compose("stop", "social_scraper")
        seconds = time.monotonic() - began
        codes = self._codes(ended, self._scale["social_scraper"])
        good = seconds < GRACE_SECONDS and set(codes) == {INTERRUPTED}
        self._report.check("`stop` drains within the grace period of 45 s", good, f"{seconds:.1f} s, {dict(codes)}")
        held = self._project.query("select count(*) from shoal.worker where state = 'live'")
        self._report.figure("workers that the ledger counts as live meanwhile", held[0])
        self._project.up(self._scale)
        self._more_visits("/users/", 10, 600)

    def kill_workers(self) -> None:
        """`docker kill` leaves a container down; a process that dies is started again by the engine."""
        first, second, *_ = self._project.containers("social_scraper")
        self._project.engine.docker("kill", first["Id"])
        os.kill(second["State"]["Pid"], signal.SIGKILL)
        self._project.wait_until(lambda: self._restarts(second["Id"]) > 0, "the restart of a worker", 300)
        self._report.check("a worker that was killed inside is started again by the engine", True)
        (now,) = self._project.engine.inspect(first["Id"])
        self._report.figure("a worker after `docker kill`", now["State"]["Status"])
        self._project.up(self._scale)
        running = self._project.running("social_scraper")["social_scraper"]
        self._report.check(
            "`up -d` starts the killed one again", running == self._scale["social_scraper"], str(running)
        )

    def kill_database(self) -> None:
        (database,) = self._project.containers("postgres")
        done = self._stored()
        self._project.engine.docker("kill", database["Id"])
        time.sleep(5)
        began = time.monotonic()
        self._project.compose("start", "postgres")
        self._project.wait_until(lambda: self._stored_if_up() > done, "results after the database came back", 600)
        seconds = time.monotonic() - began
        self._report.check(
            "results are stored again after `docker kill` of PostgreSQL", True, f"{seconds:.0f} s after `start`"
        )
        self._report.figure("workers that ran while it was away", self._project.running(*SERVICES))

    def update_images(self) -> None:
        """A new image, service by service."""
        self._project.engine.build("shoal-github", "FROM shoal-github\nLABEL version=next\n")
        (image,) = self._project.engine.inspect("shoal-github")
        for service in SERVICES:
            ended = len(self._project.ended)
            scale = {service: self._scale[service]}
            began = time.monotonic()
            self._project.up(scale, "--no-deps", service)
            seconds = time.monotonic() - began
            new = {each["Image"] for each in self._project.containers(service)} == {image["Id"]}
            codes = self._codes(ended, self._scale[service])
            good = new and set(codes) <= {INTERRUPTED, STOPPED}
            detail = f"{seconds:.1f} s, {dict(codes)}"
            self._report.check(f"{service} has the new image, and the old containers drained", good, detail)
        running = self._project.running(*SERVICES)
        self._report.check("the scale is the same after the update", running == self._scale, str(running))

    def finish(self) -> None:
        ended = "select count(*) from shoal.run where state = 'active'"
        self._project.wait_until(lambda: self._project.query(ended) == ["0"], "the end of the run", 1800)
        records = {stage: self._project.records("enqueue", stage) for stage in STAGES}
        self._compare(records)
        killed = Counter(each.service for each in self._project.ended if each.exit_code == KILLED)
        self._report.figure("containers that were killed", dict(killed))

    def _compare(self, records: dict[str, list[dict[str, Any]]]) -> None:
        people, visits = self._site.site.people, self._site.log()
        numbers = {
            number for place, _ in PLACES for number in people.search(place, date(2015, 1, 1), date(2024, 12, 31))
        }
        there = {people.login(number) for number in numbers if number % 40 != 5}
        profiles = Counter(record["username"] for record in records["profile"])
        lost = there - set(profiles)
        self._report.check("no profile is lost", not lost, f"{len(there)} developers, {len(lost)} lost")
        more = set(profiles) - there
        self._report.check("none is stored that is not there", not more, f"{len(more)}")
        twice = [name for name, count in profiles.items() if count > 1]
        self._report.check("no profile is stored twice", not twice, f"{len(twice)}")
        extras = {
            (each["username"], each["kind"], each.get("platform"), each.get("order")) for each in records["social"]
        }
        again = len(records["social"]) - len(extras)
        self._report.check(
            "no link and no repository is stored twice", not again, f"{len(extras)} stored, {again} twice"
        )
        completed = social_answers(people, visits)
        self._report.check(
            "social was completed for each", set(completed) == there, f"{len(there - set(completed))} lost"
        )
        site_report = make_site_report(self._site.site, visits, records)
        untrue = [each for each in site_report.problems if "answered twice" not in each]
        self._report.check("the records equal what the site has", not untrue, "; ".join(untrue))
        for line in site_report.lines[:3]:
            self._report.figure("the site's log", line)
        answers = {"profile": profile_answers(visits), "social": completed}
        for stage, logins in answers.items():
            asked_twice = sum(count - 1 for count in logins.values())
            self._report.figure(f"answers of {stage} that had to be asked for again, after a kill", asked_twice)
        self._report.figure("developers, requests", f"{len(there)}, {len(visits)}")

    def _set_scale(self, **scale: int) -> None:
        self._scale |= scale
        self._project.up(self._scale, "--no-recreate")

    def _codes(self, first: int, expected: int) -> Counter[int]:
        """Exit codes of the workers that ended since then."""
        return self._project.exit_codes(first, expected, *SERVICES)

    def _wait_for_workers(self) -> None:
        """Until each running container has a worker in the ledger: one that is stopped earlier has nothing to drain."""
        live = "select count(*) from shoal.worker where state = 'live'"
        running = sum(self._scale.values())
        self._project.wait_until(lambda: int(self._project.query(live)[0]) >= running, f"{running} workers", 600)

    def _restarts(self, container: str) -> int:
        (about,) = self._project.engine.inspect(container)
        return int(about["RestartCount"])

    def _stored(self) -> int:
        return int(self._project.query("select count(*) from shoal.outcome")[0])

    def _stored_if_up(self) -> int:
        try:
            return self._stored()
        except (RuntimeError, IndexError, ValueError):
            return -1

    def _more_visits(self, part: str, number: int, timeout: float) -> None:
        before = self._visits(part)
        self._project.wait_until(lambda: self._visits(part) >= before + number, f"visits of {part}", timeout)

    def _visits(self, part: str) -> int:
        return sum(part in visit.path and visit.status == 200 for visit in self._site.log())


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
