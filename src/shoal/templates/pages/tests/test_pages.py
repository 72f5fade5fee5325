"""A stage with a saved page: `shoal try pages.py URL --save tests/pages` saves one, and prints such a test."""

from shoal.testing import yielded_by

from pages import title


def test_a_page_is_one_record(shoal_page):
    about = shoal_page("about")  # tests/pages/about.http
    assert yielded_by(title, about) == [{"url": "http://shop.example/about", "title": "About | Shop", "links": 2}]
