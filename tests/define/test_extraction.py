"""Record types whose fields carry selectors: what is read from a page, and how a wrong page or type is reported."""
# ruff: noqa: RUF009 - selectors behind `=` are what is tested

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from shoal import Page, Scraper, absolute_url, css, decimal_comma, extract, extract_all, jmes, number, page_url, xpath
from shoal.define.extraction import is_empty
from shoal.define.records import record_json
from shoal.errors import InvalidRecord, InvalidScraper, Permanent

HTML = """
<title>Shop</title><h1> Rake,<br>wide <script>var x</script><!-- no --><em>blue</em></h1>
<p class=price>£1,299.50</p> <b class=tag>garden</b> <b class=tag> steel </b>
<a class=next href="/q?page=2">next</a> <time datetime="2026-01-31">yesterday</time> <i class=stock></i>
<div class=review data-stars=4><u>Fine</u></div> <div class=review data-stars=5><u>Good</u></div>
<p class=sku>SKU: X-77 (new)</p> <pre>a
  b</pre>
"""
PAGE = Page.of("http://shop.example/rake/1", HTML)


@dataclass
class Review:
    text: str = css("u")
    stars: int = css("::attr(data-stars)")


@dataclass
class Product:
    title: str = css("h1")
    price: float = css(".price::text")
    exact: Decimal = css(".price")
    tags: list[str] = css(".tag::text")
    next: str = css("a.next::attr(href)", absolute_url)
    day: dt.date = xpath("//time/@datetime")
    in_stock: bool = css(".stock")
    sold_out: bool = css(".gone")
    sku: str = css(".sku", re=r"SKU: (\S+)")
    reviews: list[Review] = css(".review")
    best: Review = css(".review[data-stars='5']")
    images: list[str] = css("img::attr(src)")
    colour: str | None = css(".colour")
    size: str = css(".size", default="one")
    seen: int = xpath("count(//b)")
    markup: str = css("u", html=True)
    code: str = css("pre", strip=False)
    words: str = css(".tag", str.upper, join=" + ")
    url: str = page_url()
    notes: list[str] = field(default_factory=list)


def test_every_kind_of_field_is_read() -> None:
    assert extract(Product, PAGE) == Product(
        title="Rake, wide blue",
        price=1299.5,
        exact=Decimal("1299.50"),
        tags=["garden", "steel"],
        next="http://shop.example/q?page=2",
        day=dt.date(2026, 1, 31),
        in_stock=True,
        sold_out=False,
        sku="X-77",
        reviews=[Review("Fine", 4), Review("Good", 5)],
        best=Review("Good", 5),
        images=[],
        colour=None,
        size="one",
        seen=2,
        markup="<u>Fine</u>",
        code="a\n  b",
        words="GARDEN + STEEL",
        url="http://shop.example/rake/1",
        notes=[],
    )


class ProductStruct(msgspec.Struct):
    title: Annotated[str, css("h1")]
    price: Annotated[float, msgspec.Meta(lt=5000), css(".price")]
    tags: Annotated[list[str], css(".tag")]
    colour: Annotated[str, css(".colour")] = "grey"


class ProductModel(pydantic.BaseModel):
    title: Annotated[str, css("h1")]
    price: Annotated[float, pydantic.Field(lt=5000), css(".price")]
    tags: Annotated[list[str], css(".tag")]
    colour: Annotated[str, css(".colour")] = "grey"


@dataclass
class ProductDataclass:
    title: Annotated[str, css("h1")]
    price: Annotated[float, css(".price")]
    tags: Annotated[list[str], css(".tag")]
    colour: Annotated[str, css(".colour")] = "grey"


@pytest.mark.parametrize("record", [ProductStruct, ProductModel, ProductDataclass])
def test_annotated_fields_work_in_every_kind_of_record(record: Any) -> None:
    expected = {"title": "Rake, wide blue", "price": 1299.5, "tags": ["garden", "steel"], "colour": "grey"}
    assert json.loads(record_json(extract(record, PAGE))) == expected


