"""An author's file with all its types. `make lint` checks it: a stage keeps the types of its function."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, assert_type

from shoal import (
    Article,
    Counts,
    Download,
    Follow,
    Http,
    Item,
    Log,
    Page,
    Permanent,
    Run,
    Scraper,
    Stage,
    css,
    extract,
    extract_all,
)
from shoal.model.item import NewItem


@dataclass
class Book:
    title: str
    price: float


@dataclass
class Shelf:
    """The settings in [scrapers.books.settings]."""

    currency: str = "EUR"


books = Scraper("books", settings=Shelf)


class Catalogue:
    def __init__(self, currency: str) -> None:
        self.currency = currency


@books.provide
async def catalogue(shelf: Shelf) -> AsyncIterator[Catalogue]:
    yield Catalogue(shelf.currency)


@books.provide(scope="attempt")
def price(item: Item, catalogue: Catalogue) -> Decimal:
    return Decimal(str(item.payload.get("price", 0)))


@books.stage(rate="2/s", retries=3, follow=Follow(to="book", allow="/book/"), partition="north")
async def listing(page: Page) -> AsyncIterator[NewItem]:
    for link in page.css("li.next a"):
        yield listing.item(page.join(link.attrib["href"]))


@books.stage(record=Book, lane=lambda item: item.key, ordered=True, timeout=10, delay=(1, 2))
async def book(page: Page, item: Item, log: Log, shelf: Shelf, price: Decimal = Decimal(0)) -> Book:
    title = page.css("h1::text").get()
    if title is None:
        raise Permanent("there is no title")
    log.info("found", title=title, currency=shelf.currency)
    return Book(title, float(price))


@dataclass
class Shop:
    name: Annotated[str, css("h1")]
    rating: float = css(".rating", default=0.0)


@books.stage(record=Shop, each=".shop")
async def shops(page: Page) -> None: ...


@books.stage(save="covers/{name}", max_bytes=1_000_000)
async def cover(file: Download) -> dict[str, str]:
    return {"path": file.path, "sha256": file.sha256}


@books.stage
async def search(page: Page, http: Http) -> AsyncIterator[NewItem | Article]:
    form = page.form("#search")
    yield assert_type(form.item(shops, {"q": "rake"}, submit="go"), NewItem)
    found = await http.submit(form, {"q": "hoe"})
    assert_type(extract_all(Shop, found, ".shop"), list[Shop])
    assert_type(await http.download(page.join("/terms.pdf")), Download)
    yield found.article()


@books.stage
def reviews(page: Page) -> Iterator[dict[str, str]]:
    for text in page.css("p.review::text").getall():
        yield {"review": text}


@books.stage(lane=None, concurrency=4)
async def stock(item: Item, http: Http) -> dict[str, int]:
    answer = await http.get("https://shop.example/stock", params={"sku": item.key})
    return {"stock": int(answer.json()["count"])}


@books.on_finish
def tell(run: Run, counts: Counts, log: Log) -> None:
    log.info("finished", run=run.id, done=counts.done)


def seeds() -> Iterator[NewItem]:
    for number in range(3):
        yield stock.item(key=f"sku {number}")


books.start("https://shop.example/", listing.item("https://shop.example/?page=2"), seeds)
books.start(listing.sitemap("https://shop.example/sitemap.xml", match="/book/"))


async def as_a_test_calls_them(page: Page, log: Log) -> None:
    """Decorated functions keep their parameters and return types."""
    stage: Stage[[Page], AsyncIterator[NewItem]] = listing
    assert_type(stage(page), AsyncIterator[NewItem])
    assert_type(listing(page=page), AsyncIterator[NewItem])
    assert_type(await book(page, Item(key="b"), log, Shelf()), Book)
    assert_type(extract(Shop, page), Shop)
    assert_type(reviews(page), Iterator[dict[str, str]])
    assert_type(listing.item("https://shop.example/"), NewItem)
    assert_type(book.item(Item(key="b"), priority=1), NewItem)
    assert_type(catalogue(Shelf()), AsyncIterator[Catalogue])
    assert_type(price(Item(key="b"), Catalogue("EUR")), Decimal)
    books.provide(scope="run")  # type: ignore[call-overload]
    reviews("page")  # type: ignore[arg-type]
    books.stage(rtae="2/s")  # type: ignore[call-overload]
    tell(page)  # type: ignore[call-arg, arg-type]
