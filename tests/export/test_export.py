"""Exports of runs on both ledgers: content, order, and exports during the run."""

from __future__ import annotations

import asyncio
import csv
import io
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from shoal import url_hash
from shoal.errors import InvalidRecord, NotFound, UnknownStage, UsageError
from shoal.export import Layout, export_run, first_results, measure_coverage
from shoal.testing.harness import LedgerHarness, done
from tests.support.export_shop import REVIEW, add, read_jsonl, read_parquet, stored

FORMATS = ["jsonl", "csv", "parquet"]
BOOKS = [{"title": f"Book {n}", "price": n / 2, "tags": ["new"] if n % 2 else []} for n in range(250)]


@pytest.mark.parametrize("format", FORMATS)
async def test_two_exports_of_a_finished_run_are_the_same_bytes(
    either_harness: LedgerHarness, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stored(either_harness.ledger, BOOKS)
    first, second = tmp_path / f"first.{format}", tmp_path / f"second.{format}"
    report = await export_run(either_harness.ledger, run.id, first)
    # How the ledger is read must not show in the file.
    monkeypatch.setattr("shoal.export.records.FIRST_PAGE", 7)
    monkeypatch.setattr("shoal.export.records.MAX_PAGE", 11)
    again = await export_run(either_harness.ledger, run.id, second)
    assert first.read_bytes() == second.read_bytes()
    assert report == again
    assert (report.records, report.bytes) == (len(BOOKS), first.stat().st_size)
    assert report.columns == (() if format == "jsonl" else ("title", "price", "tags"))


async def test_records_are_copied_byte_for_byte_in_order(either_harness: LedgerHarness, tmp_path: Path) -> None:
    texts = ['{"b": 1.10, "a": "\\u00e9"}', "{ }", '{"z":1e2,"z":2}', '{"n":123456789012345678901234567890}']
    run = await stored(either_harness.ledger, texts)
    await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().splitlines() == texts


async def test_a_multi_line_record_becomes_one_line(either_harness: LedgerHarness, tmp_path: Path) -> None:
    run = await stored(either_harness.ledger, ['{\r\n "a": "x\\ny"\n}'])
    await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl")
    (line,) = (tmp_path / "out.jsonl").read_bytes().split(b"\n")[:-1]
    assert read_jsonl(line) == [{"a": "x\ny"}]


@pytest.mark.parametrize("format", FORMATS)
async def test_a_run_without_records(either_harness: LedgerHarness, tmp_path: Path, format: str) -> None:
    run = await stored(either_harness.ledger, [])
    report = await export_run(either_harness.ledger, run.id, tmp_path / f"out.{format}")
    assert (report.records, report.columns) == (0, ())
    if format == "parquet":
        assert read_parquet(tmp_path / "out.parquet").num_rows == 0
    else:
        assert (tmp_path / f"out.{format}").read_bytes() == b""


async def test_meta_fields(either_harness: LedgerHarness, tmp_path: Path) -> None:
    run = await stored(either_harness.ledger, [{"title": "A"}, "{}", {"_url": "its own", "_stäge": 1}])
    await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl", layout=Layout(meta=True))
    first, empty, own = read_jsonl((tmp_path / "out.jsonl").read_bytes())
    item = (await either_harness.ledger.reads.results(run.id)).rows[0].item
    url = "https://shop.example/item/0"
    where = {"_run": run.id, "_stage": "page", "_key": None, "_url": url, "_url_hash": url_hash(url), "_item": item}
    assert first == {**where, "title": "A"}
    assert list(first) == [*where, "title"]
    url = "https://shop.example/item/1"
    assert empty == {**where, "_url": url, "_url_hash": url_hash(url), "_item": item + 1}
    assert (own["_url"], own["_stäge"], own["_item"]) == ("its own", 1, item + 2)
    assert (tmp_path / "out.jsonl").read_text().count('"_url"') == 3


async def test_selected_columns(either_harness: LedgerHarness, tmp_path: Path) -> None:
    run = await stored(either_harness.ledger, ['{"a":1.10,"b":2,"c":3}', '{"c":4}'])
    layout = Layout(columns=("c", "nope", "a"))
    await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl", layout=layout)
    assert (tmp_path / "out.jsonl").read_text() == '{"c":3,"a":1.10}\n{"c":4}\n'
    report = await export_run(either_harness.ledger, run.id, tmp_path / "out.csv", layout=layout)
    assert (tmp_path / "out.csv").read_bytes() == b"c,nope,a\r\n3,,1.1\r\n4,,\r\n"
    assert report.missing_columns == ("nope",)
    await export_run(either_harness.ledger, run.id, tmp_path / "out.parquet", layout=layout)
    assert read_parquet(tmp_path / "out.parquet").to_pylist()[1] == {"c": 4, "nope": None, "a": None}


async def test_one_stage_or_all(either_harness: LedgerHarness, tmp_path: Path) -> None:
    run = await stored(either_harness.ledger, [{"title": f"Book {n}"} for n in range(150)], end=False)
    await add(either_harness.ledger, run, [{"stars": n} for n in range(3)], stage=REVIEW)
    together = await export_run(either_harness.ledger, run.id, tmp_path / "all.csv")
    assert (together.records, together.columns) == (153, ("title", "stars"))
    assert together.differing_stages == ("page", "review")
    apart = await export_run(either_harness.ledger, run.id, tmp_path / "reviews.csv", stage=REVIEW)
    assert (tmp_path / "reviews.csv").read_bytes() == b"stars\r\n0\r\n1\r\n2\r\n"
    assert apart.differing_stages == ()
    sample = await first_results(either_harness.ledger, run.id, 2, stage=REVIEW)
    assert [row.record for row in sample] == ['{"stars":0}', '{"stars":1}']


async def test_bom_and_safe_csv(either_harness: LedgerHarness, tmp_path: Path) -> None:
    cells = ["=1+1", "+1", "-x", "@me", "\tx", "plain", -5, ""]
    run = await stored(either_harness.ledger, [{"=name": cell} for cell in cells])
    await export_run(either_harness.ledger, run.id, tmp_path / "plain.csv")
    assert column(tmp_path / "plain.csv") == ["=name", *map(str, cells)]
    await export_run(either_harness.ledger, run.id, tmp_path / "safe.csv", layout=Layout(bom=True, safe_csv=True))
    assert (tmp_path / "safe.csv").read_bytes().startswith(b"\xef\xbb\xbf'=name\r\n")
    assert column(tmp_path / "safe.csv")[1:] == ["'=1+1", "'+1", "'-x", "'@me", "'\tx", "plain", "-5", ""]


def column(path: Path) -> list[str]:
    return [row[0] for row in csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))]


