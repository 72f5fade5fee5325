"""A crawl: pages that are not wanted, and pages that several links lead to, each visited once."""

import json
from collections import Counter

from shoal.model.item import ItemState
from tests.support.project import Project
from tests.support.site import Site

UNWANTED = """
    shop = Scraper("shop")

    @shop.stage
    async def page(page: Page):
        yield {"url": page.url}
        if page.url.endswith("/3"):
            raise Skipped("not in English")
"""


def test_skipped_items_are_counted_and_listed_and_are_no_failures(either: Project) -> None:
    either.write(UNWANTED)
    with Site(robots="User-agent: *\nDisallow: /page/2\n") as site:
        urls = either.urls(f"{site.url}/page/{n}" for n in (1, 2, 3))
        summary = either.shoal("run", "shop.py", "--urls-file", urls, "--max-dead", "0").stdout
        visited = [visit.path for visit in site.visits()]
    assert "1 done, 0 dead, 2 skipped, 0 left; 1 record" in summary
    assert sorted(visited) == ["/page/1", "/page/3", "/robots.txt"]
    skipped = {item.id: item.error for item in either.items() if item.state is ItemState.SKIPPED}
    assert sorted(error or "" for error in skipped.values()) == [
        "not in English",
        f"robots.txt of 127.0.0.1:{site.port} forbids it",
    ]
    listed = either.shoal("items", "ls", "latest", "--state", "skipped", "--json").stdout.splitlines()
    assert {json.loads(line)["item_id"] for line in listed} == set(skipped)
    (number, why), *_ = skipped.items()
    assert f"It is skipped: {why}." in either.shoal("items", "why", "latest", str(number)).stdout
    stats = json.loads(either.shoal("stats", "shop", "latest:shop", "--json").stdout)
    assert (stats["completed"], stats["failed"], stats["remaining"], stats["skipped"], stats["total"]) == (
        1,
        0,
        0,
        2,
        3,
    )
    status = json.loads(either.shoal("status", "--json").stdout)
    assert (status["skipped"], status["dead"], status["ended_share"], status["ok"]) == (2, 0, 1.0, 1.0)
    assert "skipped 2" in either.shoal("status", "latest").stdout
    retried = either.shoal("items", "retry", "latest", str(number), "--yes")
    assert "Retried: 1 item " in retried.stdout
    assert "No live worker serves the run: `shoal run shop.py" in " ".join(retried.stderr.split())
    assert "Retried: 1 item " in either.shoal("items", "retry", "latest", "--state", "skipped", "--yes").stdout
    assert either.counts().ready + either.counts().waiting == 2
    assert either.is_sound()


CRAWL = """
    shop = Scraper("shop")

    @shop.stage(follow=True, concurrency=8)
    async def page(page: Page):
        yield {"url": page.url}
"""


def test_a_crawl_that_is_killed_stores_each_page_once(either: Project) -> None:
    """Each page is linked to, and two other URLs redirect to it. What ran when the workers died is fetched again."""
    numbers = range(1, 41)
    links = [path for n in numbers for path in (f"/moved/page/{n}", f"/page/{n}", f"/moved/moved/page/{n}")]
    home = "".join(f'<a href="{path}">x</a>' for path in sorted(links, key=lambda path: path[::-1]))
    either.write(CRAWL)
    with Site(pages=40, delay=0.02, extra={"/home": home}) as site:
        either.shoal("enqueue", "shop.py", "--urls-file", either.urls([f"{site.url}/home"]))
        workers = [either.start("worker", "shop.py", "--set", "lease=2") for _ in range(2)]
        site.wait_until(lambda visits: len(visits) > 40)
        for worker in workers:
            worker.kill()
        killed_at = Counter(visit.path for visit in site.visits())
        either.shoal("worker", "shop.py", timeout=120)
        visits = Counter(visit.path for visit in site.visits())
    pages = {f"/page/{n}" for n in numbers}
    stored = Counter("/" + record["url"].split("/", 3)[3] for record in either.export())
    assert stored == dict.fromkeys({"/home", *pages}, 1)
    fetched_again = sum(visits[page] - 1 for page in pages)
    assert fetched_again <= 16, "at most what the two workers held"
    assert all(visits[page] <= killed_at[page] + 1 for page in pages)
    counts = either.counts()
    assert (counts.done, counts.dead, counts.remaining) == (41, 0, 0)
    assert either.is_sound()
