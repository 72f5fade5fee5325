"""Live updates: one reader of the ledger per topic and process, whoever and however many subscribe.

A topic is `overview`, `run:RUN`, `fleet`, `egress` or `events`; every subscriber has `ledger` too, which says whether
the ledger answers. A reader reads about once per second while somebody is subscribed, and keeps what changed; a
subscriber takes frames of what changed since its cursor, as often as it likes. A frame is encoded once for all.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from shoal.config import Settings
from shoal.errors import LedgerError, NotFound, ShoalError, UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.model.views import AuditEvent
from shoal.service.overview import EgressReader, FleetReader, OverviewReader, RunTopicReader, SharedReads
from shoal.service.records import Record, event_record, without_secrets

LEDGER = "ledger"
EVENTS = "events"
RUN_PREFIX = "run:"
TOPICS = ("overview", "fleet", "egress", EVENTS)
MAX_TOPIC_LENGTH = 200
# Fields that are objects by a key, of which a frame has only the keys that changed.
KEYED_FIELDS = {"fleet": frozenset({"by_worker"})}

READ_SECONDS = 1.0
INTERVALS = {"fleet": 2.0, "egress": 2.0}
# A topic that does not exist, such as a run that was removed, is looked for again after so long.
MISSING_SECONDS = 10.0
# Reads of all topics together take at most this share of the time of one connection: with many topics, or a slow
# ledger, each is read less often.
READ_SHARE = 0.25
PARALLEL_READS = 2
SLOW_READ_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0
MIN_BACKOFF, MAX_BACKOFF = 1.0, 15.0
# Changes that are kept for those who resume, and for how long after the last subscriber has left.
MAX_KEPT_CHANGES = 120
KEPT_SECONDS = 60.0
MAX_KEPT_TOPICS = 500
# Different topics that are read for all clients together; with more of them each would be read too seldom.
MAX_READ_TOPICS = 500
EVENTS_SHOWN = 50
MAX_NEW_EVENTS = 200
MAX_CURSOR_DIGITS = 15

Path = tuple[str, ...]
_encode = msgspec.json.encode


class TopicReader(Protocol):
    async def read(self) -> Record: ...


def check_topics(names: Iterable[object], most: int) -> tuple[str, ...]:
    """The topics, each once. Raises UsageError."""
    topics = []
    for name in dict.fromkeys(names):
        if not isinstance(name, str) or not (
            name in TOPICS or (name.startswith(RUN_PREFIX) and len(RUN_PREFIX) < len(name) <= MAX_TOPIC_LENGTH)
        ):
            raise UsageError(f"There is no topic {str(name)[:50]!r}.", remedy=f"Use {', '.join(TOPICS)} or run:RUN.")
        topics.append(name)
    if len(topics) > most:
        raise UsageError(f"These are {len(topics)} topics; a connection has {most} at most.")
    return tuple(topics)


class Topic:
    """What is known of a topic: its fields as JSON, and which of them changed when.

    `version`: its last change, in the hub's count of changes. `base`: a cursor before it cannot be continued. `ready`:
    it was read. `fresh`: since its reader was started.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.base = self.version = number
        self.ready = self.fresh = False
        self._keyed = KEYED_FIELDS.get(name, frozenset())
        self._fields: dict[Path, bytes] | None = {}
        self._changes: deque[tuple[int, frozenset[Path]]] = deque()
        self._frames: dict[int | None, bytes] = {}

    def changed(self, record: Record | None) -> frozenset[Path]:
        """The paths that differ from what is known; `record` None: the topic does not exist."""
        fields = None if record is None else dict(self._flat(record))
        if fields is None or self._fields is None:
            differs = (fields is None) != (self._fields is None) or not self.ready
            paths: frozenset[Path] = frozenset({()}) if differs else frozenset()
        else:
            known = self._fields
            paths = frozenset(path for path in fields if known.get(path) != fields[path])
            paths |= known.keys() - fields.keys()
        self._fields = fields
        return paths

    def store(self, number: int, paths: frozenset[Path]) -> None:
        self.version = number
        if not self.ready or () in paths:
            self.base, self.ready = number, True
            self._changes.clear()
        self._changes.append((number, paths))
        if len(self._changes) > MAX_KEPT_CHANGES:
            self.base = self._changes.popleft()[0]
        self._frames.clear()

    def covers(self, cursor: int) -> bool:
        """Whether all changes after the cursor are known."""
        return cursor >= self.base

    def frame(self, cursor: int | None) -> bytes:
        """What changed after the cursor as JSON; None: everything."""
        if cursor not in self._frames:
            self._frames[cursor] = self._build(cursor)
        return self._frames[cursor]

    def _build(self, cursor: int | None) -> bytes:
        if self._fields is None:
            return b"null"
        if cursor is None:
            return _object(self._fields, self._fields, self._keyed)
        paths: set[Path] = set()
        for number, changed in reversed(self._changes):
            if number <= cursor:
                break
            paths |= changed
        return _object(sorted(paths), self._fields, frozenset())

    def _flat(self, record: Record) -> Iterable[tuple[Path, bytes]]:
        for name, value in record.items():
            if name in self._keyed:
                yield from (((name, key), _encode(part)) for key, part in value.items())
            else:
                yield (name,), _encode(value)


