"""The pool of a Yellow Pages project as its users have it: real processes, compared with the site's log.

Small in `make test`; with SHOAL_CHAOS=long all of 51 states, ten workers and fifty proxies.
"""

from __future__ import annotations

import asyncio
import csv
import datetime as dt
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shoal.demo.stand_in import StandInRequest, StandInResponse
from shoal.errors import InvalidSetting
from shoal.recipes.yellowpages.demo import (
    TargetEvidence,
    addresses_by_worker,
    banned_addresses,
    gaps_by_worker,
    hurried_workers,
    read_targets,
)
from shoal.recipes.yellowpages.stand_in import YellowPages
from tests.recipes.yellowpages.conftest import Directory, open_directory
from tests.support import LONG
from tests.support.browsers import children
from tests.support.pools import busy, until, workers
from tests.support.project import Project

WORKERS = 10 if LONG else 3
STATES = "all" if LONG else "CA,TX,NY,DC,VT,WY"
TARGETS = 51 * 3 * 4 if LONG else 6 * 2 * 2
SIZE = ("--cities-per-state", "3" if LONG else "2", "--max-categories", "4" if LONG else "2")
PROXIES = {"proxies": 50, "dead": 5, "flaky": 3} if LONG else {"proxies": 12, "dead": 1, "flaky": 1}
# Seconds between two requests of a worker.
DELAY = (0.25, 0.4)
# So many visits of an address are between two captchas, which is more than a target has: no address has two in a row.
CAPTCHA_EVERY = 10 if LONG else 5
FAULTS = ("captcha", "limits") if LONG else ("captcha",)
# A start that the ledger has reserved may be used so many seconds later.
LATE = 0.1
PATIENCE = 600.0 if LONG else 120.0
POOL = ("pool", "yellowpages", "--yes", "--stagger", "0")


def generate(directory: Directory, *more: str) -> str:
    return directory.python("generate_city_targets.py", "--states", STATES, *SIZE, *more)


def check_everything_is_done(directory: Directory) -> None:
    """Each target is done once, and the companies are those of the pages."""
    targets = directory.ask(read_targets)
    assert Counter(target.state for target in targets) == {"done": TARGETS}
    assert {target.done for target in targets} == {1}
    found = Counter(record["company"] for record in directory.project.export())
    truth = directory.site.site.companies_of((target.city, target.category, target.pages) for target in targets)
    assert set(found) == truth
    assert set(found.values()) == {1}


def test_the_project_has_tests_that_pass(project: Project) -> None:
    project.shoal("init", ".", "--recipe", "yellowpages")
    project.run_own_tests()


def test_a_pool_with_proxies(either: Project) -> None:
    """S3.1, S3.3, S3.5, S3.6, S3.8, S3.11, S3.14, S3.15, S3.17, S3.18, S3.25, S3.26"""
    site = YellowPages(faults=FAULTS, captcha_every=CAPTCHA_EVERY)
    options = {"WORKER_COUNT": str(WORKERS), "PROXY_BLACKLIST_THRESHOLD": "2" if not LONG else "10"}
    with open_directory(either, site, **PROXIES, delay=DELAY, **options) as directory:  # type: ignore[arg-type]
        assert f"{TARGETS} new" in generate(directory)
        assert f"0 new, {TARGETS} there before" in generate(directory), "the generator may be repeated"
        statuses = dict(query(either, "select status, count(*) from targets group by status"))
        assert statuses == {"planned": TARGETS}
        said = either.shoal(*POOL, timeout=PATIENCE)
        check_everything_is_done(directory)
        statuses = dict(query(either, "select status, count(*) from targets group by status"))
        assert statuses == {"done": TARGETS}
        ((accepted, rejected),) = query(either, "select sum(accepted), sum(rejected) from targets")
        assert f"counted: accepted {accepted:,}, rejected {rejected:,}" in said.stdout
        ((companies,),) = query(either, "select count(*) from companies")
        assert companies == len(directory.project.export())

        targets = directory.ask(read_targets)
        shares = addresses_by_worker(targets)
        each = len(directory.proxies.addresses) // WORKERS
        assert all(len(share) <= each for share in shares.values())
        assert not [address for address, users in Counter(a for s in shares.values() for a in s).items() if users > 1]
        gaps = gaps_by_worker(directory.site.log(), directory.proxies, WORKERS)
        assert len(gaps) == WORKERS
        assert hurried_workers(gaps, DELAY[0]) == []
        assert crowded_workers(targets, directory.site.site, DELAY[0]) == set()
        notes = Counter(visit.note for visit in directory.site.log())
        assert notes["captcha"] >= WORKERS, notes
        banned = directory.ask(banned_addresses)
        assert directory.proxies.dead <= banned <= directory.proxies.dead | directory.proxies.flaky
        assert not {visit.peer for visit in directory.site.log()} - set(directory.proxies.addresses), (
            "none goes directly"
        )

        names = {f"state_worker_{number}.log" for number in range(WORKERS)}
        assert {file.name for file in (directory.folder / "logs").iterdir()} == {
            *names,
            "state_worker_pool.log",
            "proxy_pool.log",
        }
        logs = "".join(directory.log(name) for name in names)
        assert logs.count("Target completed") >= TARGETS
        assert "banned" in directory.log("proxy_pool.log")


