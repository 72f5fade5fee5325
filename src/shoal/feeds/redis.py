"""Messages of a Redis stream, read by a consumer group, or of a Redis list.

A stream: an entry has the fields of an item (`url`, `key`, `payload` as JSON ...), or a single field with the message.
Entries that a consumer received and did not acknowledge within `claim_after` seconds, because it died, are claimed by
the others. Dead letters go to the stream `<name>:dead`, with the field `reason`.

A list: messages are moved from its head (`RPUSH` adds to its tail) into a list for each batch, which is deleted when
they are stored. `<name>:feeds` has the batches; those of a consumer that died are put back by the others. Dead letters
go to the list `<name>:dead`, as JSON with `message` and `reason`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, OutOfMemoryError, RedisError, ResponseError

from shoal.errors import FeedUnavailable, UsageError
from shoal.feeds.source import BrokerAddress, Message, Rejection

DEFAULT_GROUP: Final = "shoal"
CLAIM_AFTER_SECONDS: Final = 60.0
CONNECT_SECONDS: Final = 10.0
# Longer than the longest blocking read.
CALL_SECONDS: Final = 30.0
POLL_SECONDS: Final = (0.02, 0.25)
STALE_CONSUMER_SECONDS: Final = 3_600
# Fields of an item whose text is JSON when it is not a plain text.
_JSON_FIELDS: Final = ("payload", "json", "form", "headers", "params")
_NUMBERS: Final = {"priority": int, "delay": float}

# An abandoned consumer is deleted only when it holds nothing: deleting it would delete its pending entries.
_DELETE_STALE: Final = """
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local found = {}
  for i = 1, #consumer, 2 do found[consumer[i]] = consumer[i + 1] end
  if found['pending'] == 0 and found['idle'] > tonumber(ARGV[2]) and string.sub(found['name'], 1, 6) == 'shoal-' then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], found['name'])
  end
