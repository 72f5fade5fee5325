"""`feed`: messages of real brokers become items, once, whatever is killed, cut or full in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from shoal import Scraper
from shoal.config import Settings, load_settings
from shoal.errors import FeedUnavailable, LedgerUnavailable, UsageError, WrongState
from shoal.feeds.source import Source, open_source
from shoal.ledger.intake import BaseIntake
from shoal.ledger.protocols import ALL_ITEMS, Ledger
from shoal.model.run import RunState
from shoal.service.begin import RunChoice
from shoal.service.events import Event, FeedProgress, Host
from shoal.service.feed import FeedReport, FeedRequest, feed
from shoal.service.lookup import configure
from shoal.wiring import ledger_context
from tests.support import LONG
from tests.support.brokers import RabbitServer, RedisServer
from tests.support.postgres import unique_name
from tests.support.queues import BrokerQueue, RabbitQueue, RedisList, RedisStream
from tests.support.relay import Relay

QUEUES: dict[str, tuple[type[BrokerQueue], str]] = {
    "rabbitmq": (RabbitQueue, "rabbitmq"),
    "redis_stream": (RedisStream, "redis_server"),
    "redis_list": (RedisList, "redis_server"),
}
MANY = 10_000 if LONG else 600
PATIENCE = 120.0


@pytest.fixture(params=list(QUEUES))
async def queue(request: pytest.FixtureRequest) -> BrokerQueue:
    made, server = QUEUES[request.param]
    queue = made(request.getfixturevalue(server))
    await queue.create()
    return queue


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of a project with a SQLite ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.service.feed.PROGRESS_SECONDS", 0.0)
    return load_settings({"ledger": "ledger.db"}, environ={}, folder=tmp_path)


def books() -> Scraper:
    scraper = Scraper("books")

    @scraper.stage
    def page(page: object) -> None: ...

    @scraper.stage(lane=lambda item: item.payload["site"])
    def detail(page: object) -> None: ...

    return scraper


class Feed:
    """A feed that runs beside the test, and what it tells its host."""

    def __init__(self, settings: Settings, request: FeedRequest) -> None:
        self.progress: list[FeedProgress] = []
        self.log: list[str] = []
        self.host = Host(on_event=self._on_event, log_stream=self.log.append)
        scraper = books()
        self.task = asyncio.create_task(feed(scraper, configure(scraper, settings), request, self.host))

    @property
    def messages(self) -> int:
        return self.progress[-1].messages if self.progress else 0

    def _on_event(self, event: Event) -> None:
        if isinstance(event, FeedProgress):
            self.progress.append(event)

    async def until(self, true: Callable[[], bool | Awaitable[bool]]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not (answer if isinstance(answer := true(), bool) else await answer):
            if self.task.done():
                raise AssertionError(f"the feed has ended: {self.task.result()}")
            assert time.monotonic() < deadline, self.log[-5:]
            await asyncio.sleep(0.02)

    async def until_it_says(self, text: str) -> None:
        await self.until(lambda: any(text in line for line in self.log))

    async def stop(self) -> FeedReport:
        self.host.stop.request()
        return await asyncio.wait_for(self.task, PATIENCE)


@asynccontextmanager
async def feeding(settings: Settings, source: str | Source, **options: object) -> AsyncIterator[Feed]:
    fed = Feed(settings, FeedRequest(source=source, idle=0.2, **options))  # type: ignore[arg-type]
    try:
        yield fed
    finally:
        fed.task.cancel()
        await asyncio.gather(fed.task, return_exceptions=True)


async def feed_to_end(settings: Settings, source: str, **options: object) -> FeedReport:
    async with feeding(settings, source, **options) as fed:
        return await asyncio.wait_for(fed.task, PATIENCE)


async def stored(settings: Settings, run: str) -> list[str]:
    """The URLs of all items of a run, as often as they are stored."""
    async with ledger_context(settings) as ledger:
        urls, cursor = [], None
        while True:
            page = await ledger.reads.items(run, cursor=cursor, limit=1000)
            urls += [item.url or "" for item in page.rows]
            if (cursor := page.cursor) is None:
                assert not await ledger.upkeep.audit()
                return urls


async def _left_is(queue: BrokerQueue, count: int) -> bool:
    return await queue.left() == count


async def _is_finished(ledger: Ledger, run_id: str) -> bool:
    await ledger.upkeep.run_once()
    return (await ledger.runs.get(run_id)).state is RunState.FINISHED


async def _vanish() -> None:
    """What a killed process does for its broker."""


async def _drop_connection(source: Source) -> None:
    """The kernel closes the connections of a killed process."""
    for name in ("_connection", "_redis"):
        if (connection := getattr(source, name, None)) is not None:
            await (connection.close() if name == "_connection" else connection.aclose())


async def _ids(client: Redis, stream: str) -> Any:
    pending: Any = await client.xpending_range(stream, "shoal", "-", "+", 100)
    return [entry["message_id"] for entry in pending]


@contextmanager
def standard_input(content: bytes | int) -> Iterator[None]:
    """Standard input is a file with this content, or this open file."""
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        if isinstance(content, bytes):
            file.write(content)
            file.seek(0)
        os.dup2(content if isinstance(content, int) else file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)


def urls(count: int, prefix: str = "p") -> list[str]:
    return [f"http://127.0.0.1:1/{prefix}/{n}" for n in range(count)]


async def test_messages_become_items_of_a_sealed_run(queue: BrokerQueue, settings: Settings) -> None:  # S2.28
    await queue.put(
        [
            "http://127.0.0.1:1/plain",
            '"http://127.0.0.1:1/string"',
            json.dumps({"url": "http://127.0.0.1:1/o", "stage": "detail", "payload": {"site": "a"}, "priority": 3}),
            json.dumps({"key": "k1", "partition": "north"}),
            "http://127.0.0.1:1/plain",
        ]
    )
    report = await feed_to_end(settings, queue.address())
    assert (report.feed.messages, report.feed.enqueued, report.feed.duplicates, report.feed.dead_letters) == (
        5,
        4,
        1,
        0,
    )
    assert report.sealed
    assert not report.stopped
    assert await queue.left() == 0
    async with ledger_context(settings) as ledger:
        items = {item.key or item.url: item for item in (await ledger.reads.items(report.run_id)).rows}
        assert set(items) == {
            "http://127.0.0.1:1/plain",
            "http://127.0.0.1:1/string",
            "http://127.0.0.1:1/o",
            "k1",
        }
        detail = items["http://127.0.0.1:1/o"]
        assert (detail.stage, detail.lane, detail.priority, detail.payload) == ("detail", "a", 3, {"site": "a"})
        assert items["k1"].partition == "north"


async def test_poison_messages_become_dead_letters_with_their_reason(queue: BrokerQueue, settings: Settings) -> None:
    poison = {
        "no url": "not a valid absolute URL",
        '{"url": "http://127.0.0.1:1/", "prio": 1}': "unknown field",
        '{"url": "http://127.0.0.1:1/", "stage": "nowhere"}': "no stage 'nowhere'",
        '{"url": "http://127.0.0.1:1/", "stage": "detail"}': "TypeError",
        '{"payload": ' + "[" * 2000: "JSON",
        "ftp://127.0.0.1/x": "ftp",
    }
    good = urls(50)
    await queue.put([*good[:25], *poison, *good[25:]])
    report = await feed_to_end(settings, queue.address())
    assert (report.feed.enqueued, report.feed.dead_letters) == (50, len(poison))
    assert sorted(await stored(settings, report.run_id)) == sorted(good)
    dead = dict(await queue.dead())
    assert set(dead) == set(poison)
    for message, reason in poison.items():
        assert reason in dead[message]
    assert await queue.left() == 0


async def test_a_message_that_is_no_text_is_a_dead_letter(queue: BrokerQueue, settings: Settings) -> None:
    await queue.put([b"\xff\xfe\x00", b"", b"http://127.0.0.1:1/ok"])
    report = await feed_to_end(settings, queue.address())
    assert (report.feed.enqueued, report.feed.dead_letters) == (1, 2)
    assert {reason for _, reason in await queue.dead()} == {
        "The message is not valid UTF-8.",
        "The message is empty.",
    }


async def test_many_messages_twice_are_stored_once(queue: BrokerQueue, settings: Settings) -> None:
    all_urls = urls(MANY)
    await queue.put(all_urls)
    await queue.put(all_urls)
    report = await feed_to_end(settings, queue.address(), backlog=2 * MANY)
    assert (report.feed.enqueued, report.feed.duplicates) == (MANY, MANY)
    found = await stored(settings, report.run_id)
    assert len(found) == MANY
    assert set(found) == set(all_urls)
    assert await queue.left() == 0


async def test_the_connection_is_cut_in_the_middle(queue: BrokerQueue, settings: Settings) -> None:
    all_urls = urls(MANY)
    async with Relay(queue.server.port) as relay:
        await queue.put([*all_urls, "poison"])
        address = queue.address(port=relay.port)
        async with feeding(settings, address, batch=50, backlog=10 * MANY) as fed:
            for cut in range(1, 6):
                await fed.until(lambda cut=cut: fed.messages >= cut * MANY // 10)  # type: ignore[misc]
                relay.cut()
            report = await asyncio.wait_for(fed.task, PATIENCE)
        assert relay.connections >= 2  # it did connect again
    found = await stored(settings, report.run_id)
    assert sorted(found) == sorted(all_urls)
    assert {message for message, _ in await queue.dead()} == {"poison"}
    assert await queue.left() == 0


async def test_the_broker_is_killed_in_the_middle(queue: BrokerQueue, settings: Settings) -> None:
    all_urls = urls(MANY)
    await queue.put(all_urls)
    async with feeding(settings, queue.address(), batch=50, backlog=10 * MANY) as fed:
        await fed.until(lambda: fed.messages >= MANY // 4)
        await asyncio.to_thread(queue.server.kill)
        await fed.until_it_says("Waiting for it")
        await asyncio.to_thread(queue.server.start)
        await fed.until_it_says("answers again")
        outage = fed.log[: next(n for n, line in enumerate(fed.log) if "answers again" in line)]
        await queue.put([*all_urls[:100], *urls(100, "later")])
        report = await asyncio.wait_for(fed.task, PATIENCE)
    found = await stored(settings, report.run_id)
    assert sorted(found) == sorted([*all_urls, *urls(100, "later")])
    assert await queue.left() == 0
    # One line about the outage, however often it tried.
    assert sum("Waiting for it" in line for line in outage) == 1, fed.log
    assert queue.server.password not in "".join(fed.log)


async def test_no_messages_are_taken_above_the_backlog(queue: BrokerQueue, settings: Settings) -> None:
    await queue.put(urls(300))
    async with feeding(settings, queue.address(), batch=20, backlog=100, forever=True) as fed:
        await fed.until(lambda: bool(fed.progress) and fed.progress[-1].waiting_for == "the backlog")
        run_id = fed.progress[-1].run_id
        assert 100 <= len(await stored(settings, run_id)) <= 120
        # What was fetched ahead is back: another consumer could have it.
        await fed.until(lambda: _left_is(queue, 300 - fed.messages))
        async with ledger_context(settings) as ledger:
            assert not (await ledger.runs.get(run_id)).sealed
            await ledger.steering.cancel(run_id, ALL_ITEMS, limit=60)
            await fed.until(lambda: fed.messages > 120)
            await fed.until(lambda: fed.progress[-1].waiting_for == "the backlog")
        report = await fed.stop()
    assert report.stopped
    assert not report.sealed
    assert report.counts.remaining <= 120
    assert await queue.left() == 300 - report.feed.messages


async def test_a_stopped_feed_returns_its_messages_and_the_next_continues(
    queue: BrokerQueue, settings: Settings
) -> None:
    await queue.put(urls(MANY))
    async with feeding(settings, queue.address(), batch=20, backlog=10 * MANY, forever=True) as fed:
        await fed.until(lambda: fed.messages >= 50)
        first = await fed.stop()
    assert await queue.left() == MANY - first.feed.messages > 0
    second = await feed_to_end(settings, queue.address(), backlog=10 * MANY)
    assert second.run_id == first.run_id
    assert second.sealed
    assert second.feed.duplicates == 0
    assert len(await stored(settings, first.run_id)) == MANY


async def test_two_feeds_share_a_queue(queue: BrokerQueue, settings: Settings) -> None:
    await queue.put(urls(MANY))
    await queue.put(urls(MANY))
    options = {"batch": 50, "backlog": 10 * MANY}
    async with (
        feeding(settings, queue.address(), **options) as one,
        feeding(settings, queue.address(), **options) as two,
    ):
        reports = await asyncio.wait_for(asyncio.gather(one.task, two.task), PATIENCE)
    assert reports[0].run_id == reports[1].run_id
    assert sum(report.feed.enqueued for report in reports) == MANY
    assert sorted(await stored(settings, reports[0].run_id)) == sorted(urls(MANY))
    assert await queue.left() == 0


async def test_a_run_that_ended_meanwhile_is_resumed(queue: BrokerQueue, settings: Settings) -> None:
    async with feeding(settings, queue.address(), forever=True) as fed:
        await queue.put(urls(1))
        await fed.until(lambda: fed.messages == 1)
        run_id = fed.progress[-1].run_id
        async with ledger_context(settings) as ledger:
            await ledger.steering.cancel(run_id, ALL_ITEMS)
            await ledger.runs.seal(run_id)
            await fed.until(lambda: _is_finished(ledger, run_id))
            await queue.put(urls(2))
            await fed.until(lambda: fed.messages == 3)
            assert (await ledger.runs.get(run_id)).state is RunState.ACTIVE


async def test_a_cancelled_run_ends_the_feed_and_keeps_the_messages(queue: BrokerQueue, settings: Settings) -> None:
    async with feeding(settings, queue.address(), forever=True) as fed:
        await queue.put(urls(1))
        await fed.until(lambda: fed.messages == 1)
        async with ledger_context(settings) as ledger:
            await ledger.runs.cancel(fed.progress[-1].run_id)
        await queue.put(urls(5, "later"))
        with pytest.raises(WrongState, match="cancelled"):
            await asyncio.wait_for(fed.task, PATIENCE)
    assert await queue.left() == 5


async def test_a_feed_killed_between_commit_and_acknowledgement_loses_and_doubles_nothing(
    queue: BrokerQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.put(urls(100))
    source = open_source(queue.address("claim_after=4"), prefetch=40)
    committed = asyncio.Event()

    async def die(messages: object) -> None:
        committed.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(source, "acknowledge", die)
    monkeypatch.setattr(source, "close", _vanish)
    async with feeding(settings, source, batch=20, forever=True):
        await asyncio.wait_for(committed.wait(), PATIENCE)
    await _drop_connection(source)
    report = await feed_to_end(settings, queue.address("claim_after=4"), backlog=1000)
    assert report.feed.messages == 100
    assert 1 <= report.feed.duplicates <= 20
    assert sorted(await stored(settings, report.run_id)) == sorted(urls(100))
    assert await queue.left() == 0


async def test_the_ledger_is_away_for_a_while(
    queue: BrokerQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.put(urls(200))
    away = asyncio.Event()
    enqueue = BaseIntake.enqueue

    async def unreliable(self: BaseIntake, *arguments: Any, **options: Any) -> Any:
        if away.is_set():
            raise LedgerUnavailable("The ledger does not answer.")
        return await enqueue(self, *arguments, **options)

    monkeypatch.setattr(BaseIntake, "enqueue", unreliable)
    async with feeding(settings, queue.address(), batch=20, backlog=1000) as fed:
        await fed.until(lambda: fed.messages >= 20)
        away.set()
        await fed.until_it_says("The ledger does not answer. Waiting for it.")
        assert await queue.left() > 0 or isinstance(queue, RabbitQueue)
        away.clear()
        report = await asyncio.wait_for(fed.task, PATIENCE)
    assert sorted(await stored(settings, report.run_id)) == sorted(urls(200))
    assert await queue.left() == 0
    assert sum("does not answer" in line for line in fed.log) == 1


async def test_a_stop_while_the_ledger_is_away_returns_the_messages(
    queue: BrokerQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(self: BaseIntake, *arguments: Any, **options: Any) -> Any:
        raise LedgerUnavailable("The ledger does not answer.")

    monkeypatch.setattr(BaseIntake, "enqueue", unreachable)
    await queue.put(urls(50))
    async with feeding(settings, queue.address(), forever=True) as fed:
        await fed.until_it_says("The ledger does not answer. Waiting for it.")
        report = await fed.stop()
    assert report.feed.messages == 0
    assert await queue.left() == 50


async def test_dead_letters_wait_while_redis_is_full(redis_server: RedisServer, settings: Settings) -> None:
    queue = RedisStream(redis_server)
    await queue.put([*urls(100), "poison", *urls(50, "later"), "poison too"])
    async with redis_server.client() as operator:
        try:
            async with feeding(settings, queue.address(), batch=50, backlog=100, forever=True) as fed:
                await fed.until(lambda: bool(fed.progress) and fed.progress[-1].waiting_for == "the backlog")
                await operator.config_set("maxmemory", 1)
                async with ledger_context(settings) as ledger:
                    await ledger.steering.cancel(fed.progress[-1].run_id, ALL_ITEMS)
                await fed.until_it_says("Dead letters cannot be written")
                # The good ones are stored meanwhile.
                await fed.until(lambda: fed.messages == 150)
                await operator.config_set("maxmemory", 0)
                await fed.until(lambda: fed.messages == 152)
                await fed.stop()
        finally:
            await operator.config_set("maxmemory", 0)
    assert sorted(message for message, _ in await queue.dead()) == ["poison", "poison too"]
    assert await queue.left() == 0
    assert sum("cannot be written" in line for line in fed.log) == 1


async def test_a_list_of_a_full_redis_is_waited_for(redis_server: RedisServer, settings: Settings) -> None:
    queue = RedisList(redis_server)
    await queue.put(urls(100))
    async with redis_server.client() as operator:
        try:
            async with feeding(settings, queue.address(), batch=10, forever=True) as fed:
                await fed.until(lambda: fed.messages == 100)
                await queue.put(urls(2_000))  # enough to be still at it when Redis is full
                await operator.config_set("maxmemory", 1)
                await fed.until_it_says("is full")
                await operator.config_set("maxmemory", 0)
                # A batch that was under way may be delivered again, so messages are not what is counted.
                await fed.until(lambda: fed.progress[-1].enqueued == 2_000)
                report = await fed.stop()
        finally:
            await operator.config_set("maxmemory", 0)
    assert report.feed.enqueued == 2_000
    assert await queue.left() == 0


async def test_dead_letters_wait_while_rabbitmq_accepts_no_messages(
    rabbitmq: RabbitServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.feeds.amqp.CALL_SECONDS", 1.0)
    queue = RabbitQueue(rabbitmq)
    await queue.create()
    await queue.put(["poison", *urls(200)])
    await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0")
    is_full = True
    try:
        async with feeding(settings, queue.address(), batch=50, forever=True) as fed:
            await fed.until(lambda: fed.messages >= 200)
            await fed.until_it_says("Dead letters cannot be written")
            await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.4")
            is_full = False
            await fed.until_it_says("Dead letters are written again")
            await fed.until(lambda: fed.progress[-1].dead_letters == 1)
            await fed.stop()
    finally:
        if is_full:
            await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.4")
    assert {message for message, _ in await queue.dead()} == {"poison"}
    assert await queue.left() == 0


async def test_messages_may_be_rejected_to_a_dead_letter_exchange(rabbitmq: RabbitServer, settings: Settings) -> None:
    queue, graveyard = RabbitQueue(rabbitmq), RabbitQueue(rabbitmq)
    await graveyard.create()
    await queue.create({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard.name})
    await queue.put(["poison", *urls(3)])
    report = await feed_to_end(settings, queue.address("dead_letter=reject"))
    assert (report.feed.enqueued, report.feed.dead_letters) == (3, 1)
    assert (await queue.left(), await graveyard.left()) == (0, 1)


async def test_a_queue_must_exist_or_be_created_on_request(rabbitmq: RabbitServer, settings: Settings) -> None:
    queue = RabbitQueue(rabbitmq)
    with pytest.raises(UsageError, match="There is no queue"):
        await feed_to_end(settings, queue.address())
    report = await feed_to_end(settings, queue.address("create=yes"))
    assert report.feed.messages == 0
    assert await queue.left() == 0


async def test_a_deleted_queue_is_waited_for(rabbitmq: RabbitServer, settings: Settings) -> None:
    queue = RabbitQueue(rabbitmq)
    await queue.create()
    await queue.put(urls(10))
    async with feeding(settings, queue.address(), forever=True) as fed:
        await fed.until(lambda: fed.messages == 10)
        await queue.delete()
        await fed.until_it_says("was deleted")
        await queue.create()
        await queue.put(urls(20))
        await fed.until(lambda: fed.messages == 30)


async def test_a_wrong_password_is_refused_at_once(queue: BrokerQueue, settings: Settings) -> None:
    address = queue.address().replace(queue.server.password, "wrong-password")
    with pytest.raises(UsageError, match="refuses the login") as error:
        await feed_to_end(settings, address)
    assert "wrong-password" not in str(error.value)


async def test_a_broker_that_is_not_there_is_reported(settings: Settings) -> None:
    settings = msgspec.structs.replace(settings, patience=0.2)
    for address in ("amqp://127.0.0.1:1/?queue=x", "redis://127.0.0.1:1/0?stream=x", "redis://127.0.0.1:1/0?list=x"):
        with pytest.raises(FeedUnavailable, match="does not answer"):
            await feed_to_end(settings, address)
    # No run was made for it.
    async with ledger_context(settings) as ledger:
        assert not (await ledger.runs.list()).rows


async def test_fields_of_a_stream_entry_are_those_of_an_item(redis_server: RedisServer, settings: Settings) -> None:
    queue = RedisStream(redis_server)
    async with redis_server.client() as producer:
        await producer.xadd(
            queue.name,
            {"url": "http://127.0.0.1:1/a", "stage": "detail", "payload": '{"site": "x"}', "priority": "7"},
        )
        await producer.xadd(queue.name, {"url": "http://127.0.0.1:1/b"})
        await producer.xadd(queue.name, {"url": "http://127.0.0.1:1/c", "priority": "high"})
    report = await feed_to_end(settings, queue.address())
    assert (report.feed.enqueued, report.feed.dead_letters) == (2, 1)
    async with ledger_context(settings) as ledger:
        first, second = (await ledger.reads.items(report.run_id)).rows
    assert (first.url, first.lane, first.priority, first.payload) == ("http://127.0.0.1:1/a", "x", 7, {"site": "x"})
    assert second.url == "http://127.0.0.1:1/b"


async def test_groups_of_a_stream_get_every_message(redis_server: RedisServer, settings: Settings) -> None:
    queue = RedisStream(redis_server)
    await queue.put(urls(10))
    for group in ("one", "two"):
        report = await feed_to_end(settings, queue.address(f"group={group}"), choice=RunChoice.FRESH)
        assert report.feed.enqueued == 10


async def test_entries_that_were_trimmed_from_a_stream_do_not_block_it(
    redis_server: RedisServer, settings: Settings
) -> None:
    queue = RedisStream(redis_server)
    await queue.put(urls(10))
    async with redis_server.client() as client:
        await client.xgroup_create(queue.name, "shoal", id="0")
        await client.xreadgroup("shoal", "somebody-dead", {queue.name: ">"}, count=5)
        await client.xtrim(queue.name, maxlen=7, approximate=False)
        await client.xclaim(queue.name, "shoal", "somebody-dead", 0, await _ids(client, queue.name), idle=10_000)
    report = await feed_to_end(settings, queue.address("claim_after=1"))
    assert sorted(await stored(settings, report.run_id)) == sorted(urls(10)[3:])
    assert await queue.left() == 0


async def test_standard_input_is_fed_to_its_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*urls(30), "# a comment", "", '{"key": "k"}', "poison", "http://127.0.0.1:1/\0"]
    with standard_input("\n".join(lines).encode()):
        async with feeding(settings, "-", batch=7) as fed:
            report = await asyncio.wait_for(fed.task, PATIENCE)
    assert (report.feed.enqueued, report.feed.dead_letters) == (31, 2)
    assert report.sealed
    assert any("line 34" in line and "absolute URL" in line for line in fed.log)
    assert any("line 35" in line and "NUL" in line for line in fed.log)


async def test_a_pipe_is_read_as_it_is_written(settings: Settings) -> None:
    read_end, write_end = os.pipe()
    with standard_input(read_end), os.fdopen(write_end, "wb", buffering=0) as pipe:
        async with feeding(settings, "-") as fed:
            pipe.write(b"http://127.0.0.1:1/first\nhttp://127.0.0.1:1/seco")
            await fed.until(lambda: fed.messages == 1)
            await asyncio.sleep(0.5)  # longer than `idle`: a pipe that is open is not empty
            assert not fed.task.done()
            pipe.write(b"nd\n")
            await fed.until(lambda: fed.messages == 2)
            pipe.close()
            report = await asyncio.wait_for(fed.task, PATIENCE)
    assert await stored(settings, report.run_id) == ["http://127.0.0.1:1/first", "http://127.0.0.1:1/second"]


async def test_a_user_without_rights_is_told_which_queue(rabbitmq: RabbitServer, settings: Settings) -> None:
    queue, user = RabbitQueue(rabbitmq), unique_name("user")
    await queue.create()
    for arguments in (("add_user", user, "a-password"), ("set_permissions", user, "none", f"^{queue.name}$", ".*")):
        await asyncio.to_thread(rabbitmq.control, *arguments)
    address = queue.address().replace(f"shoal:{rabbitmq.password}", f"{user}:a-password")
    with pytest.raises(UsageError, match=rf"use the queue '{queue.name}\.dead'"):
        await feed_to_end(settings, address)
