"""Raising and delivering alerts on real ledgers with a controlled clock: once across processes, with retries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.config import Settings, load_settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem
from shoal.model.views import AuditEvent
from shoal.notify import delivery
from shoal.notify.conditions import Alert
from shoal.notify.delivery import Deliveries
from shoal.notify.watch import RAISE_SECONDS, AlertChecker, list_alerts
from shoal.testing.harness import LedgerHarness, dead, done, retry

NO_ADDRESSES = Settings()


class RecordingLog:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _record(self, event: str, **values: Any) -> None:
        self.lines.append(f"{event} {values}")

    debug = info = warning = error = _record

    def bind(self, **values: Any) -> RecordingLog:
        return self


class FakeSender:
    """Records what it sends; fails with `trouble` while that is set."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.tried = asyncio.Event()
        self.sent: list[tuple[str, str]] = []

    async def __call__(self, urls: tuple[str, ...], alert: Alert) -> list[str]:
        self.tried.set()
        if not self.trouble:
            self.sent += [(url, alert.kind.value) for url in urls]
        return [self.trouble] * len(urls)


def settings(**given: str) -> Settings:
    return load_settings({"notify": "json://one.example/hook", **given}, environ={}, folder=Path("/nonexistent"))


def checker(by: str, chosen: Settings = NO_ADDRESSES) -> AlertChecker:
    return AlertChecker(chosen, by=by, log=RecordingLog())


async def alerts(ledger: Ledger, run_id: str) -> list[str]:
    return [event.subject for event in await _events(ledger, run_id)]


async def _events(ledger: Ledger, run_id: str) -> list[AuditEvent]:
    """The events of alerts, oldest first."""
    found = (await ledger.reads.events(run_id=run_id)).rows
    return [event for event in reversed(found) if event.action == "alert"]


