"""A thread that checks runs for alerts and delivers them, with its own event loop and its own ledger.

A handler that blocks the main event loop must not block its own alert. Of many processes one checks at a time; the
others try for the lock with growing pauses and close their connection in between.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from shoal.config.settings import Settings
from shoal.errors import LedgerError, ShoalError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import new_worker_id
from shoal.notify.delivery import Deliveries, send
from shoal.notify.watch import AlertChecker

POLL_SECONDS = 15.0
MIN_POLL_SECONDS = 0.5
# While another process holds the lock, the pause grows up to this many poll intervals.
MAX_BACKOFF = 4
EXIT_SECONDS = 0.5
DRAIN_SECONDS = 10.0

OpenLedger = Callable[[], Awaitable[Ledger]]


class AlertThread:
    """Checks for alerts from `start` to `close`; alerts go to the ledger, the log and the addresses in the settings."""

    def __init__(self, open_ledger: OpenLedger, settings: Settings, *, log: Log) -> None:
        by = f"watch-{new_worker_id()}"
        self._open = open_ledger
        self._log = log
        self._checker = AlertChecker(settings, by=by, log=log)
        self._deliveries = Deliveries(settings, send, by=by, log=log)
        self._every = poll_seconds(settings)
        self._ledger: Ledger | None = None
        self._final_run_ids: Sequence[str] = ()
        self._broken_worker = ""
        self._drain_seconds = 0.0
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-alerts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self, run_ids: Sequence[str] = (), *, broken: str = "", drain: float = DRAIN_SECONDS) -> None:
        """Check these runs once more, deliver pending alerts for at most `drain` seconds, and stop the thread.

        `broken` names a worker that stopped because the code of these runs fails every time. Other processes deliver
        what is left.
        """
        self._final_run_ids, self._broken_worker, self._drain_seconds = run_ids, broken, drain
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._closing.set)
        await asyncio.to_thread(self._thread.join, drain + 2 * EXIT_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._loop.set_exception_handler(self._log_loop_error)
        polling, closing = asyncio.create_task(self._poll_forever()), asyncio.create_task(self._closing.wait())
        await asyncio.wait((polling, closing), return_when=asyncio.FIRST_COMPLETED)
        polling.cancel()
        await asyncio.wait((polling,), timeout=EXIT_SECONDS)
        try:
            async with asyncio.timeout(self._drain_seconds + EXIT_SECONDS):
                await self._check_and_drain()
        except (ShoalError, TimeoutError) as error:
            self._log.warning("final alert check failed", error=str(error))
        finally:
            await self._close_ledger()

    def _log_loop_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what asyncio reports outside of a task, such as a broken idle connection, in one line."""
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _poll_forever(self) -> None:
        pause = random.uniform(0, self._every)
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self._poll(pause)
            except Exception as error:  # the thread must not end unnoticed
                self._log.error("alert check failed", exc_info=error)
                self._ledger = None
                pause = self._every

    async def _poll(self, pause: float) -> float:
        """Check and deliver if this process gets the lock. Returns the seconds until the next poll."""
        try:
            ledger = await self._get_ledger()
            checked = await self._checker.run_if_due(ledger, every=self._every * 2 / 3)
            delivered = await self._deliveries.run_if_due(ledger, every=self._every * 2 / 3)
        except ShoalError as error:
            # The worker reports outages; the alert thread only retries.
            self._log.debug("alert check skipped: ledger unreachable", error=str(error))
            checked = delivered = False
        if checked or delivered:
            return self._every * random.uniform(0.9, 1.1)
        await self._close_ledger()
        return min(max(pause, self._every) * random.uniform(1.5, 2.0), self._every * MAX_BACKOFF)

    async def _check_and_drain(self) -> None:
        if self._final_run_ids:
            ledger = await self._get_ledger()
            if self._broken_worker:
                await self._checker.raise_handler_fails(ledger, self._final_run_ids, self._broken_worker)
            else:
                await self._checker.check_runs(ledger, self._final_run_ids)
            await self._deliveries.start_pending(ledger)
        await self._deliveries.drain(self._drain_seconds)

    async def _get_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = await self._open()
        return self._ledger

    async def _close_ledger(self) -> None:
        """Close the connection unless a delivery uses it."""
        if self._ledger is not None and not self._deliveries:
            with suppress(LedgerError):
                await self._ledger.close()
            self._ledger = None


def poll_seconds(settings: Settings) -> float:
    """Seconds between two checks: a quarter of the shortest `stall_after`, within limits."""
    tables = (table.values.get("stall_after", settings.stall_after) for table in settings.scrapers.values())
    shortest: float = min([POLL_SECONDS, settings.stall_after / 4, *(seconds / 4 for seconds in tables)])
    return max(MIN_POLL_SECONDS, shortest)
