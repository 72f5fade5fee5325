"""Raising and telling on real ledgers whose clock the test moves: once over all watchers, until it has arrived."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shoal.config import Settings, load_settings
from shoal.ledger.protocols import Ledger
from shoal.model.views import Event
from shoal.notify import delivery
from shoal.notify.conditions import Alert
from shoal.notify.delivery import Deliveries
from shoal.notify.watch import RAISE_SECONDS, AlertChecker, list_alerts
from shoal.testing.harness import LedgerHarness, dead, retry

NOBODY = Settings()


class Diary:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _note(self, event: str, **facts: Any) -> None:
        self.lines.append(f"{event} {facts}")

    debug = info = warning = error = _note

    def bind(self, **facts: Any) -> Diary:
        return self


class Courier:
    """Sends, or does not: `trouble` is what it answers until it is lifted."""

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


def watch(by: str, chosen: Settings = NOBODY) -> AlertChecker:
    return AlertChecker(chosen, by=by, log=Diary())


async def alerts(ledger: Ledger, run_id: str) -> list[str]:
    return [event.subject for event in await _events(ledger, run_id)]


async def _events(ledger: Ledger, run_id: str) -> list[Event]:
    """Those of alerts, the oldest first."""
    found = (await ledger.reads.events(run_id=run_id)).rows
    return [event for event in reversed(found) if event.action == "alert"]


async def test_a_stall_is_raised_once_and_again_only_after_it_moved(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker(lease_seconds=86_400)
    await harness.put(run, "a", "b", "c")
    claimed = await harness.claim(worker)
    await watch("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == []
    await harness.advance_clock(601)
    for by in ("one", "two", "one"):
        await watch(by).check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]
    await harness.finish(worker, claimed[:1])
    await watch("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]
    await harness.advance_clock(601)
    await watch("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall", "stall"]
    await harness.check()


async def test_a_stall_says_what_a_person_needs(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    await harness.advance_clock(700)
    await watch("one").check_recent_runs(harness.ledger)
    (raised,) = await list_alerts(harness.ledger)
    assert raised.alert.title == f"Shoal: shop stalled (run {run.id})"
    body = raised.alert.body
    assert body.startswith("Nothing has ended for 12m, and 2 items remain.\n")
    assert "It waits for a live worker. No live worker serves the stage page of shop." in body
    assert f"shoal status {run.id}" in body
    assert raised.delivery == "not sent"


async def test_what_waits_for_its_time_does_not_stall(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", delay=3_600.0)
    await harness.advance_clock(700)
    await watch("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == []
    await harness.advance_clock(3_000)
    await harness.ledger.upkeep.run_once()
    await watch("one").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["stall"]


async def test_a_run_that_fails_is_told_of_while_it_goes(either_harness: LedgerHarness) -> None:
    """S3: a service that failed 98 % of its jobs raised no alarm."""
    harness = either_harness
    run, worker = await harness.run(max_attempts=9), await harness.worker()
    await harness.put(run, *(f"item-{n}" for n in range(100)))
    claimed = await harness.claim(worker)
    await harness.finish(worker, claimed[:2])
    await harness.commit(worker, *(retry(one, error="500 Internal Server Error") for one in claimed[2:]))
    await watch("one").check_recent_runs(harness.ledger)
    (raised,) = await list_alerts(harness.ledger, run.id)
    assert raised.alert.kind == "errors"
    assert raised.alert.body.startswith("98% of 100 attempts in the last 5 minutes failed.\n")
    assert "Most common failure (98): transient, 500 Internal Server Error" in raised.alert.body


async def test_how_a_run_ended_is_told_after_each_end(either_harness: LedgerHarness) -> None:
    harness = either_harness
    run, worker = await harness.run(), await harness.worker()
    await harness.put(run, "a")
    await harness.ledger.runs.seal(run.id)
    await harness.commit(worker, *(dead(one) for one in await harness.claim(worker)))
    await harness.ledger.upkeep.run_once()
    for by in ("one", "two"):
        await watch(by).check_runs(harness.ledger, [run.id, "no such run"])
    assert await alerts(harness.ledger, run.id) == ["failure"]
    await harness.ledger.runs.resume(run.id)
    await harness.ledger.runs.cancel(run.id)
    await watch("two").check_recent_runs(harness.ledger)
    assert await alerts(harness.ledger, run.id) == ["failure", "failure"]


async def test_of_many_watchers_one_looks_at_a_time(either_harness: LedgerHarness) -> None:
    harness = either_harness
    assert await watch("one").run_if_due(harness.ledger, every=10)
    assert not await watch("two").run_if_due(harness.ledger, every=10)
    await harness.advance_clock(11)
    assert await watch("two").run_if_due(harness.ledger, every=10)


async def test_an_event_is_left_once_though_its_watcher_died_before_it_said_so(
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
        await watch("one").check_recent_runs(dying)
    assert await list_alerts(harness.ledger) == []
    await harness.advance_clock(RAISE_SECONDS + 1)
    await watch("two").check_recent_runs(harness.ledger)
    assert [raised.alert.kind for raised in await list_alerts(harness.ledger)] == ["stall"]
    assert await alerts(harness.ledger, run.id) == ["stall"]


async def _stalled(harness: LedgerHarness) -> str:
    run = await harness.run()
    await harness.put(run, "a")
    await harness.advance_clock(700)
    await watch("one").check_recent_runs(harness.ledger)
    return run.id


async def test_what_one_raised_another_tells(either_harness: LedgerHarness) -> None:
    """A process that knows no address raises alerts too, and leaves the telling to those that know one."""
    run_id = await _stalled(either_harness)
    courier = Courier()
    deaf = Deliveries(NOBODY, courier, by="one", log=Diary())
    await deaf.start_pending(either_harness.ledger)
    for by in ("two", "three"):
        deliveries = Deliveries(settings(), courier, by=by, log=Diary())
        await deliveries.start_pending(either_harness.ledger)
        await deliveries.drain(10)
    assert courier.sent == [("json://one.example/hook", "stall")]
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["delivered"]


async def test_only_what_was_asked_for_is_told(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    courier = Courier()
    deliveries = Deliveries(settings(notify_on="finish failure"), courier, by="one", log=Diary())
    await deliveries.start_pending(either_harness.ledger)
    await deliveries.drain(10)
    assert courier.sent == []
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["not sent"]


async def test_what_a_dead_process_was_telling_is_told_by_another(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    harness, stuck, courier = either_harness, Courier("no route to host"), Courier()
    first = Deliveries(settings(), stuck, by="one", log=Diary())
    await first.start_pending(harness.ledger)
    await stuck.tried.wait()
    second = Deliveries(settings(), courier, by="two", log=Diary())
    await second.start_pending(harness.ledger)
    assert not second
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["being sent"]
    await harness.advance_clock(delivery.LOCK_SECONDS + 1)
    await second.start_pending(harness.ledger)
    await second.drain(10)
    assert courier.sent == [("json://one.example/hook", "stall")]
    await first.drain(0)
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["delivered"]


async def test_a_process_that_leaves_hands_over_at_once(either_harness: LedgerHarness) -> None:
    run_id = await _stalled(either_harness)
    harness, stuck, courier = either_harness, Courier("no route to host"), Courier()
    first = Deliveries(settings(), stuck, by="one", log=Diary())
    await first.start_pending(harness.ledger)
    await stuck.tried.wait()
    await first.drain(0)
    assert [raised.delivery for raised in await list_alerts(harness.ledger, run_id)] == ["interrupted"]
    second = Deliveries(settings(), courier, by="two", log=Diary())
    await second.start_pending(harness.ledger)
    await second.drain(10)
    assert courier.sent == [("json://one.example/hook", "stall")]


async def test_it_is_given_up_after_some_tries(either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await _stalled(either_harness)
    monkeypatch.setattr(delivery, "MIN_PAUSE_SECONDS", 0.0)
    diary = Diary()
    secret = "json://user:sesame@one.example/hook"
    deliveries = Deliveries(settings(notify=secret), Courier(f"{secret} refused sesame"), by="one", log=diary)
    await deliveries.start_pending(either_harness.ledger)
    await deliveries.drain(20)
    assert [raised.delivery for raised in await list_alerts(either_harness.ledger, run_id)] == ["undelivered"]
    assert len([line for line in diary.lines if line.startswith("delivery failed")]) == delivery.MAX_TRIES
    assert "sesame" not in "".join(diary.lines)
    await deliveries.start_pending(either_harness.ledger)
    assert not deliveries


async def test_old_alerts_are_no_news(either_harness: LedgerHarness) -> None:
    await _stalled(either_harness)
    courier = Courier()
    await either_harness.advance_clock(3_601)
    deliveries = Deliveries(settings(), courier, by="one", log=Diary())
    await deliveries.start_pending(either_harness.ledger)
    assert not deliveries
