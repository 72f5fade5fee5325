"""RabbitMQ and Redis streams as sinks: real brokers, killed and restarted in the middle."""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from typing import Any

import pytest

from shoal.errors import SinkFailed
from shoal.testing.harness import LedgerHarness
from tests.support.brokers import RabbitServer, RedisServer
from tests.support.postgres import unique_name
from tests.support.sinks import deliver_all, delivery_to, sink_config, store


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "name": f"name {n}"} for n in range(count)]


async def messages(rabbitmq: RabbitServer, queue: str) -> list[Any]:
    """Everything in a queue, as a consumer gets it."""
    aio_pika = import_module("aio_pika")
    connection = await aio_pika.connect(rabbitmq.url())
    try:
        channel = await connection.channel()
        found = await channel.declare_queue(queue, passive=True)
        got = []
        while (message := await found.get(no_ack=True, fail=False)) is not None:
            got.append(message)
        return got
    finally:
        await connection.close()


async def test_rabbitmq_confirms_every_record(harness: LedgerHarness, rabbitmq: RabbitServer) -> None:
    run = await harness.run()
    await store(harness, run, numbers(300))
    queue = unique_name()
    config = sink_config(kind="rabbitmq", url=rabbitmq.url(), routing_key=queue + ".{scraper}", batch=120)
    delivery = delivery_to(config)
    await delivery.step(harness.ledger)
    await asyncio.to_thread(rabbitmq.wait_until_written, queue)
    await asyncio.to_thread(rabbitmq.restart)  # what was confirmed is on disk
    for _ in range(50):
        try:
            await deliver_all(delivery, harness.ledger)
            break
        except SinkFailed:
            await asyncio.sleep(0.05)
    got = await messages(rabbitmq, f"{queue}.shop")
    ids = [message.message_id for message in got]
    assert sorted(set(ids)) == sorted(f"{run.id}:{item}:{n}" for item in range(1, 61) for n in range(5))
    assert len(ids) == 300
    first = json.loads(got[0].body)
    assert (first["id"], first["record"]) == (f"{run.id}:1:0", {"n": 0, "name": "name 0"})
    assert got[0].delivery_mode == 2
    assert got[0].content_type == "application/json"


async def test_rabbitmq_that_routes_nowhere_is_a_failing_sink(harness: LedgerHarness, rabbitmq: RabbitServer) -> None:
    run = await harness.run()
    await store(harness, run, numbers(3))
    config = sink_config(kind="rabbitmq", url=rabbitmq.url(), exchange="amq.topic", routing_key=unique_name())
    with pytest.raises(SinkFailed, match="to no queue"):
        await deliver_all(delivery_to(config), harness.ledger)
    missing = sink_config("other", kind="rabbitmq", url=rabbitmq.url(), exchange=unique_name())
    with pytest.raises(SinkFailed, match="has no exchange"):
        await deliver_all(delivery_to(missing), harness.ledger)
    cursor = await harness.ledger.changes.cursor(config.cursor)
    assert cursor is not None
    assert cursor.delivered == 0


async def test_a_redis_stream_gets_every_record(harness: LedgerHarness, redis_server: RedisServer) -> None:
    run = await harness.run()
    await store(harness, run, numbers(300))
    stream = unique_name()
    config = sink_config(kind="redis", url=redis_server.url(), stream=stream, batch=100)
    delivery = delivery_to(config)
    await delivery.step(harness.ledger)
    await asyncio.to_thread(redis_server.kill)
    with pytest.raises(SinkFailed) as failed:
        await deliver_all(delivery, harness.ledger)
    assert redis_server.password not in str(failed.value)
    await asyncio.to_thread(redis_server.start)
    await deliver_all(delivery, harness.ledger)
    client = import_module("redis.asyncio").from_url(redis_server.url(), decode_responses=True)
    try:
        entries = await client.xrange(stream)
        assert [fields["id"] for _, fields in entries] == [
            f"{run.id}:{item}:{n}" for item in range(1, 61) for n in range(5)
        ]
        assert json.loads(entries[7][1]["record"]) == {"n": 7, "name": "name 7"}
        short = sink_config("short", kind="redis", url=redis_server.url(), stream=f"{stream}-short", max_length=50)
        await deliver_all(delivery_to(short), harness.ledger)
        # Redis shortens by whole nodes of a stream.
        assert 50 <= await client.xlen(f"{stream}-short") < 300
    finally:
        await client.aclose()
