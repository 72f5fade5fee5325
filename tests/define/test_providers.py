"""Injection by type: what a function asks for, and what it is told when nobody can give it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shoal import Counts, Http, Item, Log, Page, Run, Scraper
from shoal.define.providers import FunctionKind, Inject
from shoal.errors import InvalidScraper

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Api:
    base: str


@pytest.fixture
def shop() -> Scraper:
    return Scraper("shop", settings=Api)


def test_everything_can_be_asked_for_in_any_order(shop: Scraper) -> None:
    @shop.stage
    async def all_of_it(api: Api, log: Log, page: Page, http: Http, item: Item, more: int = 3) -> None: ...

    wanted = all_of_it.signature
    assert [inject for _, inject in wanted.injected] == [
        Inject.SETTINGS,
        Inject.LOG,
        Inject.PAGE,
        Inject.HTTP,
        Inject.ITEM,
    ]
    assert all_of_it.fetches


def test_the_four_ways_to_hand_results_over(shop: Scraper) -> None:
    @shop.stage
    async def generator(page: Page) -> Any:
        yield {}

    @shop.stage
    async def coroutine(page: Page) -> Any:
        return {}

    @shop.stage
    def plain(page: Page) -> Any:
        return {}

    @shop.stage
    def plain_generator(page: Page) -> Any:
        yield {}

    shapes = [stage.signature.kind for stage in shop.stages.values()]
    assert shapes == [FunctionKind.ASYNC_GENERATOR, FunctionKind.COROUTINE, FunctionKind.PLAIN, FunctionKind.PLAIN]


def test_a_parameter_nobody_can_fill(shop: Scraper) -> None:
    @shop.stage
    async def listing(page: Page, price: float) -> None: ...

    with pytest.raises(InvalidScraper) as refused:
        shop.check()
    assert refused.value.message.startswith("listing() (test_providers.py:")
    assert refused.value.message.endswith("asks for 'price', which Shoal cannot give it.")
    assert refused.value.remedy == (
        "Annotate its parameters with one of Page, Http, Item, Log, Api, or give 'price' a default."
    )


def test_a_parameter_without_a_type(shop: Scraper) -> None:
    def listing(page):  # type: ignore[no-untyped-def]
        ...

    shop.stage(listing)
    with pytest.raises(InvalidScraper, match="asks for 'page', which Shoal cannot give it"):
        shop.check()


def test_settings_of_another_class_are_not_guessed() -> None:
    bare = Scraper("bare")

    @bare.stage
    async def listing(page: Page, api: Api) -> None: ...

    with pytest.raises(InvalidScraper, match="asks for 'api'"):
        bare.check()


def test_a_type_known_to_the_checker_only(shop: Scraper) -> None:
    @shop.stage
    async def listing(page: Page, price: "Decimal") -> None: ...

    with pytest.raises(InvalidScraper, match="a type that is not known at module level: name 'Decimal'"):
        shop.check()


def test_a_sync_function_cannot_await_requests(shop: Scraper) -> None:
    @shop.stage
    def listing(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match="asks for Http, which only `async def` functions can use"):
        shop.check()


def test_hooks_get_the_run_and_its_counts_but_no_page(shop: Scraper) -> None:
    @shop.stage
    async def listing(page: Page) -> None: ...

    @shop.on_start
    async def begin(run: Run, log: Log, api: Api) -> None: ...

    @shop.on_finish
    def end(run: Run, counts: Counts) -> None: ...

    assert shop.check() is shop

    @shop.on_finish
    def wrong(page: Page) -> None: ...

    with pytest.raises(InvalidScraper, match="asks for 'page'"):
        shop.check()
