"""A stage with a saved page: `shoal try crawl.py URL --save tests/pages` saves one, and prints such a test."""

from shoal import Item
from shoal.testing import followed_by, yielded_by

from crawl import visit


def test_a_page_is_one_record(shoal_page):
    home = shoal_page("home")  # tests/pages/home.http
    found = yielded_by(visit, home, Item(home.url, depth=1))
    assert found == [{"url": "http://shop.example/", "title": "Shop", "depth": 1}]


def test_links_within_the_site_are_followed_down_to_the_depth(shoal_page):
    home = shoal_page("home")
    followed = [item.url for item in followed_by(visit, home)]
    assert followed == ["http://shop.example/category/garden", "http://shop.example/about"]
    assert followed_by(visit, home, depth=2) == []
