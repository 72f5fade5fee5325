"""Feeds a run from a queue, a stream, a list, a folder or standard input: messages become items.

A message is acknowledged after the ledger has stored its item, so a crash loses nothing; one that is delivered again is
a duplicate of its key and dropped. A message that cannot become an item goes to a dead letter with the reason. While
the run has more than `backlog` open items, no messages are taken.

While a broker or the ledger is away, the feed waits and says for what, once. Only at its start does it give up, after
the setting `patience`: an address may be wrong.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import msgspec

from shoal.config import Settings
from shoal.config.sinks import SinkConfig
from shoal.define.scraper import Scraper
from shoal.errors import (
    FeedUnavailable,
    InvalidItem,
    LedgerError,
    LedgerFull,
    LedgerUnavailable,
    ShoalError,
    UsageError,
    WrongState,
)
from shoal.feeds.message import read_message
from shoal.feeds.source import Message, Rejection, Source, is_broker, open_source, parse_address
from shoal.ledger.protocols import Ledger
from shoal.model.item import NewItem, PreparedItem
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.views import Counts
from shoal.model.worker import Scope
from shoal.notify.delivery import check_addresses
from shoal.observe.logs import Logs
from shoal.service.begin import (
    UNFINISHED,
    FillProgress,
    RunChoice,
    RunPlan,
    begin_lock,
    open_run,
    plan_owned_run,
    plan_run,
    removed_if_refused,
)
from shoal.service.database import put_views_or_notice
from shoal.service.events import FeedProgress, Host, RunStarted
from shoal.service.lookup import item_maker
from shoal.service.run import report_plan, set_aside_and_report
from shoal.service.sinks import deliver_beside, finish_deliveries, note_record_types
from shoal.service.work import (
    alerts,
    free_local_ledger,
    make_worker,
    open_run_logs,
    progress_events,
    send_end_alerts,
    stop_signals,
)
from shoal.wiring import build_fetcher, check_environment, check_ways_out, ledger_context, worker_options
from shoal.worker.hooks import call_finish_hooks, call_start_hooks
from shoal.worker.state import StopReason, WorkSummary
from shoal.worker.worker import Worker

T = TypeVar("T")
# A request to stop is noticed after so long at the latest.
RECEIVE_SECONDS = 0.5
PROGRESS_SECONDS = 1.0
FOLLOW_SECONDS = 0.5
STOP_SECONDS = 5.0
# A call of the ledger that takes longer is an outage, for all that a person can see.
SLOW_SECONDS = 5.0
ROOM_SECONDS = (0.05, 1.0)
BACKOFF_SECONDS = (0.1, 5.0)
# Taking messages begins again when the backlog has shrunk to this share.
LOW_WATER = 0.75
MAX_REPORTED = 20
MAX_DEAD_LETTERS = 100
MAX_REASON = 500


class FeedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to feed a run from, and until when.

    `source`: an address, or a source. `stage`: of messages that name none; the first one by default. `forever`: the
    run stays open, and the feed goes on until it is stopped; otherwise it ends at the end of standard input, or when
    the source has been empty for `idle` seconds, and seals the run. `backlog`: take no messages while the run has more
    open items. `batch`: store so many messages at a time, at most. `works`: also work on the run, in this process.
    `reply`: a queue, or a stream of Redis, at the same broker that gets the scraper's records from now on, as a sink.
    """

    source: str | Source
    stage: str | None = None
    forever: bool = False
    idle: float = 10.0
    backlog: int = 10_000
    batch: int = 1_000
    choice: RunChoice = RunChoice.AUTO
    works: bool = False
    reply: str | None = None
    min_concurrency: int | None = None
    by: str = "shoal feed"


class FeedCounts(msgspec.Struct):
    """What became of the messages so far; one that was delivered again counts again."""

    enqueued: int = 0
    duplicates: int = 0
    dead_letters: int = 0

    @property
    def messages(self) -> int:
        return self.enqueued + self.duplicates + self.dead_letters


class FeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed did. `stopped`: on request, before its source was empty. `work`: what its worker did, if it had one.

    `sealed`: the run gets no more items and ends when none is open.
    """

    run: Run
    source: str
    feed: FeedCounts
    counts: Counts
    seconds: float
    stopped: bool
    settings: Settings
    work: WorkSummary | None = None

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def sealed(self) -> bool:
        return self.run.sealed

    @property
    def too_many_dead(self) -> bool:
        """Whether more items are dead than the setting `max_dead` allows."""
        return self.settings.max_dead.exceeded(self.counts.dead, self.counts.wanted)


async def feed(scraper: Scraper, settings: Settings, request: FeedRequest, host: Host) -> FeedReport:
    """Feed the scraper's open run, or a new one, until the source is empty or the host stops it.

    Raises UsageError for a source that cannot be used, FeedUnavailable or LedgerError when it does not answer at the
    start for longer than the setting `patience`.
    """
    async with ledger_context(settings, on_waiting=host.notice) as ledger:
        return await feed_on(ledger, scraper, settings, request, host)


async def feed_on(ledger: Ledger, scraper: Scraper, settings: Settings, request: FeedRequest, host: Host) -> FeedReport:
    """`feed` on a ledger that is open already."""
    source = request.source
    if isinstance(source, str):
        source = open_source(source, prefetch=2 * request.batch)
    make = item_maker(scraper, request.stage)
    reply = _reply_sink(scraper, request)
    own_sinks = dict(settings.sinks) if request.works else {}
    delivering = msgspec.structs.replace(
        settings, sinks=own_sinks if reply is None else {**own_sinks, reply.name: reply}
    )
    await check_addresses(settings)
    check_environment()
    if request.works:
        await check_ways_out(scraper, settings)
    started_at, summary = time.monotonic(), None
    async with AsyncExitStack() as held:
        await _open_at_first(source, settings.patience, host)
        held.push_async_callback(source.close)
        if reply is not None:
            # Before the first item, so that no record is missed.
            await ledger.changes.open_cursor(reply.cursor, await ledger.changes.end())
        run, resumed = await _begin(ledger, scraper, settings, request, host, held)
        logs = open_run_logs(settings, run.id, host)
        held.callback(logs.close)
        log = logs.log.bind(run=run.id)
        if not resumed:
            async with removed_if_refused(ledger, RunPlan(run=None), run, FillProgress(), by=request.by):
                await call_start_hooks(scraper, ledger, run, log)
        await set_aside_and_report(ledger, run, host, by=request.by)
        feeder = Feeder(ledger, run, source, make, request, host, log)
        log.info("feed started", source=source.name, scraper=scraper.name)
        async with deliver_beside(delivering, logs.log) as sink_thread:
            if request.works:
                summary = await _feed_and_work(ledger, scraper, settings, feeder, request, host, logs)
            else:
                host.stop.attach(feeder.stop, feeder.stop)
                async with progress_events(ledger, run.id, host, every=PROGRESS_SECONDS):
                    with stop_signals(host):
                        await feeder.run()
                        if reply is not None:
                            await _until_ended(ledger, feeder)
            with stop_signals(host):
                await finish_deliveries(sink_thread, ledger, delivering, host, stopped=host.stop.count > 0)
        log.info("feed stopped", **msgspec.structs.asdict(feeder.counts))
        await ledger.health.check()
        return FeedReport(
            run=await ledger.runs.get(run.id),
            source=source.name,
            feed=feeder.counts,
            counts=await ledger.reads.stats(run.id),
            seconds=time.monotonic() - started_at,
            stopped=feeder.stopped,
            settings=settings,
            work=summary,
        )


def _reply_sink(scraper: Scraper, request: FeedRequest) -> SinkConfig | None:
    """A sink at the broker of the source, for the records of the scraper."""
    if request.reply is None:
        return None
    if not isinstance(request.source, str) or not is_broker(request.source):
        raise UsageError("Replies go to the broker of the feed, and this source has none.", remedy="Use a sink.")
    broker, name = parse_address(request.source), f"reply.{scraper.name}.{request.reply}"
    options: dict[str, Any] = {"name": name, "url": broker.url, "scrapers": (scraper.name,), "start": "now"}
    if broker.kind == "amqp":
        return SinkConfig(kind="rabbitmq", routing_key=request.reply, **options)
    return SinkConfig(kind="redis", stream=request.reply, **options)


async def _until_ended(ledger: Ledger, feeder: Feeder) -> None:
    """Wait for the workers elsewhere: their records are replied from here."""
    while not feeder.stopped:
        with suppress(LedgerError):
            if (await ledger.runs.get(feeder.target.id)).state not in UNFINISHED:
                return
        await feeder.sleep(FOLLOW_SECONDS)


async def _open_at_first(source: Source, patience: float, host: Host) -> None:
    """Connect; give up after `patience` seconds, or at once when waiting repairs nothing."""
    deadline, pause, said = time.monotonic() + patience, BACKOFF_SECONDS[0], False
    while True:
        try:
            return await source.open()
        except FeedUnavailable as error:
            await source.close()
            if host.stop.count or time.monotonic() + pause > deadline:
                raise
            if not said:
                host.notice(f"{error.message} Waiting for it, up to {patience:g} s.")
            said = True
        except BaseException:
            await source.close()
            raise
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(2 * pause, BACKOFF_SECONDS[1])


async def _begin(
    ledger: Ledger, scraper: Scraper, settings: Settings, request: FeedRequest, host: Host, held: AsyncExitStack
) -> tuple[Run, bool]:
    """The run to feed, and whether it is an older one.

    By default it is the newest run if that is open; a sealed one belongs to somebody else, and a new run is made beside
    it. With a worker in this process it is the unfinished run, as for `shoal run`, also if it is sealed: an earlier
    feed that was killed had perhaps read its source to the end, and only the items are left.
    """
    async with begin_lock(ledger, settings, scraper.name, owned=request.works):
        if request.works:
            plan = await plan_owned_run(
                *(ledger, scraper, settings),
                choice=request.choice,
                idempotency_key=None,
                held=held,
                on_waiting=host.notice,
            )
        else:
            plan = await plan_run(ledger, scraper, request.choice, ledger_name=settings.shown()["ledger"])
        if request.choice is RunChoice.AUTO and plan.run is not None and plan.run.sealed and not request.works:
            plan = RunPlan(run=None)
        run = await open_run(ledger, scraper, plan, scraper.run_spec(), by=request.by)
        await note_record_types(ledger, scraper, run.id)
        await put_views_or_notice(ledger, scraper, host.notice)
    resumed = plan.run is not None
    host.on_event(RunStarted(run_id=run.id, scraper=scraper.name, resumed=resumed, remaining=plan.remaining))
    await report_plan(ledger, plan, host.on_event)
    return run, resumed


async def _feed_and_work(
    ledger: Ledger,
    scraper: Scraper,
    settings: Settings,
    feeder: Feeder,
    request: FeedRequest,
    host: Host,
    logs: Logs,
) -> WorkSummary:
    """Feed the run and work on it. The worker leaves when the feed has ended and nothing is left."""
    run, log = feeder.target, logs.log.bind(run=feeder.target.id)
    await free_local_ledger(settings, ledger, run, host, by=request.by)
    scope = Scope(scraper=scraper.name, run_ids=(run.id,), stages=tuple(scraper.stages))
    # It is told when nothing is left: while the feed goes on, the run may even end and be resumed.
    options = worker_options(scraper, settings, scope, min_concurrency=request.min_concurrency, forever=True)
    fetcher = build_fetcher(settings)
    try:
        worker = make_worker(scraper, settings, ledger, fetcher, options, host, logs, log=log)

        def drain() -> None:
            feeder.stop()
            worker.drain()

        host.stop.attach(drain, worker.stop_now)
        async with alerts(settings, logs.log) as alert_thread:
            async with progress_events(ledger, run.id, host, every=FOLLOW_SECONDS):
                with stop_signals(host):
                    summary = await _together(ledger, feeder, worker)
            await call_finish_hooks(scraper, ledger, run.id, log)
            await send_end_alerts(alert_thread, (run.id,), summary)
    finally:
        await fetcher.close()
    return summary


async def _together(ledger: Ledger, feeder: Feeder, worker: Worker) -> WorkSummary:
    feeding, working = asyncio.create_task(feeder.run()), asyncio.create_task(worker.work())
    try:
        await asyncio.wait((feeding, working), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            feeder.stop()
        await feeding
        while not working.done() and not feeder.stopped:
            try:
                run = await ledger.runs.get(feeder.target.id)
            except LedgerError:
                continue  # the worker itself reports it
            finally:
                await asyncio.wait((working,), timeout=FOLLOW_SECONDS)
            if run.state not in UNFINISHED:
                worker.drain(StopReason.NOTHING_LEFT)
                break
        return await working
    finally:
        for task in (feeding, working):
            task.cancel()
        await asyncio.gather(feeding, working, return_exceptions=True)


class Feeder:
    """Moves messages from a source to a run. `run` until the source is empty, or `stop` is called."""

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        source: Source,
        make: Callable[..., NewItem],
        request: FeedRequest,
        host: Host,
        log: Log,
    ) -> None:
        self.counts = FeedCounts()
        self.stopped = False
        self._ledger = ledger
        self.target = run
        self._stage = run.stages[0]
        self._source = source
        self._make = make
        self._request = request
        self._host = host
        self._log = log
        self._stopping = asyncio.Event()
        self._waiting_for = ""
        self._backlog = 0
        self._backlog_at = 0.0
        self._room = 0
        self._reported = 0
        self._progress_at = 0.0
        self._dead = _DeadLetters(source, self._say)
        self._ahead: asyncio.Task[list[Message]] | None = None

    def stop(self) -> None:
        """Store what is being stored, return the rest, and end."""
        self.stopped = True
        self._stopping.set()

    async def run(self) -> None:
        """Feed until the source is empty or `stop` is called; seal the run when nothing will follow."""
        try:
            await self._feed()
        finally:
            await self._drop_dead_letters()
            await self._drop_ahead()
            await self._source.close()
            self._show(now=True)
        if not self._request.forever and not self.stopped:
            await self._patiently(lambda: self._ledger.runs.seal(self.target.id, by=self._request.by))

    async def _feed(self) -> None:
        idle_since = time.monotonic()
        while not self._stopping.is_set():
            self._show()
            if self._ahead is None:
                await self._wait_for_room()
            if self._stopping.is_set():
                return
            try:
                if len(self._dead.pending) >= self._request.batch:
                    await self.sleep(RECEIVE_SECONDS)
                    continue
                messages = await self._receive()
                if messages:
                    await self._process(messages)
                    idle_since = time.monotonic()
                    continue
                if self._dead.pending:
                    await self.sleep(ROOM_SECONDS[0])
                    continue
                await self._refresh_backlog()
                if self._source.ended:
                    return
                if self._request.forever:
                    continue
                if time.monotonic() - idle_since >= self._request.idle and await self._source.is_empty():
                    return
            except FeedUnavailable as error:
                await self._reopen(error)
                idle_since = time.monotonic()

    async def _receive(self) -> list[Message]:
        """The next messages: those that were received ahead, if any."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return await ahead
        return await self._source.receive(min(self._room, self._request.batch), RECEIVE_SECONDS)

    async def _drop_ahead(self) -> None:
        """Forget what was received ahead: it is returned when the source is closed."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            await asyncio.gather(ahead, return_exceptions=True)

    async def _process(self, messages: Sequence[Message]) -> None:
        """Store the items of these messages, then acknowledge them; meanwhile receive the next ones."""
        room = min(self._room - len(messages), self._request.batch)
        if self._source.receives_ahead and room > 0:
            self._ahead = asyncio.create_task(self._source.receive(room, RECEIVE_SECONDS))
        good: list[Message] = []
        items: list[PreparedItem] = []
        bad: list[Rejection] = []
        for count, message in enumerate(messages, 1):
            try:
                items.append(self._read(message))
                good.append(message)
            except InvalidItem as error:
                bad.append(Rejection(message, error.message[:MAX_REASON]))
            if count % 500 == 0:
                await asyncio.sleep(0)
        if items:
            stored = await self._patiently(lambda: self._store(items))
            if stored is None:
                return  # stopped: the messages are returned
            enqueued, duplicates = stored
            self._room -= enqueued
            self._backlog += enqueued
            self.counts.enqueued += enqueued
            self.counts.duplicates += duplicates
            await self._source.acknowledge(good)
        if bad:
            self._report(bad)
            self._dead.add(bad)

    def _read(self, message: Message) -> PreparedItem:
        if message.defect is not None:
            raise InvalidItem(message.defect)
        return read_message(message.body, self._make, self._stage)

    async def _store(self, items: Sequence[PreparedItem]) -> tuple[int, int]:
        try:
            report = await self._ledger.intake.enqueue(self.target.id, items)
        except WrongState:
            # Another feed found the source empty and sealed the run, which then ended.
            run = await self._ledger.runs.get(self.target.id)
            if run.state is not RunState.FINISHED:
                raise
            await self._ledger.runs.resume(run.id, by=self._request.by)
            report = await self._ledger.intake.enqueue(self.target.id, items)
        return report.enqueued, report.duplicates

    async def _refresh_backlog(self) -> None:
        """Read the backlog again now and then while nothing arrives."""
        now = time.monotonic()
        if self._backlog and now >= self._backlog_at + PROGRESS_SECONDS:
            self._backlog_at = now
            if (counts := await self._patiently(lambda: self._ledger.reads.stats(self.target.id))) is not None:
                self._backlog = counts.remaining
                self._room = max(self._room, self._request.backlog - self._backlog)

    async def _wait_for_room(self) -> None:
        """Read the backlog when the room that was left is used up; wait while there is none."""
        if self._room > 0:
            return
        limit, paused, pause = self._request.backlog, False, ROOM_SECONDS[0]
        while not self._stopping.is_set():
            counts = await self._patiently(lambda: self._ledger.reads.stats(self.target.id))
            if counts is None:
                return
            self._backlog = counts.remaining
            if self._backlog < (limit if not paused else max(1, int(limit * LOW_WATER))):
                self._room = limit - self._backlog
                return
            if not paused:
                paused = True
                self._log.info("feed paused", backlog=self._backlog, limit=limit)
                try:
                    await self._source.pause()
                except FeedUnavailable as error:
                    await self._reopen(error)
            self._waiting_for = "the backlog"
            self._show()
            await self.sleep(pause)
            pause = min(2 * pause, ROOM_SECONDS[1])
        self._waiting_for = ""

    async def _reopen(self, error: FeedUnavailable) -> None:
        """Connect again, however long it takes. What was received and not acknowledged comes again."""
        pause, said = BACKOFF_SECONDS[0], ""
        while not self._stopping.is_set():
            # What changes from one try to the next, such as a port, is not news.
            if not said:
                self._say(f"{error.message} Waiting for it.")
            said = error.message
            self._waiting_for = self._source.name
            self._show()
            await self._drop_dead_letters()
            await self._drop_ahead()
            await self._source.close()
            await self.sleep(pause * (0.5 + random.random()))
            pause = min(2 * pause, BACKOFF_SECONDS[1])
            if self._stopping.is_set():
                return
            try:
                await self._source.open()
            except ShoalError as failure:
                error = FeedUnavailable(failure.message)
                continue
            self._waiting_for = ""
            self._say(f"The {self._source.name} answers again.")
            return

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """The answer of the ledger, however long it is away. None when the feed was stopped meanwhile."""
        pause, said = BACKOFF_SECONDS[0], False

        def waiting(why: str) -> None:
            nonlocal said
            if not said:
                self._say(f"{why} Waiting for it.")
            said, self._waiting_for = True, "the ledger"
            self._show()

        while True:
            task = asyncio.ensure_future(call())
            slow = asyncio.get_running_loop().call_later(
                SLOW_SECONDS, waiting, f"The ledger has not answered for {SLOW_SECONDS:g} s."
            )
            try:
                if not await self._finishes(task):
                    return None
                answer = task.result()
            except (LedgerUnavailable, LedgerFull) as error:
                waiting(error.message)
                await self.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, BACKOFF_SECONDS[1])
                if self._stopping.is_set():
                    return None
                continue
            finally:
                slow.cancel()
            if said:
                self._waiting_for = ""
                self._say("The ledger answers again.")
            return answer

    async def _finishes(self, task: asyncio.Future[Any]) -> bool:
        """Whether the call ends. After a request to stop it gets a moment, then it is cancelled."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait((task,), timeout=STOP_SECONDS)
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return not task.cancelled()

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not after `stop`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _report(self, bad: Sequence[Rejection]) -> None:
        """Log the first few; the rest are counted, and found where dead letters go."""
        for rejection in bad[: max(0, MAX_REPORTED - self._reported)]:
            self._log.warning("message refused", place=rejection.message.place, reason=rejection.reason)
        if self._reported <= MAX_REPORTED < self._reported + len(bad):
            self._log.warning("further refused messages are only counted")
        self._reported += len(bad)

    def _say(self, text: str) -> None:
        self._log.warning("feed waits" if text.endswith("Waiting for it.") else "feed goes on", why=text)

    def _show(self, *, now: bool = False) -> None:
        at = time.monotonic()
        self.counts.dead_letters = self._dead.sent
        if now or at - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = at
            self._host.on_event(
                FeedProgress(
                    run_id=self.target.id,
                    source=self._source.name,
                    backlog=self._backlog,
                    waiting_for=self._waiting_for,
                    ended=now,
                    messages=self.counts.messages,
                    **msgspec.structs.asdict(self.counts),
                )
            )

    async def _drop_dead_letters(self) -> None:
        """Their messages will be delivered again."""
        await self._dead.cancel()
        self.counts.dead_letters = self._dead.sent


class _DeadLetters:
    """Rejects messages beside the feed, so that a broker that accepts no writes does not keep it from good messages."""

    def __init__(self, source: Source, say: Callable[[str], None]) -> None:
        self.pending: list[Rejection] = []
        self.sent = 0
        self._source = source
        self._say = say
        self._task: asyncio.Task[None] | None = None

    def add(self, rejections: Sequence[Rejection]) -> None:
        self.pending.extend(rejections)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def cancel(self) -> None:
        """Forget what was not sent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.pending.clear()

    async def _send(self) -> None:
        pause, said = BACKOFF_SECONDS[0], False
        while batch := self.pending[:MAX_DEAD_LETTERS]:
            try:
                await self._source.reject(batch)
            except ShoalError as error:
                if not said:
                    self._say(f"Dead letters cannot be written: {error.message} Waiting for it.")
                said = True
                await asyncio.sleep(pause * (0.5 + random.random()))
                pause = min(2 * pause, BACKOFF_SECONDS[1])
                continue
            del self.pending[: len(batch)]
            self.sent += len(batch)
            if said:
                pause, said = BACKOFF_SECONDS[0], False
                self._say("Dead letters are written again.")
