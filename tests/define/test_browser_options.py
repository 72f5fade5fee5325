"""Options of stages with client="browser": what cannot work is refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import Page, Scraper, Tab
from shoal.errors import InvalidScraper


def declare(**options: Any) -> Any:
    scraper = Scraper("shop")

    @scraper.stage(**options)
    async def product(page: Page) -> None: ...

    product.check()
    return product.browser


def test_options_of_the_browser_are_kept() -> None:
    found = declare(client="browser", wait_for="h1", block=("image", "font"), viewport=(800, 600), capture=True)
    assert (found.wait_for, found.block, found.viewport, found.capture) == (
        "h1",
        frozenset({"image", "font"}),
        (800, 600),
        True,
    )
    assert declare(client="browser").wait_for == "load"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"wait_for": "h1"}, 'needs client="browser"'),
        ({"client": "chrome", "block": ("image",)}, 'needs client="browser"'),
        ({"client": "browser", "block": ("document",)}, "it may have stylesheet, image"),
        ({"client": "browser", "viewport": (0, 600)}, r"\(width, height\)"),
        ({"client": "browser", "wait_for": 3}, "a selector"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidScraper, match=problem):
        declare(**options)


def test_a_tab_needs_the_browser() -> None:
    scraper = Scraper("shop")

    @scraper.stage
    async def product(tab: Tab) -> None: ...

    with pytest.raises(InvalidScraper, match='asks for a Tab, which needs client="browser"'):
        product.check()
