"""Events that operations emit while they work, to be shown or stored.

An operation takes `on_event`, a function that gets each event as it happens; it must be quick and may be called from
any thread. Every event has a `text`, one sentence for a person; its fields are for programs.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from shoal.observe.breakpoints import Breakpoints
from shoal.observe.doctor import Check
from shoal.observe.formatting import pluralize
from shoal.observe.logs import Stream
from shoal.observe.meter import Reading


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened during an operation."""

    @property
    def text(self) -> str:
        """One sentence for a person; empty when there is nothing to say in words."""
        return ""


OnEvent: TypeAlias = Callable[[Event], None]


class Notice(Event, frozen=True, kw_only=True):
    """A sentence for the operator that needs no fields."""

    message: str

    @property
    def text(self) -> str:
        return self.message


class RunStarted(Event, frozen=True, kw_only=True):
    """A run begins, or is resumed with `remaining` open items."""

    run_id: str
    scraper: str
    resumed: bool = False
    remaining: int = 0

    @property
    def text(self) -> str:
        if not self.resumed:
            return f"Run {self.run_id} of {self.scraper} begins."
        left = f"{pluralize(self.remaining, 'item')} {'is' if self.remaining == 1 else 'are'} left"
        return f"Run {self.run_id} of {self.scraper} continues: {left}. Use --fresh to start a new run."


class RunPaused(Event, frozen=True, kw_only=True):
    """An unfinished run was paused, so that it holds no places in lanes that another run needs."""

    run_id: str
    scraper: str
    why: str

    @property
    def text(self) -> str:
        return f"Run {self.run_id} of {self.scraper} is unfinished and was paused: {self.why}."


class RunResumed(Event, frozen=True, kw_only=True):
    """A paused run is active again, because whoever works on it now resumed it. `why`: why it had been paused."""

    run_id: str
    scraper: str
    paused_by: str = ""
    paused_at: dt.datetime | None = None
    why: str = ""

    @property
    def text(self) -> str:
        at = f" at {self.paused_at:%Y-%m-%d %H:%M:%S} UTC" if self.paused_at is not None else ""
        by = f" by {self.paused_by}" if self.paused_by else ""
        why = f" ({self.why})" if self.why else ""
        return f"Run {self.run_id} of {self.scraper} was paused{by}{at}{why}, and is resumed now."


class ItemsRefused(Event, frozen=True, kw_only=True):
    """Items that could not be stored. `source` names where they came from; `errors` are the first few messages."""

    source: str
    unit: str
    count: int
    errors: tuple[str, ...]

    @property
    def text(self) -> str:
        if self.count == 1:
            what = f"1 {self.unit} {self.source} is not a valid item and was"
        else:
            what = f"{self.count} {self.unit}s {self.source} were"
        return "\n  ".join((f"{what} left out:", *self.errors))


class RunProgress(Event, frozen=True, kw_only=True):
    """How far a run is; emitted every half second, or every two seconds by a worker."""

    run_id: str
    reading: Reading


class FeedProgress(Event, frozen=True, kw_only=True):
    """How far a feed is; emitted about every second, and with `ended` at its end.

    `backlog`: open items of the run, as last read. `waiting_for`: what the feed waits for, empty while it goes on.
    """

    run_id: str
    source: str
    messages: int
    enqueued: int
    duplicates: int
    dead_letters: int
    backlog: int
    waiting_for: str = ""
    ended: bool = False

    @property
    def line(self) -> str:
        """The numbers in one line."""
        waits = f", waiting for {self.waiting_for}" if self.waiting_for else ""
        return (
            f"feed: {self.messages:,} in, {self.enqueued:,} new, {pluralize(self.duplicates, 'duplicate')}, "
            f"{pluralize(self.dead_letters, 'dead letter')}, backlog {self.backlog:,}{waits}"
        )


class RunEnded(Event, frozen=True, kw_only=True):
    """No more progress of this run follows; it has ended or work on it has stopped here."""

    run_id: str


class CheckFinished(Event, frozen=True, kw_only=True):
    """One check before the start passed or failed."""

    check: Check

    @property
    def text(self) -> str:
        return f"{self.check.name}: {self.check.text}"


def ignore(event: Event) -> None:
    """The `on_event` of a caller who wants no events."""


class StopRequest:
    """A request to stop that may come from a signal handler, another thread, or another task.

    The first `request` drains: running items finish, the rest is returned. The second returns running items too.
    """

    def __init__(self) -> None:
        self.count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: tuple[Callable[[], None], ...] = ()

    def attach(self, drain: Callable[[], None], stop_now: Callable[[], None]) -> None:
        """Connect it with the work to stop, which runs in the current event loop. Earlier requests are applied now."""
        self._loop, self._steps = asyncio.get_running_loop(), (drain, stop_now)
        for step in self._steps[: self.count]:
            step()

    def request(self) -> None:
        self.count += 1
        if self._loop is not None and self.count <= len(self._steps):
            self._loop.call_soon_threadsafe(self._steps[self.count - 1])


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The program that an operation runs in.

    `on_event` gets the events. `log_stream` gets the log besides its file; `log_level` replaces the default level.
    `stop` lets the program stop the operation. `handles_signals`: SIGINT and SIGTERM are handled while it works.
    `end_process(code, why)` ends the process when its event loop hangs; without it the process stays.
    `shows_failures`: its progress shows why attempts fail, so that its log stream need not. `breakpoints`: where a
    worker says what is to wait while a debugger has the terminal.
    """

    on_event: OnEvent = ignore
    log_stream: Stream | None = None
    log_level: str | None = None
    stop: StopRequest = msgspec.field(default_factory=StopRequest)
    handles_signals: bool = False
    end_process: Callable[[int, str], None] | None = None
    shows_failures: bool = False
    breakpoints: Breakpoints | None = None

    def notice(self, message: str) -> None:
        self.on_event(Notice(message=message))
