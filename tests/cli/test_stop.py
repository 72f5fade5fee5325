"""Stopping and going on: Ctrl-C, SIGTERM, `kill -9`. Nothing is lost, and nothing that was stored is fetched again."""

import re
import signal
import time
from pathlib import Path

import pytest

from shoal.model.item import ItemState
from shoal.model.run import RunState
from tests.support.postgres import PostgresServer, unique_name
from tests.support.project import Command, Project
from tests.support.site import Site, Visit, per_path

# So many and so slow that a run is not over when the test is seconds late with each of its signals.
PAGES, PAGE_SECONDS = 160, 0.1
SCRAPER = """
    shop = Scraper("shop")

    @shop.stage(concurrency=4)
    async def page(page: Page):
        yield {"number": int(page.css(".number::text").get())}
"""
SIGNS_OF_LIFE = 8


def page_urls(site: Site, pages: int = PAGES) -> list[str]:
    return [f"{site.url}/page/{number}" for number in range(1, pages + 1)]


def fetched(visits: list[Visit]) -> list[Visit]:
    return [visit for visit in visits if visit.path.startswith("/page/")]


def done_paths(project: Project) -> set[str]:
    return {"/" + (item.url or "").split("/", 3)[3] for item in project.items() if item.state is ItemState.DONE}


def stop_after(site: Site, command: Command, more: int, *signals: signal.Signals) -> int:
    """Let the site see so many more pages, then send the signals. Returns the exit code."""
    seen = len(fetched(site.visits()))
    site.wait_until(lambda visits: len(fetched(visits)) >= seen + more, timeout=20)
    for number in signals:
        command.tell(number)
    return command.wait()


def test_run_stop_resume_kill_resume(either: Project) -> None:
    """S1.2, S1.4, S1.15, S1.16: whatever ends it, each record comes once and no stored page is fetched again."""
    either.write(SCRAPER)
    # A page is only counted as fetched again if that fetch began after its commit was seen.
    committed: list[tuple[set[str], float]] = []
    lease = ("--set", "lease=3")
    with Site(pages=PAGES, delay=PAGE_SECONDS) as site:
        urls = either.urls(page_urls(site))
        first = either.start("run", "shop.py", "--urls-file", urls, *lease)
        assert stop_after(site, first, SIGNS_OF_LIFE, signal.SIGINT) == 130
        assert "--resume" in first.stderr
        committed.append((done_paths(either), time.monotonic()))
        assert either.counts().leased == 0

        second = either.start("run", "shop.py", "--resume", *lease)
        assert stop_after(site, second, SIGNS_OF_LIFE, signal.SIGTERM) == 130
        committed.append((done_paths(either), time.monotonic()))
        assert either.counts().leased == 0

        third = either.start("run", "shop.py", "--resume", *lease)
        assert stop_after(site, third, SIGNS_OF_LIFE, signal.SIGKILL) == -9
        committed.append((done_paths(either), time.monotonic()))

        either.shoal("run", "shop.py", "--resume", *lease)
        visits = fetched(site.visits())
    assert sorted(record["number"] for record in either.export()) == list(range(1, PAGES + 1))
    assert either.run().state is RunState.FINISHED
    assert either.is_sound()
    assert [len(paths) for paths, _ in committed] == sorted({len(paths) for paths, _ in committed})
    for paths, seen_at in committed:
        assert [visit.path for visit in visits if visit.start > seen_at and visit.path in paths] == []
    # A drain gives back only what it has not begun: what was fetched twice was in the air at the kill.
    twice = [path for path, found in per_path(visits).items() if len(found) > 1]
    assert len(twice) <= 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_running_items_end(project: Project, number: signal.Signals) -> None:
    """S3.12: what has begun is finished and stored; the rest goes back; then the process is gone."""
    project.write(SCRAPER.replace('int(page.css(".number::text").get())', "page.url"))
    with Site() as site:
        urls = project.urls(f"{site.url}/slow/0.8/{n}" for n in range(60))
        command = project.start("run", "shop.py", "--urls-file", urls)
        site.wait_until(lambda visits: sum(visit.path.startswith("/slow") for visit in visits) >= 4)
        command.tell(number)
        assert command.wait() == 130
        gone_at = time.monotonic()
        slow = [visit for visit in site.visits() if visit.path.startswith("/slow")]
    assert gone_at - max(visit.end or 0.0 for visit in slow) < 10
    counts = project.counts()
    assert counts.done == len(slow) < 60
    assert (counts.leased, counts.dead) == (0, 0)
    assert "Stopping" in command.stderr


