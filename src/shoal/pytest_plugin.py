"""Fixtures for the tests of scrapers, which pytest finds by itself: `shoal_page` and `shoal_site`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

# Every pytest in this environment imports this module: everything else is imported by the fixtures.
if TYPE_CHECKING:
    from shoal.fetch.page import Page
    from shoal.testing.site import LocalSite


@pytest.fixture
def shoal_page(request: pytest.FixtureRequest) -> Callable[..., Page]:
    """Load a saved page: `shoal_page("garden")`, `shoal_page("https://shop.example/garden")`.

    It is looked for in the folder `pages` beside the test, then in those of the folders above. A file that is only a
    body needs its address: `shoal_page("garden.html", url=...)`.
    """
    from shoal.errors import ShoalError
    from shoal.testing.saved_pages import find_page

    root = request.config.rootpath
    above = [folder for folder in (request.path.parent, *request.path.parents) if folder.is_relative_to(root)]
    folders = list(dict.fromkeys(folder / "pages" for folder in (*above, root / "tests")))
    there = [folder for folder in folders if folder.is_dir()] or folders[:1]

    def load(name: str, *, url: str | None = None) -> Page:
        try:
            return find_page(name, there, url=url)
        except ShoalError as error:
            pytest.fail(str(error), pytrace=False)

    return load


@pytest.fixture
def shoal_site() -> Iterator[LocalSite]:
    """A site on this machine with routes of your own: `shoal_site.route("/garden", "<h1>Garden</h1>")`."""
    from shoal.testing.site import LocalSite

    with LocalSite() as site:
        yield site
