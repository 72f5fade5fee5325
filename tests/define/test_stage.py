"""A stage: its function stays callable, and `item` creates items by its rules."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal import Download, Follow, Item, Page, Scraper
from shoal.errors import InvalidItem, InvalidScraper, InvalidSetting
from shoal.model.item import NewItem, prepare
from tests.define import typed_example

URL = "https://shop.example:8080/a"


@pytest.fixture
def shop() -> Scraper:
    return Scraper("shop")


def test_a_decorated_function_stays_callable() -> None:
    page = Page.of(URL, '<li class="next"><a href="?page=2"></a></li><p class="review">Good</p>')

    async def collected() -> list[NewItem]:
        return [item async for item in typed_example.listing(page)]

    assert asyncio.run(collected()) == [typed_example.listing.item(f"{URL}?page=2")]
    assert list(typed_example.reviews(page)) == [{"review": "Good"}]
    assert getattr(typed_example.listing, "__name__", "") == "listing"
    assert typed_example.books.check() is typed_example.books


def test_the_decorator_works_with_and_without_options_and_names(shop: Scraper) -> None:
    @shop.stage
    def plain(page: Page) -> None: ...

    @shop.stage(name="other-name", retries=0)
    def named(page: Page) -> None: ...

    assert list(shop.stages) == ["plain", "other-name"]
    assert named.item(URL).stage == "other-name"
    assert repr(named) == "<stage shop.other-name>"
    with pytest.raises(InvalidScraper, match="two stages named 'plain'"):
        shop.stage(name="plain")(named.function)
    with pytest.raises(InvalidSetting, match="'a b' is not a valid stage name"):
        shop.stage(name="a b")(named.function)


def test_an_unknown_option_gets_a_hint(shop: Scraper) -> None:
    options: Any = {"rtae": "2/s"}
    with pytest.raises(InvalidScraper, match=r"no option 'rtae'\. Did you mean rate\?"):
        shop.stage(**options)


def test_an_item_by_url_by_key_and_by_both(shop: Scraper) -> None:
    @shop.stage
    def listing(page: Page) -> None: ...

    assert listing.item(URL) == NewItem(url=URL, stage="listing", lane="shop.example:8080")
    assert listing.item(key="octopus") == NewItem(key="octopus", stage="listing")
    both = listing.item(URL, key="k", payload={"n": 1}, partition="north", priority=-5, delay=2.5, retries=0)
    assert both == NewItem(
        url=URL,
        key="k",
        payload={"n": 1},
        stage="listing",
        lane="shop.example:8080",
        partition="north",
        priority=-5,
        delay=2.5,
        max_attempts=1,
    )
    assert listing.item("not a url").lane is None  # whoever stores it says what is wrong
    with pytest.raises(InvalidItem, match="neither a url nor a key"):
        prepare(listing.item(), "listing")


def test_an_item_for_the_next_stage_keeps_its_values(shop: Scraper) -> None:
    @shop.stage
    def detail(page: Page) -> None: ...

    came = Item(URL, payload={"page": 2, "list": "a"}, partition="north", stage="listing", depth=3)
    assert detail.item(came) == NewItem(
        url=URL,
        stage="detail",
        payload={"page": 2, "list": "a"},
        partition="north",
        lane="shop.example:8080",
        depth=3,
    )
    changed = detail.item(came, payload={"page": 3}, partition="south", priority=2, key="own")
    assert changed.payload == {"page": 3, "list": "a"}
    assert (changed.partition, changed.priority, changed.key) == ("south", 2, "own")
    assert detail.item(Item(key="k")) == NewItem(key="k", stage="detail", depth=0)


@pytest.mark.parametrize(
    ("rule", "lane"),
    [
        ("queue-1", "queue-1"),
        (None, None),
        (lambda item: item.payload["channel"], "c7"),
        (lambda item: None, None),
    ],
)
def test_lanes_by_rule(shop: Scraper, rule: Any, lane: str | None) -> None:
    @shop.stage(lane=rule)
    def video(page: Page) -> None: ...

    assert video.item(URL, payload={"channel": "c7"}).lane == lane
    assert video.item(URL, payload={"channel": "c7"}, lane="said").lane == "said"
    assert video.item(URL, payload={"channel": "c7"}, lane=None).lane is None


def test_items_without_a_url_share_the_lane_of_their_stage(shop: Scraper) -> None:
    @shop.stage(rate="2/s")
    def paced(item: Item) -> None: ...

    @shop.stage
    def free(item: Item) -> None: ...

    assert paced.item(key="k").lane == "shop.paced"
    assert free.item(key="k").lane is None


@pytest.mark.parametrize(
    ("rule", "partition"), [("north", "north"), (lambda item: item.key[:2], "ab"), (lambda item: "", "")]
)
def test_partitions_by_rule(shop: Scraper, rule: Any, partition: str) -> None:
    @shop.stage(partition=rule)
    def town(item: Item) -> None: ...

    assert town.item(key="abc").partition == partition
    assert town.item(key="abc", partition="said").partition == "said"
    assert town.item(Item(key="abc", partition="came")).partition == "came"


def test_the_lane_rule_sees_the_partition(shop: Scraper) -> None:
    @shop.stage(partition=lambda item: "north", lane=lambda item: f"group {item.partition}", ordered=True)
    def town(item: Item) -> None: ...

    assert town.item(key="abc").lane == "group north"


def test_stages_that_are_refused(shop: Scraper) -> None:
    @shop.stage(ordered=True)
    def queue(page: Page) -> None: ...

    with pytest.raises(InvalidScraper, match="queue is ordered, so it needs lane="):
        shop.check()
    del shop.stages["queue"]

    @shop.stage(follow=True)
    def blind(item: Item) -> None: ...

    with pytest.raises(InvalidScraper, match="blind follows links, so its function must ask for a Page"):
        shop.check()
    del shop.stages["blind"]

    @shop.stage(follow=Follow(to="nowhere"))
    def lost(page: Page) -> None: ...

    with pytest.raises(InvalidScraper, match="follows links to 'nowhere', which is no stage"):
        shop.check()


def test_a_stage_without_a_function_is_refused_at_once() -> None:
    with pytest.raises(InvalidScraper, match="The scraper empty has no stages"):
        Scraper("empty").check()


def test_an_item_as_its_handler_sees_it() -> None:
    item = Item(URL, key="k", payload={"page": 2}, partition="north", stage="listing", run_id="r", depth=2)
    assert (item.url, item.key, item.own_key, item.depth, item.tries) == (URL, "k", "k", 2, 0)
    assert (item.partition, item.stage, item.run_id) == ("north", "listing", "r")
    assert Item(URL).key == URL
    assert Item(URL).own_key is None
    assert Item(URL).depth == 0
    assert repr(item) == "Item('k', stage='listing')"


async def test_async_generators_can_be_used_in_async_tests() -> None:
    shop = Scraper("shop")

    @shop.stage
    async def numbers(item: Item) -> AsyncIterator[dict[str, int]]:
        for number in range(item.payload["count"]):
            yield {"n": number}

    assert [record async for record in numbers(Item(key="k", payload={"count": 2}))] == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"save": "../x"}, "save of the stage file: the name '../x' of a download must be a relative path"),
        ({"save": 7}, "save of the stage file is 7; it must be True, or the name of the file"),
        ({"max_bytes": 10}, "max_bytes, which needs save=True"),
        ({"save": True, "accept": (404,)}, "accept has no page to apply to"),
        ({"save": True, "max_bytes": "10"}, "it must be a number of bytes"),
    ],
)
def test_options_of_downloads_that_cannot_work(options: Any, message: str) -> None:
    shop = Scraper("shop")

    async def file() -> None: ...

    with pytest.raises(InvalidScraper) as caught:  # noqa: PT012 - at once, or when all is declared
        shop.stage(**options)(file)
        shop.check()
    assert message in caught.value.message


def test_what_a_stage_that_saves_may_ask_for() -> None:
    shop = Scraper("shop")

    @shop.stage(save=True)
    async def both(page: Page, file: Download) -> None: ...

    with pytest.raises(InvalidScraper, match="larger than memory, so it gets no Page"):
        shop.check()
    other = Scraper("other")

    @other.stage
    async def neither(file: Download) -> None: ...

    with pytest.raises(InvalidScraper, match="asks for a Download, so it needs save=True"):
        other.check()
