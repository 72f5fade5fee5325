"""Delivers to one sink: reads on from its cursor, delivers a batch, moves the cursor; one process at a time.

A batch that was delivered before the process died is delivered again, because the cursor had not moved: at least once,
with the same ids. The cursor moves only from where the batch began, so two processes cannot both move it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from shoal.config.sinks import SinkConfig
from shoal.errors import LedgerError, ShoalError, SinkFailed
from shoal.ledger.protocols import Ledger
from shoal.model.changes import LOG_BEGIN, ChangedRecord, ChangePage, ChangePosition, RecordRef
from shoal.model.log import Log
from shoal.model.redaction import redacted
from shoal.sinks.sink import RecordsRefused, Sink, SinkBatch

# After a process was killed, another one takes over when its lock has expired.
LOCK_SECONDS = 15.0
RENEW_SECONDS = 4.0
IDLE_SECONDS = 1.0
RESET_POLLS = 5
MIN_BACKOFF, MAX_BACKOFF = 0.5, 60.0
# When so many records in a row are refused and none is taken, the sink is at fault, not the records.
MAX_REFUSED_IN_A_ROW = 20
PROBES = 4
PAGE_BYTES = 8 << 20
RECORD_TYPES_NOTE = "record_types"
DEAD_LETTERS_AT_ONCE = 200

MakeSink = Callable[[SinkConfig], Sink]


def sink_lock(name: str) -> str:
    """The lock of the process that delivers to a sink."""
    return f"sink:{name}"


class Delivery:
    """Delivers to one sink as long as this process holds its lock. `by` identifies the process."""

    def __init__(self, config: SinkConfig, make_sink: MakeSink, *, by: str, log: Log, secrets: Sequence[str]) -> None:
        self.config = config
        self.delivered = 0
        self._make_sink = make_sink
        self._by = by
        self._log = log.bind(sink=config.name)
        self._secrets = tuple(secrets)
        self._sink: Sink | None = None
        self._stored: ChangePosition | None = None  # where the cursor is in the ledger
        self._read_to = LOG_BEGIN  # what was read but contained nothing for this sink is not stored each time
        self._ahead: tuple[ChangePosition, asyncio.Task[ChangePage]] | None = None
        self._idle_polls = 0
        self._not_before = 0.0
        self._refused_in_a_row = 0
        self._last_error = ""
        self._types: dict[tuple[str, str], dict[str, str]] = {}

    @asynccontextmanager
    async def lock(self, ledger: Ledger) -> AsyncIterator[asyncio.Event | None]:
        """Hold the sink's lock for a block, renewed. Yields None when another process has it, else an event that is
        set when the lock was lost."""
        name = sink_lock(self.config.name)
        if not await ledger.locks.acquire(name, self._by, LOCK_SECONDS):
            yield None
            return
        lost = asyncio.Event()
        renewing = asyncio.create_task(self._renew(ledger, name, lost))
        try:
            yield lost
        finally:
            _, reading = self._ahead or (None, None)
            self._ahead = None
            await _cancel(reading)
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with suppress(LedgerError):
                await ledger.locks.release(name, self._by)

    async def _renew(self, ledger: Ledger, name: str, lost: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(LedgerError):  # the cursor protects what is stored
                if not await ledger.locks.renew(name, self._by, LOCK_SECONDS):
                    lost.set()
                    return

    async def step(self, ledger: Ledger, *, flush: bool = False) -> bool:
        """Deliver one batch. Returns whether there may be more now. `flush`: do not wait until a file is full.

        Raises SinkFailed, which is stored with the cursor.
        """
        if self._stored is None:
            await self._open(ledger)
        start = self._stored or LOG_BEGIN
        page = await self._next_page(ledger)
        if not page.records and not page.replaced:
            self._read_to = page.end
            if not page.more:
                await self._look_for_reset(ledger)
            return page.more
        if not flush and not page.more and await self._may_wait(ledger, page):
            return False
        try:
            delivered, dead = await self._deliver(ledger, page, start)
        except SinkFailed as error:
            await self._record_failure(ledger, error)
            raise
        await self._move(ledger, start, page, delivered, dead)
        return page.more

    async def _next_page(self, ledger: Ledger) -> ChangePage:
        """The next page; the one after it is read while this one is delivered."""
        position, reading = self._ahead or (None, None)
        self._ahead = None
        if reading is not None and position == self._read_to:
            page = await reading
        else:
            await _cancel(reading)
            page = await self._read(ledger, self._read_to)
        if page.more and page.end != self._read_to:
            self._ahead = (page.end, asyncio.create_task(self._read(ledger, page.end)))
        return page

    async def _read(self, ledger: Ledger, after: ChangePosition) -> ChangePage:
        return await ledger.changes.read(after, self.config.which, limit=self.config.batch_size, max_bytes=PAGE_BYTES)

    async def _open(self, ledger: Ledger) -> None:
        begin = LOG_BEGIN
        if self.config.start == "now" and await ledger.changes.cursor(self.config.cursor) is None:
            begin = await ledger.changes.end()
        self._stored = self._read_to = (await ledger.changes.open_cursor(self.config.cursor, begin)).position

    async def _look_for_reset(self, ledger: Ledger) -> None:
        """An operator may have moved the cursor while there was nothing to deliver."""
        self._idle_polls += 1
        if self._idle_polls % RESET_POLLS == 0:
            cursor = await ledger.changes.cursor(self.config.cursor)
            if cursor is None or cursor.position != self._stored:
                self._stored = None

    async def _may_wait(self, ledger: Ledger, page: ChangePage) -> bool:
        """Whether a file is not full and its oldest record not old enough."""
        if not self.config.is_files or len(page.records) >= self.config.batch_size:
            return False
        lag = await ledger.changes.lag(self._stored or LOG_BEGIN, self.config.which)
        return lag.seconds < self.config.interval

    async def _deliver(
        self, ledger: Ledger, page: ChangePage, start: ChangePosition
    ) -> tuple[int, dict[RecordRef, str]]:
        types = {
            (record.run_id, record.stage): await self._record_types(ledger, record.run_id, record.stage)
            for record in {(record.run_id, record.stage): record for record in page.records}.values()
        }
        batch = SinkBatch(records=page.records, replaced=page.replaced, start=start, types=types)
        dead = await self.deliver(batch)
        return len(page.records) - len(dead), dead

    async def deliver(self, batch: SinkBatch) -> dict[RecordRef, str]:
        """Deliver a batch; returns the records that the sink refused, with the reasons. Raises SinkFailed."""
        dead: dict[RecordRef, str] = {}
        waiting = [batch.records]
        taken = False
        while waiting:
            records = waiting.pop()
            try:
                await self._try(batch.of(records))
            except RecordsRefused as refused:
                named = refused.reasons or ({records[0].ref: refused.reason} if len(records) == 1 else {})
                dead |= named
                self._refused_in_a_row += len(named)
                waiting += _rest(records, named)
                if not taken and self._refused_in_a_row > MAX_REFUSED_IN_A_ROW:
                    taken = await self._probe(batch, waiting, refused.reason)
            else:
                taken = taken or bool(records)
                self._refused_in_a_row = 0 if records else self._refused_in_a_row
        return dead

    async def _probe(self, batch: SinkBatch, waiting: Sequence[tuple[ChangedRecord, ...]], reason: str) -> bool:
        """True when the sink takes one of some other records of the batch; raises SinkFailed when it takes none."""
        others = [record for records in waiting for record in records]
        for record in others[:: max(1, len(others) // PROBES)]:
            with suppress(RecordsRefused):
                await self._try(batch.of([record]))
                return True
        raise SinkFailed(f"{self.config.place} refuses every record: {reason}")

    async def _try(self, batch: SinkBatch) -> None:
        if self.config.missing:
            raise SinkFailed(
                f"The environment variable {self.config.missing[0]} is not set.", remedy="Set it where this runs."
            )
        if (wait := self._not_before - time.monotonic()) > 0:
            raise SinkFailed(f"{self.config.place} asked to wait {wait:.0f} s more.")
        try:
            if self._sink is None:
                self._sink = self._make_sink(self.config)
            async with asyncio.timeout(None if self.config.is_files else self.config.timeout):
                await self._sink.deliver(batch)
        except RecordsRefused:
            raise
        except SinkFailed as error:
            self._not_before = time.monotonic() + error.retry_after
            await self._close_sink()
            raise
        except ShoalError as error:
            await self._close_sink()
            raise SinkFailed(error.message, remedy=error.remedy) from None
        except TimeoutError:
            await self._close_sink()
            raise SinkFailed(f"{self.config.place} has not answered for {self.config.timeout:g} s.") from None
        except Exception as error:
            await self._close_sink()
            raise SinkFailed(f"{self.config.place}: {describe(error)}.") from error

    async def _record_types(self, ledger: Ledger, run_id: str, stage: str) -> dict[str, str]:
        known = self._types.get((run_id, stage))
        if known is None:
            note = await ledger.runs.get_note(run_id, RECORD_TYPES_NOTE) or {}
            known = self._types[run_id, stage] = dict(note.get(stage, {}))
        return known

    async def _move(
        self, ledger: Ledger, start: ChangePosition, page: ChangePage, delivered: int, dead: dict[RecordRef, str]
    ) -> None:
        reasons = {ref: redacted(reason, self._secrets) for ref, reason in dead.items()}
        if not await ledger.changes.move(self.config.cursor, start, page.end, delivered=delivered, dead=reasons):
            self._stored = None
            self._log.warning("another process delivers to this sink, or it was reset")
            return
        self._stored = self._read_to = page.end
        self.delivered += delivered
        if self._last_error:
            self._last_error = ""
            self._log.info("sink takes records again")
        for ref, reason in list(reasons.items())[:5]:
            self._log.warning("record refused by sink", record=str(ref), reason=reason, refused=len(reasons))

    async def _record_failure(self, ledger: Ledger, error: SinkFailed) -> None:
        text = redacted(error.message if error.remedy == SinkFailed.remedy else str(error), self._secrets)
        if text != self._last_error:
            self._last_error = text
            self._log.warning("sink failed", reason=text)
        await ledger.changes.fail(self.config.cursor, text)

    async def has_nothing_to_wait_for(self, ledger: Ledger) -> bool:
        """While another process has the lock: whether that one has delivered everything, or fails."""
        cursor = await ledger.changes.cursor(self.config.cursor)
        if cursor is None:
            return False
        return bool(cursor.last_error) or not (await ledger.changes.lag(cursor.position, self.config.which)).records

    async def retry_dead_letters(self, ledger: Ledger) -> tuple[int, int]:
        """Deliver what was refused once more. Returns how many were taken and how many are still refused."""
        await self._open(ledger)
        taken = refused = 0
        cursor: str | None = None
        while True:
            page = await ledger.changes.dead_letters(self.config.cursor, cursor=cursor, limit=DEAD_LETTERS_AT_ONCE)
            refs = [letter.ref for letter in page.rows]
            records = await ledger.changes.records(refs)
            types = {
                (record.run_id, record.stage): await self._record_types(ledger, record.run_id, record.stage)
                for record in records
            }
            dead = await self.deliver(SinkBatch(records=tuple(records), types=types)) if records else {}
            gone = [ref for ref in refs if ref not in dead]
            if gone:
                await ledger.changes.remove_dead_letters(self.config.cursor, gone)
            taken, refused = taken + len(records) - len(dead), refused + len(dead)
            cursor = page.cursor
            if cursor is None:
                return taken, refused

    async def close(self) -> None:
        await _cancel(None if self._ahead is None else self._ahead[1])
        self._ahead = None
        await self._close_sink()

    async def _close_sink(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Exception):
                async with asyncio.timeout(5):
                    await sink.close()


async def _cancel(task: asyncio.Task[ChangePage] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _rest(records: tuple[ChangedRecord, ...], named: Mapping[RecordRef, str]) -> list[tuple[ChangedRecord, ...]]:
    """What is left to try of a batch in which these records were refused; its halves, if it is not known which."""
    if not named:
        half = len(records) // 2
        return [records[half:], records[:half]]
    rest = tuple(record for record in records if record.ref not in named)
    return [rest] if rest and len(rest) < len(records) else []


def describe(error: BaseException) -> str:
    """An error of a driver in one line; for one of the system its plain text, such as connection refused."""
    number = getattr(getattr(error, "os_error", error), "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    if "[Errno 111]" in str(error) or isinstance(error, ConnectionRefusedError):
        return os.strerror(errno.ECONNREFUSED).lower()
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") if len(text) < 500 else text[:497] + "..."


async def deliver_until_idle(
    delivery: Delivery,
    ledger: Ledger,
    *,
    lost: asyncio.Event,
    draining: asyncio.Event,
    sleep: Callable[[float], Awaitable[object]],
) -> None:
    """Deliver as records come, with growing pauses while the sink fails; until the lock is lost, or, when `draining`
    is set, until nothing is left or the sink fails."""
    pause = MIN_BACKOFF
    while not lost.is_set():
        was_draining = draining.is_set()
        try:
            more = await delivery.step(ledger, flush=was_draining)
            pause = MIN_BACKOFF
        except SinkFailed:
            if was_draining:
                return
            await sleep(pause * random.uniform(0.75, 1.25))
            pause = min(2 * pause, MAX_BACKOFF)
            continue
        if more:
            continue
        if was_draining:
            return
        await sleep(IDLE_SECONDS)