def test_a_target_that_fails_is_failed_and_parked_after_a_second_round(either: Project) -> None:  # S3.5, S3.6
    site = YellowPages(faults=("outage",))
    tries = {"MAX_TARGET_RETRY_ATTEMPTS": "3", "PROXY_BLACKLIST_THRESHOLD": "1000", "WORKER_COUNT": "1"}
    with open_directory(either, site, proxies=2, **tries) as directory:  # type: ignore[arg-type]
        directory.python(
            "generate_city_targets.py", "--states", "VT", "--cities-per-state", "2", "--max-categories", "1"
        )
        left, other = sorted(item.key or "" for item in either.items())
        either.shoal("items", "cancel", "latest", "--key", other, "--yes")
        assert statuses_of(either) == {left: ("planned", 0), other: ("parked", 0)}, "an operator put it aside"
        pool = (*POOL, "--set", "backoff_cap=0.05")
        either.shoal(*pool, code=1, timeout=PATIENCE)
        assert statuses_of(either) == {left: ("failed", 4), other: ("parked", 0)}
        ((error,),) = query(either, "select last_error from targets where status = 'failed'")
        assert "503" in error
        either.shoal("items", "retry", "latest", "--state", "dead", "--yes")
        assert statuses_of(either) == {left: ("planned", 4), other: ("parked", 0)}
        either.shoal(*pool, code=1, timeout=PATIENCE)
        assert statuses_of(either) == {left: ("parked", 8), other: ("parked", 0)}
        directory.site.switch("outage", False)
        either.shoal("items", "retry", "latest", "--state", "dead", "--state", "cancelled", "--yes")
        either.shoal(*pool, timeout=PATIENCE)
        assert statuses_of(either) == {left: ("done", 9), other: ("done", 1)}


def statuses_of(project: Project) -> dict[str, tuple[str, int]]:
    """Status and attempts of each target."""
    rows = query(project, "select city_slug || '/' || category_slug, status, attempts from targets")
    return {key: (status, attempts) for key, status, attempts in rows}


def test_workers_that_do_not_keep_their_delay_are_found_and_one_late_request_is_no_reason() -> None:
    kept = [0.26, 0.31, 0.39, 0.28, 0.35] * 4
    late = [*kept[:10], 0.26 + 0.4, 0.01, *kept[12:]]
    none, further_pages, half = [0.01] * 20, [0.3, 0.01] * 10, [gap / 2 for gap in kept]
    gaps = dict(enumerate((kept, late, none, further_pages, half, [])))
    assert hurried_workers(gaps, 0.25) == [2, 3, 4]


def crowded_workers(targets: Sequence[TargetEvidence], site: YellowPages, least: float) -> set[str]:
    """The workers that made more requests than this delay lets them, by the times of their attempts in the ledger.

    All requests of attempts in a row lie between the claim of the first and the end of the last: however late they come
    to the site, that is time enough for the delays between them. How many requests were made is known of done attempts.
    """
    done: dict[str, list[tuple[dt.datetime, dt.datetime, int]]] = {}
    for target in targets:
        pages = site.pages_of(target.city, target.category, target.pages)
        made = pages + site.is_missing(target.city, target.category)  # then the search is asked
        for attempt in target.attempts:
            if attempt.outcome == "done" and attempt.worker is not None:
                done.setdefault(attempt.worker, []).append((attempt.claimed_at, attempt.ended_at, made))
    crowded = set()
    for worker, attempts in done.items():
        attempts.sort()
        for first, (began, _, _) in enumerate(attempts):
            requests, ended = 0, began
            for _, end, number in attempts[first:]:
                requests, ended = requests + number, max(ended, end)
                if (ended - began).total_seconds() + LATE < (requests - 1) * least:
                    crowded.add(worker)
    return crowded


