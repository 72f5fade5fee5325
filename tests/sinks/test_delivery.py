"""Delivery to a sink: each record once, nothing lost by failures, refused records set aside, one process at a time."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import SinkFailed
from shoal.notify.watch import AlertChecker, list_alerts
from shoal.observe.sinks import read_sinks
from shoal.sinks.delivery import sink_lock
from shoal.testing.harness import LedgerHarness
from tests.support.sinks import ListSink, SilentLog, deliver_all, delivery_to, settings_for, sink_config, store


def numbers(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"n": n, "name": f"name {n}", **more} for n in range(count)]


CONFIG = sink_config(kind="webhook", url="http://127.0.0.1:1/", batch=37)


async def test_every_record_arrives_once_in_order(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(500))
    sink = ListSink()
    delivery = delivery_to(CONFIG, lambda _: sink)
    await deliver_all(delivery, harness.ledger)
    assert [value["n"] for value in sink.values] == list(range(500))
    assert len(set(sink.taken)) == 500
    await store(harness, run, numbers(20))
    await deliver_all(delivery, harness.ledger)
    assert len(set(sink.taken)) == len(sink.taken) == 520
    (status,) = await read_sinks(harness.ledger, settings_for("x", CONFIG))
    assert (status.delivered, status.behind, status.state) == (520, 0, "up to date")


async def test_a_sink_gets_only_its_scrapers_and_stages(harness: LedgerHarness) -> None:
    shop, news = await harness.run("page"), await harness.run("page", scraper="news")
    await store(harness, shop, numbers(40))
    await store(harness, news, numbers(30))
    config = sink_config(kind="webhook", url="http://127.0.0.1:1/", scrapers=["news"], batch=7)
    sink = ListSink()
    await deliver_all(delivery_to(config, lambda _: sink), harness.ledger)
    assert len(sink.taken) == 30
    assert all(id.startswith(news.id) for id in sink.taken)


async def test_a_failing_sink_says_why_and_catches_up(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(100))
    sink = ListSink()
    sink.down = "no route to http://me:hush-hush@host/"
    config = sink_config(kind="webhook", url="http://me:hush-hush@127.0.0.1:1/hook-token-abc", batch=30)
    delivery = delivery_to(config, lambda _: sink)
    for _ in range(3):
        with pytest.raises(SinkFailed):
            await delivery.step(harness.ledger)
    await harness.advance_clock(700)
    settings = settings_for("x", config)
    (status,) = await read_sinks(harness.ledger, settings)
    assert (status.state, status.behind, status.delivered) == ("failing", 100, 0)
    assert status.lag_seconds >= 700
    assert status.error is not None
    assert "hush-hush" not in status.error
    assert status.sentence.startswith("Sink target is 12m behind (100 records): no route")
    sink.down = ""
    await deliver_all(delivery, harness.ledger)
    (status,) = await read_sinks(harness.ledger, settings)
    assert (status.state, status.error, len(sink.taken)) == ("up to date", None, 100)


@pytest.mark.parametrize("bad", [{0}, {99}, {13, 14, 57}, set(range(10, 60))])
async def test_refused_records_become_dead_letters_and_the_rest_arrives(harness: LedgerHarness, bad: set[int]) -> None:
    run = await harness.run()
    await store(harness, run, numbers(100))

    def refuses(record: Mapping[str, Any]) -> bool:
        return record["n"] in bad

    sink = ListSink(refuses)
    config = sink_config(kind="webhook", url="http://127.0.0.1:1/", batch=100)
    delivery = delivery_to(config, lambda _: sink)
    await deliver_all(delivery, harness.ledger)
    assert {value["n"] for value in sink.values} == set(range(100)) - bad
    letters = (await harness.ledger.changes.dead_letters(config.cursor, limit=1000)).rows
    assert len(letters) == len(bad)
    assert {letter.reason for letter in letters} == {"bad value"}
    bad.clear()
    assert await delivery.retry_dead_letters(harness.ledger) == (len(letters), 0)
    assert {value["n"] for value in sink.values} == set(range(100))
    assert (await harness.ledger.changes.dead_letters(config.cursor)).rows == ()


async def test_a_sink_that_refuses_everything_is_at_fault_itself(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(300))
    sink = ListSink(lambda _: True)
    delivery = delivery_to(CONFIG, lambda _: sink)
    with pytest.raises(SinkFailed, match="refuses every record: bad value"):
        await deliver_all(delivery, harness.ledger)
    assert (await harness.ledger.changes.dead_letters(CONFIG.cursor)).rows == ()
    assert sink.calls < 200, "not every record is tried again and again"


async def test_two_processes_do_not_both_move_the_cursor(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(100))
    first, second = ListSink(), ListSink()
    mine, other = delivery_to(CONFIG, lambda _: first, "a"), delivery_to(CONFIG, lambda _: second, "b")
    async with mine.lock(harness.ledger) as lost:
        assert lost is not None
        async with other.lock(harness.ledger) as locked_out:
            assert locked_out is None
        assert await mine.step(harness.ledger)
        # The other one believes that it has the lock: its records come twice, but the cursor counts once.
        await other._open(harness.ledger)
        await mine.step(harness.ledger)
        await other.step(harness.ledger)
        await deliver_all(mine, harness.ledger)
        await deliver_all(other, harness.ledger)
    cursor = await harness.ledger.changes.cursor(CONFIG.cursor)
    assert cursor is not None
    assert cursor.delivered == 100
    assert set(first.taken) | set(second.taken) == {f"{run.id}:{i}:{n}" for i in range(1, 21) for n in range(5)}
    lock = await harness.ledger.locks.get(sink_lock("target"))
    assert lock is not None
    async with other.lock(harness.ledger) as free:
        assert free is not None, "the lock was released"


async def test_a_sink_that_starts_now_gets_only_what_comes(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(10))
    config = sink_config(kind="webhook", url="http://127.0.0.1:1/", start="now")
    sink = ListSink()
    delivery = delivery_to(config, lambda _: sink)
    await deliver_all(delivery, harness.ledger)
    await store(harness, run, numbers(5))
    await deliver_all(delivery, harness.ledger)
    assert len(sink.taken) == 5


async def test_a_missing_variable_is_one_sentence(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(1))
    config = sink_config(kind="webhook", url_env="HOOK_URL")
    with pytest.raises(SinkFailed, match="HOOK_URL is not set"):
        await delivery_to(config).step(harness.ledger)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from shoal.ledger.sqlite.ledger import open_sqlite
from tests.support.sinks import delivery_to, sink_config

async def main():
    ledger = await open_sqlite(Path(sys.argv[1]))
    async def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "die":
        ledger.changes.move = die
    delivery = delivery_to(sink_config(kind="jsonl", path=sys.argv[2], batch=100))
    while await delivery.step(ledger, flush=True):
        pass
    await ledger.close()

asyncio.run(main())
"""


