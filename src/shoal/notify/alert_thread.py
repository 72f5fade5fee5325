"""The watch beside other work: a thread of its own with its own connection, so that no handler can stop it.

A handler that blocks the event loop is just what it must be able to tell of. Of many processes one looks at a time; the
others ask ever more seldom, and hold no connection meanwhile.
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
from shoal.notify.watch import Watch

LOOK_SECONDS = 15.0
LEAST_LOOK_SECONDS = 0.5
# Who finds that somebody else looks asks again after up to so many times as long.
SELDOM = 4
FAREWELL_SECONDS = 0.5
SETTLE_SECONDS = 10.0

OpenLedger = Callable[[], Awaitable[Ledger]]


class Tower:
    """Watches from `start` to `close`. What it sees goes into the ledger, the log, and to those whom settings name."""

    def __init__(self, open_ledger: OpenLedger, settings: Settings, *, log: Log) -> None:
        by = f"watch-{new_worker_id()}"
        self._open = open_ledger
        self._log = log
        self._watch = Watch(settings, by=by, log=log)
        self._deliveries = Deliveries(settings, send, by=by, log=log)
        self._every = look_every(settings)
        self._ledger: Ledger | None = None
        self._last_runs: Sequence[str] = ()
        self._broken = ""
        self._settle = 0.0
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self, run_ids: Sequence[str] = (), *, broken: str = "", settle: float = SETTLE_SECONDS) -> None:
        """Look at these runs once more, tell what is to be told, and end; within `settle` seconds and a little.

        `broken` names a worker that broke off because the code of these runs fails every time. What could not be
        delivered in time is left for others.
        """
        self._last_runs, self._broken, self._settle = run_ids, broken, settle
        with suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._closing.set)
        await asyncio.to_thread(self._thread.join, settle + 2 * FAREWELL_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._keep_watch())
        finally:
            self._loop.close()

    async def _keep_watch(self) -> None:
        self._loop.set_exception_handler(self._left_over)
        rounds, closing = asyncio.create_task(self._go_rounds()), asyncio.create_task(self._closing.wait())
        await asyncio.wait((rounds, closing), return_when=asyncio.FIRST_COMPLETED)
        rounds.cancel()
        await asyncio.wait((rounds,), timeout=FAREWELL_SECONDS)
        try:
            async with asyncio.timeout(self._settle + FAREWELL_SECONDS):
                await self._say_goodbye()
        except (ShoalError, TimeoutError) as error:
            self._log.warning("the last look at the run failed", error=str(error))
        finally:
            await self._leave_ledger()

    def _left_over(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio finds left over, such as a connection that broke while nobody waited for it: one line."""
        self._log.debug(str(context["message"]), error=str(context.get("exception") or ""))

    async def _go_rounds(self) -> None:
        pause = random.uniform(0, self._every)
        while True:
            await asyncio.sleep(pause)
            try:
                pause = await self._round(pause)
            except Exception as error:  # whatever it is, the watch must not end unnoticed
                self._log.error("the watch stumbled and goes on", exc_info=error)
                self._ledger = None
                pause = self._every

    async def _round(self, pause: float) -> float:
        """Look, if it is our turn. Returns the seconds until the next round."""
        try:
            ledger = await self._reach_ledger()
            looks = await self._watch.take_turn(ledger, every=self._every * 2 / 3)
            tells = await self._deliveries.take_turn(ledger, every=self._every * 2 / 3)
        except ShoalError as error:
            # The work beside tells of outages loudly; here it is enough to come again.
            self._log.debug("the watch does not reach the ledger", error=str(error))
            looks = tells = False
        if looks or tells:
            return self._every * random.uniform(0.9, 1.1)
        await self._leave_ledger()
        return min(max(pause, self._every) * random.uniform(1.5, 2.0), self._every * SELDOM)

    async def _say_goodbye(self) -> None:
        if self._last_runs:
            ledger = await self._reach_ledger()
            if self._broken:
                await self._watch.tell_broken(ledger, self._last_runs, self._broken)
            else:
                await self._watch.look_at(ledger, self._last_runs)
            await self._deliveries.take_up(ledger)
        await self._deliveries.settle(self._settle)

    async def _reach_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = await self._open()
        return self._ledger

    async def _leave_ledger(self) -> None:
        """Unless a delivery needs it."""
        if self._ledger is not None and not self._deliveries:
            with suppress(LedgerError):
                await self._ledger.close()
            self._ledger = None


def look_every(settings: Settings) -> float:
    """Seconds between two looks: often enough for the shortest stall that anybody wants to hear of."""
    tables = (table.values.get("stall_after", settings.stall_after) for table in settings.scrapers.values())
    shortest: float = min([LOOK_SECONDS, settings.stall_after / 4, *(seconds / 4 for seconds in tables)])
    return max(LEAST_LOOK_SECONDS, shortest)
