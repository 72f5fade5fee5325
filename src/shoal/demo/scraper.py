"""The scraper of the demo, as a user would write it for the bundled shop.

`shoal pool shoal.demo.scraper:shop --test` scrapes a shop that `python -m shoal.demo.shop` serves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from shoal import Page, Scraper
from shoal.model.item import NewItem

PER_HOST = 16


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