def query(project: Project, sql: str) -> list[tuple[Any, ...]]:
    """The rows of the original's SQL, unchanged, on either ledger."""
    if not project.on_postgres:
        import sqlite3

        with sqlite3.connect(project.ledger) as connection:
            rows = connection.execute(sql).fetchall()
        connection.close()
        return rows
    import asyncio

    import asyncpg

    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(project.ledger)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    return asyncio.run(ask())


class HeldYellowPages(YellowPages):
    """Answers so many requests at once; the others when they are let go."""

    def __init__(self, answered: int) -> None:
        super().__init__()
        self._answered = answered
        self._let_go = threading.Event()
        self.waiting = 0  # requests
        self.watch(lambda: None)

    def let_go(self) -> None:
        self._let_go.set()

    def watch(self, on_request: Callable[[], None]) -> None:
        """Call this at each request that is answered from now on."""
        self._on_request = on_request

    async def answer(self, request: StandInRequest) -> StandInResponse:
        self._answered -= 1
        if self._answered < 0:
            self.waiting += 1
            while not self._let_go.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.02)
            self.waiting -= 1
        self._on_request()
        return await super().answer(request)


def test_ctrl_c_and_a_crash_leave_nothing_in_progress(project: Project) -> None:
    """S3.12, S3.19, S3.20: every worker finishes its target; the pool goes on where it was."""
    # A target has at most four pages, and each worker reads robots.txt: some targets are done when the site stops.
    site = HeldYellowPages(answered=6 * WORKERS)
    with open_directory(project, site, delay=(0.1, 0.2), WORKER_COUNT=str(WORKERS)) as directory:
        generate(directory)
        pool = project.start(*POOL)
        killed = busy(project, WORKERS)[0]
        until(project.counts, lambda counts: counts.done > 0, "no targets are done")
        until(lambda: site.waiting, lambda waiting: waiting >= WORKERS, "not all workers wait")
        os.kill(killed.pid, signal.SIGKILL)
        pool.wait_until_it_says("restart 1 of 5", PATIENCE)
        pool.tell(signal.SIGINT)
        pool.wait_until_it_says("Stopping: running items are finished", PATIENCE)
        site.let_go()
        assert pool.wait(PATIENCE) == 130
        counts = project.counts()
        assert counts.leased == 0
        assert counts.dead == 0
        assert "in_progress" not in dict(query(project, "select status, count(*) from targets group by status"))
        assert 0 < counts.remaining < TARGETS
        project.shoal(*POOL, timeout=PATIENCE)
        check_everything_is_done(directory)


if LONG:  # the pauses between the restarts take half a minute

    def test_a_worker_that_crashes_is_restarted_five_times(project: Project) -> None:  # S3.19
        # The other worker must not have done everything before the last restart.
        with open_directory(project, YellowPages(), delay=(0.2, 0.3), WORKER_COUNT="2") as directory:
            generate(directory)
            with (directory.folder / "listings.py").open("a") as file:
                file.write("\n\nimport os, sys\nif '--partition=CA' in sys.argv:\n    os.kill(os.getpid(), 9)\n")
            pool = project.start(*POOL, fresh=True)
            pool.wait_until_it_says("Worker 0 is given up after 5 restarts", PATIENCE)
            assert pool.wait(PATIENCE) == 0, "the other worker took its targets"
            check_everything_is_done(directory)


