"""A stage is a plain function: give it what it asks for and look at what it yields."""

import asyncio
import json
from pathlib import Path

import pytest

from shoal import Item, Page, Permanent

from rivers import Api, index, river

PAGES = Path(__file__).parent / "pages"
API = Api(base="http://api.example", per_page=2)


class SavedHttp:
    """Answers from saved texts, and remembers what it was asked."""

    def __init__(self, text):
        self.text = text
        self.asked = []

    async def get(self, url, params=None):
        self.asked.append((url, params))
        return Page.of(url, self.text, headers={"Content-Type": "application/json"})


def test_a_page_of_the_index_leads_to_its_rivers_and_to_the_next_page():
    http = SavedHttp((PAGES / "index.json").read_text())
    found = yielded_by(index(Item(key="page 2", payload={"page": 2}), http, API))
    assert http.asked == [("http://api.example/rivers", {"page": 2, "per_page": 2})]
    assert found == [river.item(key="loire"), river.item(key="rhine"), index.item(key="page 3", payload={"page": 3})]


def test_a_river_is_one_record():
    http = SavedHttp(json.dumps({"length_km": 1230, "mouth": "North Sea"}))
    assert yielded_by(river(Item(key="rhine"), http, API)) == [
        {"name": "rhine", "length_km": 1230, "mouth": "North Sea"}
    ]


def test_a_river_that_nobody_measured_is_not_tried_again():
    with pytest.raises(Permanent):
        yielded_by(river(Item(key="lost-creek"), SavedHttp("{}"), API))


def yielded_by(stage):
    async def collect():
        return [value async for value in stage]

    return asyncio.run(collect())
