"""What a handler may yield, and how the rest is refused."""

import dataclasses
import datetime as dt
import json
from collections import OrderedDict
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from shoal import Item, Scraper
from shoal.define import records
from shoal.define.records import Output
from shoal.errors import InvalidRecord
from shoal.model.item import NewItem
from shoal.model.json_text import RECORD_BYTES


@dataclasses.dataclass
class Book:
    title: str
    price: float
    seen: dt.date | None = None


class BookModel(pydantic.BaseModel):
    title: str
    price: float


class BookStruct(msgspec.Struct):
    title: str
    price: float


class Point(NamedTuple):
    x: int
    y: int


shop = Scraper("shop")


@shop.stage
async def listing(item: Item) -> None: ...


@shop.stage(depth=2)
async def book(item: Item) -> None: ...


STAGES = shop.stages


def stored(value: Any, record_type: Any = None) -> list[Any]:
    output = Output("listing", STAGES, record_type)
    output.add(value)
    return [json.loads(text) for text in output.records]


@pytest.mark.parametrize(
    "value",
    [
        {"title": "Emma", "price": 9.5},
        OrderedDict(title="Emma", price=9.5),
        Book("Emma", 9.5),
        BookModel(title="Emma", price=9.5),
        BookStruct("Emma", 9.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_of_every_kind(value: Any) -> None:
    (record,) = stored(value)
    assert (record["title"], record["price"]) == ("Emma", 9.5)


def test_values_without_a_json_type() -> None:
    moment = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    (record,) = stored({"at": moment, "price": Decimal("9.50"), "tags": {"a"}, "raw": b"ab", "none": None})
    assert record == {"at": "2026-01-31T12:00:00Z", "price": "9.50", "tags": ["a"], "raw": "YWI=", "none": None}


def test_lists_are_several_and_none_is_nothing() -> None:
    assert stored([{"n": 1}, [{"n": 2}], None, ({"n": 3},)]) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert stored(None) == []


@pytest.mark.parametrize("value", [7, "text", {1, 2}, object(), b"x", {"f": object()}, Book])
def test_values_that_are_not_records(value: Any) -> None:
    with pytest.raises(InvalidRecord):
        stored(value)


def test_a_named_tuple_is_a_record() -> None:
    assert stored(Point(1, 2)) == [{"x": 1, "y": 2}]


def test_a_dataclass_is_checked_against_its_annotations() -> None:
    wrong: Any = "dear"
    with pytest.raises(InvalidRecord, match=r"not a valid Book: Expected `float`, got `str` - at `\$.price`"):
        stored(Book("Emma", wrong))
    assert stored(Book("Emma", 9, dt.date(2026, 1, 31))) == [{"title": "Emma", "price": 9, "seen": "2026-01-31"}]


@pytest.mark.parametrize("kind", [Book, BookModel, BookStruct])
def test_a_declared_type_applies_to_dicts_too(kind: Any) -> None:
    (record,) = stored({"title": "Emma", "price": 9.5}, kind)
    assert (record["title"], record["price"]) == ("Emma", 9.5)
    with pytest.raises(InvalidRecord, match=f"not a valid {kind.__name__}.*price"):
        stored({"title": "Emma"}, kind)
    with pytest.raises(InvalidRecord, match=f"not a valid {kind.__name__}"):
        stored(7, kind)


def test_a_record_that_is_too_large() -> None:
    with pytest.raises(InvalidRecord, match="bytes of JSON; 16,777,216 are allowed"):
        stored({"text": "x" * RECORD_BYTES})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_cannot_express_is_refused_with_its_path(number: float) -> None:
    for value, place in [
        ({"title": "Emma", "price": number}, "price"),
        ({"offers": [{"price": 1.5, "sold": None}, {"price": number}]}, r"offers\[1\].price"),
        (BookStruct(title="Emma", price=number), "price"),
        (BookModel(title="Emma", price=number), "price"),
        (Book("Emma", number), "price"),
    ]:
        with pytest.raises(InvalidRecord, match=f"{place} is -?(nan|inf), which JSON has no number for"):
            stored(value)
    assert stored({"title": None, "price": 1.5}) == [{"title": None, "price": 1.5}]
    output = Output("listing", STAGES)
    output.add(NewItem(key="k", payload={"price": number}))
    assert "price is" in output.dropped[0]


def test_one_item_cannot_yield_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_OUTPUT_VALUES", 10)
    output = Output("listing", STAGES)
    output.add([{"n": number} for number in range(10)])
    with pytest.raises(InvalidRecord, match="more than 64 MB or 10 values"):
        output.add({"n": 10})


def test_items_are_separate_and_a_bad_link_drops_only_itself() -> None:
    output = Output("listing", STAGES)
    output.add(NewItem(url="https://shop.example/a"))
    output.add([{"n": 1}, NewItem(url="ftp://shop.example/b"), NewItem(key="k", stage="nowhere")])
    assert [(item.stage, item.url) for item in output.follow_ups] == [("listing", "https://shop.example/a")]
    assert output.records == ['{"n":1}']
    assert "only http and https are fetched" in output.dropped[0]
    assert output.dropped[1] == "There is no stage 'nowhere'; the run has listing, book."


def test_the_depth_of_items_and_the_limit_of_a_stage() -> None:
    output = Output("listing", STAGES, depth=2)
    output.add(NewItem(url="https://shop.example/a"))
    output.add(NewItem(url="https://shop.example/b", stage="book"))  # one too deep
    output.add(book.item(Item("https://shop.example/c", depth=2)))  # the same item in another stage
    assert [(item.stage, item.url, item.depth) for item in output.follow_ups] == [
        ("listing", "https://shop.example/a", 3),
        ("book", "https://shop.example/c", 2),
    ]
    assert (output.too_deep, output.dropped) == (1, [])


def test_a_run_that_visits_no_site_has_no_lanes() -> None:
    output = Output("listing", STAGES, in_lanes=False)
    output.add(NewItem(url="https://shop.example/a", lane="shop.example"))
    assert output.follow_ups[0].lane is None
