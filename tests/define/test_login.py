"""Logins as they are declared: what they may ask for, their options, and what is refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal import Http, Item, Log, Page, Scraper, Tab
from shoal.errors import InvalidScraper


class Vault:
    """A value of the worker."""


@pytest.fixture
def shop() -> Scraper:
    shop = Scraper("shop")

    @shop.stage
    async def listing(page: Page) -> None: ...

    @shop.stage
    async def product(page: Page) -> None: ...

    return shop


def test_a_login_asks_for_a_client_and_values_of_the_worker_and_stays_callable(shop: Scraper) -> None:
    @shop.provide
    def vault() -> Vault:
        return Vault()

    @shop.login
    async def enter(http: Http, log: Log, vault: Vault) -> str:
        return "called"

    shop.check()
    (login,) = shop.logins
    assert [provider.type for _, provider in login.signature.parameters] == [Http, Log, Vault]
    assert (login.max_age, login.shared, login.timeout, login.uses_browser) == (None, False, 60.0, False)
    assert all(stage.login is login for stage in shop.stages.values())
    assert enter.__name__ == login.name == "enter"


def test_stages_have_the_login_that_is_for_them(shop: Scraper) -> None:
    @shop.login(stages=["listing"], max_age=60, sessions="shared", timeout=5)
    async def first(http: Http) -> None: ...

    @shop.login(stages=[shop.stages["product"]])
    async def second(tab: Tab) -> None: ...

    shop.check()
    assert [stage.login.name for stage in shop.stages.values() if stage.login] == ["first", "second"]
    one, two = shop.logins
    assert (one.max_age, one.shared, one.timeout) == (60, True, 5)
    assert two.uses_browser
    assert "first() (test_login.py:" in repr(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sessions": "fleet"}, "sessions of enter.* is 'fleet'; it must be one of worker, shared"),
        ({"max_age": 0}, "max_age of enter.* is 0; it must be a number of seconds above 0"),
        ({"max_age": "1h"}, "max_age of enter.* is '1h'"),
        ({"timeout": 0}, "timeout of enter.* is 0"),
        ({"timeout": float("inf")}, "timeout of enter.* is inf"),
        ({"stages": "listing"}, "stages= of the login enter.* must be a list of stages"),
        ({"stages": []}, "stages= of the login enter"),
    ],
)
def test_options_that_are_wrong(shop: Scraper, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidScraper, match=message):

        @shop.login(**options)
        async def enter(http: Http) -> None: ...


def test_a_stage_that_does_not_exist(shop: Scraper) -> None:
    @shop.login(stages=["basket"])
    async def enter(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match="is for the stage 'basket', which is no stage"):
        shop.check()


def test_two_logins_for_one_stage(shop: Scraper) -> None:
    @shop.login
    async def enter(http: Http) -> None: ...

    @shop.login(stages=["product"])
    async def again(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match=r"The stage product has two logins, enter\(\).* and again\(\)") as caught:
        shop.check()
    assert "stages=[...]" in caught.value.remedy


def test_two_logins_of_one_name(shop: Scraper) -> None:
    """Their sessions would be mixed up."""
    for stage in shop.stages:

        @shop.login(stages=[stage])
        async def enter(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match="Two logins are named 'enter'"):
        shop.check()


def test_there_is_no_item_and_no_page(shop: Scraper) -> None:
    @shop.login
    async def enter(http: Http, item: Item) -> None: ...

    with pytest.raises(InvalidScraper, match=r"has the parameter 'item', which Shoal cannot inject") as caught:
        shop.check()
    assert "Http, Tab" in caught.value.remedy


def test_a_value_of_an_attempt_cannot_be_asked_for(shop: Scraper) -> None:
    @shop.provide(scope="attempt")
    def vault(item: Item) -> Vault:
        return Vault()

    @shop.login
    async def enter(vault: Vault) -> None: ...

    with pytest.raises(InvalidScraper, match="gives to one attempt; there is none here"):
        shop.check()


def test_a_login_that_yields(shop: Scraper) -> None:
    @shop.login
    async def enter(http: Http) -> AsyncIterator[None]:
        yield

    with pytest.raises(InvalidScraper, match="yields; it must return nothing, or the headers to send"):
        shop.check()


def test_the_code_of_a_login_is_part_of_the_code_version(shop: Scraper) -> None:
    namespace: dict[str, Any] = {}
    before = shop.code_version
    exec(compile("async def enter(): ...", str(__file__).replace("test_login", "test_stage"), "exec"), namespace)
    shop.login(namespace["enter"])
    assert before is not None
    assert shop.code_version != before
