"""Reads for operators on both ledgers: lists with cursors, details, explanations, figures, status, checks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.config import load_settings
from shoal.errors import InvalidSetting, NotFound
from shoal.model.item import ItemState, NewItem
from shoal.model.views import ItemFilter
from shoal.service import database, inspect, records
from shoal.service.lookup import find_item, find_lane, find_run
from shoal.service.status import newest_runs_status, read_run_status
from shoal.testing.harness import LedgerHarness, dead, done


async def test_runs_are_listed_page_by_page(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    runs = [await either_harness.run() for _ in range(3)]
    await ledger.runs.pause(runs[0].id)
    first = await inspect.list_runs(ledger, limit=2)
    assert [row.run.id for row in first.rows] == [runs[2].id, runs[1].id]
    last = await inspect.list_runs(ledger, cursor=first.cursor, limit=1)
    assert ([row.run.id for row in last.rows], last.cursor) == ([runs[0].id], None)
    assert [row.run.id for row in (await inspect.list_runs(ledger, state="paused")).rows] == [runs[0].id]
    with pytest.raises(InvalidSetting, match="active, paused"):
        await inspect.list_runs(ledger, state="sleeping")


async def test_items_of_a_lane_by_state_when_very_many_are_in_it(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the items of the lane are read, not all in these states."""
    monkeypatch.setattr("shoal.ledger.reads.MAX_REFINED", 0)
    monkeypatch.setattr("shoal.ledger.reads.LANE_WINDOW", 2)
    ledger, run = either_harness.ledger, await either_harness.run()
    items = [NewItem(key=f"k{n}", lane="shop" if n % 2 else "news") for n in range(12)]
    await ledger.intake.enqueue(run.id, items)
    worker = await either_harness.worker()
    for _ in range(12):
        for item in await either_harness.claim(worker):
            if item.name in ("k1", "k3", "k4"):
                await either_harness.commit(worker, dead(item))
            elif item.name not in ("k7", "k9", "k11"):
                await either_harness.commit(worker, done(item))

    async def keys(*states: ItemState) -> list[str | None]:
        found: list[str | None] = []
        cursor: str | None = "0"
        while cursor is not None:
            page = await ledger.reads.items(run.id, ItemFilter(lane="shop", states=states), cursor=cursor)
            found += [item.key for item in page.rows]
            cursor = page.cursor
        return found

    going_on = (ItemState.LEASED, ItemState.READY, ItemState.WAITING)
    assert await keys(ItemState.DEAD) == ["k1", "k3"]
    assert await keys(ItemState.DONE) == ["k5"]
    assert await keys(*going_on) == ["k7", "k9", "k11"]
    assert await keys(ItemState.DEAD, *going_on) == ["k1", "k3", "k7", "k9", "k11"]
    count = await inspect.count_items(ledger, run.id, ItemFilter(lane="shop", states=(ItemState.DEAD,)), seconds=60)
    assert (count.count, count.is_at_least) == (2, False)


