"""Politeness as the site sees it: whoever works on it, however many they are, whatever happens to them."""

import json
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from shoal.model.item import ItemState
from tests.support.project import Command, Project
from tests.support.site import HOSTS, Site, Visit, closest_starts, most_at_once, of_host, per_path

DELAY = 0.2
LIMIT = 3
# What may lie between the moment that a request may leave and its arrival; on a busy machine that varies.
LEEWAY = 0.04
SCRAPER = f"""
    shop = Scraper("shop")

    @shop.stage(rate="{1 / DELAY:g}/s", concurrency={LIMIT})
    async def page(page: Page, http: Http):
        if "/extra/" in page.url:
            await asyncio.gather(*(http.get(page.join(f"/page/{{n}}")) for n in range(1, 5)))
        yield {{"url": page.url}}
"""
STEADY, SLOW, REDIRECTING, ASKING = HOSTS[:4]
EXTRA = {f"/extra/{n}": "<p>ask for more</p>" for n in range(3)}


def mixed_urls(site: Site) -> list[str]:
    """Pages that the delay holds back, slow ones that the limit does, redirects, and handlers that ask for more."""
    return [
        *(f"{site.url_of(STEADY)}/page/{n}" for n in range(1, 13)),
        *(f"{site.url_of(SLOW)}/slow/1.2/{n}" for n in range(7)),
        *(f"{site.url_of(REDIRECTING)}/redirect/{n}" for n in (3, 2, 1)),
        *(f"{site.url_of(ASKING)}{path}" for path in EXTRA),
    ]


def check_manners(visits: list[Visit], *, delay: float = DELAY, limit: int = LIMIT) -> None:
    for host in HOSTS:
        assert most_at_once(visits, host) <= limit, f"{host} saw too many at once"
        assert closest_starts(visits, host) >= delay - LEEWAY, f"{host} saw starts too close: {starts(visits, host)}"


def starts(visits: list[Visit], host: str) -> list[tuple[float, str]]:
    return [(round(visit.start % 1000, 3), visit.path) for visit in of_host(visits, host)]


@pytest.mark.parametrize("workers", [1, 4])
def test_limit_and_delay_of_a_host(either: Project, workers: int) -> None:
    """Law 5: no host sees more at once than its limit nor closer starts than its delay, robots.txt included."""
    either.write(SCRAPER)
    with Site(extra=EXTRA) as site:
        either.shoal("enqueue", "shop.py", "--urls-file", either.urls(mixed_urls(site)))
        fleet = [either.start("worker", "shop.py", "--batch-size", "500", "-j", "64") for _ in range(workers)]
        site.wait_until(lambda visits: len(visits) >= 12, timeout=20)
        interrupt_for_a_while(fleet[-1], 0.5)
        assert [command.wait() for command in fleet] == [0] * workers
        visits = site.visits()
    check_manners(visits)
    assert most_at_once(visits, SLOW) == LIMIT, "the limit was never put to the test"
    assert len(per_path(visits)["/redirect/0"]) == 3
    counts = either.counts()
    assert (counts.done, counts.results) == (25, 25)
    assert either.is_sound()


def interrupt_for_a_while(command: Command, seconds: float) -> None:
    command.tell(signal.SIGSTOP)
    time.sleep(seconds)
    command.tell(signal.SIGCONT)


def test_a_worker_that_slept_through_its_lease_starts_nothing(either: Project) -> None:
    """What it holds belongs to others by then: it must ask before it visits anybody."""
    either.write(SCRAPER.replace(f'rate="{1 / DELAY:g}/s", ', ""))
    with Site(delay=0.25, pages=200) as site:
        either.shoal("enqueue", "shop.py", "--urls-file", either.urls(f"{site.url}/page/{n}" for n in range(1, 25)))
        sleeper = either.start("worker", "shop.py", "--set", "lease=1", "-j", "1", "--batch-size", "3")
        site.wait_until(lambda visits: len(visits) >= 3)
        stop_outside_transactions(sleeper, either)
        heir = either.start("worker", "shop.py", "--set", "lease=1")
        # Once more pages are under way than the sleeper leaves room for, its leases have gone to the heir.
        site.wait_until(lambda visits: most_at_once(visits[4:]) == LIMIT, timeout=20)
        sleeper.tell(signal.SIGCONT)
        assert [sleeper.wait(), heir.wait()] == [0, 0]
        visits = site.visits()
    assert most_at_once(visits) <= LIMIT
    assert len(either.export()) == 24
    assert either.is_sound()


def stop_outside_transactions(command: Command, project: Project) -> None:
    """Stop a worker while it does not hold the lock of a SQLite file: nobody else could work then."""
    command.tell(signal.SIGSTOP)
    while not project.on_postgres and is_locked(project.ledger):
        command.tell(signal.SIGCONT)
        time.sleep(0.02)
        command.tell(signal.SIGSTOP)


