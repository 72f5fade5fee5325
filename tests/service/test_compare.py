"""Records of two runs, side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shoal.model.outcome import FinishedAttempt
from shoal.model.record_key import RecordScope
from shoal.model.run import Run
from shoal.service import compare
from shoal.service.compare import MISSING, FieldChange, RecordChange, RecordComparison, compare_records
from shoal.testing.harness import LedgerHarness, done, keyed


async def run_with(harness: LedgerHarness, ends: dict[str, Any], *stages: str) -> Run:
    """A run whose items by key end so: a list of records, or a function of the claimed item."""
    run = await harness.run(*stages)
    await harness.put(run, *ends)
    worker = await harness.worker()
    finished: list[FinishedAttempt] = []
    for item in await harness.claim(worker):
        end = ends[item.name]
        finished.append(end(item) if callable(end) else done(item, *map(json.dumps, end)))
    await harness.commit(worker, *finished)
    return run


async def compared(harness: LedgerHarness, first: Run, second: Run) -> tuple[RecordComparison, list[RecordChange]]:
    changes: list[RecordChange] = []
    return await compare_records(harness.ledger, first, second, on_change=changes.append), changes


def told(changes: list[RecordChange]) -> set[tuple[str, str]]:
    return {(change.change.value, change.key) for change in changes}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "FIRST_PAGE", 2)
    monkeypatch.setattr(compare, "MAX_PAGE", 3)


async def test_records_are_matched_by_their_key_whatever_item_yielded_them(either_harness: LedgerHarness) -> None:
    first = await run_with(
        either_harness,
        {
            "page-1": lambda item: keyed(item, *((f"k{n}", n) for n in range(10))),
            "page-2": lambda item: keyed(item, ("moved", 1), ("gone", 1), ("price", 1)),
        },
    )
    second = await run_with(
        either_harness,
        {
            "page-1": lambda item: keyed(item, ("moved", 1), ("price", 2), ("fresh", 5)),
            "page-2": lambda item: keyed(item, *((f"k{n}", n) for n in range(10))),
        },
    )
    totals, changes = await compared(either_harness, first, second)
    assert (totals.new, totals.changed, totals.gone, totals.unchanged) == (1, 1, 1, 11)
    assert told(changes) == {("new", "fresh"), ("changed", "price"), ("gone", "gone")}
    (changed,) = [change for change in changes if change.change == "changed"]
    assert changed.fields == (FieldChange("value", 1, 2),)
    assert changed.record == {"key": "price", "value": 2}
    same, _ = await compared(either_harness, first, first)
    assert (same.differs, same.unchanged) == (False, 13)


async def test_records_without_a_key_are_matched_by_item_and_position(either_harness: LedgerHarness) -> None:
    first = await run_with(
        either_harness,
        {
            "a": [{"x": 1, "deep": {"y": 1, "z": 1}}, {"x": 2}],
            "b": [{"x": 1}],
            "same": [{"p": 1, "q": [1]}],
            **{f"n{n}": [{"n": n}] for n in range(9)},
            "empty": [],
        },
    )
    second = await run_with(
        either_harness,
        {
            "a": [{"x": 1, "deep": {"y": 2, "z": 1}, "extra": None}],
            "c": [{"x": 1}],
            "same": [{"q": [1], "p": 1}],
            **{f"n{n}": [{"n": n}] for n in range(9)},
        },
    )
    totals, changes = await compared(either_harness, first, second)
    assert (totals.new, totals.changed, totals.gone, totals.unchanged) == (1, 1, 2, 10)
    assert told(changes) == {("changed", "a"), ("gone", "a [1]"), ("gone", "b"), ("new", "c")}
    (changed,) = [change for change in changes if change.change == "changed"]
    assert changed.fields == (FieldChange("deep.y", 1, 2), FieldChange("extra", MISSING, None))


async def test_a_stage_that_only_one_run_has(either_harness: LedgerHarness) -> None:
    first = await run_with(either_harness, {"a": [{"x": 1}]}, "list")
    second = await run_with(either_harness, {"a": [{"x": 1}]}, "page")
    totals, _ = await compared(either_harness, first, second)
    assert (totals.new, totals.gone, totals.unchanged) == (1, 1, 0)


@pytest.mark.parametrize("replaces", [True, False])
async def test_keys_of_the_whole_history(either_harness: LedgerHarness, replaces: bool) -> None:
    def end(*pairs: tuple[str, int]) -> Any:
        return lambda item: keyed(item, *pairs, scope=RecordScope.SCRAPER, replaces=replaces)

    first = await run_with(either_harness, {"p": end(("a", 1), ("b", 1), ("old", 1))})
    second = await run_with(either_harness, {"p": end(("a", 1), ("b", 2), ("fresh", 2))})
    totals, changes = await compared(either_harness, first, second)
    if replaces:
        assert told(changes) == {("gone", "old"), ("changed", "b"), ("new", "fresh")}
        assert next(change for change in changes if change.change == "changed").fields is None
        assert totals.unchanged == 1
        back, changes = await compared(either_harness, second, first)
        assert told(changes) == {("new", "old"), ("changed", "b"), ("gone", "fresh")}
        assert back.unchanged == 1
    else:
        assert told(changes) == {("new", "fresh")}
        assert totals.unknown_gone == ("page",)
