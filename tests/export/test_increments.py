"""Incremental exports on both ledgers: every record in exactly one file, whatever happens in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.errors import NotFound, UnknownStage, UsageError
from shoal.export import IncrementReport, Layout, export_new
from shoal.export import increments as module
from shoal.ledger.protocols import Ledger
from shoal.model.changes import ChangeFilter
from shoal.model.run import Run
from shoal.service.lookup import find_selection
from shoal.testing.harness import LedgerHarness, done
from tests.support.export_shop import REVIEW, add, read_jsonl, read_parquet, stored

SHOP = ChangeFilter(scrapers=("shop",))


def numbers(path: Path) -> list[int]:
    return [record["n"] for record in read_jsonl(path.read_bytes())]


async def begun(ledger: Ledger, *records: dict[str, Any]) -> Run:
    return await stored(ledger, records, end=False)


async def test_each_export_has_what_is_new(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger = either_harness.ledger
    path = str(tmp_path / "out-{n}.jsonl")
    run = await begun(ledger, {"n": 1}, {"n": 2})
    first = await export_new(ledger, SHOP, path)
    assert (first.number, first.path, first.repeated) == (1, str(tmp_path / "out-000001.jsonl"), False)
    assert first.written is not None
    assert first.written.records == 2
    nothing = await export_new(ledger, SHOP, path)
    assert (nothing.written, nothing.path) == (None, "")
    await add(ledger, run, [{"n": 3}], name="more")
    other = await begun(ledger, {"n": 4})  # another run of the same scraper
    await export_new(ledger, SHOP, path)
    await ledger.runs.remove(run.id)
    await add(ledger, other, [{"n": 5}], name="more")
    await export_new(ledger, SHOP, path)
    assert sorted(file.name for file in tmp_path.glob("*out*")) == [f"out-00000{n}.jsonl" for n in (1, 2, 3)]
    assert [numbers(tmp_path / f"out-00000{n}.jsonl") for n in (1, 2, 3)] == [[1, 2], [3, 4], [5]]


async def test_consumers_and_selections_have_cursors_of_their_own(
    either_harness: LedgerHarness, tmp_path: Path
) -> None:
    ledger = either_harness.ledger
    run = await begun(ledger, {"n": 1})
    await add(ledger, run, [{"n": 2}], stage=REVIEW, name="review")
    for name, which, consumer, expected in [
        ("all", SHOP, None, [1, 2]),
        ("lake", SHOP, "lake", [1, 2]),
        ("reviews", ChangeFilter(scrapers=("shop",), stages=(REVIEW,)), None, [2]),
        ("run", ChangeFilter(run_id=run.id), None, [1, 2]),
    ]:
        path = str(tmp_path / f"{name}-{{n}}.jsonl")
        report = await export_new(ledger, which, path, consumer=consumer, layout=Layout(meta=True))
        assert numbers(Path(report.path)) == expected
        assert {record["_run"] for record in read_jsonl(Path(report.path).read_bytes())} == {run.id}
        assert (await export_new(ledger, which, path, consumer=consumer)).written is None
    # What is not selected uses no number up.
    await add(ledger, run, [{"n": 3}], name="unselected")
    reviews = ChangeFilter(scrapers=("shop",), stages=(REVIEW,))
    assert (await export_new(ledger, reviews, str(tmp_path / "reviews-{n}.jsonl"))).written is None
    assert (await export_new(ledger, reviews, str(tmp_path / "reviews-{n}.jsonl"))).written is None
    await add(ledger, run, [{"n": 4}], stage=REVIEW, name="late")
    report = await export_new(ledger, reviews, str(tmp_path / "reviews-{n}.jsonl"))
    assert (report.number, numbers(Path(report.path))) == (2, [4])


@pytest.mark.parametrize("format", ["jsonl.gz", "csv", "parquet"])
async def test_a_repeated_export_writes_the_same_file(
    either_harness: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """It dies after the file is complete and before the cursor moves, while records go on being stored."""
    ledger = either_harness.ledger
    path = str(tmp_path / f"out-{{n}}.{format}")
    run = await begun(ledger, {"n": 1, "price": 2})
    with monkeypatch.context() as patched:
        patched.setattr(module, "_finish", dies)
        with pytest.raises(KeyboardInterrupt):
            await export_new(ledger, SHOP, path)
    before = (tmp_path / f"out-000001.{format}").read_bytes()
    await add(ledger, run, [{"n": 2, "colour": "red"}], name="later")
    again = await export_new(ledger, SHOP, path)
    assert (again.number, again.repeated) == (1, True)
    assert (tmp_path / f"out-000001.{format}").read_bytes() == before
    rest = await export_new(ledger, SHOP, path)
    assert rest.written is not None
    assert (rest.number, rest.repeated, rest.written.records) == (2, False, 1)
    assert (await export_new(ledger, SHOP, path)).written is None


async def dies(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


async def test_two_exports_of_one_cursor_write_the_same_file(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger, other = either_harness.ledger, await either_harness.open_again()
    path = str(tmp_path / "out-{n}.jsonl")
    run = await begun(ledger)
    got: list[int] = []
    for step in range(4):
        await add(ledger, run, [{"n": step * 10 + n} for n in range(10)], name=f"step-{step}")
        await asyncio.gather(export_new(ledger, SHOP, path), export_new(other, SHOP, path), return_exceptions=True)
    await export_new(ledger, SHOP, path)
    for file in sorted(tmp_path.glob("out-*.jsonl")):
        got += numbers(file)
    assert got == list(range(40))
    await other.close()


async def test_nothing_is_missed_and_nothing_twice_while_workers_commit(
    either_harness: LedgerHarness, tmp_path: Path
) -> None:
    ledger, other = either_harness.ledger, await either_harness.open_again()
    runs = [await begun(ledger), await begun(ledger)]
    path = str(tmp_path / "out-{n}.jsonl")
    reports: list[IncrementReport] = []

    async def work(mine: Ledger, part: int) -> None:
        for step in range(8):
            await add(mine, runs[part], [{"n": part * 1000 + step * 10 + n} for n in range(10)], name=f"{part}-{step}")

    async def follow() -> None:
        while not all(task.done() for task in workers):
            reports.append(await export_new(ledger, SHOP, path))

    workers = [asyncio.create_task(work(mine, part)) for part, mine in enumerate((ledger, other))]
    await asyncio.gather(follow(), *workers)
    reports.append(await export_new(ledger, SHOP, path))
    files = [Path(report.path) for report in reports if report.written is not None]
    assert len(files) > 2
    got = [n for file in files for n in numbers(file)]
    assert sorted(got) == [part * 1000 + n for part in range(2) for n in range(80)]
    await other.close()


async def test_columns_stay_and_types_widen(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger = either_harness.ledger
    run = await begun(ledger, {"n": 1, "price": 2, "tags": ["a"]})
    later: list[dict[str, Any]] = [
        {"colour": "red", "n": 2},
        {"n": 3, "price": 2.5},
        {"n": 4, "price": "sold out", "tags": [1]},
        {"n": 5},
    ]
    for step, record in enumerate(later):
        for format in ("csv", "parquet"):
            await export_new(ledger, SHOP, str(tmp_path / f"out-{{n}}.{format}"), consumer=format)
        await add(ledger, run, [record], name=f"step-{step}")
    for format in ("csv", "parquet"):
        await export_new(ledger, SHOP, str(tmp_path / f"out-{{n}}.{format}"), consumer=format)
    headers = [(tmp_path / f"out-00000{n}.csv").read_text().splitlines() for n in range(1, 6)]
    assert [lines[0] for lines in headers] == ["n,price,tags"] + ["n,price,tags,colour"] * 4
    assert headers[1][1] == "2,,,red"
    schemas = [read_parquet(tmp_path / f"out-00000{n}.parquet").schema for n in range(1, 6)]
    types = [[str(schema.field(name).type).split("<")[0] for name in schema.names] for schema in schemas]
    assert types == [
        ["int64", "int64", "list"],
        ["int64", "int64", "list", "string"],
        ["int64", "double", "list", "string"],
        ["int64", "string", "list", "string"],
        ["int64", "string", "list", "string"],
    ]
    assert read_parquet(tmp_path / "out-000005.parquet").to_pylist() == [
        {"n": 5, "price": None, "tags": None, "colour": None}
    ]
    # Selected columns are these and no others, with the types so far.
    await add(ledger, run, [{"n": 6, "price": 1}], name="selected")
    report = await export_new(
        ledger, SHOP, str(tmp_path / "out-{n}.parquet"), consumer="parquet", layout=Layout(columns=("price", "n"))
    )
    assert read_parquet(report.path).to_pylist() == [{"price": "1", "n": 6}]
    assert report.written is not None
    assert report.written.missing_columns == ()


async def test_files_of_others_are_not_replaced(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger = either_harness.ledger
    await begun(ledger, {"n": 1})
    (tmp_path / "out-000001.jsonl").write_text("somebody else's")
    with pytest.raises(UsageError, match=r"exists, and was not written by this cursor"):
        await export_new(ledger, SHOP, str(tmp_path / "out-{n}.jsonl"))
    (tmp_path / "out-000001.jsonl").unlink()
    with pytest.raises(UsageError, match="would be the same for each export"):
        await export_new(ledger, SHOP, str(tmp_path / "out.jsonl"))
    with pytest.raises(UsageError, match="There is no folder"):
        await export_new(ledger, SHOP, str(tmp_path / "missing" / "out-{n}.jsonl"))
    report = await export_new(ledger, SHOP, str(tmp_path / "out-{n}.jsonl"))
    assert numbers(Path(report.path)) == [1]


async def test_what_a_name_means(either_harness: LedgerHarness) -> None:
    run = await begun(either_harness.ledger, {"n": 1})
    ledger = either_harness.ledger
    assert await find_selection(ledger, "shop") == SHOP
    assert (
        await find_selection(ledger, "latest:shop")
        == ChangeFilter(run_id=run.id)
        == await find_selection(ledger, run.id)
    )
    assert (await find_selection(ledger, "shop", stage=REVIEW)).stages == (REVIEW,)
    with pytest.raises(NotFound, match="no run and no scraper 'shopp'"):
        await find_selection(ledger, "shopp")
    with pytest.raises(UnknownStage, match="it has page, review"):
        await find_selection(ledger, "shop", stage="nope")


async def test_records_of_a_replayed_item_come_once(either_harness: LedgerHarness, tmp_path: Path) -> None:
    """In one export once, however often they were replaced before; in the next one again, with their new content."""
    harness, path = either_harness, str(tmp_path / "out-{n}.jsonl")
    run = await harness.run()
    await harness.put(run, "a", "b")
    worker = await harness.worker()
    a, b = await harness.claim(worker)
    await harness.commit(worker, done(a, '{"n":1}', '{"n":11}'), done(b, '{"n":2}'))
    assert (await harness.ledger.steering.replay(done(a, '{"n":101}'))).replayed
    first = await export_new(harness.ledger, SHOP, path)
    assert numbers(Path(first.path)) == [101, 2]
    end = done(a, '{"n":201}', '{"n":202}')
    again = msgspec.structs.replace(end, lease=msgspec.structs.replace(end.lease, epoch=end.lease.epoch + 1))
    assert (await harness.ledger.steering.replay(again)).replayed
    second = await export_new(harness.ledger, SHOP, path)
    assert numbers(Path(second.path)) == [201, 202]
    assert (await export_new(harness.ledger, SHOP, path)).written is None