def test_a_dataclass_with_selectors_is_made_by_hand_like_any_other() -> None:
    assert Review("Fine", 4).stars == 4
    with pytest.raises(TypeError, match="missing"):
        Review()


@dataclass
class Row:
    name: str = css(".n")
    page: str = page_url()
    title: str = xpath("//title")


def test_a_record_for_each_element() -> None:
    page = Page.of("http://shop.example/", "<title>All</title><li><i class=n>a</i></li><li><i class=n>b</i></li>")
    rows = [Row("a", "http://shop.example/", "All"), Row("b", "http://shop.example/", "All")]
    assert extract_all(Row, page, "li") == rows
    assert extract_all(Row, page, xpath("//li")) == rows
    assert extract_all(Row, page, "dd") == []
    assert extract(Row, page, page.css("li")[1]) == rows[1]
    broken = Page.of("http://shop.example/", "<title>All</title><li><i class=n>a</i></li><li></li>")
    with pytest.raises(InvalidRecord, match=r"http://shop.example/', match 2 of css\('li'\) is not a valid Row: name"):
        extract_all(Row, broken, "li")


@dataclass
class Offer:
    name: str = jmes("name")
    price: float = jmes("offer.price")
    tags: list[str] = jmes("tags[].label")


def test_json_pages() -> None:
    body = json.dumps({"items": [{"name": "rake", "offer": {"price": 3}, "tags": [{"label": "a"}, {"label": "b"}]}]})
    page = Page.of("http://shop.example/api", body, headers={"Content-Type": "application/json"})
    assert extract_all(Offer, page, jmes("items")) == [Offer("rake", 3.0, ["a", "b"])]
    with pytest.raises(InvalidRecord, match=r"cannot be used on 'http://shop.example/api', which is application/json"):
        extract(Row, page)
    with pytest.raises(Permanent, match="is not JSON"):
        extract(Offer, PAGE)


@pytest.mark.parametrize("record", [ProductStruct, ProductModel, ProductDataclass])
def test_a_missing_field_is_an_error_that_names_field_selector_and_url(record: Any) -> None:
    page = Page.of("http://shop.example/9", "<h1> </h1><b class=tag>x</b>")
    with pytest.raises(InvalidRecord) as caught:
        extract(record, page)
    assert caught.value.message == (
        f"'http://shop.example/9' is not a valid {record.__name__}: title is missing: css('h1') finds nothing; "
        "price is missing: css('.price') finds nothing."
    )


@pytest.mark.parametrize("record", [ProductStruct, ProductModel])
def test_a_value_that_does_not_fit_names_the_field(record: Any) -> None:
    page = Page.of("http://shop.example/9", "<h1>x</h1><p class=price>9000")
    with pytest.raises(InvalidRecord, match=r"price is not valid: css\('.price'\) finds 9000: .*5000"):
        extract(record, page)


def test_a_text_that_cannot_be_converted_is_shown() -> None:
    page = Page.of("http://shop.example/9", f"<h1>x</h1><p class=price>{'sold out ' * 50}")
    with pytest.raises(InvalidRecord, match=r"price .*finds 'sold out .*\.\.\.: there is no number in it"):
        extract(ProductDataclass, page)

    @dataclass
    class Broken:
        title: Annotated[str, css("h1", lambda text: text.no_such)]

    with pytest.raises(InvalidRecord, match=r"title .*finds 'x': AttributeError: "):
        extract(Broken, page)


@pytest.mark.parametrize(
    ("text", "value", "with_comma"),
    [
        ("£1,299.00", 1299.0, 1299.0),
        ("1 299,00 Kč", 1299.0, 1299.0),
        ("1\u202f299,5", 1299.5, 1299.5),
        ("1.299,00 €", 1299.0, 1299.0),
        ("EUR 12,5", 12.5, 12.5),
        ("1,299", 1299, 1.299),
        ("1.299", 1.299, 1299),
        ("0,999", 0.999, 0.999),
        ("1.234.567", 1234567, 1234567),
        ("₹1,23,456.78", 123456.78, 123456.78),
        ("CHF 1'299.50", 1299.5, 1299.5),
        ("1234.5678", 1234.5678, 1234.5678),
        ("\u22125 °C", -5, -5),
        ("from $-0.5", -0.5, -0.5),
        (".5", 0.5, 0.5),
        ("SKU-123", 123, 123),
        ("3 of 10", 3, 3),
        ("3. place", 3, 3),
    ],
)
def test_numbers_in_texts(text: str, value: float, with_comma: float) -> None:
    assert (number(text), type(number(text))) == (value, type(value))
    assert decimal_comma(text) == with_comma


