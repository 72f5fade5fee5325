"""Exported JSONL, CSV and Parquet files read back as the stored records."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.export import export_run
from shoal.export.tables import cell_text
from shoal.model.json_text import record_text
from tests.support.export_shop import read_parquet, stored
from tests.support.ledgers import sqlite_harness

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
ANYTHING = st.recursive(
    SCALAR,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(TEXT, ANYTHING, max_size=5), max_size=6)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Every field has one type, as records of a well-kept scraper have; each may be missing or null.
UNIFORM = st.lists(
    st.fixed_dictionaries(
        {"id": INT64},
        optional={
            "title": st.none() | TEXT,
            "stock": st.none() | INT64,
            "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "new": st.none() | st.booleans(),
            "tags": st.none() | st.lists(TEXT, max_size=3),
            "size": st.none() | st.fixed_dictionaries({"width": INT64, "unit": TEXT}),
            "offers": st.none() | st.lists(st.fixed_dictionaries({"price": INT64}), max_size=2),
        },
    ),
    min_size=1,
    max_size=6,
)
few_examples = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.slow
@few_examples
@given(records=RECORDS)
async def test_jsonl(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    data = await exported(tmp_path, records, "out.jsonl")
    assert data == "".join(f"{record_text(record)}\n" for record in records).encode()


@pytest.mark.slow
@few_examples
@given(records=RECORDS)
async def test_json_and_xml(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    data = await exported(tmp_path, records, "out.json")
    assert json.loads(data) == json.loads("[" + ",".join(map(record_text, records)) + "]")
    root = ElementTree.fromstring(await exported(tmp_path, records, "out.xml"))
    assert [child.tag for child in root] == ["record"] * len(records)
    assert [from_xml(child) or [] for child in root] == [in_xml(record) or [] for record in records]


def in_xml(value: Any) -> Any:
    """What XML can say of a value: texts, and lists of named values; empty lists and objects are empty texts."""
    if isinstance(value, dict):
        return [(printable(name), in_xml(inner)) for name, inner in value.items()] or ""
    if isinstance(value, list):
        return [("value", in_xml(inner)) for inner in value] or ""
    return None if value is None else printable(cell_text(value))


def printable(text: str) -> str:
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def from_xml(element: ElementTree.Element) -> Any:
    if element.get("null") == "true":
        return None
    children = [(child.get("name", child.tag), from_xml(child)) for child in element]
    return children or element.text or ""


async def test_names_that_xml_does_not_know(tmp_path: Path) -> None:
    names = ["title", "größe", "2nd", "a b", "x:y", "xmlns", "XML", "", "日本", "q\"<&>'", "a.b-c_d", "field", "é\n"]
    data = await exported(tmp_path, [dict.fromkeys(names, 1)], "out.xml")
    (record,) = ElementTree.fromstring(data)
    assert [child.get("name", child.tag) for child in record] == names
    assert [child.tag for child in record if child.tag != "field"] == ["title", "größe", "a.b-c_d"]
    assert await exported(tmp_path, [], "out.xml") == b'<?xml version="1.0" encoding="UTF-8"?>\n<records>\n</records>\n'
    assert await exported(tmp_path, [], "out.json") == b"[]\n"


@pytest.mark.slow
@few_examples
@given(records=RECORDS)
async def test_csv(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    data = await exported(tmp_path, records, "out.csv")
    columns = list(dict.fromkeys(name for record in records for name in record))
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    cells = [[None if record.get(name) is None else record[name] for name in columns] for record in records]
    assert rows == ([columns] if columns else []) + [[as_cell(value) for value in row] for row in cells]


def as_cell(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return value if isinstance(value, str) else "" if value is None else compact(value)


def compact(value: Any) -> str:
    return record_text({"v": value})[5:-1]


@pytest.mark.slow
@few_examples
@given(records=UNIFORM)
async def test_parquet_with_uniform_fields(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    table = await exported_table(tmp_path, records)
    assert table.column_names == list(dict.fromkeys(name for record in records for name in record))
    assert table.to_pylist() == [{name: record.get(name) for name in table.column_names} for record in records]


@pytest.mark.slow
@few_examples
@given(records=RECORDS)
async def test_parquet_with_anything(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    """No record is refused; a column that became text holds each value as a CSV cell would."""
    table = await exported_table(tmp_path, records)
    assert table.column_names == list(dict.fromkeys(name for record in records for name in record))
    assert table.num_rows == len(records) or not table.column_names
    for field in table.schema:
        if str(field.type) == "string":
            values = [record.get(field.name) for record in records]
            expected = [None if value is None else cell_text(value) for value in values]
            assert table[field.name].to_pylist() == expected


async def test_parquet_types(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {
            "a": 1,
            "b": 1,
            "c": 1,
            "d": [1, 2],
            "e": {"x": 1},
            "f": None,
            "g": {},
            "h": 2**70,
            "i": 2**60,
            "j": [],
            "k": [1],
        },
        {"a": 2, "b": 0.5, "c": "one", "d": [0.5], "e": {"x": "one", "y": True}, "f": None, "g": {}, "h": 1, "i": 0.5},
        {"k": ["one", {"deep": None}], "d": None},
    ]
    table = await exported_table(tmp_path, records)
    assert {field.name: str(field.type).replace("element: ", "") for field in table.schema} == {
        "a": "int64",
        "b": "double",
        "c": "string",
        "d": "list<double>",
        "e": "struct<x: string, y: bool>",
        "f": "string",
        "g": "string",
        "h": "string",
        "i": "string",
        "j": "list<string>",
        "k": "list<string>",
    }
    assert table["c"].to_pylist() == ["1", "one", None]
    assert table["e"].to_pylist() == [{"x": "1", "y": None}, {"x": "one", "y": True}, None]
    assert table["g"].to_pylist() == ["{}", "{}", None]
    assert table["h"].to_pylist() == [str(2**70), "1", None]
    assert table["i"].to_pylist() == [str(2**60), "0.5", None]
    assert table["k"].to_pylist() == [["1"], None, ["one", '{"deep":null}']]


async def test_objects_keyed_by_data_become_json(tmp_path: Path) -> None:
    records = [{"by_id": {f"id{n}{m}": 1 for m in range(30)}} for n in range(10)]
    table = await exported_table(tmp_path, records)
    assert [json.loads(text) for text in table["by_id"].to_pylist()] == [record["by_id"] for record in records]


async def test_deep_nesting_becomes_json(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(200):
        value = [value]
    table = await exported_table(tmp_path, [{"v": value}])
    (found,) = table["v"].to_pylist()
    while isinstance(found, list):
        (found,) = found
    assert found.startswith("[[")
    assert json.loads(found)


async def exported(folder: Path, records: list[dict[str, Any]], name: str) -> bytes:
    async with shared_lab(folder) as harness:
        run = await stored(harness.ledger, records)
        report = await export_run(harness.ledger, run.id, folder / name)
    data = (folder / name).read_bytes()
    assert (report.records, report.bytes) == (len(records), len(data))
    return data


async def exported_table(folder: Path, records: list[dict[str, Any]]) -> Any:
    return read_parquet(io.BytesIO(await exported(folder, records, "out.parquet")))


def shared_lab(folder: Path) -> Any:
    """The examples of a test share a file: each makes a run of its own."""
    return sqlite_harness(folder / "ledger.db")