async def test_a_run_has_its_counts_and_events(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a", "b")
    await ledger.runs.pause(run.id, by="ann@desk")
    detail = await inspect.read_run(ledger, "latest")
    assert (detail.counts.pending, detail.events[0].actor) == (2, "ann@desk")
    record = records.run_detail_record(detail)
    assert (record["run_id"], record["total"], record["stages"]) == (run.id, 2, ("page",))
    assert msgspec.json.encode(record)


async def test_counts_are_of_the_scraper_that_was_named(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    shop = await either_harness.run()
    await either_harness.put(shop, "a")
    news = await either_harness.run(scraper="news")
    assert (await inspect.read_counts(ledger, "latest", scraper="shop")).run.id == shop.id
    with pytest.raises(NotFound, match="not one of shop"):
        await inspect.read_counts(ledger, news.id, scraper="shop")
    with pytest.raises(NotFound) as refused:
        await find_run(ledger, "latest:shpo")
    assert "Did you mean shop?" in refused.value.remedy


async def test_an_item_is_found_by_id_key_or_url(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run("list", "page")
    await ledger.intake.enqueue(run.id, ["http://shop.example/b?y=2&x=1"], stage="page")
    by_url = await find_item(ledger, run, key="http://shop.example:80/b?x=1&y=2")
    assert (by_url.stage, (await find_item(ledger, run, id=by_url.id)).key) == ("page", by_url.key)
    with pytest.raises(NotFound, match="of the stage 'page'"):
        await find_item(ledger, run, id=by_url.id, stage="list")
    (listed,) = (await inspect.list_items(ledger, run.id, ItemFilter(stage="page"))).rows
    assert listed.id == by_url.id


async def test_items_are_explained(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a", "b")
    worker = await either_harness.worker()
    (claimed,) = await either_harness.claim(worker, 1)
    await either_harness.commit(worker, dead(claimed))
    detail = await inspect.read_item(ledger, run.id, key=claimed.name)
    assert [attempt.outcome for attempt in detail.attempts] == ["permanent"]
    assert records.item_detail_record(detail)["why"]
    explanation = await inspect.explain_item(ledger, run.id, id=detail.item.id)
    assert explanation.can_retry
    of_run = await inspect.explain_run(ledger, run.id)
    assert (of_run.item, of_run.can_retry, bool(of_run.reasons)) == (None, False, True)


async def test_dead_workers_are_listed_as_dead(either_harness: LedgerHarness) -> None:
    worker = await either_harness.worker(lease_seconds=30)
    (fresh,) = await inspect.list_workers(either_harness.ledger)
    assert (fresh.worker.id, fresh.state, fresh.problem) == (worker, "live", None)
    await either_harness.advance_clock(120)
    (silent,) = await inspect.list_workers(either_harness.ledger)
    assert silent.state == "dead"
    assert silent.problem is not None


async def test_lanes_are_listed_and_similar_names_suggested(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    await ledger.lanes.set("shop.example", limit=2)
    assert [lane.key for lane in (await inspect.list_lanes(ledger)).rows] == ["shop.example"]
    with pytest.raises(NotFound) as refused:
        await find_lane(ledger, "shop.exampel")
    assert "Did you mean shop.example?" in refused.value.remedy


async def test_two_runs_are_compared(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    good, bad = await either_harness.run(), await either_harness.run()
    worker = await either_harness.worker()
    await either_harness.put(good, "a")
    await either_harness.finish(worker, await either_harness.claim(worker))
    await either_harness.put(bad, "a")
    (claimed,) = await either_harness.claim(worker)
    await either_harness.commit(worker, dead(claimed))
    one, other = await inspect.compare_runs(ledger, good.id, bad.id)
    assert (one.ok_percent, other.ok_percent) == (100.0, 0.0)
    assert dict(other.deaths) == {"permanent, 404 Not Found": 1}
    assert (await inspect.list_failures(ledger, bad.id)).groups[0].items == 1


async def test_status_of_the_newest_runs_and_of_one(either_harness: LedgerHarness, tmp_path: Path) -> None:
    ledger = either_harness.ledger
    settings = load_settings({}, environ={}, folder=tmp_path)
    run = await either_harness.run()
    await either_harness.put(run, "a", "b")
    worker = await either_harness.worker()
    (claimed,) = await either_harness.claim(worker, 1)
    await either_harness.commit(worker, dead(claimed))
    (newest,) = await newest_runs_status(ledger, settings)
    assert (newest.reading.dead, newest.reading.total) == (1, 2)
    detail = await read_run_status(ledger, settings, "latest")
    assert (detail.worker_state(worker), detail.worker_state("nobody")) == ("live", "gone")
    assert detail.failures.groups[0].outcome == "permanent"
    record = msgspec.json.decode(msgspec.json.encode(records.status_detail_record(detail)))
    assert (record["run_id"], record["dead"], record["workers"][0]["state"]) == (run.id, 1, "live")


async def test_records_are_sampled_and_their_fields_measured(either_harness: LedgerHarness) -> None:
    ledger = either_harness.ledger
    run = await either_harness.run()
    await either_harness.put(run, "a")
    worker = await either_harness.worker()
    (claimed,) = await either_harness.claim(worker)
    await either_harness.commit(worker, done(claimed, '{"title":"A"}', '{"title":null}'))
    assert [row.record for row in await inspect.sample_results(ledger, "latest", count=1)] == ['{"title":"A"}']
    found, coverage = await inspect.measure_run_coverage(ledger, run.id, every_record=True)
    (field,) = coverage.fields
    assert (found.id, field.field, field.present, field.filled) == (run.id, "title", 2, 1)


async def test_a_ledger_is_migrated_checked_and_backed_up(tmp_path: Path) -> None:
    settings = load_settings({"ledger": str(tmp_path / "a.db")}, environ={}, folder=tmp_path)
    before, after = await database.migrate(settings)
    assert before < after
    checked = await database.check_database(settings, deep=True)
    assert (checked.version, checked.problem, checked.findings) == (after, None, ())
    assert all(check.ok for check in await database.diagnose(settings, version="0"))
    pages: list[tuple[int, int]] = []
    await database.back_up(settings, tmp_path / "b.db", on_pages=lambda left, total: pages.append((left, total)))
    assert (tmp_path / "b.db").stat().st_size > 0


async def test_a_ledger_that_is_not_there_fails_the_diagnosis(tmp_path: Path) -> None:
    settings = load_settings({"ledger": str(tmp_path / "nosuch.db")}, environ={}, folder=tmp_path)
    (check,) = await database.diagnose(settings, version="0")
    assert (check.name, check.ok) == ("ledger", False)
    assert "shoal run" in check.fix
