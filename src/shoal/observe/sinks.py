"""How the sinks stand: what was delivered, how far each is behind, and why."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from shoal.config.settings import Settings
from shoal.config.sinks import SinkConfig
from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.changes import LOG_BEGIN, ChangeFilter
from shoal.model.run import Run
from shoal.observe.formatting import format_duration, pluralize

WATCH_SECONDS = 2.0


class SinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A sink. `behind`: records that are not delivered yet; with `at_least` there are more.

    `lag_seconds`: the age of the oldest of them. `error`: why it does not take records, since `failing_since`.
    """

    name: str
    kind: str
    place: str
    scrapers: tuple[str, ...]
    state: str
    delivered: int
    behind: int
    at_least: bool
    lag_seconds: float
    behind_since: dt.datetime | None
    delivered_at: dt.datetime | None
    failing_since: dt.datetime | None
    error: str | None
    dead_letters: int
    lag_alert: float

    def gets(self, scraper: str) -> bool:
        """Whether it gets records of this scraper."""
        return not self.scrapers or scraper in self.scrapers

    @property
    def behind_text(self) -> str:
        return f"{'more than ' if self.at_least else ''}{pluralize(self.behind, 'record')}"

    @property
    def sentence(self) -> str:
        """How far it is behind and why, without a full stop."""
        why = f": {self.error.rstrip('.')}" if self.error else ""
        return f"Sink {self.name} is {format_duration(self.lag_seconds)} behind ({self.behind_text}){why}"


async def read_sinks(ledger: Ledger, settings: Settings, *, run_id: str | None = None) -> list[SinkStatus]:
    """Every sink of the settings. With `run_id` what is behind is counted for that run only."""
    return [await _status(ledger, config, run_id) for config in settings.sinks.values()]


async def _status(ledger: Ledger, config: SinkConfig, run_id: str | None) -> SinkStatus:
    cursor = await ledger.changes.cursor(config.cursor)
    which = ChangeFilter(scrapers=config.scrapers, stages=config.stages, run_id=run_id)
    if cursor is None and config.start == "now":
        lag = await ledger.changes.lag(await ledger.changes.end(), which)
    else:
        lag = await ledger.changes.lag(LOG_BEGIN if cursor is None else cursor.position, which)
    return SinkStatus(
        name=config.name,
        kind=config.kind,
        place=config.place,
        scrapers=config.scrapers,
        state=_state(None if cursor is None else cursor.last_error, lag.records),
        delivered=0 if cursor is None else cursor.delivered,
        behind=lag.records,
        at_least=lag.at_least,
        lag_seconds=lag.seconds if lag.records else 0.0,
        behind_since=lag.oldest if lag.records else None,
        delivered_at=None if cursor is None else cursor.moved_at,
        failing_since=None if cursor is None else cursor.failing_since,
        error=None if cursor is None else cursor.last_error,
        dead_letters=0 if cursor is None else cursor.dead_letters,
        lag_alert=config.lag_alert,
    )


def _state(error: str | None, behind: int) -> str:
    if error:
        return "failing"
    return "behind" if behind else "up to date"


def undelivered_lines(sinks: Sequence[SinkStatus]) -> list[str]:
    """What is still to be delivered, and how."""
    lines = []
    for status in sinks:
        if status.behind:
            why = f" ({status.error.rstrip('.')})" if status.error else ""
            verb = "is" if status.behind == 1 and not status.at_least else "are"
            lines.append(
                f"Sink {status.name}: {status.behind_text} {verb} still to be delivered{why}. "
                f"`shoal sinks deliver {status.name}` delivers them."
            )
        if status.dead_letters:
            count = "1,000 records or more" if status.dead_letters >= 1000 else pluralize(status.dead_letters, "record")
            lines.append(f"Sink {status.name} refused {count}: see `shoal sinks dead {status.name}`.")
    return lines


@asynccontextmanager
async def watch_sinks(
    ledger: Ledger, settings: Settings, run: Run, on_read: Callable[[list[SinkStatus]], object]
) -> AsyncIterator[None]:
    """For the length of a block, read the sinks of a run every two seconds; what they are behind is of that run."""

    async def read() -> None:
        while True:
            with suppress(NotFound):
                on_read([sink for sink in await read_sinks(ledger, settings, run_id=run.id) if sink.gets(run.scraper)])
            await asyncio.sleep(WATCH_SECONDS)

    reading = asyncio.create_task(read()) if settings.sinks else None
    try:
        yield
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


class SinkLines:
    """Says when a sink begins to fail and when it takes records again."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        self._print_line = print_line
        self._failing: set[str] = set()

    def update(self, sinks: Sequence[SinkStatus]) -> None:
        for sink in sinks:
            if sink.error and sink.name not in self._failing:
                self._failing.add(sink.name)
                self._print_line(f"{sink.sentence}.")
            elif not sink.error and sink.name in self._failing:
                self._failing.discard(sink.name)
                self._print_line(f"Sink {sink.name} takes records again.")
