"""Messages of a broker into the ledger: a feed beside a bare consumer with the same client and one INSERT a batch."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
from redis.asyncio import Redis

from bench.figures import Report
from bench.places import Place
from bench.rounds import Contender, alternate, paired_ratio
from bench.session import Effort, Session
from shoal import Page, Scraper
from shoal.config import load_settings
from shoal.feeds.source import Message, Source, open_source
from shoal.service.events import Host
from shoal.service.feed import FeedRequest, feed
from shoal.service.lookup import configure
from tests.support.brokers import RabbitServer, RedisServer
from tests.support.postgres import unique_name
from tests.support.queues import BrokerQueue, RabbitQueue, RedisList, RedisStream

MESSAGES: dict[Effort, int] = {"quick": 10_000, "full": 200_000}
BATCH = 1_000
HOSTS = 1_000
FILL_AT_ONCE = 5_000

Store = Callable[[Sequence[bytes]], Awaitable[None]]


def run(session: Session) -> Report:
    messages = session.size(MESSAGES)
    report = Report("feeds", "How fast do messages get into the ledger?", {"messages": messages, "batch": BATCH})
    with ExitStack() as held:
        rabbitmq, redis = held.enter_context(RabbitServer()), held.enter_context(RedisServer())
        queues: dict[str, Callable[[], BrokerQueue]] = {
            "RabbitMQ": lambda: RabbitQueue(rabbitmq),
            "Redis stream": lambda: RedisStream(redis),
            "Redis list": lambda: RedisList(redis),
        }
        contenders: dict[str, Contender] = {}
        for broker, make_queue in queues.items():
            for place in session.places:
                contenders[f"{broker}: shoal on {place.name}"] = _contender(_feed, place, make_queue, messages)
                if broker == "Redis stream":
                    name = f"{broker}: shoal on {place.name}, {HOSTS} hosts as lanes"
                    contenders[name] = _contender(_feed_lanes, place, make_queue, messages)
                contenders[f"{broker}: bare on {place.name}"] = _contender(_consume, place, make_queue, messages)
        rates = alternate(contenders, session.rounds)
        for name, samples in rates.items():
            report.add(name, "messages/s", samples)
        for broker in queues:
            for place in session.places:
                ours, bare = f"{broker}: shoal on {place.name}", f"{broker}: bare on {place.name}"
                ratio = paired_ratio(rates[ours], rates[bare])
                report.target(f"{broker}, {place.name}: shoal / bare consumer", ratio, at_least=0.5)
    report.bars("Messages into the ledger", "messages/s")
    return report


def _contender(
    measure: Callable[[str, BrokerQueue, int], Awaitable[float]],
    place: Place,
    make_queue: Callable[[], BrokerQueue],
    messages: int,
) -> Contender:
    async def fill_and_measure(address: str) -> float:
        queue = make_queue()
        await _fill(queue, messages)
        return messages / await measure(address, queue, messages)

    def contend() -> float:
        with place.fresh() as address:
            return asyncio.run(fill_and_measure(address))

    return contend


async def _fill(queue: BrokerQueue, messages: int) -> None:
    await queue.create()
    bodies = [f"https://host{n % HOSTS}.example.com/page/{n}" for n in range(messages)]
    for start in range(0, messages, FILL_AT_ONCE):
        await queue.put(bodies[start : start + FILL_AT_ONCE])


class _Timed:
    """A source that says how long it took from the first request for messages to the last acknowledgement."""

    def __init__(self, source: Source, messages: int) -> None:
        self._source = source
        self._left = messages
        self._began = self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        self._began = self._began or time.perf_counter()
        return await self._source.receive(limit, seconds)

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        await self._source.acknowledge(messages)
        self._left -= len(messages)
        if not self._left:
            self.seconds = time.perf_counter() - self._began


async def _feed_lanes(address: str, queue: BrokerQueue, messages: int) -> float:
    return await _feed(address, queue, messages, lanes=True)


async def _feed(address: str, queue: BrokerQueue, messages: int, *, lanes: bool = False) -> float:
    scraper = Scraper("bench")
    options: dict[str, Any] = {} if lanes else {"lane": None}

    @scraper.stage(**options)
    def page(page: Page) -> None: ...

    settings = configure(scraper, load_settings({"ledger": address, "log_dir": ""}, environ={}, folder=Path("/")))
    source = _Timed(open_source(queue.address(), prefetch=2 * BATCH), messages)
    request = FeedRequest(source=source, idle=0.0, backlog=10 * messages, batch=BATCH)
    report = await feed(scraper, settings, request, Host())
    assert report.feed.enqueued == messages, report.feed
    return source.seconds


async def _consume(address: str, queue: BrokerQueue, messages: int) -> float:
    """A loop that a user would write: take what is there, store it in one statement, acknowledge it."""
    store, close = await _table(address)
    try:
        consume = {"queue": _consume_queue, "stream": _consume_stream, "list": _consume_list}[queue.kind]
        return await consume(queue, messages, store)
    finally:
        await close()


async def _consume_queue(queue: BrokerQueue, messages: int, store: Store) -> float:
    async with await aio_pika.connect(queue.server.url()) as connection:
        channel = await (await connection.channel(publisher_confirms=False)).get_underlay_channel()
        await channel.basic_qos(prefetch_count=2 * BATCH)
        began, left = time.perf_counter(), messages
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        await channel.basic_consume(queue.name, arrived.put)
        while left:
            batch = [await arrived.get()]
            while len(batch) < BATCH and not arrived.empty():
                batch.append(arrived.get_nowait())
            await store([message.body for message in batch])
            await channel.basic_ack(batch[-1].delivery_tag, multiple=True)
            left -= len(batch)
        return time.perf_counter() - began


async def _consume_stream(queue: BrokerQueue, messages: int, store: Store) -> float:
    async with Redis.from_url(queue.server.url(), protocol=2) as client:
        await client.xgroup_create(queue.name, "bare", id="0", mkstream=True)
        began, left = time.perf_counter(), messages
        while left:
            answer: Any = await client.xreadgroup("bare", "one", {queue.name: ">"}, count=BATCH, block=1_000)
            entries = answer[0][1]
            await store([fields[b"message"] for _, fields in entries])
            await client.xack(queue.name, "bare", *(entry for entry, _ in entries))
            left -= len(entries)
        return time.perf_counter() - began


async def _consume_list(queue: BrokerQueue, messages: int, store: Store) -> float:
    """Reliable too: messages are in a list of their own until they are stored."""
    held = f"{queue.name}:held"
    async with Redis.from_url(queue.server.url()) as client:
        began, left = time.perf_counter(), messages
        while left:
            async with client.pipeline(transaction=True) as pipe:
                for _ in range(min(left, BATCH)):
                    pipe.lmove(queue.name, held, "LEFT", "RIGHT")
                taken = [body for body in await pipe.execute() if body is not None]
            await store(taken)
            await client.ltrim(held, len(taken), -1)
            left -= len(taken)
        return time.perf_counter() - began


async def _table(address: str) -> tuple[Store, Callable[[], Awaitable[None]]]:
    """A table of unique URLs beside the ledger, and how to store a batch in it by one INSERT."""
    if address.startswith("postgresql"):
        connection = await asyncpg.connect(address)
        await connection.execute("create table public.bare_url (id bigserial primary key, url text not null unique)")

        async def insert(bodies: Sequence[bytes]) -> None:
            await connection.execute(
                "insert into public.bare_url (url) select unnest($1::text[]) on conflict do nothing",
                [body.decode() for body in bodies],
            )

        return insert, connection.close
    file = sqlite3.connect(f"{address}-bare-{unique_name()}", isolation_level=None, check_same_thread=False)
    file.execute("pragma journal_mode = wal")
    file.execute("pragma synchronous = full")
    file.execute("create table bare_url (id integer primary key, url text not null unique)")

    def insert_now(urls: list[tuple[str]]) -> None:
        file.execute("begin immediate")
        file.executemany("insert or ignore into bare_url (url) values (?)", urls)
        file.execute("commit")

    async def insert_in_thread(bodies: Sequence[bytes]) -> None:
        await asyncio.to_thread(insert_now, [(body.decode(),) for body in bodies])

    async def close() -> None:
        file.close()

    return insert_in_thread, close