@pytest.mark.parametrize("format", FORMATS)
async def test_export_during_the_run(either_harness: LedgerHarness, tmp_path: Path, format: str) -> None:
    """All that was stored before, some of what comes meanwhile, each once, and every row whole."""
    before = [{"id": f"before-{n}", "price": n} for n in range(2_000)]
    run = await stored(either_harness.ledger, before, end=False)
    busy = await either_harness.open_again()
    under_way = asyncio.Event()
    path = tmp_path / f"out.{format}"

    async def keep_storing() -> None:
        for batch in range(1_000):
            # New fields and other types come up on the way.
            await add(busy, run, [{"id": f"late-{batch}", "price": "?", f"field{batch}": batch}], name=f"late{batch}")
            under_way.set()

    storing = asyncio.create_task(keep_storing())
    await under_way.wait()
    report = await export_run(either_harness.ledger, run.id, path, progress=lambda *_: None)
    assert not storing.done(), "nothing was stored meanwhile"
    storing.cancel()
    await asyncio.gather(storing, return_exceptions=True)
    rows = read_table(path)
    seen = Counter(row["id"] for row in rows)
    assert set(seen.values()) == {1}
    assert {row["id"] for row in before} <= set(seen)
    assert report.records == len(rows) > len(before)
    for row in rows[len(before) :]:
        number = row["id"].removeprefix("late-")
        assert (str(row["price"]), str(row[f"field{number}"])) == ("?", number)


