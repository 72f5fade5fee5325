"""Injection by type: what functions may ask for, providers of authors, and what is refused."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from shoal import Counts, Http, Item, Log, Page, Run, Scraper
from shoal.define.providers import FunctionKind, SetUp
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

    parameters = all_of_it.signature.parameters
    assert [provider.type for _, provider in parameters] == [Api, Log, Page, Http, Item]
    assert all_of_it.fetches


def test_the_four_kinds_of_functions(shop: Scraper) -> None:
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


def test_a_parameter_without_a_provider(shop: Scraper) -> None:
    @shop.stage
    async def listing(page: Page, price: float) -> None: ...

    with pytest.raises(InvalidScraper) as refused:
        shop.check()
    assert refused.value.message.startswith("listing() (test_providers.py:")
    assert refused.value.message.endswith("has the parameter 'price', which Shoal cannot inject.")
    assert refused.value.remedy == (
        "Annotate its parameters with one of Page, Download, Http, Files, Tab, Token, EarlierRuns, Notes, Item, "
        "Counters, Log, Api, give 'price' a default, or provide its type with @shop.provide."
    )


def test_a_parameter_without_a_type(shop: Scraper) -> None:
    def listing(page):  # type: ignore[no-untyped-def]
        ...

    shop.stage(listing)
    with pytest.raises(InvalidScraper, match="has the parameter 'page', which Shoal cannot inject"):
        shop.check()


def test_settings_of_another_class_are_not_guessed() -> None:
    bare = Scraper("bare")

    @bare.stage
    async def listing(page: Page, api: Api) -> None: ...

    with pytest.raises(InvalidScraper, match="has the parameter 'api'"):
        bare.check()


def test_a_type_imported_for_the_type_checker_only(shop: Scraper) -> None:
    @shop.stage
    async def listing(page: Page, price: "Decimal") -> None: ...

    with pytest.raises(InvalidScraper, match="a type annotation that cannot be resolved: name 'Decimal'"):
        shop.check()


def test_a_sync_function_cannot_await_requests(shop: Scraper) -> None:
    @shop.stage
    def listing(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match="has a parameter of type Http, which needs an `async def` function"):
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

    with pytest.raises(InvalidScraper, match="has the parameter 'page'"):
        shop.check()


# Providers of authors


class Pool: ...


class Database: ...


class Session: ...


def test_handlers_ask_for_what_providers_return_or_yield(shop: Scraper) -> None:
    @shop.provide
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    @shop.provide
    @asynccontextmanager
    async def database(pool: Pool, api: Api, log: Log) -> AsyncIterator[Database]:
        yield Database()

    @shop.provide(scope="attempt")
    def session(database: Database, page: Page) -> Session:
        return Session()

    @shop.stage
    async def listing(session: Session, item: Item) -> None: ...

    assert shop.check() is shop
    assert listing.fetches, "its session asks for the page"
    assert {Session, Database, Pool, Page} < listing.signature.types


def test_decorated_providers_stay_callable(shop: Scraper) -> None:
    @shop.provide
    def pool() -> Pool:
        return Pool()

    @shop.provide(scope="attempt")
    def session(pool: Pool) -> Iterator[Session]:
        yield Session()

    assert isinstance(pool(), Pool)
    assert isinstance(next(session(pool())), Session)


@pytest.mark.parametrize(
    ("annotation", "set_up"),
    [
        (Pool, SetUp.PLAIN),
        (Iterator[Pool], SetUp.CONTEXT),
        (AbstractContextManager[Pool], SetUp.CONTEXT),
        (AsyncIterator[Pool], SetUp.ASYNC_CONTEXT),
        (AbstractAsyncContextManager[Pool], SetUp.ASYNC_CONTEXT),
    ],
)
def test_the_return_annotation_says_what_is_provided_and_how(shop: Scraper, annotation: Any, set_up: SetUp) -> None:
    def pool() -> Any: ...

    pool.__annotations__["return"] = annotation
    shop.provide(pool)

    @shop.stage
    async def listing(pool: Pool) -> None: ...

    ((_, provider),) = listing.signature.parameters
    assert (provider.type, provider.set_up) == (Pool, set_up)


def test_a_type_that_two_providers_give(shop: Scraper) -> None:
    @shop.provide
    def pool() -> Pool:
        raise NotImplementedError

    with pytest.raises(InvalidScraper, match=r"other\(\) .* provides Pool, which pool\(\) .* provides already"):

        @shop.provide
        def other() -> Pool:
            raise NotImplementedError

    with pytest.raises(InvalidScraper, match="provides Page, which Shoal provides already"):

        @shop.provide
        def page() -> Page:
            raise NotImplementedError


def test_a_provider_without_a_type(shop: Scraper) -> None:
    def bare():  # type: ignore[no-untyped-def]
        ...

    with pytest.raises(InvalidScraper, match="without a return annotation that names a type"):
        shop.provide(bare)
    with pytest.raises(InvalidScraper, match=r"yields its value: annotate it as `-> AsyncIterator\[TheType\]`"):

        @shop.provide
        async def wrong() -> Pool:  # type: ignore[misc]
            yield Pool()


def test_a_scope_that_does_not_exist(shop: Scraper) -> None:
    with pytest.raises(InvalidScraper, match="'run'; it must be one of attempt, worker"):

        @shop.provide(scope="run")  # type: ignore[call-overload, untyped-decorator]
        def pool() -> Pool:
            raise NotImplementedError


def test_providers_that_ask_for_each_other(shop: Scraper) -> None:
    @shop.provide
    def pool(database: Database) -> Pool:
        raise NotImplementedError

    @shop.provide
    def database(pool: Pool) -> Database:
        raise NotImplementedError

    @shop.stage
    async def listing(pool: Pool) -> None: ...

    with pytest.raises(InvalidScraper) as refused:
        shop.check()
    message = refused.value.message
    assert "database() (test_providers.py:" in message
    assert "asks for 'pool', which closes a cycle of providers: pool() (" in message
    assert refused.value.remedy is not None
    assert refused.value.remedy.startswith("Remove the parameter 'pool' from database() (test_providers.py:")


def test_a_provider_that_asks_for_an_unknown_type(shop: Scraper) -> None:
    @shop.provide
    def pool(database: Database) -> Pool:
        raise NotImplementedError

    @shop.stage
    async def listing(pool: Pool) -> None: ...

    with pytest.raises(
        InvalidScraper, match=r"pool\(\) .* has the parameter 'database', which Shoal cannot inject"
    ) as refused:
        shop.check()
    assert refused.value.remedy is not None
    assert "one of Log, Api, Pool, give 'database' a default, or provide its type" in refused.value.remedy


def test_what_lives_for_a_worker_cannot_ask_for_one_attempt(shop: Scraper) -> None:
    @shop.provide
    def pool(item: Item) -> Pool:
        raise NotImplementedError

    @shop.stage
    async def listing(pool: Pool) -> None: ...

    with pytest.raises(InvalidScraper, match="which Item gives to one attempt, but this provider is set up once") as no:
        shop.check()
    assert no.value.remedy == "Declare it with @shop.provide(scope=\"attempt\"), or remove 'item'."


def test_hooks_may_ask_for_what_lives_for_a_worker_only(shop: Scraper) -> None:
    @shop.provide
    def pool() -> Pool:
        raise NotImplementedError

    @shop.provide(scope="attempt")
    def session(pool: Pool) -> Session:
        raise NotImplementedError

    @shop.stage
    async def listing(session: Session) -> None: ...

    @shop.on_start
    def begin(pool: Pool, run: Run) -> None: ...

    assert shop.check() is shop

    @shop.on_finish
    def end(session: Session) -> None: ...

    with pytest.raises(InvalidScraper, match=r"asks for 'session', which session\(\) .* there is none here"):
        shop.check()


def test_a_sync_provider_cannot_await_requests(shop: Scraper) -> None:
    @shop.provide(scope="attempt")
    def session(http: Http) -> Session:
        raise NotImplementedError

    @shop.stage
    async def listing(session: Session) -> None: ...

    with pytest.raises(InvalidScraper, match="has a parameter of type Http, which needs an `async def` function"):
        shop.check()
