"""An author's file with all its types. `make lint` checks it: a stage keeps the types of its function."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import assert_type

from shoal import Counts, Follow, Http, Item, Log, Page, Permanent, Run, Scraper, Stage
from shoal.model.item import NewItem


@dataclass
class Book:
    title: str
    price: float


@dataclass
class Shelf:
    """What [scrapers.books.settings] says."""

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
    """Decorated functions are called with their own arguments and give what they give."""
    stage: Stage[[Page], AsyncIterator[NewItem]] = listing
    assert_type(stage(page), AsyncIterator[NewItem])
    assert_type(listing(page=page), AsyncIterator[NewItem])
    assert_type(await book(page, Item(key="b"), log, Shelf()), Book)
    assert_type(reviews(page), Iterator[dict[str, str]])
    assert_type(listing.item("https://shop.example/"), NewItem)
    assert_type(book.item(Item(key="b"), priority=1), NewItem)
    assert_type(catalogue(Shelf()), AsyncIterator[Catalogue])
    assert_type(price(Item(key="b"), Catalogue("EUR")), Decimal)
    books.provide(scope="run")  # type: ignore[call-overload]
    reviews("page")  # type: ignore[arg-type]
    books.stage(rtae="2/s")  # type: ignore[call-overload]
    tell(page)  # type: ignore[call-arg, arg-type]
