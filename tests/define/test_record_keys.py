"""Record keys: which records are the same, and what happens to those without a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal import Item, Page, Scraper
from shoal.define.record_keys import RecordKeyRule
from shoal.define.records import Output
from shoal.errors import InvalidRecord, InvalidScraper
from shoal.model.record_key import RecordScope


@dataclasses.dataclass
class Offer:
    sku: str
    price: float


def keys_of(key: Any, *values: Any, record_type: Any = None) -> list[str]:
    output = Output("page", {}, record_type, keys=RecordKeyRule("shop", "page", key, "run", "skip"))
    for value in values:
        output.add(value)
    assert len(output.record_keys) == len(output.records)
    return [each.text for each in output.record_keys]


def test_the_key_is_the_json_of_its_fields() -> None:
    assert keys_of("sku", {"sku": "A1"}, Offer("A1", 2.0), {"sku": 7}) == ['"A1"', '"A1"', "7"]
    assert keys_of(("shop", "sku"), {"sku": "A1", "shop": "de", "x": 1}) == ['["de","A1"]']
    assert keys_of(["sku"], {"sku": {"b": 1, "a": 2}}, {"sku": {"a": 2, "b": 1}}) == ['{"a":2,"b":1}'] * 2
    assert keys_of("price", {"price": 1.0}, {"price": 0}, {"price": False}) == ["1.0", "0", "false"]


def test_a_function_gets_the_record_as_its_type() -> None:
    by_offer: Callable[[Offer], Any] = lambda offer: (offer.sku, offer.price)  # noqa: E731
    assert keys_of(by_offer, {"sku": "A1", "price": 2}, record_type=Offer) == ['["A1",2.0]']
    assert keys_of(lambda record: record["sku"].lower(), {"sku": "A1"}) == ['"a1"']


@pytest.mark.parametrize(
    ("key", "record", "said"),
    [
        ("sku", {"title": "x"}, "its field 'sku' is missing"),
        ("sku", {"sku": None}, "its field 'sku' is empty"),
        ("sku", {"sku": ""}, "its field 'sku' is empty"),
        (("shop", "sku"), {"sku": "A1"}, "its field 'shop' is missing"),
        (lambda record: None, {"sku": "A1"}, "returned None"),
        (lambda record: object(), {"sku": "A1"}, "returned object"),
        ("sku", {"sku": "x" * 3_000}, "3,002 characters"),
    ],
)
def test_a_record_without_a_key_is_invalid(key: Any, record: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRecord, match=said):
        keys_of(key, record)


def test_keys_of_scrapers_stages_and_records_differ() -> None:
    def hash_of(scraper: str, stage: str, sku: str) -> bytes:
        rule = RecordKeyRule(scraper, stage, "sku", "scraper", "replace")
        return rule.key_of(None, f'{{"sku":"{sku}"}}').hash

    hashes = {hash_of(*each) for each in (("a", "x", "1"), ("b", "x", "1"), ("a", "y", "1"), ("a", "x", "2"))}
    assert len(hashes) == 4
    assert hash_of("a", "x", "1") in hashes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"record_key": 7}, "record_key of the stage page is 7"),
        ({"record_key": ()}, "record_key of the stage page"),
        ({"record_key": "sku", "record_scope": "all"}, "it must be 'run' or 'scraper'"),
        ({"record_key": "sku", "on_duplicate": "drop"}, "it must be 'skip' or 'replace'"),
        ({"on_duplicate": "skip"}, "needs record_key="),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidScraper, match=said):

        @Scraper("shop").stage(**options)
        async def page(page: Page) -> None: ...


def test_the_default_is_one_run_and_the_first_record() -> None:
    shop = Scraper("shop")

    @shop.stage(record_key="sku")
    async def page(page: Page) -> None: ...

    assert page.record_keys is not None
    key = page.record_keys.key_of({}, '{"sku":"A1"}')
    assert (key.scope, key.replaces) == (RecordScope.RUN, False)


def test_a_scraper_upserts_over_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)
    prices = {"A": 1, "B": 1}
    shop = Scraper("shop")

    @shop.stage(record_key="sku", record_scope="scraper", on_duplicate="replace", retries=0)
    async def offer(item: Item) -> Any:
        yield {"sku": item.key, "price": prices.get(item.key)} if item.key in prices else {"price": 0}

    shop.start([offer.item(key=key) for key in ("A", "B", "nameless")])
    first = shop.run(quiet=True)
    assert (first.counts.results, first.counts.new_records, first.counts.dead) == (2, 2, 1)
    assert "'sku' is missing" in (first.failures.groups[0].display_text)
    prices["B"] = 2
    second = shop.run(quiet=True, fresh=True)
    assert (second.counts.changed_records, second.counts.unchanged_records, second.counts.results) == (1, 1, 2)
    assert sorted(record["price"] for record in second.records()) == [1, 2]
    assert list(first.records()) == []