def test_a_browser_is_replaced_after_so_many_targets_and_after_a_crash(project: Project) -> None:
    """S3.16: a target counts once, however many pages it has."""
    options = {"WORKER_COUNT": "1", "YP_CLIENT": "browser", "MAX_TARGETS_PER_BROWSER": "3"}
    site = HeldYellowPages(answered=1)  # robots.txt
    with open_directory(project, site, proxies=2, **options) as directory:  # type: ignore[arg-type]
        cities = ("--states", "CA", "--cities-per-state", "4", "--max-categories", "2")
        directory.python("generate_city_targets.py", *cities)
        pool = project.start(*POOL)
        until(lambda: site.waiting, bool, "no page is open")
        (worker,) = workers(project)
        (killed,) = browser_processes(worker.pid)
        os.kill(killed, signal.SIGKILL)
        until(lambda: browser_processes(worker.pid), lambda found: killed not in found, "the browser is there")
        seen: set[int] = set()
        site.watch(lambda: seen.update(browser_processes(worker.pid)))
        site.let_go()
        assert pool.wait(PATIENCE) == 0, pool.stderr
        targets = directory.ask(read_targets)
        assert {target.state for target in targets} == {"done"}
        pages = sum(directory.site.site.pages_of(target.city, target.category, target.pages) for target in targets)
        assert pages // 3 > len(targets) // 3, "the numbers differ"
        assert len(seen) == 1 + len(targets) // 3, "one after the crash, and one after every three targets"
        assert {visit.peer for visit in directory.site.log()} <= set(directory.proxies.addresses)


def browser_processes(pid: int) -> set[int]:
    """The browsers below a process; not their own children."""
    started = ((child, command) for child, command in children(pid).items() if "--type=" not in command)
    return {child for child, command in started if "/chrom" in command.partition(" ")[0] and "crashpad" not in command}


def test_a_single_worker_uses_the_same_function_and_takes_large_cities_first(project: Project) -> None:
    """S3.4, S3.13: the order is that of the priorities, whatever the state."""
    with open_directory(project, YellowPages(), proxies=2) as directory:
        arguments = ("--states", "VT,CA,TX", "--cities-per-state", "7", "--max-categories", "1")
        directory.python("generate_city_targets.py", *arguments)
        directory.python("yellowpages.py")
        attempts = project.attempts()
        items = sorted(project.items(), key=lambda item: attempts[item.key or ""][0].claimed_at)
        assert [item.priority for item in items] == sorted(item.priority for item in items)
        assert {item.priority for item in items} == {1, 2, 3}
        assert {item.state.value for item in items} == {"done"}
        found = project.shoal("try", "yellowpages.py", f"{directory.site.url}/los-angeles-ca/plumbers", "--json").stdout
        assert "company" in found


def test_limits_of_the_site_slow_it_down_but_lose_nothing(project: Project) -> None:  # S3.20, S3.21
    # A worker that is told to wait a second does so; the next target is too fast again.
    site = YellowPages(faults=("limits",), min_gap=0.9, strikes=1_000)
    with open_directory(project, site, proxies=1, delay=(0.05, 0.1), WORKER_COUNT="1") as directory:
        directory.python("generate_city_targets.py", "--states", "VT", "--max-categories", "1")
        project.shoal(*POOL, timeout=PATIENCE)
        targets = directory.ask(read_targets)
        assert {target.state for target in targets} == {"done"}
        assert any(visit.status == 429 for visit in directory.site.log())
        assert all(target.done == 1 for target in targets)


def test_an_address_that_the_site_refuses_is_replaced_by_another(project: Project) -> None:  # S3.20
    # After one request that was too fast the address gets 403, also when the worker has waited the second it was told.
    site = YellowPages(faults=("limits",), min_gap=0.9, strikes=1, block_seconds=1.5)
    options = {"WORKER_COUNT": "1", "PROXY_ROTATION_ENABLED": "false"}
    with open_directory(project, site, proxies=3, delay=(0.3, 0.4), **options) as directory:  # type: ignore[arg-type]
        directory.python("generate_city_targets.py", "--states", "VT", "--max-categories", "1")
        project.shoal(*POOL, timeout=PATIENCE)
        targets = directory.ask(read_targets)
        assert {(target.state, target.done) for target in targets} == {("done", 1)}
        visits = directory.site.log()
        taken_over = [(visit, after) for visit, after in pairwise(visits) if visit.status == 403]
        assert taken_over
        assert {(after.path == visit.path, after.peer == visit.peer) for visit, after in taken_over} == {(True, False)}


