"""The scraper of the demo, and the check of its records against the shop's products and its access log.

`shoal pool shoal.demo.scraper:shop --test` scrapes a shop that `python -m shoal.demo.shop` serves.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from shoal import Page, Scraper
from shoal.demo.shop import Fault, RunningShop, ShopFacts, Visit
from shoal.model.item import NewItem
from shoal.observe.formatting import pluralize

PER_HOST = 16
FAILING_ONCE = (Fault.ERROR_ONCE, Fault.THROTTLED_ONCE, Fault.CAPTCHA_ONCE, Fault.EMPTY_ONCE)
OUTLET_DELAY = 0.2
OUTLET = "127.0.0.2"
# The shop logs a visit when it reads the request, on a busy machine some milliseconds after its arrival.
TOLERANCE_SECONDS = 0.05


class ShopSettings(msgspec.Struct, frozen=True):
    """The settings of the scraper."""

    url: str = "http://127.0.0.1:8001"


def shop_scraper(url: str | None = None) -> Scraper:
    """A scraper that follows links from the home page through the categories to every product.

    `url`: the shop's address; by default that of the settings. A product's partition is its category.
    """
    shop = Scraper("shop", settings=ShopSettings)

    @shop.stage(concurrency=PER_HOST, retries=3)
    async def listing(page: Page) -> AsyncIterator[NewItem]:
        for a in page.css("li.category a, ul.pagination li.next a"):
            yield listing.item(page.join(a.attrib["href"]))
        category = page.url.rpartition("/category/")[2].partition("/")[0].partition("?")[0]
        for a in page.css("ul.products h3 a, aside.outlet li a"):
            yield product.item(page.join(a.attrib["href"]), partition=category)

    @shop.stage(concurrency=PER_HOST, retries=3)
    async def product(page: Page) -> AsyncIterator[dict[str, Any]]:
        found = page.css("article.product")
        yield {
            "sku": found.css("td.sku::text").get(),
            "title": found.css("h1::text").get(),
            "price": float(found.css("p.price span.amount::text").get("nan")),
            "currency": found.css("p.price span.currency::text").get(),
            "rating": float(found.css("p.rating::attr(data-rating)").get("nan")),
            "stock": int(found.css("p.stock span.count::text").get("0")),
            "category": found.css("td.category::text").get(),
        }

    shop.start(lambda: [listing.item((url or shop.settings.url) + "/")])
    return shop


shop = shop_scraper()


class ScrapeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a scrape against the shop.

    `missing`, `twice` and `wrong` are SKUs; `again` counts fetches of pages that had been fetched successfully before;
    `closest_at_outlet` is the shortest time between two requests to the host whose robots.txt sets a delay.
    """

    products: int
    found: int
    missing: tuple[str, ...]
    twice: tuple[str, ...]
    wrong: tuple[str, ...]
    visits: int
    faults: int
    again: int
    most_at_once: int
    closest_at_outlet: float | None

    @property
    def problems(self) -> list[str]:
        """All deviations, each as a short text."""
        closest = self.closest_at_outlet
        checks = {
            f"missing: {pluralize(len(self.missing), 'product')}": self.missing,
            f"stored twice: {pluralize(len(self.twice), 'product')}": self.twice,
            f"wrong: {pluralize(len(self.wrong), 'product')}": self.wrong,
            f"fetched again: {pluralize(self.again, 'page')}": self.again,
            "visits of the outlet came too close": closest is not None and closest < OUTLET_DELAY - TOLERANCE_SECONDS,
        }
        return [problem for problem, found in checks.items() if found]


def check_scrape(shop: RunningShop, records: Sequence[dict[str, Any]]) -> ScrapeCheck:
    facts, log = shop.facts(), shop.log()
    times = Counter(record.get("sku") for record in records)
    wrong = [
        str(record.get("sku"))
        for record in records
        if (expected := facts.products.get(str(record.get("sku")))) is None
        or any(getattr(expected, name) != value for name, value in record.items())
    ]
    return ScrapeCheck(
        products=len(facts.products),
        found=sum(sku in times for sku in facts.products),
        missing=tuple(sku for sku in facts.products if sku not in times),
        twice=tuple(str(sku) for sku, n in times.items() if n > 1),
        wrong=tuple(wrong),
        visits=len(log),
        faults=sum(facts.fault_counts.values()),
        again=_fetched_again(log, facts),
        most_at_once=_max_concurrent([visit for visit in log if visit.host != OUTLET]),
        closest_at_outlet=_shortest_gap([visit for visit in log if visit.host == OUTLET]),
    )


def _fetched_again(log: Sequence[Visit], facts: ShopFacts) -> int:
    """Fetches beyond one per page, or beyond two where the shop makes the first one fail."""
    expected_twice = {urlsplit(link).path for fault in FAILING_ONCE for link in facts.links_by_fault[fault]}
    times = Counter((visit.host, visit.path) for visit in log)
    return sum(n - (2 if path in expected_twice else 1) for (_, path), n in times.items())


def _max_concurrent(log: Sequence[Visit]) -> int:
    changes = sorted([(visit.at, 1) for visit in log] + [(visit.ended, -1) for visit in log])
    current = highest = 0
    for _, change in changes:
        current += change
        highest = max(highest, current)
    return highest


def _shortest_gap(log: Sequence[Visit]) -> float | None:
    starts = sorted(visit.at for visit in log)
    return min((later - earlier for earlier, later in itertools.pairwise(starts)), default=None)
