"""What may be enqueued and what may be stored."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.errors import InvalidItem, InvalidRecord
from shoal.model.item import NewItem, prepare
from shoal.model.json_text import RECORD_BYTES, record_text
from shoal.model.url_key import key_hash


def test_the_key_comes_from_the_url_unless_given() -> None:
    by_url = prepare(NewItem(url="https://EXAMPLE.com/"), "page")
    assert (by_url.key, by_url.url, by_url.stage) == (None, "https://EXAMPLE.com/", "page")
    assert by_url.key_hash == key_hash("https://example.com/")
    both = prepare(NewItem(url="https://example.com/", key="home", stage="other"), "page")
    assert (both.key_hash, both.stage) == (key_hash("home"), "other")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "neither a url nor a key"),
        ({"key": ""}, "empty"),
        ({"key": "a\0b"}, "NUL"),
        ({"key": "k" * 3000}, "bytes long"),
        ({"key": 7}, "must be text"),
        ({"key": "k", "url": "nope"}, "not a valid"),
        ({"key": "k", "partition": "p" * 300}, "partition"),
        ({"key": "k", "lane": ""}, "lane"),
        ({"key": "k", "priority": 1.5}, "priority"),
        ({"key": "k", "priority": 2_000_000}, "priority"),
        ({"key": "k", "priority": True}, "priority"),
        ({"key": "k", "delay": -0.1}, "delay"),
        ({"key": "k", "delay": float("nan")}, "delay"),
        ({"key": "k", "delay": float("inf")}, "delay"),
        ({"key": "k", "max_attempts": 0}, "max_attempts"),
        ({"key": "k", "payload": {"f": object()}}, "payload cannot be stored"),
        ({"key": "k", "payload": {"s": "\ud800"}}, "payload cannot be stored"),
        ({"key": "k", "payload": {"big": "x" * 2_000_000}}, "bytes of JSON"),
    ],
)
def test_what_cannot_be_kept_is_refused(fields: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidItem, match=complaint):
        prepare(NewItem(**fields), "page")


@dataclasses.dataclass
class Book:
    title: str
    seen: dt.date


def test_records_may_be_dicts_and_dataclasses() -> None:
    assert json.loads(record_text({"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}
    assert json.loads(record_text(Book("Dune", dt.date(2026, 1, 2)))) == {"title": "Dune", "seen": "2026-01-02"}


@pytest.mark.parametrize("record", [1, "text", None, [1], {"f": object()}, {"s": "\ud800"}, {1.5j: 1}])
def test_other_things_are_no_records(record: object) -> None:
    with pytest.raises(InvalidRecord):
        record_text(record)


def test_a_record_that_is_too_big_says_so() -> None:
    with pytest.raises(InvalidRecord, match="Split it"):
        record_text({"body": "x" * RECORD_BYTES})