def is_locked(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        connection.execute("rollback")
        return False


CRAWL_DELAY = "User-agent: *\nCrawl-delay: 0.25\nDisallow: /page/7\n"
UNKNOWING = """
    shop = Scraper("shop")

    @shop.stage
    async def page(page: Page):
        yield {"url": page.url}
"""


def test_a_crawl_delay_that_only_robots_txt_knows(project: Project) -> None:
    """The file is read before the first page, it counts as a visit, and what it says holds from then on."""
    project.write(UNKNOWING)
    with Site(robots=CRAWL_DELAY) as site:
        urls = project.urls(f"{site.url}/page/{n}" for n in range(1, 11))
        project.shoal("run", "shop.py", "--urls-file", urls, "--max-dead", "0")
        visits = site.visits()
    assert visits[0].path == "/robots.txt"
    assert len(visits) == 10
    assert closest_starts(visits) >= 0.25 - LEEWAY, starts(visits, HOSTS[0])
    assert "/page/7" not in per_path(visits)
    (forbidden,) = [item for item in project.items() if item.state is ItemState.SKIPPED]
    assert forbidden.outcome == "skipped"
    assert "robots.txt" in (forbidden.error or "")


def test_a_crawl_delay_with_several_workers(fleet: Project) -> None:
    """Nobody can know the delay before somebody has read the file; from the first page on everybody keeps it."""
    fleet.write(UNKNOWING)
    with Site(robots=CRAWL_DELAY) as site:
        urls = fleet.urls(f"{site.url}/page/{n}" for n in range(8, 18))
        fleet.shoal("enqueue", "shop.py", "--urls-file", urls)
        first = fleet.start("worker", "shop.py")
        site.wait_until(lambda visits: len(visits) >= 2)
        others = [fleet.start("worker", "shop.py") for _ in range(3)]
        assert [command.wait() for command in (first, *others)] == [0] * 4
        visits = site.visits()
    assert closest_starts(visits) >= 0.25 - LEEWAY, starts(visits, HOSTS[0])
    assert fleet.counts().done == 10


def visit_by_detour(project: Project, host: str, path: str, own: int) -> list[Visit]:
    """Visit a host with items of its own and with redirects from three other hosts, and return what it saw."""
    project.write(SCRAPER)
    with Site() as site:
        urls = [
            *(f"{site.url_of(host)}{path}/{n}" for n in range(1, own + 1)),
            *(f"{site.url_of(sender)}/elsewhere/{host}{path}/9" for sender in HOSTS[6:9]),
        ]
        project.shoal("run", "shop.py", "--urls-file", project.urls(urls))
        assert project.counts().done == own + 3
        return of_host(site.visits(), host)


def test_redirects_to_another_host_keep_its_delay(project: Project) -> None:
    """Who is sent to a host by another one is a visitor like all others."""
    assert closest_starts(visit_by_detour(project, STEADY, "/page", own=6)) >= DELAY - LEEWAY


def test_a_full_host_does_not_bunch_those_who_are_sent_to_it(project: Project) -> None:
    """Places that come free at the same moment are no reason to start at the same moment."""
    project.write(SCRAPER)
    # Three that come one after another and end together; three more that come before that.
    plan = [(0.0, 2.0), (0.3, 1.7), (0.6, 1.4), (0.9, 0.1), (0.9, 0.1), (0.9, 0.1)]
    with Site() as site:
        lines = [
            json.dumps({"url": f"{site.url_of(sender)}/elsewhere/{SLOW}/slow/{seconds}/{sender}", "delay": delay})
            for sender, (delay, seconds) in zip(HOSTS[2:8], plan, strict=True)
        ]
        project.shoal("run", "shop.py", "--urls-file", project.urls([f"{site.url_of(SLOW)}/page/1", *lines]))
        visits = of_host(site.visits(), SLOW)
    assert most_at_once(visits) <= LIMIT
    assert closest_starts(visits) >= DELAY - LEEWAY, starts(visits, SLOW)


def test_redirects_to_another_host_keep_its_limit(project: Project) -> None:
    assert most_at_once(visit_by_detour(project, SLOW, "/slow/1", own=6)) <= LIMIT


@pytest.mark.parametrize("workers", [1, 3])
def test_after_a_429_nobody_visits_until_it_is_over(either: Project, workers: int) -> None:
    """S0.25: not even with what was claimed before the site spoke; and the wait costs the item no attempt."""
    either.write(UNKNOWING)
    in_seconds, as_date = HOSTS[4], HOSTS[5]
    with Site(delay=0.1) as site:
        throttled = [f"{site.url_of(in_seconds)}/throttle/6", f"{site.url_of(as_date)}/throttle/6/date"]
        slow = [f"{site.url_of(SLOW)}/slow/0.4/{n}" for n in range(workers)]
        pages = [f"{site.url_of(host)}/page/{n}" for host in (in_seconds, as_date) for n in range(1, 6)]
        either.shoal("enqueue", "shop.py", "--urls-file", either.urls([*throttled, *slow, *pages]))
        # One slot and a large batch: pages wait in the worker's hands while it is busy elsewhere.
        fleet = [either.start("worker", "shop.py", "-j", "1", "--batch-size", "100") for _ in range(workers)]
        assert [command.wait() for command in fleet] == [0] * workers
        visits = site.visits()
    for host in (in_seconds, as_date):
        (refused,) = [visit for visit in of_host(visits, host) if visit.status == 429]
        # Others hear of it with the commit, which takes a moment, and more on a busy machine.
        closed = (refused.end or 0.0) + 3, refused.start + 6
        assert [visit.path for visit in of_host(visits, host) if closed[0] < visit.start < closed[1]] == []
    for path in ("/throttle/6", "/throttle/6/date"):
        assert [attempt.outcome for attempt in either.attempts()[path]] == ["throttled", "done"]
    assert either.counts().done == 12 + workers
    assert {item.tries for item in either.items()} == {1}


def test_two_scrapers_share_a_host(project: Project) -> None:
    """A host is one lane for every run of the ledger: its limit is not per scraper."""
    project.write(SCRAPER)
    project.write(SCRAPER.replace('Scraper("shop")', 'Scraper("other")'), "other.py")
    with Site(delay=0.3, pages=20) as site:
        urls = project.urls(f"{site.url}/page/{n}" for n in range(1, 7))
        both = [project.start("run", name, "--urls-file", urls) for name in ("shop.py", "other.py")]
        assert [command.wait() for command in both] == [0, 0]
        visits = site.visits()
    check_manners(visits)
    assert all(len(found) == 2 for path, found in per_path(visits).items() if path != "/robots.txt")
