"""What hooks may declare: a scraper with a hook that cannot work is refused before anything starts."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from shoal import Counts, Http, Item, Log, Page, Request, Run, Scraper
from shoal.errors import InvalidScraper


@dataclass
class Product:
    name: str


class Review(TypedDict):
    stars: int


class Parsed:
    pass


def shop() -> Scraper:
    scraper = Scraper("shop")

    @scraper.stage
    async def listing(page: Page) -> None: ...

    @scraper.stage(record=Product)
    async def product(item: Item) -> None: ...

    return scraper


def refusal(declare: Callable[[Scraper], object]) -> str:
    def load() -> None:
        scraper = shop()
        declare(scraper)
        scraper.check()

    with pytest.raises(InvalidScraper) as refused:
        load()
    return str(refused.value)


def test_hooks_stay_functions_and_are_listed_in_the_order_of_their_declaration() -> None:
    scraper = shop()

    @scraper.on_record
    def first(record: Any) -> None: ...

    @scraper.before_request(stages=["product"])
    def only_products(request: Request, item: Item, log: Log) -> Request:
        return request.with_headers({"X-Key": item.key})

    @scraper.on_record(stages=[scraper.stages["product"]])
    async def second(record: Product, http: Http) -> Product:
        return record

    scraper.check()
    listing, product = (scraper.stages[name].hooks for name in ("listing", "product"))
    assert listing is not None
    assert product is not None
    assert [hook.function for hook in listing.on_record] == [first]
    assert [hook.function for hook in product.on_record] == [first, second]
    assert (listing.before_request, len(product.before_request)) == ((), 1)
    assert only_products(Request(url="http://a.example"), Item(key="7"), None).headers["x-key"] == "7"  # type: ignore[arg-type]
    assert Scraper("bare").stage(name="only")(lambda: None).hooks is None


def test_a_stage_that_does_not_exist_is_refused() -> None:
    def declare(scraper: Scraper) -> None:
        @scraper.after_response(stages=["lising"])
        def look(page: Page) -> None: ...

    message = refusal(declare)
    assert "after_response hook look()" in message
    assert "'lising', but shop has listing, product" in message


@pytest.mark.parametrize("stages", ["listing", [], [7], 5])
def test_stages_must_be_a_list_of_stages(stages: Any) -> None:
    def declare(scraper: Scraper) -> None:
        @scraper.on_record(stages=stages)
        def look(record: Any) -> None: ...

    assert 'it must be a list of stages: ["listing"] or [listing]' in refusal(declare)


def before_without_request(scraper: Scraper) -> None:
    @scraper.before_request
    def hook(item: Item) -> None: ...


def before_with_page(scraper: Scraper) -> None:
    @scraper.before_request
    def hook(request: Request, page: Page) -> None: ...


def after_without_page(scraper: Scraper) -> None:
    @scraper.after_response
    def hook(request: Request) -> None: ...


def before_with_value_from_the_page(scraper: Scraper) -> None:
    @scraper.provide(scope="attempt")
    def parsed(page: Page) -> Parsed:
        return Parsed()

    @scraper.before_request
    def hook(request: Request, parsed: Parsed) -> None: ...


def sync_with_http(scraper: Scraper) -> None:
    @scraper.before_request
    def hook(request: Request, http: Http) -> None: ...


def asking_for_a_run(scraper: Scraper) -> None:
    @scraper.on_record
    def hook(record: dict[str, Any], run: Run, counts: Counts) -> None: ...


def without_parameters(scraper: Scraper) -> None:
    @scraper.on_record
    def hook() -> None: ...


def for_texts(scraper: Scraper) -> None:
    @scraper.on_record
    def hook(record: str) -> None: ...


def page_of_a_stage_without(scraper: Scraper) -> None:
    @scraper.on_record
    def hook(record: Any, page: Page) -> None: ...


def never_called(scraper: Scraper) -> None:
    @scraper.on_record(stages=["product"])
    def hook(record: Parsed) -> None: ...


def generator(scraper: Scraper) -> None:
    @scraper.on_record
    def hook(record: Any) -> Iterator[Any]:
        yield record


def async_generator(scraper: Scraper) -> None:
    @scraper.after_response
    async def hook(page: Page) -> AsyncIterator[Page]:
        yield page


def stage_asking_for_a_request(scraper: Scraper) -> None:
    @scraper.stage
    async def hook(request: Request) -> None: ...


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (before_without_request, "does not ask for the Request"),
        (before_with_page, "which does not exist before the request"),
        (after_without_page, "does not ask for the Page"),
        (before_with_value_from_the_page, "asks for 'parsed', whose provider needs the Page of the item"),
        (sync_with_http, "needs an `async def` function"),
        (asking_for_a_run, "the parameter 'run', which Shoal cannot inject"),
        (without_parameters, "has no parameter for the record"),
        (for_texts, "annotated with str, which is no type of records"),
        (page_of_a_stage_without, "asks for a Page, but the stage product fetches none"),
        (never_called, "is for records of the type Parsed, but its stages declare Product"),
        (generator, "yields; a hook returns one value"),
        (async_generator, "yields; a hook returns one value"),
        (stage_asking_for_a_request, "the parameter 'request', which Shoal cannot inject"),
    ],
)
def test_a_hook_that_cannot_work_is_refused(declare: Callable[[Scraper], None], why: str) -> None:
    message = refusal(declare)
    assert why in message
    assert "hook() (test_hooks.py:" in message


@pytest.mark.parametrize(
    ("annotation", "record", "called"),
    [
        (dict, {"name": "a"}, True),
        (dict[str, Any], {"name": "a"}, True),
        (Review, {"stars": 5}, True),
        (Product, Product("a"), True),
        (Product, {"name": "a"}, False),
        (Product | dict, {"name": "a"}, True),
        (Any, Product("a"), True),
        (object, {"name": "a"}, True),
    ],
)
def test_the_annotation_names_the_records_that_a_hook_is_for(annotation: Any, record: Any, called: bool) -> None:
    scraper = Scraper("shop")

    @scraper.stage
    async def listing(page: Page) -> None: ...

    def hook(record: Any) -> None: ...

    hook.__annotations__["record"] = annotation
    scraper.on_record(hook)
    scraper.check()
    assert listing.hooks is not None
    assert listing.hooks.on_record[0].is_for(record) is called


def test_the_code_of_hooks_is_part_of_the_code_version(tmp_path: Any) -> None:
    def version(text: str) -> str | None:
        scraper = shop()
        file = tmp_path / "extra.py"
        file.write_text(text)
        names: dict[str, Any] = {}
        exec(compile(text, str(file), "exec"), names)
        scraper.on_record(names["clean"])
        return scraper.code_version

    assert version("def clean(record): return None") != version("def clean(record): return record")


def test_a_request_is_changed_by_copies() -> None:
    request = Request(url="http://a.example", headers={"accept": "text/html", "X-A": "1"})
    changed = request.with_headers({"Accept": "application/json"}).replace(url="http://b.example", body=b"x")
    assert (changed.url, changed.method, changed.body) == ("http://b.example", "GET", b"x")
    assert {name.lower(): value for name, value in changed.headers.items()} == {
        "accept": "application/json",
        "x-a": "1",
    }
    assert dict(request.headers) == {"accept": "text/html", "X-A": "1"}


def test_a_page_is_changed_by_a_copy_that_keeps_the_rest() -> None:
    headers = {"Content-Type": "text/html; charset=latin-1"}
    page = Page(
        "http://a.example/b",
        status=403,
        headers=headers,
        body=b"<p>\xe9",
        requested_url="http://a.example",
        history=("x",),
    )
    assert page.text == "<p>\u00e9"
    changed = page.replace(status=200, body="<p>\u00e8 \u20ac \u4e2d")
    assert (changed.status, changed.url, changed.requested_url) == (200, page.url, page.requested_url)
    assert (changed.history, changed.text) == (("x",), "<p>\u00e8 \u20ac &#20013;")
    assert (page.status, page.text) == (403, "<p>\u00e9")
    assert page.replace(url="http://c.example").join("/x") == "http://c.example/x"
