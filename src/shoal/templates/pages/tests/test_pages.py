"""A stage is a plain function: give it a saved page and look at what it yields."""

import asyncio
from pathlib import Path

from shoal import Page

from pages import title

PAGES = Path(__file__).parent / "pages"


def test_a_page_is_one_record():
    about = Page.of("http://shop.example/about", (PAGES / "about.html").read_text())
    assert yielded_by(title(about)) == [{"url": "http://shop.example/about", "title": "About | Shop", "links": 2}]


def yielded_by(stage):
    async def collect():
        return [value async for value in stage]

    return asyncio.run(collect())
