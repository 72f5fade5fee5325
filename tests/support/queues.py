"""A queue of any broker as its producers and operators see it: put messages in, see what is left and what is dead."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import aio_pika

from tests.support.brokers import RabbitServer, RedisServer
from tests.support.postgres import unique_name


class BrokerQueue(ABC):
    """A queue with a name of its own on a real broker."""

    kind: str

    def __init__(self, server: RabbitServer | RedisServer) -> None:
        self.server = server
        self.name = unique_name("urls")

    def address(self, *options: str, port: int | None = None, password: bool = True) -> str:
        return self.server.url("&".join((f"{self.kind}={self.name}", *options)), port=port, password=password)

    @abstractmethod
    async def create(self) -> None: ...

    @abstractmethod
    async def put(self, bodies: Iterable[str | bytes]) -> None:
        """Put messages in, confirmed by the broker."""

    @abstractmethod
    async def left(self) -> int:
        """How many messages are neither acknowledged nor dead, those that a consumer holds included."""

    async def records(self) -> list[dict[str, Any]]:
        """The records that a sink has put here."""
        raise NotImplementedError

    @abstractmethod
    async def dead(self) -> list[tuple[str, str]]:
        """The dead letters: message and reason."""


class RabbitQueue(BrokerQueue):
    kind = "queue"
    server: RabbitServer

    async def create(self, arguments: dict[str, Any] | None = None) -> None:
        async with await aio_pika.connect(self.server.url()) as connection:
            await (await connection.channel()).declare_queue(self.name, durable=True, arguments=arguments)

    async def delete(self) -> None:
        async with await aio_pika.connect(self.server.url()) as connection:
            await (await connection.channel()).queue_delete(self.name)

    async def put(self, bodies: Iterable[str | bytes]) -> None:
        async with await aio_pika.connect(self.server.url()) as connection:
            exchange = (await connection.channel()).default_exchange
            waiting = [_persistent(body) for body in bodies]
            for start in range(0, len(waiting), 500):
                await asyncio.gather(*(exchange.publish(body, self.name) for body in waiting[start : start + 500]))

    async def left(self) -> int:
        # Only a queue without consumers tells: what they hold is not counted as ready.
        async with await aio_pika.connect(self.server.url()) as connection:
            queue = await (await connection.channel()).declare_queue(self.name, passive=True)
            return int(queue.declaration_result.message_count or 0)

    async def dead(self) -> list[tuple[str, str]]:
        letters = await self._take_all(f"{self.name}.dead")
        return [(letter.body.decode(errors="replace"), str(letter.headers["x-shoal-reason"])) for letter in letters]

    async def records(self) -> list[dict[str, Any]]:
        return [json.loads(message.body) for message in await self._take_all(self.name)]

    async def _take_all(self, name: str) -> list[aio_pika.abc.AbstractIncomingMessage]:
        found = []
        async with await aio_pika.connect(self.server.url()) as connection:
            queue = await (await connection.channel()).declare_queue(name, passive=True)
            while (message := await queue.get(fail=False)) is not None:
                await message.ack()
                found.append(message)
        return found


class RedisStream(BrokerQueue):
    kind = "stream"
    server: RedisServer

    async def create(self) -> None:
        """Streams need not be created."""

    async def put(self, bodies: Iterable[str | bytes]) -> None:
        async with self.server.client() as client, client.pipeline(transaction=False) as pipe:
            for body in bodies:
                pipe.xadd(self.name, {"message": body})
            await pipe.execute()

    async def left(self) -> int:
        async with self.server.client(protocol=2) as client:
            (group,) = await client.xinfo_groups(self.name)
            return int(group["pending"]) + int(group["lag"] or 0)

    async def dead(self) -> list[tuple[str, str]]:
        return [
            (fields[b"message"].decode(errors="replace"), fields[b"reason"].decode())
            for fields in await self._entries(f"{self.name}:dead")
        ]

    async def records(self) -> list[dict[str, Any]]:
        return [
            {name.decode(): json.loads(text) if name == b"record" else text.decode() for name, text in fields.items()}
            for fields in await self._entries(self.name)
        ]

    async def _entries(self, name: str) -> list[dict[bytes, bytes]]:
        async with self.server.client(protocol=2) as client:
            answer: Any = await client.xrange(name)
            return [fields for _, fields in answer]


class RedisList(BrokerQueue):
    kind = "list"
    server: RedisServer

    async def create(self) -> None:
        """Lists need not be created."""

    async def put(self, bodies: Iterable[str | bytes]) -> None:
        async with self.server.client() as client:
            await client.rpush(self.name, *bodies)

    async def left(self) -> int:
        async with self.server.client() as client:
            held = [await client.llen(key) async for key in client.scan_iter(f"{self.name}:held:*")]
            return int(await client.llen(self.name)) + sum(held)

    async def dead(self) -> list[tuple[str, str]]:
        async with self.server.client() as client:
            letters = [json.loads(letter) for letter in await client.lrange(f"{self.name}:dead", 0, -1)]
            return [(letter.get("message", ""), letter["reason"]) for letter in letters]


def _persistent(body: str | bytes) -> aio_pika.Message:
    raw = body.encode() if isinstance(body, str) else body
    return aio_pika.Message(raw, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
