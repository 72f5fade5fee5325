"""Messages of a RabbitMQ queue, by AMQP 0-9-1.

Dead letters are published to a queue of their own, `<queue>.dead` unless the address names another, with the reason in
the header `x-shoal-reason`, and confirmed by the broker before the message is acknowledged. They go over a connection
of their own, because a broker that runs out of memory or disk stops reading from connections that publish. With
`dead_letter=reject` messages are rejected instead, for queues that have a dead-letter exchange.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import aiormq
from aiormq.abc import DeliveredMessage

from shoal.errors import FeedUnavailable, UsageError
from shoal.feeds.source import BrokerAddress, Message, Rejection

REASON_HEADER = "x-shoal-reason"
QUEUE_HEADER = "x-shoal-queue"
REJECT = "reject"
CONNECT_SECONDS = 10.0
# A call that gets no answer; a peer that vanished is found by heartbeats after twice their interval.
CALL_SECONDS = 30.0
HEARTBEAT_SECONDS = 15
MAX_PREFETCH = 65_535
CHECK_SECONDS = 5.0
_YES = ("1", "yes", "true", "on")
_LOST = (aiormq.exceptions.AMQPError, OSError, TimeoutError, RuntimeError)
# What the client logs about lost connections, the feed says itself, once.
logging.getLogger("aiormq").addHandler(logging.NullHandler())
logging.getLogger("aio_pika").addHandler(logging.NullHandler())


class AmqpSource:
    """A consumer of one queue. Up to `prefetch` messages are held unacknowledged."""

    ended = False
    receives_ahead = False  # the broker sends ahead by itself

    def __init__(self, address: BrokerAddress, *, prefetch: int) -> None:
        self._address = address
        self._queue = address.options["queue"]
        self._creates = address.options.get("create", "").lower() in _YES
        self._dead_letter = address.options.get("dead_letter") or f"{self._queue}.dead"
        self._prefetch = min(prefetch, MAX_PREFETCH)
        self._connection: aio_pika.abc.AbstractConnection | None = None
        self._publishing: aio_pika.abc.AbstractConnection | None = None
        self._publisher: aio_pika.abc.AbstractChannel | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None
        self._consumer: str | None = None
        self._arrived: deque[DeliveredMessage] = deque()
        self._changed = asyncio.Event()
        self._cancelled = False
        self._unsettled: set[int] = set()
        self._checked_at = 0.0
        self.name = f"queue {self._queue!r} at {address.shown}"

    async def open(self) -> None:
        async with self._errors():
            self._connection = await self._connect()
            if not await self._has_queue(self._connection):
                if not self._creates:
                    raise UsageError(
                        f"There is no queue {self._queue!r} at {self._address.shown}.",
                        remedy="Create it, correct its name, or add &create=yes to the address.",
                    )
                await self._declare(self._connection, self._queue)
            if self._dead_letter != REJECT:
                await self._declare(self._connection, self._dead_letter)
            channel = await self._connection.channel(publisher_confirms=False)
            self._channel = await channel.get_underlay_channel()
            self._channel.closing.add_done_callback(lambda _: self._changed.set())
            self._channel.on_consumer_cancel_callbacks.add(self._on_cancelled)
            await self._channel.basic_qos(prefetch_count=self._prefetch, timeout=CALL_SECONDS)

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        async with self._errors():
            channel = self._open_channel()
            if self._consumer is None:
                answer = await channel.basic_consume(self._queue, self._on_message, timeout=CALL_SECONDS)
                self._consumer = answer.consumer_tag
            if not self._arrived:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), seconds)
                channel = self._open_channel()
                if not self._arrived:
                    await self._check_queue(channel)
            taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
        self._unsettled.update(_tag(delivered) for delivered in taken)
        return [Message(delivered.body, delivered) for delivered in taken]

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        """One frame acknowledges all of them, unless an older message still waits to become a dead letter."""
        tags = sorted(_tag(message.ref) for message in messages if message.ref.channel is self._channel)
        if not tags:
            return
        self._unsettled.difference_update(tags)
        last = tags[-1]
        async with self._errors():
            channel = self._open_channel()
            if all(tag > last for tag in self._unsettled):
                await channel.basic_ack(last, multiple=True)
                return
            for tag in tags:
                await channel.basic_ack(tag, wait=tag == last)

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        mine = [rejection for rejection in rejections if rejection.message.ref.channel is self._channel]
        async with self._errors():
            for rejection in mine:
                delivered: DeliveredMessage = rejection.message.ref
                if self._dead_letter == REJECT:
                    await self._open_channel().basic_reject(_tag(delivered), requeue=False)
                    self._unsettled.discard(_tag(delivered))
                    continue
                await self._publish(self._dead_letter, delivered, rejection.reason)
                await self.acknowledge([rejection.message])

    async def pause(self) -> None:
        """Stop consuming. A broker closes channels that hold messages for long, half an hour by default."""
        async with self._errors():
            channel = self._open_channel()
            if self._consumer is not None:
                consumer, self._consumer = self._consumer, None
                await channel.basic_cancel(consumer, timeout=CALL_SECONDS)
                await asyncio.sleep(0)  # a delivery is passed on by a task of its own
            arrived, self._arrived = list(self._arrived), deque()
            for delivered in arrived:
                await channel.basic_nack(_tag(delivered), requeue=True, wait=delivered is arrived[-1])

    async def is_empty(self) -> bool:
        async with self._errors():
            answer = await self._open_channel().queue_declare(self._queue, passive=True, timeout=CALL_SECONDS)
            return not answer.message_count and not self._arrived

    async def close(self) -> None:
        """The broker returns what is unacknowledged when the connection ends."""
        connections = (self._connection, self._publishing)
        self._connection = self._publishing = self._publisher = self._channel = self._consumer = None
        self._arrived.clear()
        self._unsettled.clear()
        self._cancelled = False
        for connection in connections:
            if connection is not None:
                with suppress(*_LOST):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await connection.close()

    async def _connect(self) -> aio_pika.abc.AbstractConnection:
        parts = urlsplit(self._address.url)
        if "heartbeat=" not in parts.query:
            joined = f"{parts.query}&" if parts.query else ""
            parts = parts._replace(query=f"{joined}heartbeat={HEARTBEAT_SECONDS}")
        try:
            return await aio_pika.connect(parts.geturl(), timeout=CONNECT_SECONDS)
        except aiormq.exceptions.ProbableAuthenticationError as error:
            raise UsageError(
                f"{self._address.shown} refuses the login.",
                remedy="Put user and password into SHOAL_FEED_URL, as amqp://user:password@host/vhost?queue=NAME.",
            ) from error

    async def _has_queue(self, connection: aio_pika.abc.AbstractConnection) -> bool:
        # A refused declaration closes the channel, so each has one of its own.
        channel = await connection.channel(publisher_confirms=False)
        try:
            await channel.declare_queue(self._queue, passive=True, timeout=CALL_SECONDS)
        except aiormq.exceptions.ChannelNotFoundEntity:
            return False
        except aiormq.exceptions.ChannelAccessRefused as error:
            raise self._refused(self._queue) from error
        await channel.close()
        return True

    async def _declare(self, connection: aio_pika.abc.AbstractConnection, queue: str) -> None:
        """Create a durable queue, or accept one that exists, whatever its arguments are."""
        channel = await connection.channel(publisher_confirms=False)
        try:
            await channel.declare_queue(queue, durable=True, timeout=CALL_SECONDS)
        except aiormq.exceptions.ChannelPreconditionFailed:
            return
        except aiormq.exceptions.ChannelAccessRefused as error:
            raise self._refused(queue) from error
        await channel.close()

    def _refused(self, queue: str) -> UsageError:
        return UsageError(
            f"{self._address.shown} does not let this user use the queue {queue!r}.",
            remedy=f"Grant it; &dead_letter={REJECT} in the address does without a queue of dead letters.",
        )

    def _open_channel(self) -> aiormq.abc.AbstractChannel:
        if self._cancelled:
            raise FeedUnavailable(f"The {self.name} was deleted.")
        if self._channel is None or self._channel.is_closed:
            raise FeedUnavailable(f"The connection to {self._address.shown} is lost.")
        return self._channel

    async def _on_message(self, message: DeliveredMessage) -> None:
        if message.channel is self._channel:
            self._arrived.append(message)
            self._changed.set()

    async def _on_cancelled(self, _: Any) -> None:
        self._cancelled = True
        self._changed.set()

    async def _check_queue(self, channel: aiormq.abc.AbstractChannel) -> None:
        """Now and then, while nothing arrives: a broker may forget a consumer without telling it."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            answer = await channel.queue_declare(self._queue, passive=True, timeout=CALL_SECONDS)
            if not answer.consumer_count:
                raise FeedUnavailable(f"The {self.name} lost its consumer.")

    async def _publish(self, queue: str, delivered: DeliveredMessage, reason: str) -> None:
        if self._publisher is None or self._publisher.is_closed:
            if self._publishing is None or self._publishing.is_closed:
                self._publishing = await self._connect()
            self._publisher = await self._publishing.channel(publisher_confirms=True)
        properties = delivered.header.properties
        message = aio_pika.Message(
            delivered.body,
            headers={**(properties.headers or {}), REASON_HEADER: reason, QUEUE_HEADER: self._queue},
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            correlation_id=properties.correlation_id,
            reply_to=properties.reply_to,
            message_id=properties.message_id,
            timestamp=properties.timestamp,
            type=properties.message_type,
            app_id=properties.app_id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await self._publisher.default_exchange.publish(message, queue, mandatory=True, timeout=CALL_SECONDS)

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError as error:
            # The client cancels its own calls when the connection ends.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise FeedUnavailable(f"The connection to {self._address.shown} is lost.") from error
        except Exception as error:
            # A call that waits when the connection ends gets a bare Exception.
            if not isinstance(error, _LOST) and type(error) is not Exception:
                raise
            why = self._address.redacted(str(error)) or type(error).__name__
            raise FeedUnavailable(f"{self._address.shown} does not answer: {why.rstrip('.')}.") from error


def _tag(delivered: DeliveredMessage) -> int:
    tag = delivered.delivery_tag
    assert tag is not None
    return tag