def read_table(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return read_jsonl(path.read_bytes())
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = read_parquet(path).to_pylist()
        return rows
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


async def test_row_groups_are_bounded(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.export.job.CHUNK_BYTES", 1_000)
    monkeypatch.setattr("shoal.export.tables.ROW_GROUP_ROWS", 60)
    run = await stored(either_harness.ledger, BOOKS)
    await export_run(either_harness.ledger, run.id, tmp_path / "out.parquet")
    file = import_module("pyarrow.parquet").ParquetFile(tmp_path / "out.parquet")
    groups = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert len(groups) > 2
    assert max(groups) < 120
    assert file.read().to_pylist() == BOOKS


async def test_coverage_of_many_records_is_sampled(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, other = await harness.run(), await harness.run()
    worker = await harness.worker(lease_seconds=3600)
    for of in (run, other):
        await harness.put(of, *(f"k{n}" for n in range(600)))
    claimed = await harness.claim(worker, 2000)
    await harness.commit(
        worker, *(done(item, '{"a": 1, "half": ' + ("null}" if item.item % 2 else "2}")) for item in claimed)
    )
    sampled = await measure_coverage(harness.ledger, run.id, sample=200)
    assert sampled.sampled
    assert sampled.of == 600
    assert 150 <= sampled.records <= 200
    (a, half) = sampled.fields
    assert (a.field, a.present, a.filled_share, a.records) == ("a", sampled.records, 1.0, sampled.records)
    assert abs(half.filled_share - 0.5) < 0.1
    for exact in (
        await measure_coverage(harness.ledger, run.id),
        await measure_coverage(harness.ledger, run.id, sample=None),
    ):
        assert (exact.records, exact.of, exact.sampled) == (600, 600, False)


async def test_coverage(either_harness: LedgerHarness) -> None:
    records = ['{"a":1,"b":""}', '{"a":null,"b":"' + "x" * 100 + '"}', '{"a":"two","c":[]}', '{"a":0}']
    run = await stored(either_harness.ledger, records)
    found = await measure_coverage(either_harness.ledger, run.id)
    assert (found.records, found.complete) == (4, True)
    a, b, c = found.fields
    assert (a.field, a.present, a.filled, a.filled_share, a.types, a.example) == (
        "a",
        4,
        3,
        0.75,
        ("int", "null", "text"),
        "1",
    )
    assert (b.present, b.filled, len(b.example)) == (2, 1, 60)
    assert (c.present, c.filled, c.types, c.example) == (1, 0, ("list",), "")


async def test_refused_exports(either_harness: LedgerHarness, tmp_path: Path) -> None:
    run = await stored(either_harness.ledger, BOOKS[:1])
    with pytest.raises(NotFound):
        await export_run(either_harness.ledger, "nope", tmp_path / "out.csv")
    with pytest.raises(UnknownStage):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.csv", stage="nope")
    with pytest.raises(UsageError, match="does not say which format"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.xlsx")
    with pytest.raises(UsageError, match="'xlsx' is not a format"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.csv", format="xlsx")
    with pytest.raises(UsageError, match="are for CSV"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl", layout=Layout(bom=True))
    assert [path for path in tmp_path.iterdir() if path.name.startswith(("out", ".out"))] == []


async def test_too_many_columns(either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.export.tables.MAX_COLUMNS", 100)
    run = await stored(either_harness.ledger, [{f"id{n}": n} for n in range(101)])
    with pytest.raises(UsageError, match="more than 100 different fields"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.csv")
    await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl")
    few = await export_run(either_harness.ledger, run.id, tmp_path / "out.csv", layout=Layout(columns=("id7",)))
    assert few.records == 101


async def test_an_invalid_record_is_named(either_harness: LedgerHarness, tmp_path: Path) -> None:
    """PostgreSQL refuses most of that itself; numbers beyond every range pass everywhere."""
    run = await stored(either_harness.ledger, ['{"a":1}', '{"a":1e999}'])
    with pytest.raises(InvalidRecord, match=r"Record 0 of item \d+ \(page\) cannot be read"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.csv")
    assert (await export_run(either_harness.ledger, run.id, tmp_path / "out.jsonl")).records == 2


async def test_parquet_without_pyarrow(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    run = await stored(either_harness.ledger, BOOKS[:1])
    with pytest.raises(UsageError, match=r"pip install 'shoal\[parquet\]'"):
        await export_run(either_harness.ledger, run.id, tmp_path / "out.parquet")