@pytest.mark.parametrize("text", ["", "sold out", "-", ".", ",."])
def test_a_text_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        number(text)


# --- stages without a body

shop = Scraper("shop")


@shop.stage(record=ProductStruct)
async def product(page: Page) -> None: ...


@shop.stage(record=Row, each="li")
def rows(page: Page) -> None:
    """The rows of a list."""


@shop.stage(record=ProductStruct)
async def by_hand(page: Page) -> ProductStruct:
    return ProductStruct("mine", 1.0, [])


def called(stage: Any, page: Page) -> Any:
    """What the stage returns to a test that calls it."""
    answer = stage(page)
    return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer


def test_a_stage_without_a_body_returns_the_record_of_its_page() -> None:
    shop.check()
    assert called(product, PAGE).title == "Rake, wide blue"
    assert [row.name for row in called(rows, Page.of("http://x.example/", "<title>t</title><li><i class=n>a"))] == ["a"]
    assert called(by_hand, PAGE).title == "mine"
    assert Page in product.signature.types


def documented(page: Page) -> None:
    """Text."""


async def passing(page: Page, other: int = 3) -> None:
    pass


def returning(page: Page) -> int:
    return 1


async def yielding(page: Page) -> Any:
    yield


def assigning(page: Page) -> None:
    _ = page


@pytest.mark.parametrize(
    ("function", "empty"),
    [
        (product.__wrapped__, True),  # type: ignore[attr-defined]
        (documented, True),
        (passing, True),
        (returning, False),
        (yielding, False),
        (assigning, False),
        (print, False),
        (lambda page: None, True),
    ],
)
def test_an_empty_body_is_recognized(function: Callable[..., Any], empty: bool) -> None:
    assert is_empty(function) is empty


def refused(**options: Any) -> str:
    scraper = Scraper("refused")
    with pytest.raises(InvalidScraper) as caught:  # noqa: PT012 - at once, or when all is declared
        scraper.stage(**options)(documented)
        scraper.check()
    return str(caught.value)


def test_declarations_that_cannot_work_are_refused() -> None:
    @dataclass
    class Wrong:
        title: str = css("h1[")

    @dataclass
    class Half:
        title: str = css("h1")
        price: float = field(kw_only=True)

    class Misplaced(msgspec.Struct):
        title: str = css("h1")

    @dataclass
    class WrongPath:
        title: str = xpath("//h1[")

    assert "Wrong.title has a selector that is not valid: css('h1[')" in refused(record=Wrong)
    assert "WrongPath.title has a selector that is not valid" in refused(record=WrongPath)
    assert "Half.price has neither a selector nor a default" in refused(record=Half)
    assert "Misplaced.title has a selector behind `=`, which only a dataclass may have" in refused(record=Misplaced)
    assert "has each=: it needs a record= type with selectors" in refused(each="li")
    assert "each is 7" in refused(record=Row, each=7)
    with pytest.raises(InvalidScraper, match="no fields with selectors"):
        extract(dict, PAGE)
    with pytest.raises(InvalidScraper, match="is not a function"):
        css("h1", "float")  # type: ignore[arg-type]
    scraper = Scraper("refused")

    @scraper.stage(record=Row)
    async def nothing() -> None: ...

    with pytest.raises(InvalidScraper, match="must ask for a Page"):
        scraper.check()


def test_the_code_version_is_of_the_authors_file_not_of_shoal() -> None:
    alone, other = Scraper("alone"), Scraper("other")
    alone.stage(record=Row)(documented)
    other.stage(documented)
    assert alone.code_version == other.code_version