end
"""


class _RedisSource:
    """What streams and lists share: the connection, and errors."""

    ended = False
    receives_ahead = True

    def __init__(self, address: BrokerAddress, key: str, kind: str) -> None:
        self._address = address
        self._key = key
        self._dead = f"{key}:dead"
        self._claim_after = _seconds(address, "claim_after", CLAIM_AFTER_SECONDS)
        self._consumer = f"shoal-{socket.gethostname()}-{secrets.token_hex(4)}"
        self._redis: Redis | None = None
        self._next_claim = 0.0
        self.name = f"{kind} {key!r} at {address.shown}"

    @property
    def _client(self) -> Any:  # the types of its answers are unions of all protocols and decodings
        if self._redis is None:
            raise FeedUnavailable(f"The connection to {self._address.shown} is lost.")
        return self._redis

    def _connect(self) -> None:
        # No retries of the client: a command whose answer was lost may have been executed.
        self._redis = Redis.from_url(
            self._address.url,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=CALL_SECONDS,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )

    async def _disconnect(self) -> None:
        client, self._redis = self._redis, None
        if client is not None:
            with suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await client.aclose()

    def _claim_is_due(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._next_claim:
            return False
        self._next_claim = now + min(self._claim_after / 3, 20.0)
        return True

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        try:
            yield
        except AuthenticationError as error:
            raise UsageError(
                f"{self._address.shown} refuses the login.",
                remedy="Put the password into SHOAL_FEED_URL, as redis://:password@host/0?stream=NAME.",
            ) from error
        except OutOfMemoryError as error:
            raise FeedUnavailable(
                f"{self._address.shown} is full: it accepts no writes.", remedy="Free memory there, or raise maxmemory."
            ) from error
        except ResponseError as error:
            text = self._address.redacted(str(error))
            if text.startswith(("WRONGTYPE", "NOPERM", "NOGROUP")) or "unknown command" in text:
                raise UsageError(f"The {self.name} cannot be used: {text.rstrip('.')}.") from error
            raise FeedUnavailable(f"{self._address.shown} refuses: {text.rstrip('.')}.") from error
        except (RedisError, OSError, TimeoutError) as error:
            why = self._address.redacted(str(error)) or type(error).__name__
            raise FeedUnavailable(f"{self._address.shown} does not answer: {why.rstrip('.')}.") from error


class RedisStreamSource(_RedisSource):
    """A consumer of a stream's group."""

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address, address.options["stream"], "stream")
        self._group = address.options.get("group") or DEFAULT_GROUP
        self._reads_own = True

    async def open(self) -> None:
        self._connect()
        # What was received before a lost connection comes again.
        self._reads_own = True
        async with self._errors():
            try:
                await self._client.xgroup_create(self._key, self._group, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
            with suppress(ResponseError):
                await self._client.eval(_DELETE_STALE, 1, self._key, self._group, STALE_CONSUMER_SECONDS * 1000)

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        async with self._errors():
            if self._reads_own:
                entries = await self._read("0", limit, None)
                self._reads_own = bool(entries)
                if entries:
                    return await self._messages(entries)
            if self._claim_is_due() and (claimed := await self._claim(limit)):
                self._next_claim = 0.0
                return await self._messages(claimed)
            return await self._messages(await self._read(">", limit, seconds))

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        if messages:
            async with self._errors():
                await self._client.xack(self._key, self._group, *(message.ref[0] for message in messages))

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        async with self._errors():
            for rejection in rejections:
                entry, fields = rejection.message.ref
                async with self._client.pipeline(transaction=True) as pipe:
                    pipe.xadd(self._dead, {**fields, "reason": rejection.reason, "entry": entry})
                    pipe.xack(self._key, self._group, entry)
                    await pipe.execute()

    async def pause(self) -> None:
        """Nothing is fetched ahead."""

    async def is_empty(self) -> bool:
        """Entries that other consumers have not acknowledged may still come to this one."""
        async with self._errors():
            groups = await self._client.xinfo_groups(self._key)
            own = next(group for group in groups if group["name"] == self._group.encode())
            if own["pending"]:
                return False
            last = await self._client.xrevrange(self._key, count=1)
            return not last or last[0][0] == own["last-delivered-id"]

    async def close(self) -> None:
        """Entries that were received and not stored become claimable at once."""
        if self._redis is not None:
            with suppress(FeedUnavailable, UsageError):
                async with self._errors(), asyncio.timeout(CONNECT_SECONDS):
                    await self._return_pending()
        await self._disconnect()

    async def _return_pending(self) -> None:
        client, idle = self._client, int(self._claim_after * 1000) + 1
        pending = await client.xpending_range(self._key, self._group, "-", "+", 10_000, consumername=self._consumer)
        ids = [entry["message_id"] for entry in pending]
        if ids:
            await client.xclaim(self._key, self._group, self._consumer, 0, ids, idle=idle, justid=True)

    async def _read(self, start: str, limit: int, seconds: float | None) -> list[tuple[bytes, Any]]:
        block = None if seconds is None else max(1, int(seconds * 1000))
        answer = await self._client.xreadgroup(
            self._group, self._consumer, {self._key: start}, count=limit, block=block
        )
        if isinstance(answer, Mapping):
            return [entry for page in answer.values() for part in page for entry in part]
        return list(answer[0][1]) if answer else []

    async def _claim(self, limit: int) -> list[tuple[bytes, Any]]:
        answer = await self._client.xautoclaim(
            self._key, self._group, self._consumer, int(self._claim_after * 1000), count=limit
        )
        return list(answer[1])

    async def _messages(self, entries: Sequence[tuple[bytes, Any]]) -> list[Message]:
        """Entries that were deleted from the stream before anybody stored them have no fields; they are skipped."""
        gone = [entry for entry, fields in entries if not fields]
        if gone:
            await self._client.xack(self._key, self._group, *gone)
        return [Message(_body(fields), (entry, fields), entry.decode()) for entry, fields in entries if fields]


class RedisListSource(_RedisSource):
    """A consumer of a list, which moves messages into lists of its own first, one for each batch."""

    def __init__(self, address: BrokerAddress) -> None:
        super().__init__(address, address.options["list"], "list")
        self._registry = f"{self._key}:feeds"
        self._lasts = max(1, int(self._claim_after))
        self._batches = 0
        self._open: dict[str, int] = {}

    async def open(self) -> None:
        self._connect()
        self._open.clear()
        async with self._errors():
            # What this consumer received before a lost connection goes back first.
            await self._put_back_own()

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + seconds, POLL_SECONDS[0]
        async with self._errors():
            while True:
                if self._claim_is_due():
                    await self._recover()
                waiting = await self._client.llen(self._key)
                if waiting and (messages := await self._take(min(waiting, limit))):
                    return messages
                if loop.time() >= deadline:
                    return []
                await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
                pause = min(2 * pause, POLL_SECONDS[1])

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        await self._remove(messages, [])

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        dead = [_dead_letter(rejection) for rejection in rejections]
        await self._remove([rejection.message for rejection in rejections], dead)

    async def pause(self) -> None:
        """Nothing is fetched ahead."""

    async def is_empty(self) -> bool:
        async with self._errors():
            return not await self._client.exists(self._key, self._registry)

    async def close(self) -> None:
        if self._redis is not None:
            with suppress(FeedUnavailable, UsageError):
                async with self._errors(), asyncio.timeout(CONNECT_SECONDS):
                    await self._put_back_own()
        await self._disconnect()

    def _held(self, batch: str) -> str:
        return f"{self._key}:held:{batch}"

    def _alive(self, consumer: str) -> str:
        return f"{self._key}:alive:{consumer}"

    async def _take(self, count: int) -> list[Message]:
        """Register a batch and move messages in one step, so that nothing is ever held in a list that nobody knows."""
        self._batches += 1
        batch = f"{self._consumer}/{self._batches}"
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.sadd(self._registry, batch)
            pipe.set(self._alive(self._consumer), 1, ex=self._lasts)
            for _ in range(count):
                pipe.lmove(self._key, self._held(batch), "LEFT", "RIGHT")
            answers = await pipe.execute()
        bodies = [body for body in answers[2:] if body is not None]
        if not bodies:
            await self._client.srem(self._registry, batch)
        self._open[batch] = len(bodies)
        return [Message(body, batch) for body in bodies]

    async def _remove(self, messages: Sequence[Message], dead: Sequence[bytes]) -> None:
        by_batch: dict[str, list[bytes]] = {}
        for message in messages:
            by_batch.setdefault(message.ref, []).append(message.body)
        async with self._errors(), self._client.pipeline(transaction=True) as pipe:
            if dead:
                pipe.rpush(self._dead, *dead)
            for batch, bodies in by_batch.items():
                if self._open.get(batch) == len(bodies):
                    pipe.unlink(self._held(batch))
                    pipe.srem(self._registry, batch)
                    continue
                for body in bodies:
                    pipe.lrem(self._held(batch), 1, body)
            await pipe.execute()
        for batch, bodies in by_batch.items():
            if (left := self._open.pop(batch, 0) - len(bodies)) > 0:
                self._open[batch] = left

    async def _recover(self) -> None:
        """Put back what dead consumers hold. A consumer signs in again with every batch."""
        alive: dict[str, bool] = {}
        for name in await self._client.smembers(self._registry):
            batch = name.decode()
            consumer = batch.rpartition("/")[0]
            if consumer == self._consumer:
                continue
            if consumer not in alive:
                alive[consumer] = bool(await self._client.exists(self._alive(consumer)))
            if not alive[consumer]:
                await self._put_back(batch)

    async def _put_back_own(self) -> None:
        for name in await self._client.smembers(self._registry):
            if name.decode().rpartition("/")[0] == self._consumer:
                await self._put_back(name.decode())

    async def _put_back(self, batch: str) -> None:
        """Move the messages of a batch back to the head of the list, in their order. A batch never grows again."""
        count = await self._client.llen(self._held(batch))
        async with self._client.pipeline(transaction=True) as pipe:
            for _ in range(count):
                pipe.lmove(self._held(batch), self._key, "RIGHT", "LEFT")
            pipe.srem(self._registry, batch)
            await pipe.execute()


def _body(fields: Mapping[bytes, bytes]) -> bytes:
    """The message of an entry: its only field, or the item that its fields describe."""
    if len(fields) == 1:
        ((name, value),) = fields.items()
        return value if name != b"key" else json.dumps({"key": value.decode(errors="replace")}).encode()
    described: dict[str, Any] = {}
    for name, value in fields.items():
        field, text = name.decode(errors="replace"), value.decode(errors="surrogateescape")
        described[field] = _value(field, text)
    try:
        return msgspec.json.encode(described)
    except (UnicodeEncodeError, ValueError):
        return b"\xff"  # a text that is not UTF-8: refused as such


def _value(field: str, text: str) -> Any:
    if field in _JSON_FIELDS and text[:1] in ("{", "["):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text)
    if field in _NUMBERS:
        with suppress(ValueError):
            return _NUMBERS[field](text)
    return text


def _dead_letter(rejection: Rejection) -> bytes:
    body = rejection.message.body
    try:
        shown = {"message": body.decode()}
    except UnicodeDecodeError:
        shown = {"message_base64": base64.b64encode(body).decode()}
    return msgspec.json.encode({**shown, "reason": rejection.reason})


def _seconds(address: BrokerAddress, name: str, default: float) -> float:
    text = address.options.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"{name}={text!r} in the address of the feed is not a number of seconds from 1 to 86400.")
    return seconds
