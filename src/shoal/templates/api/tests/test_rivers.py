"""Stages with saved answers: `FakeHttp` gives them by URL, keeps the requests, and sends nothing."""

import pytest

from shoal import Item, Permanent
from shoal.testing import FakeHttp, yielded_by

from rivers import Api, index, river

API = Api(base="http://api.example", per_page=2)


def test_a_page_of_the_index_leads_to_its_rivers_and_to_the_next_page(shoal_page):
    url = "http://api.example/rivers?page=2&per_page=2"
    http = FakeHttp({url: shoal_page("index.json", url=url)})
    found = yielded_by(index, Item(key="page 2", payload={"page": 2}), http, API)
    assert found == [river.item(key="loire"), river.item(key="rhine"), index.item(key="page 3", payload={"page": 3})]
    assert http.urls == [url]


def test_a_river_is_one_record():
    http = FakeHttp({"http://api.example/rivers/rhine": {"length_km": 1230, "mouth": "North Sea"}})
    assert yielded_by(river, Item(key="rhine"), http, API) == [
        {"name": "rhine", "length_km": 1230, "mouth": "North Sea"}
    ]


def test_a_river_that_nobody_measured_is_not_tried_again():
    http = FakeHttp({"http://api.example/rivers/lost-creek": {}})
    with pytest.raises(Permanent):
        yielded_by(river, Item(key="lost-creek"), http, API)