def test_a_test_has_workers_0_and_1_with_their_own_states(project: Project) -> None:  # S3.2, S3.7
    with open_directory(project, YellowPages(), proxies=20, WORKER_COUNT="10") as directory:
        generate(directory)
        said = project.shoal("pool", "yellowpages", "--test", "--stagger", "0")
        assert "CA, MT, RI, MS, OK" in said.stdout
        assert "TX, DE, SD, NM, CT" in said.stdout
        done = {target.city[-2:] for target in directory.ask(read_targets) if target.state == "done"}
        own = {"ca", "mt", "ri", "ms", "ok", "tx", "de", "sd", "nm", "ct"}
        assert done == own & {city[-2:] for city in (target.city for target in directory.ask(read_targets))}
        gaps = gaps_by_worker(directory.site.log(), directory.proxies, 10)
        assert hurried_workers(gaps, DELAY[0]) == [0, 1], "they have no such delay here, and that is seen"
        assert len(crowded_workers(directory.ask(read_targets), directory.site.site, DELAY[0])) == 2, (
            "in the ledger too"
        )
        peers = {visit.peer for visit in directory.site.log()}
        assert peers <= set(directory.proxies.addresses[:4]), "workers 0 and 1 of ten have two of twenty each"


def test_the_checks_before_a_start(project: Project) -> None:  # S3.8, S3.22, S3.24
    with open_directory(project, YellowPages(), WORKER_COUNT="10", proxies=4) as directory:
        generate(directory)
        with (directory.folder / "data" / "webshare_proxies.txt").open("a") as file:
            file.write("host:notaport:user:pw-of-line-5\n")
        said = project.shoal("pool", "yellowpages", "--dry-run").stdout
        assert "10 workers have 51 states, each once" in said
        assert "state assignments" in said
        assert "webshare_proxies.txt is no proxy: behind the host there is no port" in " ".join(said.split())
        assert "line 5 of" in said
        assert "pw-of-line-5" not in said
        assert "4 proxies for 10 workers: some workers share one" in said
        assignments = directory.folder / "data" / "state_assignments.txt"
        text = assignments.read_text()
        assignments.write_text(text.replace("DC, ", "CA, "))
        assert "missing: DC" in directory.python("state_assignments.py", code=1)
        assert "assigned more than once: CA; missing: DC" in project.shoal(*POOL, code=2).stdout
        assignments.write_text(text)
        (directory.folder / ".env").rename(directory.folder / "env")
        assert "there is no .env" in project.shoal(*POOL, code=2).stdout


def test_the_generator_clears_and_refuses(project: Project) -> None:  # S3.25
    with open_directory(project, YellowPages(), proxies=2) as directory:
        directory.python("generate_city_targets.py", "--states", "ca, TX", "--max-categories", "1")
        assert {item.partition for item in project.items()} == {"CA", "TX"}
        said = directory.python("generate_city_targets.py", "--states", "VT", "--max-categories", "1", "--clear")
        assert "4 new, 0 there before" in said
        assert {item.partition for item in project.items()} == {"VT"}
        directory.python("generate_city_targets.py", "--states", "XX", code=2)
        directory.python("generate_city_targets.py", "--states", ",", code=2)
        own = directory.folder / "own.csv"
        own.write_text(
            "state_id,city,population\nvt,Barre,8500\nvt,St. Albans,6900\nvt,St Albans,6900\nPR,Ponce,137000\n"
        )
        mine = ("generate_city_targets.py", "--cities", "own.csv", "--max-categories", "2", "--clear", "--states")
        said = directory.python(*mine, "all,")
        assert "in none of the 51 states: 1 of PR" in said
        assert "4 new, 0 there before" in said
        assert "2 left out: their city or category is in the file twice" in said
        before = len(project.items())
        for wrong in (("CA",), ("all", "--cities", "gone.csv")):
            directory.python(*mine, *wrong, code=2)
        assert len(project.items()) == before, "nothing was cancelled"