async def test_kill_9_between_delivery_and_cursor_replaces_the_same_part(
    harness: LedgerHarness, sqlite_path: Path, tmp_path: Path
) -> None:
    run = await harness.run()
    await store(harness, run, numbers(250))
    folder = tmp_path / "parts"

    async def deliver(how: str) -> int:
        command = (sys.executable, "-c", KILLED, str(sqlite_path), str(folder), how)
        process = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parents[2])
        return await process.wait()

    assert await deliver("die") == -signal.SIGKILL
    (part,) = folder.iterdir()
    assert part.name == "part-000000000000.jsonl"
    # More has come meanwhile: the part may grow, and nothing is in two of them.
    await store(harness, run, numbers(20))
    assert await deliver("live") == 0
    lines = [line for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == 270


async def test_a_sink_that_is_behind_is_an_alert(harness: LedgerHarness) -> None:
    run = await harness.run()
    await store(harness, run, numbers(10))
    checker = AlertChecker(settings_for("x", CONFIG), by="test", log=SilentLog())
    await checker.check_recent_runs(harness.ledger)
    await harness.advance_clock(620)
    delivery = delivery_to(CONFIG, lambda _: broken)
    broken = ListSink()
    broken.down = "connection refused"
    with pytest.raises(SinkFailed):
        await delivery.step(harness.ledger)
    for _ in range(2):
        await checker.check_recent_runs(harness.ledger)
    raised = [alert for alert in await list_alerts(harness.ledger) if alert.alert.kind == "sink"]
    assert [alert.alert.body.partition("\n")[0] for alert in raised] == [
        "Sink target is 10m behind (10 records): connection refused."
    ]
    assert raised[0].alert.title == f"Shoal: shop has a sink that is behind (run {run.id})"
