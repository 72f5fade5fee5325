"""RabbitMQ and Redis streams: one message per record, its id with it."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import msgspec

from shoal.config.sinks import SinkConfig
from shoal.errors import SinkFailed, UsageError
from shoal.sinks.sink import RecordsRefused, SinkBatch, envelope

# Messages that wait for their confirmation at once.
UNCONFIRMED = 200
_encode = msgspec.json.Encoder().encode


class RabbitSink:
    """Persistent messages with publisher confirms; the message id is the record id.

    With the default exchange the routing key is the name of a queue, which is declared durable if there is none.
    """

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._aio_pika = require_broker("aio_pika")
        self._connection: Any = None
        self._channel: Any = None
        self._exchange: Any = None
        self._queues: set[str] = set()

    async def deliver(self, batch: SinkBatch) -> None:
        await self._connect()
        exceptions = self._aio_pika.exceptions
        messages = [
            (
                self._config.filled(self._config.routing_key, record.scraper, record.stage),
                self._aio_pika.Message(
                    _encode(envelope(record)),
                    message_id=record.id,
                    content_type="application/json",
                    delivery_mode=self._aio_pika.DeliveryMode.PERSISTENT,
                    headers={"scraper": record.scraper, "stage": record.stage, "run_id": record.run_id},
                ),
            )
            for record in batch.records
        ]
        if not self._config.exchange:
            for queue in {key for key, _ in messages} - self._queues:
                await self._declare(queue)
        try:
            for begin in range(0, len(messages), UNCONFIRMED):
                await asyncio.gather(*(self._publish(*each) for each in messages[begin : begin + UNCONFIRMED]))
        except exceptions.ChannelPreconditionFailed as error:  # larger than the broker allows
            await self.close()
            raise RecordsRefused(str(error)) from None

    async def _publish(self, routing_key: str, message: Any) -> None:
        exceptions = self._aio_pika.exceptions
        try:
            await self._exchange.publish(message, routing_key, mandatory=True)
        except exceptions.PublishError:
            where = f"the exchange {self._config.exchange!r}" if self._config.exchange else "the default exchange"
            raise SinkFailed(
                f"RabbitMQ routes {routing_key!r} from {where} to no queue.", remedy="Bind a queue to it."
            ) from None
        except exceptions.DeliveryError:
            raise SinkFailed(f"RabbitMQ did not accept a message for {routing_key!r}: a queue may be full.") from None

    async def _connect(self) -> None:
        if self._channel is not None and not self._channel.is_closed:
            return
        await self.close()
        self._connection = await self._aio_pika.connect(self._config.url, timeout=self._config.timeout)
        await self._open_channel()

    async def _open_channel(self) -> None:
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        if not self._config.exchange:
            self._exchange = self._channel.default_exchange
            return
        try:
            self._exchange = await self._channel.get_exchange(self._config.exchange, ensure=True)
        except self._aio_pika.exceptions.ChannelNotFoundEntity:
            raise SinkFailed(
                f"RabbitMQ has no exchange {self._config.exchange!r}.", remedy="Declare it, or correct `exchange`."
            ) from None

    async def _declare(self, queue: str) -> None:
        """A queue that exists may have any arguments; declaring it with others would be refused."""
        try:
            await self._channel.declare_queue(queue, passive=True)
        except self._aio_pika.exceptions.ChannelNotFoundEntity:
            await self._open_channel()
            await self._channel.declare_queue(queue, durable=True)
        self._queues.add(queue)

    async def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        self._queues.clear()
        if connection is not None:
            await connection.close()


class RedisSink:
    """Entries of streams (XADD) with the fields id, run_id, scraper, stage, key, url, record_key and record."""

    def __init__(self, config: SinkConfig) -> None:
        self._config = config
        self._redis = require_broker("redis.asyncio")
        self._client: Any = None

    async def deliver(self, batch: SinkBatch) -> None:
        if not batch.records:
            return
        if self._client is None:
            self._client = self._redis.from_url(
                self._config.url, socket_timeout=self._config.timeout, socket_connect_timeout=self._config.timeout
            )
        # Not a transaction: with one, a large batch would block the server.
        pipeline = self._client.pipeline(transaction=False)
        for record in batch.records:
            fields = {
                "id": record.id,
                "run_id": record.run_id,
                "scraper": record.scraper,
                "stage": record.stage,
                "key": record.key,
                "url": record.url,
                "record_key": record.record_key,
                "record": record.record,
            }
            pipeline.xadd(
                self._config.filled(self._config.stream, record.scraper, record.stage),
                {name: value for name, value in fields.items() if value is not None},
                maxlen=self._config.max_length,
                approximate=True,
            )
        await pipeline.execute()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def require_broker(module: str) -> Any:
    """Import a client library on first use."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise UsageError(
            f"A sink of this kind needs the package {package}, which is not installed.",
            remedy="Install it with `pip install 'shoal[brokers]'`.",
        ) from None