async def test_a_stall_is_raised_once_per_episode(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker(lease_seconds=86_400)
    await harness.put(run, "a", "b", "c")
    claimed = await harness.claim(worker)
    await checker("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == []
    await harness.advance_clock(601)
    for by in ("one", "two", "one"):
        await checker(by).check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]
    await harness.finish(worker, claimed[:1])
    await checker("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]
    await harness.advance_clock(601)
    await checker("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall", "stall"]
    await harness.check()


async def test_the_message_of_a_stall(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    await harness.advance_clock(700)
    await checker("one").check_recent_runs(harness.ledger)
    (raised,) = await list_alerts(harness.ledger)
    assert raised.alert.title == f"Shoal: shop stalled (run {run.id})"
    body = raised.alert.body
    assert body.startswith("Nothing has ended for 12m, and 2 items remain.\n")
    assert "It waits for a live worker. No live worker serves the stage page of shop." in body
    assert f"shoal status {run.id}" in body
    assert raised.delivery == "not sent"


async def test_delayed_items_do_not_stall(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", delay=3_600.0)
    await harness.advance_clock(700)
    await checker("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == []
    await harness.advance_clock(3_000)
    await harness.ledger.upkeep.run_once()
    await checker("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]


async def test_errors_are_raised_during_the_run(either_harness: LedgerHarness) -> None:
    """S3: a service that failed 98 % of its jobs raised no alarm."""
    harness = either_harness
    run, worker = await harness.run(max_attempts=9), await harness.worker()
    await harness.put(run, *(f"item-{n}" for n in range(100)))
    claimed = await harness.claim(worker)
    await harness.finish(worker, claimed[:2])
    await harness.commit(worker, *(retry(one, error="500 Internal Server Error") for one in claimed[2:]))
    await checker("one").check_recent_runs(harness.ledger)
    (raised,) = await list_alerts(harness.ledger, run.id)
    assert raised.alert.kind == "errors"
    assert raised.alert.body.startswith("98% of 100 attempts in the last 5 minutes failed.\n")
    assert "Most common failure (98): transient, 500 Internal Server Error" in raised.alert.body


async def test_each_end_of_a_run_is_raised(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker()
    await harness.put(run, "a")
    await harness.ledger.runs.seal(run.id)
    await harness.commit(worker, *(dead(one) for one in await harness.claim(worker)))
    await harness.ledger.upkeep.run_once()
    for by in ("one", "two"):
        await checker(by).check_runs(harness.ledger, [run.id, "no such run"])
    assert await alerts(harness.ledger, run.id) == ["failure"]
    await harness.ledger.runs.resume(run.id)
    await harness.ledger.runs.cancel(run.id)
    await checker("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["failure", "failure"]


async def test_one_process_checks_at_a_time(either_harness: LedgerHarness) -> None:
    harness = either_harness
    assert await checker("one").run_if_due(harness.ledger, every=10)
    assert not await checker("two").run_if_due(harness.ledger, every=10)
    await harness.advance_clock(11)
    assert await checker("two").run_if_due(harness.ledger, every=10)


async def test_an_event_is_recorded_once_though_its_process_died(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a")
    await harness.advance_clock(700)
    dying = await harness.open_again()

    async def die(*_: object) -> bool:
        raise ConnectionAbortedError

    monkeypatch.setattr(dying.locks, "complete", die)
    with pytest.raises(ConnectionAbortedError):
        await checker("one").check_recent_runs(dying)
    assert await list_alerts(harness.ledger) == []
    await harness.advance_clock(RAISE_SECONDS + 1)
    await checker("two").check_recent_runs(harness.ledger)
    assert [raised.alert.kind for raised in await list_alerts(harness.ledger)] == ["stall"]
    assert await alerts(harness.ledger, run.id) == ["stall"]


async def _stalled(harness: LedgerHarness) -> str:
    run = await harness.run()
    await harness.put(run, "a")
    await harness.advance_clock(700)
    await checker("one").check_recent_runs(harness.ledger)
    return run.id


async def test_one_process_raises_and_another_delivers(either_harness: LedgerHarness) -> None:
    """A process that knows no address raises alerts too, and leaves the telling to those that know one."""
    run_id = await _stalled(either_harness)
    sender = FakeSender()
    without_address = Deliveries(NO_ADDRESSES, sender, by="one", log=RecordingLog())
    await without_address.start_pending(either_harness.ledger)
    for by in ("two", "three"):
        deliveries = Deliveries(settings(), sender, by=by, log=RecordingLog())
        await deliveries.start_pending(either_harness.ledger)
        await deliveries.drain(10)
    assert sender.sent == [("json://one.example/hook", "stall")]
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["delivered"]


async def test_only_the_kinds_in_notify_on_are_delivered(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    sender = FakeSender()
    deliveries = Deliveries(settings(notify_on="finish failure"), sender, by="one", log=RecordingLog())
    await deliveries.start_pending(either_harness.ledger)
    await deliveries.drain(10)
    assert sender.sent == []
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["not sent"]


async def test_another_process_takes_over_from_a_dead_one(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    harness, stuck, sender = either_harness, FakeSender("no route to host"), FakeSender()
    first = Deliveries(settings(), stuck, by="one", log=RecordingLog())
    await first.start_pending(harness.ledger)
    await stuck.tried.wait()
    second = Deliveries(settings(), sender, by="two", log=RecordingLog())
    await second.start_pending(harness.ledger)
    assert not second
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["being sent"]
    await harness.advance_clock(delivery.LOCK_SECONDS + 1)
    await second.start_pending(harness.ledger)
    await second.drain(10)
    assert sender.sent == [("json://one.example/hook", "stall")]
    await first.drain(0)
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["delivered"]


async def test_a_stopping_process_releases_its_deliveries(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    harness, stuck, sender = either_harness, FakeSender("no route to host"), FakeSender()
    first = Deliveries(settings(), stuck, by="one", log=RecordingLog())
    await first.start_pending(harness.ledger)
    await stuck.tried.wait()
    await first.drain(0)
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["interrupted"]
    second = Deliveries(settings(), sender, by="two", log=RecordingLog())
    await second.start_pending(harness.ledger)
    await second.drain(10)
    assert sender.sent == [("json://one.example/hook", "stall")]


async def test_a_delivery_is_given_up_after_max_tries(
    either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await _stalled(either_harness)
    monkeypatch.setattr(delivery, "MIN_PAUSE_SECONDS", 0.0)
    log = RecordingLog()
    secret = "json://user:sesame@one.example/hook"
    deliveries = Deliveries(settings(notify=secret), FakeSender(f"{secret} refused sesame"), by="one", log=log)
    await deliveries.start_pending(either_harness.ledger)
    await deliveries.drain(20)
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["undelivered"]
    assert len([line for line in log.lines if line.startswith("delivery failed")]) == delivery.MAX_TRIES
    assert "sesame" not in "".join(log.lines)
    await deliveries.start_pending(either_harness.ledger)
    assert not deliveries


async def test_old_alerts_are_not_delivered(either_harness: LedgerHarness) -> None:
    await _stalled(either_harness)
    sender = FakeSender()
    await either_harness.advance_clock(3_601)
    deliveries = Deliveries(settings(), sender, by="one", log=RecordingLog())
    await deliveries.start_pending(either_harness.ledger)
    assert not deliveries


async def test_empty_fields_are_an_alert_while_a_run_goes_on_and_once(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker(lease_seconds=86_400)
    await harness.put(run, *(f"k{n}" for n in range(100)))
    claimed = await harness.claim(worker)
    one, two = checker("one"), checker("two")

    async def store(items: list[ClaimedItem], record: str) -> None:
        await harness.commit(worker, *(done(item, record) for item in items))
        for each in (one, two):
            await each.check_recent_runs(harness.ledger)

    await store(claimed[:19], '{"price": null}')
    assert await alerts(harness.ledger, run.id) == []
    await store(claimed[19:39], '{"price": null}')
    await store(claimed[39:90], '{"price": ""}')
    assert await alerts(harness.ledger, run.id) == ["coverage"]
    (alert,) = await list_alerts(harness.ledger, run.id)
    assert alert.alert.body.startswith("price is empty in 39 of 39 records of page.\n")
    assert "yields empty fields" in alert.alert.title
    await store(claimed[90:], '{"price": null, "title": null}')
    await harness.ledger.runs.seal(run.id)
    await harness.advance_clock(5)
    await harness.ledger.upkeep.run_once()
    await one.check_runs(harness.ledger, [run.id])
    assert await alerts(harness.ledger, run.id) == ["coverage", "finish"]


async def test_thresholds_of_empty_fields_are_settings(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker(lease_seconds=86_400)
    await harness.put(run, *(f"k{n}" for n in range(30)))
    claimed = await harness.claim(worker)
    ends = [done(item, '{"price": 1}' if n < 14 else '{"price": null}') for n, item in enumerate(claimed)]
    await harness.commit(worker, *ends)
    await checker("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == []
    await checker("two", settings(empty_share="50%")).check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["coverage"]
