"""`shoal.connect()`: the operator's client on both ledgers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import shoal
from shoal import Page, Scraper
from shoal.config import Settings
from shoal.errors import NotFound, UsageError
from shoal.model.item import ItemState
from shoal.model.run import RunState
from shoal.model.views import ItemFilter
from shoal.service.events import Event, ItemsRefused, RunPaused
from shoal.wiring import open_ledger
from shoal.worker.state import StopReason
from tests.support.site import Site


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("migrated_postgres"))


def india() -> Scraper:
    scraper = Scraper("india")

    @scraper.stage(retries=0)
    async def page(page: Page):  # type: ignore[no-untyped-def]
        yield {"url": page.url}

    return scraper


async def test_from_enqueue_to_records(ledger: str) -> None:
    with Site() as site:
        urls = [f"{site.url}/page/{number}" for number in range(1, 4)]
        async with shoal.connect(ledger) as fleet:
            report = await fleet.enqueue(india(), [*urls, urls[0], f"{site.url}/status/404/gone"])
            assert (report.enqueued, report.duplicates, report.invalid) == (4, 1, 0)
            assert (await fleet.stats("india", report.run_id)).remaining == 4
            # The same program works on what it has enqueued.
            done = india().run(ledger=ledger, quiet=True)
            assert done.run_id == report.run_id
            records = [record async for record in fleet.records(report.run_id)]
            assert sorted(record["url"] for record in records) == urls
            (group,) = (await fleet.failures(report.run_id)).groups
            assert (group.items, group.outcome) == (1, "permanent")
            (summary,) = (await fleet.runs(scraper="india")).rows
            assert (summary.run.state, summary.counts.done) == (RunState.FINISHED, 3)
            exported = await fleet.export("out.csv", report.run_id, columns=["url"], meta=True)
            assert (exported.records, exported.columns[-1]) == (3, "url")


async def test_runs_and_items_are_steered(ledger: str) -> None:
    async with shoal.connect(ledger, operator="the night shift") as fleet:
        run = (await fleet.enqueue(india(), ["http://127.0.0.1:1/1", "http://127.0.0.1:1/2"])).run_id
        assert (await fleet.pause(run)).state is RunState.PAUSED
        assert "paused" in (await fleet.why(run)).reasons[0].text
        await fleet.resume(run)
        assert await fleet.cancel_items(run, key="http://127.0.0.1:1/1") == 1
        items = (await fleet.items(run, ItemFilter(states=(ItemState.CANCELLED,)))).rows
        assert [item.url for item in items] == ["http://127.0.0.1:1/1"]
        which = ItemFilter(states=(ItemState.CANCELLED,))
        assert await fleet.retry(run, which, key="http://127.0.0.1:1/1") == 1
        assert (await fleet.item(run, key="http://127.0.0.1:1/1")).item.state in (ItemState.READY, ItemState.WAITING)
        lane = await fleet.set_lane("127.0.0.1:1", limit=7, delay=2.5)
        assert (lane.policy.limit, lane.policy.delay_min, lane.policy.delay_max) == (7, 2.5, 2.5)
        assert [found.key for found in (await fleet.lanes()).rows] == ["127.0.0.1:1"]
        assert await fleet.cancel(run) == 2
        assert "the night shift" in {event.actor for event in (await fleet.run(run)).events}
        await fleet.remove(run)
        with pytest.raises(NotFound, match="the ledger is"):
            await fleet.stats(run=run)


async def test_leases_are_released_and_workers_drained(ledger: str) -> None:
    from shoal.model.worker import Scope, WorkerSpec

    async with shoal.connect(ledger) as fleet:
        run = (await fleet.enqueue(india(), ["http://127.0.0.1:1/1"])).run_id
        other = await open_ledger(Settings(ledger=ledger))
        await other.workers.register(WorkerSpec(id="w1", node="elsewhere", pid=1, scope=Scope(run_ids=(run,))))
        assert len(await other.claims.claim("w1", Scope(run_ids=(run,)), 1)) == 1
        assert (await fleet.stats(run=run)).leased == 1
        assert (await fleet.release(older_than=0)).released == 1
        assert (await fleet.stats(run=run)).leased == 0
        assert [status.worker.id for status in await fleet.workers()] == ["w1"]
        assert await fleet.drain(run=run) == ["w1"]
        with pytest.raises(UsageError):
            await fleet.drain()
        await other.close()


async def test_events_reach_the_program(ledger: str) -> None:
    events: list[Event] = []
    async with shoal.connect(ledger, on_event=events.append) as fleet:
        first = await fleet.enqueue(india(), ["http://127.0.0.1:1/1", "nonsense"])
        await fleet.enqueue(india(), ["http://127.0.0.1:1/1"], fresh=True)
    refused, paused = events
    assert isinstance(refused, ItemsRefused)
    assert refused.count == 1
    assert isinstance(paused, RunPaused)
    assert paused.run_id == first.run_id


async def test_items_may_follow_while_the_run_is_open(ledger: str) -> None:
    async def stream() -> AsyncIterator[str]:
        for number in range(3):
            yield f"http://127.0.0.1:1/{number}"

    async with shoal.connect(ledger) as fleet:
        first = await fleet.enqueue(india(), stream(), keep_open=True)
        second = await fleet.enqueue(india(), ["http://127.0.0.1:1/later"])
        assert (first.run_id, first.enqueued, second.enqueued) == (second.run_id, 3, 1)


async def test_a_client_must_be_connected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not connected"):
        await shoal.connect(str(tmp_path / "ledger.db")).runs()


def test_a_stopped_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Site() as site:
        urls = [f"{site.url}/slow/0.5/{n}" for n in range(50)]
        report = india().run(urls=urls, concurrency=1, timeout=0.3, quiet=True)
    assert report.work is not None
    assert report.work.stop_reason is StopReason.TIMED_OUT
    assert report.run.state is RunState.ACTIVE
