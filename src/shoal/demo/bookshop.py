"""The made-up scraper: a bookshop in three countries, each with its own host, with listing pages that lead to books.

Nothing is fetched. What a visit brings is decided by the page's number, so that every demo tells the same story.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import msgspec

from shoal.model.item import Claimed, NewItem
from shoal.model.lane import LanePolicy
from shoal.model.outcome import OutcomeClass
from shoal.model.run import RunSpec, StageSpec

SCRAPER = "demo-bookshop"
PAGES = {"de": 80, "fr": 80, "us": 30}
REPEATED = 8
HOST_LIMIT = 8
# A person slowed this host down. The others are only limited in how many requests they see at once.
SLOW_HOST = "us.books.example"
SLOW_DELAY = (0.02, 0.03)
_HOST_LANE = LanePolicy(limit=HOST_LIMIT)


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """What a visit brought, in an author's words: an outcome class, records, more work."""

    outcome: OutcomeClass = OutcomeClass.DONE
    records: tuple[dict[str, object], ...] = ()
    follow_ups: tuple[NewItem, ...] = ()
    error: str | None = None
    retry_after: float | None = None


def run_spec(code_version: str) -> RunSpec:
    return RunSpec(
        scraper=SCRAPER,
        stages=(StageSpec("listing", lane=_HOST_LANE), StageSpec("book", lane=_HOST_LANE)),
        settings={"pages": PAGES},
        code_version=code_version,
    )


def start_items() -> Iterator[NewItem]:
    """Every listing page once, some of them again under another spelling, and one that is no URL."""
    for country, pages in PAGES.items():
        for number in range(1, pages + 1):
            yield _page(country, "listing", number)
        for number in range(1, REPEATED + 1):
            url = f"HTTPS://{host_of(country).upper()}:443/listing/{number}#top"
            yield NewItem(url=url, partition=country, lane=host_of(country))
    yield NewItem(url="www.books.example/no-scheme")


async def visit(item: Claimed, rng: random.Random) -> Visit:
    """Pretend to fetch and read one page."""
    await asyncio.sleep(rng.uniform(0.005, 0.02))
    number = int((item.url or "").rpartition("/")[2])
    if trouble := _trouble(item, number):
        return trouble
    if item.stage == "book":
        title = f"The Shoal, volume {number}"
        price = round(5 + number * 0.37, 2)
        return Visit(records=({"title": title, "price": price, "country": item.partition, "url": item.url},))
    # Neighbouring pages list the same book: the ledger keeps it once.
    books = (number, number % PAGES[item.partition] + 1)
    return Visit(follow_ups=tuple(_page(item.partition, "book", book) for book in books))


def host_of(country: str) -> str:
    return f"{country}.books.example"


def _page(country: str, stage: str, number: int) -> NewItem:
    return NewItem(
        url=f"https://{host_of(country)}/{stage}/{number}", stage=stage, partition=country, lane=host_of(country)
    )


def _trouble(item: Claimed, number: int) -> Visit | None:
    match item.partition, item.stage, number:
        case "fr", "book", 13:
            return Visit(outcome=OutcomeClass.PERMANENT, error="404 Not Found")
        case "de", "book", 40 if item.epoch == 1:
            return Visit(outcome=OutcomeClass.THROTTLED, error="429 Too Many Requests", retry_after=0.3)
        case _, _, _ if number % 17 == 0 and item.tries == 0:
            return Visit(outcome=OutcomeClass.TRANSIENT, error="Connection reset by peer")
        case _:
            return None
