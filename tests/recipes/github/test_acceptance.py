"""Instances of each stage as processes, one of them killed: each developer once per stage, no token beyond its calls.

All is compared with the site's log. S0.1, S0.9, S0.10, S0.24, S0.30.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import asyncpg
import pytest

import shoal
from shoal.demo.stand_in import Visit
from shoal.recipes.github.demo import make_site_report, profile_answers, social_answers
from shoal.recipes.github.stand_in import BAD_TOKEN
from tests.recipes.github.conftest import PATIENCE, TOKENS, Serve, Site, set_up, statuses
from tests.support import LONG
from tests.support.project import Command, Project

PEOPLE = (("Suva, Fiji", 500), ("Apia, Samoa", 300)) if LONG else (("Suva, Fiji", 50), ("Apia, Samoa", 30))
INSTANCES = {"username": 2, "profile": 5, "social": 10} if LONG else {"username": 2, "profile": 3, "social": 2}
# A token has so many calls in so many seconds: less than the instances could make.
LIMITS = {"core": (150, 5), "search": (30, 5)} if LONG else {"core": (60, 4), "search": (30, 4)}
FAULTS = ("missing", "errors", "throttled", "secondary", "bad_token")
# Requests of an instance: the setting CONCURRENCY.
AT_ONCE = 4


def records_of(project: Project) -> dict[str, list[dict[str, object]]]:
    async def read() -> dict[str, list[dict[str, object]]]:
        async with shoal.connect(project.ledger) as fleet:
            return {
                stage: [record async for record in fleet.records("latest", stage=stage)]
                for stage in ("username", "profile", "social")
            }

    return asyncio.run(read())


async def kill_while_it_works(project: Project, worker: Command) -> int:
    """Kill an instance that holds records; returns how many it held."""
    held = (
        f"SELECT COUNT(*) FROM developers WHERE enrichment_status = 'PROCESSING' AND claimed_by LIKE '%-{worker.pid}-%'"
    )
    connection = await asyncpg.connect(project.ledger)  # before the instance is stopped, whose lease is short
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            worker.tell(signal.SIGSTOP)
            if count := await connection.fetchval(held):
                worker.kill()
                return int(count)
            worker.tell(signal.SIGCONT)
            await asyncio.sleep(0.05)
    finally:
        await connection.close()
    raise AssertionError(f"it never held a record:\n{worker.stderr}")


def test_one_of_the_instances_is_killed(fleet: Project, serve: Serve) -> None:
    site = serve(places=PEOPLE, latency=(0.02, 0.1), faults=FAULTS, limits=LIMITS)
    set_up(fleet, site, tokens=(*TOKENS, BAD_TOKEN), LOCATIONS="Suva, Fiji; Apia, Samoa")
    fleet.shoal("enqueue", "github")
    # Its items go to others soon. The lease of the others is long, so that none loses it while the machine is busy.
    killed = fleet.start("worker", "github", "--stage", "profile", SHOAL_LEASE="2")
    workers = {
        stage: [fleet.start("worker", "github", "--stage", stage) for _ in range(count - (stage == "profile"))]
        for stage, count in INSTANCES.items()
    }
    held = asyncio.run(kill_while_it_works(fleet, killed))
    assert [worker.wait(PATIENCE) for each in workers.values() for worker in each] == [0] * (
        sum(INSTANCES.values()) - 1
    )

    people = sum(count for _, count in PEOPLE)
    missing = sum(number % 40 == 5 for number in range(people))
    assert statuses(fleet) == {"ENHANCED": people - missing, "FAILED": missing}
    assert fleet.is_sound()
    visits, records = site.log(), records_of(fleet)
    report = make_site_report(site.site, visits, records, fewest=people - missing)
    # Whoever was being asked for when the instance was killed is asked for again, and nobody else.
    again = [login for login, times in profile_answers(visits).items() if times > 1]
    assert len(again) <= held
    assert {login for login, times in social_answers(site.site.people, visits).items() if times > 1} == set()
    assert [problem for problem in report.problems if "answered twice in the stage profile" not in problem] == []
    assert report.figures["spent"] == 0
    assert_calls_within_limits(visits)
    assert "No more records to claim" in "".join(worker.stderr for worker in workers["social"])  # S0.22


def assert_calls_within_limits(visits: Sequence[Visit]) -> None:
    """No token was answered "limit exceeded"; the one that is refused was soon left alone."""
    over = [visit for visit in visits if visit.status == 403 and visit.note.split()[-1] == "0"]
    used_up = Counter(visit.note.split()[1] for visit in over)
    assert len(over) <= len(TOKENS), f"calls beyond the limit: {used_up}"
    bad = [visit for visit in visits if visit.status == 401]
    assert 0 < len(bad) <= 3 * sum(INSTANCES.values())


def assert_spent(visits: Sequence[Visit], *, instances: int) -> None:
    """After the site has said that nothing remains of a token, each instance sends no more than can be under way."""
    stops, stopped, late = 0, set(), 0
    for visit in visits:
        budget, words = tuple(visit.note.split()[1:3]), visit.note.split()[3:]
        late += "spent" in words
        if words[:1] != ["0"]:
            stopped.discard(budget)
        elif budget not in stopped:
            stopped.add(budget)
            stops += 1
    assert stops
    assert late <= stops * instances * AT_ONCE, f"{late} requests after tokens were spent {stops} times"


def test_tokens_that_another_program_uses_up_rest_until_their_reset(fleet: Project, serve: Serve) -> None:
    """403 with nothing remaining: the token rests, the others go on; nobody is lost, nothing is charged."""
    site = serve(places=(("Suva, Fiji", 24),), faults=("exhausted",), limits={"core": (60, 2), "search": (30, 2)})
    set_up(fleet, site, LOCATIONS="Suva, Fiji", MAX_RETRIES="0")
    fleet.shoal("enqueue", "github")
    workers = [fleet.start("worker", "github") for _ in range(2)]
    assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
    assert statuses(fleet) == {"ENHANCED": 24}
    refused = [visit for visit in site.log() if visit.status == 403]
    # In each window of two seconds each token may be refused once to each worker; what was under way then comes too.
    windows = 1 + (site.log()[-1].at - site.log()[0].at) / 2
    assert 1 <= len(refused) <= max(len(site.log()) / 10, 2 * len(TOKENS) * windows)
    report = make_site_report(site.site, site.log(), records_of(fleet), fewest=24)
    assert_spent(site.log(), instances=2)
    assert [problem for problem in report.problems if "known to be spent" not in problem] == []


@pytest.mark.slow
def test_five_instances_are_four_times_as_fast_as_one(tmp_path: Path, serve: Serve, migrated_postgres: str) -> None:
    """S0.30: with enough tokens. The site takes most of the time; on a busy machine the measurement is repeated."""
    users, seconds = (30, 0.4) if LONG else (10, 0.3)
    site = serve(places=(("Suva, Fiji", 600),), latency=(seconds, seconds))
    with Project(tmp_path, migrated_postgres) as project:
        set_up(project, site, USERNAMES_FILE="names.txt", CONCURRENCY="1")
        names = [site.site.people.login(number) for number in range(600)]
        (project.folder / "names.txt").write_text("\n".join(names))
        project.shoal("enqueue", "github")
        worker = ("worker", "github", "--stage", "profile", "--forever")
        project.start(*worker)
        one = rate_of(site, users, workers=1)
        for _ in range(4):
            project.start(*worker)
        five = [rate_of(site, 5 * users, workers=5)]
        while five[-1] < 4 * one and len(five) < 3:
            five.append(rate_of(site, 5 * users, workers=5))
    assert max(five) >= 4 * one, f"{one:.2f} and {five} developers a second"


def rate_of(site: Site, wanted: int, *, workers: int) -> float:
    """Developers per second, when so many instances ask at once."""
    began = time.monotonic()
    while True:
        starts = sorted(visit.at for visit in site.log() if visit.path.startswith("/users/") and visit.at > began)
        # Each gap is the time in which so many instances ask once; the first ones are from before all of them worked.
        gaps = [later - earlier for earlier, later in zip(starts, starts[workers:], strict=False)]
        if len(gaps) >= wanted:
            return workers / statistics.median(gaps[-wanted // 2 :])
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.05)
