"""Fields that are empty too often: which are reported, and what that reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from shoal.export import coverage
from shoal.export.coverage import (
    CoverageRules,
    FieldCount,
    StageFields,
    check_coverage,
    coverage_warnings,
    summarize_warnings,
)
from shoal.model.item import ClaimedItem
from shoal.model.outcome import FinishedAttempt
from shoal.model.record_key import RecordScope
from shoal.model.run import DeadLimit, Run
from shoal.testing.harness import LedgerHarness, dead, done, keyed, skipped

RULES = CoverageRules(empty_share=DeadLimit(Decimal(80), True), coverage_drop=DeadLimit(Decimal(30), True))
OFF = CoverageRules(empty_share=DeadLimit(Decimal(100), True), coverage_drop=DeadLimit(Decimal(100), True))


def fields(records: int, **counts: tuple[int, int]) -> dict[str, StageFields]:
    return {"page": StageFields(records, {name: FieldCount(*count) for name, count in counts.items()})}


@pytest.mark.parametrize(
    ("now", "last", "said"),
    [
        (fields(50, price=(50, 0)), {}, ["price is empty in 50 of 50 records of page"]),
        (
            fields(50, price=(50, 0)),
            fields(100, price=(100, 98)),
            ["price is empty in 50 of 50 records of page; last run 2%"],
        ),
        (fields(50), fields(50, price=(50, 50)), ["price is empty in 50 of 50 records of page; last run 0%"]),
        (fields(50, price=(50, 10)), {}, []),  # exactly 80%
        (fields(50, price=(50, 9)), {}, ["price is empty in 41 of 50 records of page"]),
        (fields(50, price=(50, 0)), fields(50, price=(50, 1)), []),  # it was mostly empty before
        (
            fields(50, price=(50, 20)),
            fields(50, price=(50, 36)),
            ["price is empty in 30 of 50 records of page; last run 28%"],
        ),
        (fields(50, price=(50, 20)), fields(50, price=(50, 35)), []),  # exactly 30 points
        (fields(19, price=(19, 0)), {}, []),  # too few to tell
        (fields(50, price=(50, 20)), fields(19, price=(19, 19)), []),
        (fields(1000, rare=(30, 30)), {}, []),  # an optional field, filled where it is
        (fields(1000, rare=(30, 0)), {}, ["rare is empty in 30 of 30 records of page"]),
        (fields(1000, rare=(10, 0)), {}, []),
        (fields(50, new=(50, 50)), fields(50, price=(50, 3)), []),  # a field that is new, one that few had
    ],
)
def test_rules(now: dict[str, StageFields], last: dict[str, StageFields], said: list[str]) -> None:
    assert [warning.text for warning in coverage_warnings(now, last, RULES)] == said
    assert coverage_warnings(now, last, OFF) == ()


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    now = fields(100, **{f"f{n}": (100, n) for n in range(7)})
    warnings = coverage_warnings(now, {}, RULES)
    assert [warning.field for warning in warnings] == [f"f{n}" for n in range(7)]
    assert summarize_warnings(warnings).endswith("f4 is empty in 96 of 100 records of page; and 2 more")


async def finished_run(harness: LedgerHarness, records: list[dict[str, Any]], **keys: Any) -> Run:
    run = await harness.run()
    await harness.put(run, "a")
    worker = await harness.worker()
    (item,) = await harness.claim(worker)
    if keys:
        end = keyed(item, *((record["key"], record["value"]) for record in records), **keys)
    else:
        end = done(item, *map(json.dumps, records))
    await harness.commit(worker, end)
    await harness.ledger.runs.seal(run.id)
    await harness.advance_clock(5)
    await harness.ledger.upkeep.run_once()
    return await harness.ledger.runs.get(run.id)


async def test_a_run_is_compared_with_the_last_finished_one(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [{"price": n or None, "title": "x"} for n in range(30)]
    first = await finished_run(either_harness, good)
    assert await check_coverage(either_harness.ledger, first, RULES) == ()
    second = await finished_run(either_harness, [{"price": None, "title": "x"} for _ in range(30)])
    await finished_run(either_harness, [{"price": 1}])  # too few to compare with
    (warning,) = await check_coverage(either_harness.ledger, second, RULES)
    assert (warning.field, warning.empty, warning.records) == ("price", 30, 30)
    assert warning.last_empty == pytest.approx(1 / 30)
    # Both are known now: nothing is sampled again.
    monkeypatch.setattr(coverage, "sample_results_evenly", None)
    assert await check_coverage(either_harness.ledger, second, RULES) == (warning,)


async def test_records_that_moved_to_a_later_run_still_count_for_the_earlier(either_harness: LedgerHarness) -> None:
    upsert = {"scope": RecordScope.SCRAPER, "replaces": True}
    first = await finished_run(either_harness, [{"key": f"k{n}", "value": n} for n in range(30)], **upsert)
    assert await check_coverage(either_harness.ledger, first, RULES) == ()
    second = await finished_run(either_harness, [{"key": f"k{n}", "value": "null"} for n in range(30)], **upsert)
    (warning,) = await check_coverage(either_harness.ledger, second, RULES)
    assert warning.text == "value is empty in 30 of 30 records of page; last run 0%"


async def test_fields_that_may_be_empty_are_not_warned_of(either_harness: LedgerHarness) -> None:
    run = await finished_run(either_harness, [{"price": None, "tags": []} for _ in range(30)])
    await either_harness.ledger.runs.put_note(run.id, coverage.OPTIONAL_NOTE, {"page": ["tags"]})
    assert [warning.field for warning in await check_coverage(either_harness.ledger, run, RULES)] == ["price"]


@pytest.mark.parametrize(
    ("expected", "article", "failed"),
    [
        (("article",), None, True),
        (("article",), "done", False),
        (("article",), "skipped", False),
        (("article",), "dead", True),
        ((), None, False),
    ],
)
async def test_a_run_that_found_nothing_and_has_a_dead_item_has_only_failures(
    either_harness: LedgerHarness, expected: tuple[str, ...], article: str | None, failed: bool
) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run("listing", "article")
    await either_harness.put(run, "good", "bad", stage="listing")
    if article is not None:
        await either_harness.put(run, "story", stage="article")
    ways: dict[str | None, Callable[[ClaimedItem], FinishedAttempt]] = {"dead": dead, "skipped": skipped}
    ways |= {"good": done, "bad": dead, "story": ways.get(article, done)}
    worker = await either_harness.worker()
    for item in await either_harness.claim(worker):
        await either_harness.commit(worker, ways[item.name](item))
    await ledger.runs.put_note(run.id, coverage.EXPECTED_NOTE, {stage: ["title"] for stage in expected})
    assert await coverage.has_only_failures(ledger, run.id, await ledger.reads.stats(run.id)) is failed