def test_a_second_crawl_updates_companies_and_all_of_them_are_exported(either: Project) -> None:
    with open_directory(either, YellowPages(), proxies=2, WORKER_COUNT="2") as directory:
        targets = ("generate_city_targets.py", "--cities-per-state", "1", "--max-categories", "1", "--states")
        directory.python(*targets, "VT,WY")
        either.shoal(*POOL, timeout=PATIENCE)
        found = {record["company"] for record in either.export()}
        assert f"{len(found)} companies" in directory.python("export_companies.py", "first.csv")

        with (directory.folder / "listings.py").open("a") as file:
            file.write("\n\nold_listing = _listing\n\ndef _listing(page, result):\n")
            file.write("    import dataclasses\n\n")
            file.write("    return dataclasses.replace(old_listing(page, result), hours='new')\n")
        directory.python(*targets, "VT", "--clear")
        either.shoal(*POOL, timeout=PATIENCE)
        seen = {record["company"] for record in either.export()}
        assert 0 < len(seen) < len(found)
        directory.python("export_companies.py", "companies.csv")
        with (directory.folder / "companies.csv").open(newline="", encoding="utf-8") as file:
            rows = {row["company"]: row for row in csv.DictReader(file)}
        assert rows.keys() == found
        assert {company for company, row in rows.items() if row["hours"] == "new"} == seen
        assert dict(query(either, "select hours = 'new', count(*) from companies group by 1"))[True] == len(seen)


def test_no_targets_and_targets_of_another_site_are_refused_with_the_remedy(project: Project) -> None:
    with open_directory(project, YellowPages(), proxies=2, WORKER_COUNT="1") as directory:
        for command in (POOL, ("run", "yellowpages"), (*POOL, "--dry-run")):
            said = project.shoal(*command, code=2)
            assert "python generate_city_targets.py --states all" in said.stdout + said.stderr
        directory.python("generate_city_targets.py", "--states", "VT", "--max-categories", "1")
        file = directory.folder / ".env"
        before = file.read_text()
        file.write_text(before.replace(directory.site.url, "http://127.0.0.1:9"))
        for command in (POOL, ("run", "yellowpages")):
            said = project.shoal(*command, code=2)
            words = said.stdout + said.stderr
            assert f"are pages of {directory.site.url}, and YP_BASE_URL is http://127.0.0.1:9" in words
            assert "--clear" in words
        directory.python("generate_city_targets.py", "--states", "VT", code=2)
        assert directory.site.log() == [], "nothing was asked for"
        file.write_text(before.replace(directory.site.url, f"{directory.site.url}/"))  # the same site
        assert "0 new" in directory.python("generate_city_targets.py", "--states", "VT", "--max-categories", "1")
        project.shoal(*POOL, timeout=PATIENCE)
        said = project.shoal(*POOL, code=2)
        assert "--clear to crawl all again" in said.stdout + said.stderr


@pytest.mark.parametrize("rotate", ["true", "false"])
def test_settings_by_their_old_names(project: Project, rotate: str) -> None:  # S3.6, S3.27
    given = {
        "WORKER_COUNT": "4",
        "MAX_TARGETS_PER_BROWSER": "7",
        "PROXY_FILE": "data/others.txt",
        "PROXY_ROTATION_ENABLED": rotate,
        "PROXY_SELECTION_STRATEGY": "health_based",
        "PROXY_BLACKLIST_THRESHOLD": "3",
        "PROXY_BLACKLIST_DURATION_MINUTES": "5",
        "MAX_TARGET_RETRY_ATTEMPTS": "2",
    }
    with open_directory(project, YellowPages(), delay=(1.5, 2.5), **given) as directory:  # type: ignore[arg-type]
        from shoal.config import load_settings

        settings = load_settings({}, environ={}, folder=directory.folder).for_scraper("yellowpages")
        egress, stage = settings.egress["proxies"], settings.scraper("yellowpages").stages["crawl_single_target"]
        assert (settings.workers, settings.browser_targets, settings.retries) == (4, 7, 2)
        assert (egress.choose, egress.rotate, egress.ban_after, egress.ban_for) == (
            "healthiest",
            rotate == "true",
            3,
            300,
        )
        assert Path(egress.file or "").name == "others.txt"
        wrong = {"PROXY_SELECTION_STRATEGY": "random"}
        with pytest.raises(InvalidSetting, match="round_robin, healthiest \\(also as health_based\\) or sticky"):
            load_settings({}, environ=wrong, folder=directory.folder)
        assert (stage.delay, stage.concurrency) == ((1.5, 2.5), 4)
