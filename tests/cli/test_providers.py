"""A scraper with providers of its own, through the command line: run, try, shell, and what is refused."""

from __future__ import annotations

import json

from tests.support.project import Project, Shoal
from tests.support.site import Site

SCRAPER = """
from collections.abc import AsyncIterator

shop = Scraper("shop", headers={"X-Shop": "yes"}, robots=False)

class Database:
    name = "db"

class Session:
    def __init__(self, database, key):
        self.text = f"{database.name} {key}"

@shop.provide
async def database() -> AsyncIterator[Database]:
    yield Database()
    print("disconnect", file=sys.stderr)

@shop.provide(scope="attempt")
def session(database: Database, page: Page) -> Session:
    return Session(database, page.status)

@shop.stage
async def listing(session: Session):
    yield {"session": session.text}

@shop.on_finish
def end(database: Database):
    print(f"end {database.name}", file=sys.stderr)
"""


def test_run_try_and_shell_work_with_providers(project: Project, shoal: Shoal) -> None:
    project.write(SCRAPER)
    with Site(pages=3) as site:
        tried = shoal("try", "shop.py", f"{site.url}/page/1")
        assert (tried.returncode, json.loads(tried.stdout)) == (0, {"session": "db 200"})
        assert tried.stderr.count("disconnect") == 1
        shell = shoal("shell", f"{site.url}/page/2", "shop.py")
        assert (shell.returncode, "200 OK" in shell.stderr) == (0, True)
        urls = project.urls([f"{site.url}/page/{n}" for n in (1, 2, 3)])
        run = project.shoal("run", "shop.py", "--urls-file", urls)
        assert run.stderr.count("disconnect") == 2, "the worker's and the hook's"
        assert run.stderr.count("end db") == 1
        assert {visit.headers["x-shop"] for visit in site.visits()} == {"yes"}


def test_a_cycle_is_refused_in_one_sentence_when_the_scraper_is_loaded(project: Project, shoal: Shoal) -> None:
    project.write(SCRAPER.replace("database() ->", "database(session: Session) ->").replace('(scope="attempt")', ""))
    refused = shoal("try", "shop.py", "http://127.0.0.1:1/")
    assert refused.returncode == 2
    assert "asks for" in refused.stderr
    assert "cycle of providers" in refused.stderr
    assert "Traceback" not in refused.stderr
