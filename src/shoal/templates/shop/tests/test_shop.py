"""Stages with saved pages: `shoal try shop.py URL --save tests/pages` saves one, and prints such a test."""

from shoal.testing import yielded_by

from shop import listing, product


def test_a_listing_leads_to_its_products_and_to_the_next_page(shoal_page):
    page = shoal_page("listing")  # tests/pages/listing.http
    assert yielded_by(listing, page) == [
        product.item("http://shop.example/product/zinc-watering-can"),
        product.item("http://shop.example/product/larch-planter"),
        listing.item(f"{page.url}?page=2"),
    ]


def test_a_product_is_one_record(shoal_page):
    page = shoal_page("product")
    assert yielded_by(product, page) == [
        {"sku": "GA-0002", "title": "Larch Planter", "price": 42.5, "url": page.url},
    ]
