"""Where messages come from: a queue of RabbitMQ, a stream or a list of Redis, standard input, a watched folder.

An address names the source: `amqp://user@host/vhost?queue=urls`, `redis://host/0?stream=urls&group=shoal`,
`redis://host/0?list=urls`, `-`, or the path of a folder. `open_source` makes the source; nothing is connected yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from shoal.errors import UsageError
from shoal.model.redaction import redacted

STDIN = "-"
BROKER_SCHEMES = ("amqp", "amqps", "redis", "rediss")
_OPTIONS = {
    "amqp": ("queue", "create", "dead_letter"),
    "redis": ("stream", "group", "claim_after", "list"),
}
_REMEDY = (
    "Give amqp://user@host/vhost?queue=NAME, redis://host/0?stream=NAME, redis://host/0?list=NAME, a folder, or - for "
    "standard input."
)


class Message(msgspec.Struct, frozen=True):
    """One message. `body` is its text as it came; `ref` is how its source knows it; `place` says where, for people.

    `defect`: the source itself found that it cannot be read, and why.
    """

    body: bytes
    ref: Any
    place: str = ""
    defect: str | None = None


class Rejection(msgspec.Struct, frozen=True):
    """A message that cannot become an item, and why."""

    message: Message
    reason: str


class Source(Protocol):
    """A source of messages. Each message stays the source's until it is acknowledged or rejected.

    All methods raise FeedUnavailable when the source does not answer now; then `close` and `open` it again. Messages
    that were received before are delivered again; acknowledging them has no effect.
    """

    name: str
    receives_ahead: bool
    """Whether `receive` may be called while earlier messages are stored and acknowledged."""

    @property
    def ended(self) -> bool:
        """Whether nothing will ever follow, as at the end of standard input."""

    async def open(self) -> None:
        """Connect. Raises UsageError for what waiting does not repair, such as a queue that does not exist."""

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        """What is there, at most `limit` messages; waits up to so many seconds for the first."""

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        """The messages are stored: remove them."""

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """Put messages with their reasons where an operator finds them, durably, and only then remove them."""

    async def pause(self) -> None:
        """No message is wanted for a while: return what was fetched ahead, so that other consumers may have it."""

    async def is_empty(self) -> bool:
        """Whether nothing is left, as far as the source can tell; messages that other consumers hold count as left."""

    async def close(self) -> None:
        """Return unacknowledged messages and disconnect. Never raises FeedUnavailable."""


class BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a broker: `url` without the options that are Shoal's, and those options."""

    kind: str
    url: str
    options: Mapping[str, str]
    password: str | None

    @property
    def shown(self) -> str:
        """The address for people, without the password."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}"

    def redacted(self, text: str) -> str:
        """An error text without the password."""
        return redacted(text, () if self.password is None else (self.password,))


def parse_address(address: str) -> BrokerAddress:
    """Read the address of a broker. Raises UsageError."""
    try:
        parts = urlsplit(address)
        _ = parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise UsageError(f"The address of the feed is not valid: {redacted(str(error))}.", remedy=_REMEDY) from None
    kind = "amqp" if parts.scheme.lower().startswith("amqp") else "redis"
    known = _OPTIONS[kind]
    options = {name: value for name, value in pairs if name in known}
    rest = urlencode([(name, value) for name, value in pairs if name not in known])
    password = None if parts.password is None else unquote(parts.password)
    found = BrokerAddress(kind=kind, url=urlunsplit(parts._replace(query=rest)), options=options, password=password)
    needed = ("queue",) if kind == "amqp" else ("stream", "list")
    if sum(bool(options.get(name)) for name in needed) != 1:
        wanted = " or ".join(f"?{name}=NAME" for name in needed)
        raise UsageError(f"The address {found.shown} does not say which {' or '.join(needed)}: add {wanted}.")
    return found


def is_broker(address: str) -> bool:
    return address.partition("://")[0].lower() in BROKER_SCHEMES and "://" in address


def open_source(address: str, *, prefetch: int = 1_000) -> Source:
    """The source that the address names, not yet connected. `prefetch`: how many messages it may hold unacknowledged.

    Raises UsageError for an address that names none, or when the client of its broker is not installed.
    """
    if address == STDIN:
        from shoal.feeds.files import StdinSource

        return StdinSource()
    if is_broker(address):
        broker = parse_address(address)
        try:
            if broker.kind == "amqp":
                from shoal.feeds.amqp import AmqpSource

                return AmqpSource(broker, prefetch=prefetch)
            from shoal.feeds.redis import RedisListSource, RedisStreamSource

            return RedisStreamSource(broker) if "stream" in broker.options else RedisListSource(broker)
        except ImportError as error:
            raise UsageError(
                f"The client for {broker.shown} is not installed: {error}.", remedy="pip install 'shoal[brokers]'"
            ) from None
    folder = Path(address).expanduser()
    if "://" in address or not folder.is_dir():
        raise UsageError(f"{redacted(address)!r} is neither a folder nor an address of a feed.", remedy=_REMEDY)
    from shoal.feeds.files import FolderSource

    return FolderSource(folder)
