"""Views that a scraper declares: runs create them, and `shoal db views` does."""

from __future__ import annotations

import sqlite3

from tests.support.project import Project

CODE = """
from shoal import Item, Scraper

pages = Scraper("pages", views="views")

@pages.stage
async def page(item: Item):
    yield {"name": item.key}

pages.start(page.item(key="a"), page.item(key="b"))
"""
VIEW = """
-- name: names
select json_extract(r.record, '$.name') as name from result r
"""


def names(project: Project) -> list[str]:
    with sqlite3.connect(project.ledger) as connection:
        found = [row[0] for row in connection.execute("SELECT name FROM names ORDER BY name")]
    connection.close()
    return found


def test_a_run_creates_the_views_of_its_scraper(project: Project) -> None:
    (project.folder / "pages.py").write_text(CODE)
    (project.folder / "views").mkdir()
    (project.folder / "views" / "sqlite.sql").write_text(VIEW)
    project.shoal("run", "pages.py")
    assert names(project) == ["a", "b"]
    assert "The views names are there already." in project.shoal("db", "views", "pages.py").stdout
    (project.folder / "views" / "sqlite.sql").write_text(VIEW.replace("as name", "|| '!' as name"))
    assert "Created the views names." in project.shoal("db", "views", "pages.py").stdout
    assert names(project) == ["a!", "b!"]


def test_a_run_goes_on_without_views_that_are_wrong(project: Project) -> None:
    (project.folder / "pages.py").write_text(CODE)
    (project.folder / "views").mkdir()
    (project.folder / "views" / "sqlite.sql").write_text("-- name: names\nselect * from nowhere\n")
    ended = project.shoal("run", "pages.py")
    assert "The views of pages were not created: " in ended.stderr
    assert "no such table" in ended.stderr
    assert project.shoal("db", "views", "pages.py", code=2).stderr.startswith("Error: Its view names cannot be created")
