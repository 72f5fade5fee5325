"""The brokers are real: what they acknowledged is there, after `kill -9` too."""

import asyncio

import aio_pika

from tests.support.brokers import RabbitServer, RedisServer
from tests.support.postgres import unique_name


async def test_confirmed_messages_are_in_the_queue(rabbitmq: RabbitServer) -> None:
    name = unique_name("queue")
    async with await aio_pika.connect(rabbitmq.url()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, durable=True)
        for number in range(20):
            await channel.default_exchange.publish(aio_pika.Message(str(number).encode()), routing_key=name)
        assert (await channel.declare_queue(name, passive=True)).declaration_result.message_count == 20
        await queue.delete(if_empty=False)


async def test_written_keys_survive_a_killed_redis(redis_server: RedisServer) -> None:
    name = unique_name("list")
    async with redis_server.client() as client:
        await client.rpush(name, *range(20))
    await asyncio.to_thread(redis_server.restart)
    async with redis_server.client() as client:
        assert await client.llen(name) == 20
        await client.delete(name)


def test_rabbitmq_is_controlled_by_its_own_tool(rabbitmq: RabbitServer) -> None:
    assert "shoal" in rabbitmq.control("list_users", "--silent")