def test_the_second_signal_gives_back_at_once(either: Project) -> None:
    either.write(SCRAPER)
    with Site() as site:
        urls = either.urls(f"{site.url}/slow/20/{n}" for n in range(6))
        command = either.start("run", "shop.py", "--urls-file", urls)
        site.wait_until(lambda visits: sum(visit.path.startswith("/slow") for visit in visits) == 4)
        command.tell(signal.SIGINT)
        command.wait_until_it_says("Stopping")
        told_at = time.monotonic()
        command.tell(signal.SIGINT)
        assert command.wait() == 130
        assert time.monotonic() - told_at < 10, "a page takes 20 s"
    counts = either.counts()
    assert (counts.leased, counts.done, counts.dead, counts.remaining) == (0, 0, 0, 6)
    # What was given back is not charged.
    assert {item.tries for item in either.items()} == {0}
    assert either.is_sound()


def test_the_drain_time_bounds_the_wait(project: Project) -> None:
    project.write(SCRAPER)
    with Site() as site:
        urls = project.urls(f"{site.url}/slow/20/{n}" for n in range(6))
        command = project.start("run", "shop.py", "--urls-file", urls, "--set", "drain=0.5")
        site.wait_until(lambda visits: sum(visit.path.startswith("/slow") for visit in visits) == 4)
        command.tell(signal.SIGTERM)
        told_at = time.monotonic()
        assert command.wait() == 130
        assert 0.5 <= time.monotonic() - told_at < 10, "a page takes 20 s"
    assert project.counts().leased == 0


def test_a_killed_worker_is_taken_over_within_its_lease(fleet: Project) -> None:
    """S0.8, S1.16: another worker that was there all along gets the dead one's items, and stores them once."""
    fleet.write(SCRAPER)
    with Site(pages=30, delay=0.05) as site:
        urls = fleet.urls(page_urls(site, 30))
        fleet.shoal("enqueue", "shop.py", "--urls-file", urls)
        doomed = fleet.start("worker", "shop.py", "--set", "lease=2")
        site.wait_until(lambda visits: len(fetched(visits)) >= SIGNS_OF_LIFE)
        heir = fleet.start("worker", "shop.py", "--set", "lease=2")
        doomed.kill()
        killed_at = time.monotonic()
        assert heir.wait() == 0
        assert time.monotonic() - killed_at < 2 + 20
    assert "No more records to claim." in heir.stderr
    counts = fleet.counts()
    assert (counts.done, counts.leased) == (30, 0)
    numbers = sorted(record["number"] for record in fleet.export())
    assert numbers == list(range(1, 31))
    assert fleet.is_sound()


def test_a_run_that_resumes_a_paused_one_says_who_had_paused_it(project: Project) -> None:
    with Site(pages=3) as site:
        project.write(SCRAPER + f'    shop.start("{site.url}/page/1", "{site.url}/page/2", "{site.url}/page/3")\n')
        assert "was paused" not in project.shoal("run", "shop.py", "--limit", "1").stderr
        run = project.run().id
        project.shoal("runs", "pause", run)
        said = project.shoal("run", "shop.py", "--limit", "1").stderr
        who = re.search(rf"Run {run} of shop was paused by (\S+) at [-0-9]+ [0-9:]+ UTC, and is resumed now\.", said)
        assert who is not None, said
        assert "@" in who[1]
        project.shoal("runs", "pause", run)
        assert f"Run {run} of shop was paused by" in project.shoal("enqueue", "shop.py").stderr
        assert "was paused" not in project.shoal("run", "shop.py").stderr


