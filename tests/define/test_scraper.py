"""A scraper: its sources, names, hooks and code version."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from shoal import Page, Scraper
from shoal.define.load import load_scraper
from shoal.errors import InvalidScraper, InvalidSetting
from shoal.model.item import NewItem


@pytest.fixture
def shop() -> Scraper:
    shop = Scraper("shop")

    @shop.stage
    def listing(page: Page) -> None: ...

    @shop.stage
    def detail(page: Page) -> None: ...

    return shop


def seeds_of(shop: Scraper) -> list[tuple[str | None, str | None]]:
    async def collected() -> list[NewItem]:
        return [seed async for seed in shop.seeds()]

    return [(seed.stage, seed.url) for seed in asyncio.run(collected())]


def test_a_source_with_a_parameter_gets_the_settings() -> None:
    @dataclass
    class Site:
        pages: int = 2

    shop = Scraper("shop", settings=Site)
    shop.stage(name="listing")(lambda page: None)
    shop.start(lambda site: (f"https://shop.example/{page}" for page in range(site.pages)))
    shop.configure(settings={"pages": 3}, stages={})
    assert [url for _, url in seeds_of(shop)] == [f"https://shop.example/{page}" for page in range(3)]


def generator() -> Iterator[str]:
    yield "https://shop.example/1"
    yield "https://shop.example/2"


async def async_generator() -> AsyncIterator[str]:
    for url in generator():
        yield url


@pytest.mark.parametrize(
    "source",
    [
        ["https://shop.example/1", "https://shop.example/2"],
        generator,
        async_generator,
        lambda: ["https://shop.example/1", "https://shop.example/2"],
        ("https://shop.example/1", "https://shop.example/2"),
    ],
    ids=["list", "generator function", "async generator function", "function", "tuple"],
)
def test_seeds_from_every_source(shop: Scraper, source: Any) -> None:
    had_sources = shop.has_sources
    shop.start(source)
    assert (had_sources, shop.has_sources) == (False, True)
    expected = [("listing", "https://shop.example/1"), ("listing", "https://shop.example/2")]
    assert seeds_of(shop) == expected
    # A run that is resumed before all were stored reads them again.
    assert seeds_of(shop) == expected


def test_urls_go_to_the_first_stage_and_items_to_their_own(shop: Scraper) -> None:
    shop.start("https://shop.example/1", shop.stages["detail"].item("https://shop.example/2"))
    shop.start(shop.stages["detail"].item(url) for url in ["https://shop.example/3"])
    assert seeds_of(shop) == [
        ("listing", "https://shop.example/1"),
        ("detail", "https://shop.example/2"),
        ("detail", "https://shop.example/3"),
    ]


async def no_generator() -> list[str]:
    return ["https://shop.example/1"]


@pytest.mark.parametrize("source", [7, no_generator, lambda: None, [7], [None], [b"https://shop.example/"]])
def test_sources_that_are_refused(shop: Scraper, source: Any) -> None:
    shop.start(source)
    with pytest.raises(InvalidScraper, match=r"start\(\) takes"):
        seeds_of(shop)


@pytest.mark.parametrize("name", ["", "a b", "ä", "-x", "x" * 101])
def test_invalid_names(name: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a valid scraper name"):
        Scraper(name)


def test_modes() -> None:
    assert Scraper("shop", mode="distributed").mode == "distributed"
    with pytest.raises(InvalidScraper, match="mode is 'cluster'; it must be one of single, distributed"):
        Scraper("shop", mode="cluster")


def test_hooks_stay_functions_and_are_kept_in_order(shop: Scraper) -> None:
    called = []

    @shop.on_start
    def first() -> None:
        called.append(1)

    @shop.on_start
    def second() -> None:
        called.append(2)

    for hook in shop.start_hooks:
        hook()
    first()
    assert called == [1, 2, 1]
    assert shop.finish_hooks == []


def test_the_code_version_follows_the_file(project: Callable[..., Any]) -> None:
    code = "from shoal import Page, Scraper\nshop = Scraper('shop')\n@shop.stage\ndef listing(page: Page): ...\n"

    def version(text: str) -> str | None:
        folder = project({"shop.py": text})
        return load_scraper("shop.py", {}, folder).code_version

    assert version(code) == version(code) != version(code + "# changed\n")
    assert len(version(code) or "") == 12
