"""Sinks for operators: how they stand, deliver now or until stopped, dead letters, start again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from shoal.define.record_types import record_field_types
from shoal.errors import NotAllowed, NotFound, SinkFailed, UsageError
from shoal.export.coverage import EXPECTED_NOTE, OPTIONAL_NOTE
from shoal.model.changes import LOG_BEGIN, DeadLetter
from shoal.model.views import CursorPage
from shoal.model.worker import new_worker_id
from shoal.observe.formatting import pluralize
from shoal.observe.sinks import SinkStatus, read_sinks
from shoal.sinks.delivery import RECORD_TYPES_NOTE, Delivery, sink_lock
from shoal.sinks.thread import SinkThread, make_sink
from shoal.wiring import build_sink_thread

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.config.sinks import SinkConfig
    from shoal.define.scraper import Scraper
    from shoal.ledger.protocols import Ledger
    from shoal.model.log import Log
    from shoal.service.events import Host

# How long a stopped run waits for its sinks, and after which time it says that it waits.
STOPPED_WAIT_SECONDS = 2.0
SAY_SECONDS = 1.0
POLL_SECONDS = 0.1


class RetryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that a sink has taken now, and those that it refuses again."""

    delivered: int
    refused: int


def find_sinks(settings: Settings, names: Sequence[str]) -> list[SinkConfig]:
    """These sinks, or all. Raises NotFound, UsageError when there is none."""
    if not settings.sinks:
        raise UsageError("shoal.toml declares no sink.", remedy="Add a table [sinks.NAME]; see docs/howto/sinks.md.")
    for name in names:
        if name not in settings.sinks:
            raise NotFound(
                f"There is no sink {name!r}.", remedy=f"Those in shoal.toml are: {', '.join(settings.sinks)}."
            )
    return [sink for name, sink in settings.sinks.items() if not names or name in names]


async def list_sinks(ledger: Ledger, settings: Settings) -> list[SinkStatus]:
    """How every sink stands."""
    return await read_sinks(ledger, settings)


@asynccontextmanager
async def deliver_beside(settings: Settings, log: Log) -> AsyncIterator[SinkThread | None]:
    """Deliver to the sinks for the length of a block, in a thread; None when there is no sink."""
    if not settings.sinks:
        yield None
        return
    thread = build_sink_thread(settings, log)
    thread.start()
    try:
        yield thread
    finally:
        await thread.close()


async def finish_deliveries(
    thread: SinkThread | None, ledger: Ledger, settings: Settings, host: Host, *, stopped: bool
) -> None:
    """Deliver what the sinks have not got yet, for at most `sink_wait` seconds; a request to stop ends it."""
    if thread is None:
        return
    thread.drain()
    wait = min(settings.sink_wait, STOPPED_WAIT_SECONDS) if stopped else settings.sink_wait
    requests, waited = host.stop.count, 0.0
    if await thread.wait_done(min(wait, SAY_SECONDS)):
        return
    behind = [status for status in await read_sinks(ledger, settings) if status.behind]
    if behind:
        texts = ", ".join(f"{status.name}: {status.behind_text}" for status in behind)
        host.notice(f"Delivering to sinks ({texts}); Ctrl-C leaves it for later.")
    while waited < wait - SAY_SECONDS and host.stop.count == requests:
        if await thread.wait_done(POLL_SECONDS):
            return
        waited += POLL_SECONDS


async def deliver_now(settings: Settings, names: Sequence[str], stop: asyncio.Event, *, log: Log) -> dict[str, int]:
    """Deliver what is there to these sinks, or all, until nothing is left, they fail, or `stop` is set.

    Returns the delivered records by sink.
    """
    find_sinks(settings, names)
    thread = build_sink_thread(settings, log, only=tuple(names))
    thread.start()
    thread.drain()
    try:
        while not stop.is_set() and not await thread.wait_done(POLL_SECONDS):
            pass
    finally:
        await thread.close()
    return thread.delivered


async def deliver_forever(settings: Settings, names: Sequence[str], stop: asyncio.Event, *, log: Log) -> dict[str, int]:
    """Deliver to these sinks, or all, as records come, until `stop` is set: a service for fleets."""
    find_sinks(settings, names)
    thread = build_sink_thread(settings, log, only=tuple(names))
    thread.start()
    try:
        await stop.wait()
    finally:
        await thread.close()
    return thread.delivered


async def list_dead_letters(
    ledger: Ledger, settings: Settings, name: str, *, cursor: str | None = None, limit: int = 50
) -> CursorPage[DeadLetter]:
    """The records that a sink refused, with the reasons."""
    (config,) = find_sinks(settings, [name])
    return await ledger.changes.dead_letters(config.cursor, cursor=cursor, limit=limit)


async def retry_dead_letters(ledger: Ledger, settings: Settings, name: str, *, log: Log) -> RetryReport:
    """Deliver the refused records of a sink once more. Raises NotAllowed when another process delivers to it."""
    (config,) = find_sinks(settings, [name])
    delivery = Delivery(config, make_sink, by=f"sinks-{new_worker_id()}", log=log, secrets=settings.secrets())
    try:
        async with delivery.lock(ledger) as lost:
            if lost is None:
                raise NotAllowed(
                    f"Another process delivers to the sink {name} now.", remedy="Try again when it has ended."
                )
            delivered, refused = await delivery.retry_dead_letters(ledger)
    except SinkFailed as error:
        raise SinkFailed(f"Sink {name}: {error.message}", remedy=error.remedy) from None
    finally:
        await delivery.close()
    return RetryReport(delivered=delivered, refused=refused)


async def reset_sink(ledger: Ledger, settings: Settings, name: str, *, to_end: bool = False) -> SinkStatus:
    """Set a sink back to the beginning, so that it gets every record again, or forward to the end.

    A process that delivers to it notices.
    """
    (config,) = find_sinks(settings, [name])
    position = await ledger.changes.end() if to_end else LOG_BEGIN
    await ledger.changes.open_cursor(config.cursor, position)
    await ledger.changes.reset(config.cursor, position)
    return next(status for status in await read_sinks(ledger, settings) if status.name == name)


async def deliverer_of(ledger: Ledger, name: str) -> str | None:
    """The process that delivers to a sink now, as its lock names it."""
    lock = await ledger.locks.get(sink_lock(name))
    now = (await ledger.health.check()).clock
    return None if lock is None or lock.until <= now else lock.taken_by


async def note_record_types(ledger: Ledger, scraper: Scraper, run_id: str) -> None:
    """Store what the code declares about records: their types, for sinks that make tables, and which may be empty."""
    types = {
        name: record_field_types(stage.record) for name, stage in scraper.stages.items() if stage.record is not None
    }
    if types:
        await ledger.runs.put_note(run_id, RECORD_TYPES_NOTE, types)
    expected = {name: list(stage.expect) for name, stage in scraper.stages.items() if stage.expect}
    if expected:
        await ledger.runs.put_note(run_id, EXPECTED_NOTE, expected)
    optional = {name: list(stage.may_be_empty) for name, stage in scraper.stages.items() if stage.may_be_empty}
    if optional:
        await ledger.runs.put_note(run_id, OPTIONAL_NOTE, optional)


def delivered_text(delivered: dict[str, int]) -> str:
    """`warehouse 500 records, hook nothing`"""
    return ", ".join(
        f"{name} {pluralize(count, 'record') if count else 'nothing'}" for name, count in delivered.items()
    )