class EventTopic(Topic):
    """The newest events. A frame has those that are new."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.seen: set[int] = set()
        self._events: deque[tuple[int, bytes]] = deque(maxlen=MAX_KEPT_CHANGES + EVENTS_SHOWN)

    def add(self, number: int, events: Iterable[Record], *, gap: bool) -> None:
        """Add events, oldest first. `gap`: others before them were left out."""
        self.version = number
        if gap or not self.ready:
            self.base, self.ready = number, True
            self._events.clear()
        for event in events:
            if len(self._events) == self._events.maxlen:
                self.base = max(self.base, self._events[0][0])
            self._events.append((number, _encode(event)))
        self._frames.clear()

    def _build(self, cursor: int | None) -> bytes:
        if cursor is None:
            shown = list(self._events)[-EVENTS_SHOWN:]
            return b"[%b]" % b",".join(event for _, event in shown)
        return b"[%b]" % b",".join(event for number, event in self._events if number > cursor)


def _object(paths: Iterable[Path], fields: Mapping[Path, bytes], keyed: frozenset[str]) -> bytes:
    """JSON of the fields at these paths; a path without a field is null. `keyed` fields are there even when empty."""
    top: dict[str, bytes] = {}
    nested: dict[str, list[bytes]] = {name: [] for name in keyed}
    for path in paths:
        value = fields.get(path, b"null")
        if len(path) == 1:
            top[path[0]] = value
        else:
            nested.setdefault(path[0], []).append(b"%b:%b" % (_encode(path[1]), value))
    top.update((name, b"{%b}" % b",".join(parts)) for name, parts in nested.items())
    return b"{%b}" % b",".join(b"%b:%b" % (_encode(name), value) for name, value in top.items())


def _topic_reader(name: str, shared: SharedReads) -> TopicReader:
    match name:
        case "overview":
            return OverviewReader(shared)
        case "fleet":
            return FleetReader(shared)
        case "egress":
            return EgressReader(shared)
        case _:
            return RunTopicReader(shared, name.removeprefix(RUN_PREFIX))


class LiveFrame(msgspec.Struct, frozen=True):
    """`text`: the frame as JSON; `cursor`: to resume after it."""

    text: str
    cursor: str


class Subscription:
    """The topics of one client. `changed` is set while a frame is due."""

    def __init__(self, hub: LiveHub) -> None:
        self._hub = hub
        self.topics: tuple[str, ...] = ()
        self.changed = asyncio.Event()
        self._cursors: dict[str, int | None] = {}
        self._last_cursor = ""

    def subscribe(self, topics: tuple[str, ...], cursor: str | None = None) -> None:
        """Watch these topics instead. With a cursor of an earlier frame they continue there, if that is possible.

        Raises UsageError when the server reads too many topics already.
        """
        self._hub.check_room(topics)
        number = self._hub.number_of(cursor)
        wanted = (LEDGER, *topics)
        known = self._cursors if number is None else {}
        self._cursors = {name: known.get(name, number) for name in wanted}
        before, self.topics = self.topics, wanted
        self._hub.change_subscription(self, before, wanted)
        self.changed.set()

    @property
    def ready(self) -> bool:
        """Whether each topic has been read."""
        return all((topic := self._hub.topic(name)) is not None and self._hub.is_shown(topic) for name in self.topics)

    def take(self) -> LiveFrame | None:
        """What changed since the last frame; None when nothing did.

        When a topic is new here, or too much has changed, it is a snapshot: each topic in it is complete.
        """
        self.changed.clear()
        parts: list[tuple[str, int | None]] = []
        for name in self.topics:
            topic, cursor = self._hub.topic(name), self._cursors[name]
            if topic is None or not self._hub.is_shown(topic) or (cursor is not None and cursor >= topic.version):
                continue
            parts.append((name, cursor if cursor is not None and topic.covers(cursor) else None))
        if not parts:
            return None
        frame = self._hub.frame(tuple(parts))
        self._last_cursor = frame.cursor
        for name, _ in parts:
            self._cursors[name] = self._hub.number
        return frame

    def empty_frame(self) -> LiveFrame:
        """A frame that says only that the connection lives; its cursor is that of the last frame."""
        return self._hub.empty_frame(self._last_cursor)

    def close(self) -> None:
        self._hub.change_subscription(self, self.topics, ())
        self.topics = ()


class LiveHub:
    """All topics of a server process, and who watches them. Used from one event loop.

    `find_ledger` returns the ledger that is open now, or raises LedgerError. `number`: how many changes there were.
    `reads`: how often a topic was read.
    """

    def __init__(
        self,
        find_ledger: Callable[[], Ledger],
        settings: Settings,
        *,
        interval: float = READ_SECONDS,
        warn: Callable[[str], object] = str,
    ) -> None:
        self._find_ledger = find_ledger
        self._settings = settings
        self._secrets = settings.secrets()
        self._shared: SharedReads | None = None
        self._interval = interval
        self._warn = warn
        self._server = secrets.token_hex(4)
        self.number = self.reads = 0
        self._topics: dict[str, Topic] = {}
        self._watchers: dict[str, set[Subscription]] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._kept_until: dict[str, float] = {}
        self._seconds_per_read: dict[str, float] = {}
        self._reading = asyncio.Semaphore(PARALLEL_READS)
        self._up = asyncio.Event()
        self._up.set()
        self._probing: asyncio.Task[None] | None = None
        self._frames: dict[tuple[tuple[str, int | None], ...], LiveFrame] = {}
        self._closed = False
        self._publish_ledger(ok=True, text="")

    def open(self) -> Subscription:
        """A client without topics yet."""
        return Subscription(self)

    @property
    def shared(self) -> SharedReads:
        """The reads that topics share, on the ledger that is open now. Raises LedgerError."""
        ledger = self._find_ledger()
        if self._shared is None or self._shared.ledger is not ledger:
            self._shared = SharedReads(ledger, self._settings, self._interval)
        return self._shared

    @property
    def clients(self) -> int:
        return len(self._watchers.get(LEDGER, ()))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that somebody watches."""
        return tuple(self._readers)

    @property
    def ledger_error(self) -> str | None:
        """Why the ledger does not answer, when a reader found that it does not."""
        return None if self._up.is_set() else self._ledger_text

    @property
    def seconds_between_reads(self) -> float:
        """How long a topic waits for its next read at least, so that all keep to READ_SHARE."""
        return sum(self._seconds_per_read.values()) / READ_SHARE

    async def close(self) -> None:
        self._closed = True
        tasks = [task for task in (*self._readers.values(), self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # For subscriptions.

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def number_of(self, cursor: str | None) -> int | None:
        """The count of changes in a cursor; None when it is not one of this process."""
        server, _, text = (cursor or "").rpartition("-")
        if server != self._server or not text.isdecimal() or len(text) > MAX_CURSOR_DIGITS:
            return None
        return number if (number := int(text)) <= self.number else None

    def frame(self, parts: tuple[tuple[str, int | None], ...]) -> LiveFrame:
        """The frame of these topics, each since a cursor; a snapshot if one has none. Made once for all clients."""
        frame = self._frames.get(parts)
        if frame is None:
            snapshot = any(cursor is None for _, cursor in parts)
            changes = ",".join(
                f"{_encode(name).decode()}:{self._topics[name].frame(None if snapshot else cursor).decode()}"
                for name, cursor in parts
            )
            text = f'{self._head(self._cursor())},"changes":{{{changes}}},"snapshot":{str(snapshot).lower()}}}'
            frame = self._frames[parts] = LiveFrame(text, self._cursor())
        return frame

    def empty_frame(self, cursor: str) -> LiveFrame:
        return LiveFrame(f'{self._head(cursor)},"changes":{{}},"snapshot":false}}', cursor)

    def is_shown(self, topic: Topic) -> bool:
        """Whether it can be sent: it was just read, or the ledger is away and older values are all there is."""
        return topic.ready and (topic.fresh or not self._up.is_set())

    def check_room(self, topics: Iterable[str]) -> None:
        """Raise UsageError unless these topics can be read too."""
        if len(self._readers.keys() | set(topics)) > MAX_READ_TOPICS:
            raise UsageError(f"The server reads {len(self._readers)} topics already.", remedy="Watch fewer runs.")

    def change_subscription(self, who: Subscription, before: Iterable[str], after: Iterable[str]) -> None:
        left, joined = set(before) - set(after), set(after) - set(before)
        for name in left:
            watchers = self._watchers.get(name, set())
            watchers.discard(who)
            if not watchers:
                self._stop_reading(name)
        for name in joined:
            self._watchers.setdefault(name, set()).add(who)
            self._start_reading(name)

    # Readers.

    def _start_reading(self, name: str) -> None:
        if name == LEDGER or name in self._readers or self._closed:
            return
        self._drop_old_topics()
        self._kept_until.pop(name, None)
        if name not in self._topics:
            self._topics[name] = (EventTopic if name == EVENTS else Topic)(name, self.number)
        self._readers[name] = asyncio.create_task(self._read_forever(name), name=f"live {name}")

    def _stop_reading(self, name: str) -> None:
        self._watchers.pop(name, None)
        self._seconds_per_read.pop(name, None)
        if (task := self._readers.pop(name, None)) is not None:
            task.cancel()
            self._topics[name].fresh = False
            self._kept_until[name] = time.monotonic() + KEPT_SECONDS

    def _drop_old_topics(self) -> None:
        now = time.monotonic()
        excess = len(self._kept_until) - MAX_KEPT_TOPICS
        for position, (name, until) in enumerate(list(self._kept_until.items())):
            if until < now or position < excess:
                del self._kept_until[name], self._topics[name]

    async def _read_forever(self, name: str) -> None:
        read, shared = None, None
        while True:
            await self._up.wait()
            wait = INTERVALS.get(name, 1.0) * self._interval
            began = time.monotonic()
            try:
                if read is None or shared is not self.shared:  # the ledger was opened anew
                    shared = self.shared
                    read = self._reader(name, shared)
                async with self._reading:
                    began = time.monotonic()
                    self.reads += 1
                    await self._read_once(read)
                    took = time.monotonic() - began
            except LedgerError as error:
                self._begin_outage(error)
                continue
            except NotFound:
                self._publish(name, None)
                wait, took = MISSING_SECONDS * self._interval, time.monotonic() - began
            except Exception as error:
                self._warn(f"The live topic {name} cannot be read: {type(error).__name__}: {redacted(str(error))}")
                wait, took = MISSING_SECONDS * self._interval, 0.0
            before = self._seconds_per_read.get(name, took)
            self._seconds_per_read[name] = before + 0.3 * (took - before)
            await asyncio.sleep(max(wait, self.seconds_between_reads) - min(took, wait / 2))

    async def _read_once(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read. A read that takes long is reported as an outage, and no other is started meanwhile."""
        task = asyncio.ensure_future(read())
        try:
            done, _ = await asyncio.wait({task}, timeout=SLOW_READ_SECONDS)
            if not done:
                self._publish_ledger(ok=False, text=f"The ledger has not answered for {SLOW_READ_SECONDS:.0f} s.")
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    await asyncio.wait({task})
                if self._up.is_set():
                    self._publish_ledger(ok=True, text="")
            task.result()
        except TimeoutError:
            raise LedgerError(f"The ledger has not answered for {GIVE_UP_SECONDS:.0f} s.") from None
        finally:
            task.cancel()

    def _reader(self, name: str, shared: SharedReads) -> Callable[[], Awaitable[None]]:
        if name == EVENTS:
            return partial(self._read_events, shared.ledger)
        reader = _topic_reader(name, shared)

        async def read() -> None:
            self._publish(name, await reader.read())

        return read

    async def _read_events(self, ledger: Ledger) -> None:
        topic = self._topics[EVENTS]
        assert isinstance(topic, EventTopic)
        new: list[AuditEvent] = []
        cursor, gap = None, not topic.ready
        while len(new) < MAX_NEW_EVENTS:
            page = await ledger.reads.events(cursor=cursor, limit=EVENTS_SHOWN)
            unseen = [event for event in page.rows if event.id not in topic.seen]
            new += unseen
            cursor = page.cursor
            if gap or cursor is None or len(unseen) < len(page.rows):
                break
        else:
            gap = True
        topic.seen |= {event.id for event in new}
        if len(topic.seen) > 4 * MAX_NEW_EVENTS:
            topic.seen = set(sorted(topic.seen)[-2 * MAX_NEW_EVENTS :])
        if new or not topic.ready:
            records = [without_secrets(event_record(event), self._secrets) for event in reversed(new)]
            topic.add(self._next_number(), records, gap=gap)
        elif topic.fresh:
            return
        topic.fresh = True
        self._wake(EVENTS)

    # What is published.

    def _publish(self, name: str, record: Record | None) -> None:
        topic = self._topics[name]
        paths = topic.changed(None if record is None else without_secrets(record, self._secrets))
        if paths or not topic.ready:
            topic.store(self._next_number(), paths)
        elif topic.fresh:
            return
        topic.fresh = True
        self._wake(name)

    def _publish_ledger(self, *, ok: bool, text: str) -> None:
        self._ledger_text = text
        topic = self._topics.setdefault(LEDGER, Topic(LEDGER, self.number))
        topic.fresh = True
        record: Record = {"ok": ok, "text": text, "since": dt.datetime.now(dt.UTC).replace(microsecond=0)}
        topic.changed(record)
        topic.store(self._next_number(), frozenset((field,) for field in record))
        self._wake(LEDGER)

    def _next_number(self) -> int:
        self.number += 1
        self._frames.clear()
        return self.number

    def _wake(self, name: str) -> None:
        for watcher in self._watchers.get(name, ()):
            watcher.changed.set()

    def _cursor(self) -> str:
        return f"{self._server}-{self.number}"

    def _head(self, cursor: str) -> str:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f'{{"cursor":"{cursor}","at":"{at}"'

    # A ledger that is away.

    def _begin_outage(self, error: ShoalError) -> None:
        """All readers wait; one task asks the ledger, less and less often, until it answers."""
        if not self._up.is_set():
            return
        self._up.clear()
        self._publish_ledger(ok=False, text=redacted(error.message))
        self._probing = asyncio.create_task(self._probe(), name="live probe")

    async def _probe(self) -> None:
        backoff = MIN_BACKOFF
        while True:
            await asyncio.sleep(backoff * self._interval * random.uniform(0.7, 1.0))
            backoff = min(2 * backoff, MAX_BACKOFF)
            if not self._readers:
                break  # nobody waits for it
            try:
                async with asyncio.timeout(SLOW_READ_SECONDS):
                    await self._find_ledger().health.check()
            except (LedgerError, TimeoutError):
                continue
            break
        self._publish_ledger(ok=True, text="")
        self._up.set()