def test_a_run_that_was_left_is_paused_with_the_reason(project: Project) -> None:
    """`runs ls` alone would not say why the run of another scraper stands still."""
    with Site(pages=3) as site:
        project.write(SCRAPER + f'    shop.start("{site.url}/page/1", "{site.url}/page/2")\n')
        project.shoal("run", "shop.py", "--limit", "1")
        left = project.run().id
        other = (SCRAPER + f'    shop.start("{site.url}/page/3")\n').replace('Scraper("shop"', 'Scraper("other"')
        project.write(other, "other.py")
        project.shoal("run", "other.py")
        why = project.shoal("items", "why", left).stdout
    assert "is paused by shoal run: nobody worked on it when the run " in why


def test_an_unfinished_run_is_taken_up_without_being_asked(project: Project) -> None:
    """S1.4: plain `shoal run` goes on; --fresh starts a new run and sets the old one aside."""
    with Site(pages=3) as site:
        project.write(SCRAPER + f'    shop.start("{site.url}/page/1", "{site.url}/page/2", "{site.url}/page/3")\n')
        project.shoal("run", "shop.py", "--limit", "1")
        first = project.run()
        assert (first.state, project.counts().done) == (RunState.ACTIVE, 1)
        said = project.shoal("run", "shop.py", "--limit", "1").stderr
        assert f"Run {first.id} of shop continues: 2 items are left" in said
        assert project.counts(first.id).done == 2
        said = project.shoal("run", "shop.py", "--fresh").stderr
        second = project.run()
        assert second.id != first.id
        assert first.id in said
        assert (project.run(first.id).state, second.state) == (RunState.PAUSED, RunState.FINISHED)
        # The set-aside run is whole: it goes on where it was.
        project.shoal("runs", "resume", first.id)
        project.shoal("worker", "shop.py", "--run-id", first.id)
        assert project.counts(first.id).done == 3


STUBBORN = """
    shop = Scraper("shop")

    @shop.stage(lane=None)
    async def clings(item: Item, log: Log):
        log.info("clinging")
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    @shop.stage(lane=None)
    def sleeps(item: Item, log: Log):
        log.info("sleeping")
        time.sleep(60)

    @shop.stage(lane=None)
    async def blocks(item: Item, log: Log):
        log.info("blocking")
        await asyncio.sleep(0.2)
        time.sleep(60)

    shop.start(STAGE.item(key="one"))
"""


@pytest.mark.parametrize(
    ("stage", "word", "signals"),
    [("clings", "clinging", 2), ("sleeps", "sleeping", 2), ("blocks", "event loop blocked", 3)],
)
def test_no_handler_can_keep_the_process(project: Project, stage: str, word: str, signals: int) -> None:
    """One that ignores its cancellation, one that sleeps in a thread; for one that blocks the loop it takes a third."""
    project.write(STUBBORN.replace("STAGE", stage))
    command = project.start("run", "shop.py", "--set", "lease=1")
    command.wait_until_it_says(word)
    for _ in range(signals):
        command.tell(signal.SIGINT)
        command.wait_until_received(signal.SIGINT)
        time.sleep(0.2)
    assert command.wait(timeout=40) == 130, "the handlers take 60 s"
    # Where the process could still speak to the ledger, nothing is left leased; else the lease ends by itself.
    if stage != "blocks":
        assert project.counts().leased == 0


def test_a_database_that_restarts_costs_nothing(tmp_path: Path, durable_postgres: PostgresServer) -> None:
    """Law 1: PostgreSQL crashes and comes back under a run; the run waits for it and ends complete."""
    name = unique_name()
    durable_postgres.create_database(name)
    with Project(tmp_path, ledger=durable_postgres.url(name)) as project, Site(pages=PAGES, delay=PAGE_SECONDS) as site:
        project.write(SCRAPER)
        project.shoal("db", "migrate")
        command = project.start("run", "shop.py", "--urls-file", project.urls(page_urls(site)))
        site.wait_until(lambda visits: len(fetched(visits)) >= SIGNS_OF_LIFE)
        durable_postgres.stop("immediate")
        durable_postgres.start()
        assert command.wait() == 0, command.stderr
        assert sorted(record["number"] for record in project.export()) == list(range(1, PAGES + 1))
        assert project.is_sound()
    durable_postgres.drop_database(name)
