"""A bug of the author is found out early, told once, and costs no pages."""

from tests.support.project import Project
from tests.support.site import Site, per_path

BROKEN = """
from shoal import Page, Scraper

shop = Scraper("shop", robots=False)

@shop.stage(concurrency=8)
async def page(page: Page):
    yield {"title": page.titel}
"""


def test_a_bug_that_hits_every_page_stops_the_run_early(project: Project) -> None:
    """Ten thousand pages are not fetched four times each for one typo; the run goes on when it is corrected."""
    project.write(BROKEN)
    with Site(pages=200) as site:
        urls = project.urls([f"{site.url}/page/{n}" for n in range(1, 201)])
        stopped = project.shoal("run", "shop.py", "--urls-file", urls, code=1)
        assert len(site.visits()) < 60
        assert stopped.stderr.count("Traceback") == 1
        assert 'File "' in stopped.stderr
        assert "worker/attempt" not in stopped.stderr
        assert "every attempt fails at the same line" in stopped.stderr
        assert "no attribute 'titel' (shop.py:" in stopped.stderr
        assert project.counts().dead == 0
        project.write(BROKEN.replace("page.titel", 'page.css("title::text").get()'))
        project.shoal("run", "shop.py", "--resume")
        assert project.counts().done == 200
        assert max(len(visits) for visits in per_path(site.visits()).values()) <= 2


def test_the_same_failure_is_told_once_and_then_counted(project: Project) -> None:
    project.write(BROKEN.replace("page.titel", "page.url"))
    with Site() as site:
        urls = project.urls([f"{site.url}/status/404?{n}" for n in range(30)])
        said = project.shoal("run", "shop.py", "--urls-file", urls, code=1)
    assert said.stderr.count("attempt failed") == 1
    (more,) = [line for line in said.stderr.splitlines() if "more attempts failed" in line]
    assert "count=29 " in more
    assert 'error="404 Not Found"' in more
    assert "stage=page" in said.stderr
    assert f"item={site.url}/status/404" in said.stderr


def test_items_that_are_none_are_told_in_the_summary(project: Project) -> None:
    project.write(BROKEN.replace('yield {"title": page.titel}', 'yield shop.stages["page"].item("/about")'))
    with Site() as site:
        said = project.shoal("run", "shop.py", "--urls-file", project.urls([f"{site.url}/page/1"]))
    assert "page.join" in said.stdout + said.stderr
