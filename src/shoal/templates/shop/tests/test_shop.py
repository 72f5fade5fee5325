"""A stage is a plain function: give it a saved page and look at what it yields."""

import asyncio
from pathlib import Path

from shoal import Page

from shop import listing, product

PAGES = Path(__file__).parent / "pages"
URL = "http://shop.example/category/garden"


def test_a_listing_leads_to_its_products_and_to_the_next_page():
    page = Page.of(URL, (PAGES / "listing.html").read_text())
    assert yielded_by(listing(page)) == [
        product.item("http://shop.example/product/zinc-watering-can"),
        product.item("http://shop.example/product/larch-planter"),
        listing.item(f"{URL}?page=2"),
    ]


def test_a_product_is_one_record():
    page = Page.of("http://shop.example/product/larch-planter", (PAGES / "product.html").read_text())
    assert yielded_by(product(page)) == [
        {"sku": "GA-0002", "title": "Larch Planter", "price": 42.5, "url": page.url},
    ]


def yielded_by(stage):
    async def collect():
        return [value async for value in stage]

    return asyncio.run(collect())
