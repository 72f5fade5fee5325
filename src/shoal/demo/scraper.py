"""The scraper of the demo: what somebody would write for the bundled shop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from shoal import Page, Scraper
from shoal.model.item import NewItem

PER_HOST = 16


def shop_scraper(url: str) -> Scraper:
    """A scraper that walks from the home page through the categories to every product."""
    shop = Scraper("shop")

    @shop.stage(concurrency=PER_HOST, retries=3)
    async def listing(page: Page) -> AsyncIterator[NewItem]:
        for a in page.css("li.category a, ul.pagination li.next a"):
            yield listing.item(page.join(a.attrib["href"]))
        for a in page.css("ul.products h3 a, aside.outlet li a"):
            yield product.item(page.join(a.attrib["href"]))

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

    shop.start(listing.item(url + "/"))
    return shop
