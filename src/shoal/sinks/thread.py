"""A thread that delivers to all sinks, with its own event loop and its own ledger.

A sink that is slow or away does not hold up the scrape, and a handler that blocks the main event loop delays no sink.
Of many processes one delivers to a sink at a time; the others try for its lock with growing pauses.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from shoal.config.settings import Settings
from shoal.config.sinks import SinkConfig
from shoal.errors import LedgerError, ShoalError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import new_worker_id
from shoal.sinks.delivery import Delivery, deliver_until_idle
from shoal.sinks.sink import Sink

LOCK_POLL_SECONDS = 2.0
MAX_LOCK_POLL_SECONDS = 15.0
DRAIN_POLL_SECONDS = 0.5
EXIT_SECONDS = 2.0

OpenLedger = Callable[[], Awaitable[Ledger]]


def make_sink(config: SinkConfig) -> Sink:
    """A sink of this kind. Raises UsageError when a package is missing."""
    match config.kind:
        case "postgresql":
            from shoal.sinks.postgres import PostgresSink

            return PostgresSink(config)
        case "jsonl" | "parquet":
            from shoal.sinks.files import FileSink

            return FileSink(config)
        case "webhook":
            from shoal.sinks.webhook import WebhookSink

            return WebhookSink(config)
        case "rabbitmq":
            from shoal.sinks.brokers import RabbitSink

            return RabbitSink(config)
        case "redis":
            from shoal.sinks.brokers import RedisSink

            return RedisSink(config)


class SinkThread:
    """Delivers from `start` to `close`. `only`: the names of the sinks; by default all."""

    def __init__(self, open_ledger: OpenLedger, settings: Settings, *, log: Log, only: tuple[str, ...] = ()) -> None:
        by = f"sinks-{new_worker_id()}"
        self._open = open_ledger
        self._log = log
        self._deliveries = [
            Delivery(config, make_sink, by=by, log=log, secrets=settings.secrets())
            for name, config in settings.sinks.items()
            if not only or name in only
        ]
        self._loop = asyncio.new_event_loop()
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-sinks", daemon=True)

    @property
    def delivered(self) -> dict[str, int]:
        """Records that this process has delivered, by sink."""
        return {delivery.config.name: delivery.delivered for delivery in self._deliveries}

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Deliver what is there, and end; a sink that fails is not waited for."""
        self._call(self._draining.set)

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    async def wait_done(self, seconds: float) -> bool:
        """Wait until it has ended after `drain`, at most so long."""
        return await asyncio.to_thread(self._done.wait, seconds)

    async def close(self) -> None:
        """Stop. A batch that is being delivered is delivered again by the next process."""
        self._call(self._stopping.set)
        await asyncio.to_thread(self._thread.join, EXIT_SECONDS)

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()
            self._done.set()

    async def _main(self) -> None:
        self._loop.set_exception_handler(self._log_loop_error)
        tasks = [asyncio.create_task(self._deliver_forever(delivery)) for delivery in self._deliveries]
        stopping = asyncio.create_task(self._stopping.wait())
        everything = asyncio.gather(*tasks)
        await asyncio.wait((everything, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopping):
            task.cancel()
        await asyncio.gather(everything, stopping, return_exceptions=True)

    def _log_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _deliver_forever(self, delivery: Delivery) -> None:
        """Each sink has its own connection to the ledger, closed while another process has the lock."""
        pause = LOCK_POLL_SECONDS
        try:
            while True:
                try:
                    had_lock = await self._deliver_while_locked(delivery)
                except ShoalError as error:
                    self._log.debug("sink skipped: ledger unreachable", sink=delivery.config.name, error=str(error))
                    had_lock = None
                except Exception as error:  # the thread must not end unnoticed
                    self._log.error("sink crashed", sink=delivery.config.name, exc_info=error)
                    had_lock = None
                if self._draining.is_set():
                    if had_lock or had_lock is None:
                        return
                    await asyncio.sleep(DRAIN_POLL_SECONDS)
                    continue
                pause = LOCK_POLL_SECONDS if had_lock else min(pause * 1.5, MAX_LOCK_POLL_SECONDS)
                await self._sleep(pause * random.uniform(0.8, 1.2))
        finally:
            await delivery.close()

    async def _deliver_while_locked(self, delivery: Delivery) -> bool | None:
        """True after it had the lock; None when there is nothing to wait for."""
        ledger = await self._open()
        try:
            async with delivery.lock(ledger) as lost:
                if lost is None:
                    return None if await delivery.has_nothing_to_wait_for(ledger) else False
                await deliver_until_idle(delivery, ledger, lost=lost, draining=self._draining, sleep=self._sleep)
                return True
        finally:
            with suppress(LedgerError):
                await ledger.close()

    async def _sleep(self, seconds: float) -> None:
        """Sleep; a request to drain ends it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), seconds)
