"""What is exported about the ledger: values of runs, workers, egress; counters that only grow; few labels."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from shoal.config import Settings
from shoal.model.egress import ExitSpec
from shoal.model.latency import BUCKETS, bucket_of
from shoal.observe.exposition import SERVER_METRICS, HistogramValue, Samples, estimated_seconds, render
from shoal.service import metrics
from shoal.service.metrics import MetricsReader
from shoal.service.overview import SharedReads
from shoal.testing.harness import LedgerHarness, dead, done, retry
from tests.support.watched_ledger import LedgerWatch, watch_ledger


def reader_on(
    harness: LedgerHarness, watch: LedgerWatch | None = None, *, started: float | None = None
) -> MetricsReader:
    ledger = harness.ledger if watch is None else watch_ledger(harness.ledger, watch)
    return MetricsReader(lambda: SharedReads(ledger, Settings(ledger="unused"), interval=0.0), started=started)


def values(samples: Samples, name: str) -> dict[tuple[str, ...], Any]:
    return dict(samples.get(name, []))


async def test_a_run_with_its_items_attempts_and_latencies(either_harness: LedgerHarness) -> None:
    harness = either_harness
    reader = reader_on(harness)
    run = await harness.run()
    labels = (run.id, "shop")
    await harness.put(run, "a", "b", "c", "d")
    worker = await harness.worker()
    a, b, c, d = await harness.claim(worker)
    waited = msgspec.structs.replace(done(a, '{"n": 1}'), waited=2.0)
    await harness.commit(worker, waited, dead(b), retry(c, 60.0))
    await harness.ledger.exits.register(worker, "homes", "proxies", [ExitSpec("k1", "one"), ExitSpec("k2", "two")])
    samples = await reader.read()
    items = values(samples, "shoal_items")
    assert {state: items[*labels, state] for state in ("done", "dead", "delayed", "leased", "ready")} == {
        "done": 1,
        "dead": 1,
        "delayed": 1,
        "leased": 1,
        "ready": 0,
    }
    attempts = values(samples, "shoal_attempts_total")
    assert (attempts[*labels, "done"], attempts[*labels, "dead"], attempts[*labels, "retried"]) == (1, 1, 1)
    assert values(samples, "shoal_records_total")[labels] == 1
    assert sum(values(samples, "shoal_item_work_seconds")[labels].counts) == 3
    wait = values(samples, "shoal_item_wait_seconds")[labels]
    assert (sum(wait.counts), wait.counts[bucket_of(2.0)]) == (1, 1)
    assert values(samples, "shoal_workers") == {("live",): 1, ("draining",): 0, ("lost",): 0}
    assert values(samples, "shoal_egress_exits")["homes", "proxies", "good"] == 2
    assert values(samples, "shoal_egress_members")["homes", "proxies"] == 1
    assert values(samples, "shoal_ledger_up")[()] == 1
    assert values(samples, "shoal_ledger_size_bytes")[()] > 10_000
    assert values(samples, "shoal_run_quiet_seconds")[labels] < 60

    await harness.advance_clock(600.0)
    await harness.commit(worker, done(d))
    later = values(await reader.read(), "shoal_attempts_total")
    assert (later[*labels, "done"], later[*labels, "dead"]) == (2, 1), "complete minutes and the current one add up"
    assert values(await reader.read(), "shoal_attempts_total") == later
    await harness.advance_clock(-400.0)
    back = values(await reader.read(), "shoal_attempts_total")
    assert back[*labels, "dead"] == 1, "a clock that is set back is no error"


async def test_what_handlers_count_is_a_metric_of_the_run(either_harness: LedgerHarness) -> None:  # S3.14
    harness = either_harness
    run, other = await harness.run(), await harness.run()
    await harness.put(run, "a", "b", "c")
    await harness.put(other, "d")
    workers = [await harness.worker(), await harness.worker()]
    claimed = {item.key: (worker, item) for worker in workers for item in await harness.claim(worker, 2)}
    counted = {"a": {"accepted": 3, "rejected": 4}, "b": {"accepted": 2}, "c": {}, "d": {"accepted": 7}}
    for key, numbers in counted.items():
        worker, item = claimed[key]
        await harness.commit(worker, msgspec.structs.replace(done(item), detail={"counters": numbers}))
    samples = await reader_on(harness).read()
    assert values(samples, "shoal_counted_total") == {
        (run.id, "shop", "accepted"): 5,
        (run.id, "shop", "rejected"): 4,
        (other.id, "shop", "accepted"): 7,
    }
    text = render(SERVER_METRICS, samples)[0].decode()
    assert f'shoal_counted_total{{name="rejected",run="{run.id}",scraper="shop"}} 4.0' in text


@pytest.mark.parametrize(("seconds_ago", "counted"), [(600.0, 1), (0.0, 0)])
async def test_counters_begin_when_the_server_started_not_when_they_are_first_read(
    either_harness: LedgerHarness, seconds_ago: float, counted: int
) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a")
    await harness.ledger.runs.seal(run.id)
    worker = await harness.worker()
    await harness.commit(worker, *(done(each) for each in await harness.claim(worker)))
    await harness.ledger.upkeep.run_once()
    await harness.advance_clock(300.0)
    samples = await reader_on(harness, started=time.monotonic() - seconds_ago).read()
    labels = (run.id, "shop")
    assert values(samples, "shoal_items")[*labels, "done"] == 1
    assert values(samples, "shoal_attempts_total")[*labels, "done"] == counted
    assert sum(values(samples, "shoal_item_work_seconds")[labels].counts) == counted


async def test_what_items_wait_for_is_as_of_now_and_needs_no_history(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    reader = reader_on(harness)
    assert values(await reader.read(), "shoal_items_waiting_for") == {(run.id, "shop", "a live worker"): 2}
    await harness.ledger.runs.pause(run.id)
    reader = reader_on(harness)
    assert values(await reader.read(), "shoal_items_waiting_for") == {(run.id, "shop", "the run is paused"): 2}


async def test_only_open_runs_are_exported_and_not_too_many(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = either_harness
    monkeypatch.setattr(metrics, "MAX_RUNS_EXPORTED", 3)
    runs = [await harness.run() for _ in range(6)]
    await harness.ledger.runs.cancel(runs[5].id)
    reader = reader_on(harness)
    samples = await reader.read()
    assert {labels[0] for labels in values(samples, "shoal_items")} == {run.id for run in runs[2:5]}
    assert values(samples, "shoal_runs_left_out")[()] == 2
    for run in runs[:5]:
        await harness.ledger.runs.cancel(run.id)
    assert {labels[0] for labels in values(await reader.read(), "shoal_items")}, "a run that just ended is counted"
    await harness.advance_clock(3600.0)
    assert "shoal_items" not in await reader.read()
    assert values(await reader.read(), "shoal_runs")["cancelled",] == 6


async def test_a_ledger_that_is_away_is_a_value(either_harness: LedgerHarness) -> None:
    watch = LedgerWatch()
    reader = reader_on(either_harness, watch)
    assert values(await reader.read(), "shoal_ledger_up")[()] == 1
    watch.away = True
    assert (await reader.read()).keys() == {"shoal_build_info", "shoal_ledger_up"}
    assert values(await reader.read(), "shoal_ledger_up")[()] == 0


def test_histograms_are_cumulated_and_text_is_escaped() -> None:
    samples: Samples = {
        "shoal_item_work_seconds": [(("r", 'a"b\n'), HistogramValue([1, 2] + [0] * (BUCKETS - 3) + [4], 12.5))],
        "shoal_runs": [(("active",), 2)],
    }
    text = render(SERVER_METRICS, samples)[0].decode()
    prefix = 'shoal_item_work_seconds_bucket{le="%s",run="r",scraper="a\\"b\\n"} %s'
    for bound, count in (("0.001", 1.0), ("0.0016", 3.0), ("100000.0", 3.0), ("+Inf", 7.0)):
        assert prefix % (bound, count) in text
    assert 'shoal_item_work_seconds_sum{run="r",scraper="a\\"b\\n"} 12.5' in text
    assert "# TYPE shoal_runs gauge" in text
    with pytest.raises(KeyError):
        render(SERVER_METRICS, {"shoal_unknown": [((), 1)]})


def test_the_sum_of_durations_is_estimated_from_their_buckets() -> None:
    assert estimated_seconds([]) == 0
    assert estimated_seconds([2]) == pytest.approx(0.001)
    assert estimated_seconds([0, 1]) == pytest.approx(0.0013)
