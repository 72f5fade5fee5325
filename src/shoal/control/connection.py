"""The ledger of the server: opened when it can be reached, checked every second, opened again when it was replaced.

While it is away, requests are answered at once instead of waiting for it one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from shoal.config import Settings
from shoal.errors import LedgerError, LedgerUnavailable
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.wiring import open_ledger, sqlite_path

CHECK_SECONDS = 1.0
# A ledger that gives no answer for so long is away.
SILENT_SECONDS = 3.0
# How long a call of the server's may wait for a ledger that restarts, for one statement, for other writers.
PATIENCE_SECONDS = 1.5
STATEMENT_SECONDS = 20.0
BUSY_SECONDS = 5.0
MIN_CONNECTIONS = 8


class LedgerConnection:
    """`ledger` is the open ledger; it raises while the ledger is away. Ask for it anew at each use.

    `on_change` gets one sentence when the ledger is lost and when it is back.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        *,
        opened: Callable[[], Ledger] | None = None,
        on_change: Callable[[str], object] = str,
    ) -> None:
        self._settings = msgspec.structs.replace(
            settings,
            patience=min(settings.patience, PATIENCE_SECONDS),
            command_timeout=min(settings.command_timeout, STATEMENT_SECONDS),
            busy_timeout=min(settings.busy_timeout, BUSY_SECONDS),
            pool_size=max(settings.pool_size, MIN_CONNECTIONS),
        )
        self._log = log
        self._opened = opened
        self._on_change = on_change
        self._file = sqlite_path(settings.ledger)
        self._inode = 0
        self._was_open = False
        self._ledger: Ledger | None = None
        self._problem: LedgerError | None = LedgerUnavailable("The ledger is not open yet.", remedy="Try again soon.")
        self._keeping: asyncio.Task[None] | None = None
        self._deadlines: set[asyncio.Timeout] = set()

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None or self._problem is not None:
            raise self._error()
        return self._ledger

    @property
    def problem(self) -> LedgerError | None:
        """Why the ledger cannot be used now; None while it can."""
        return self._problem

    async def start(self) -> None:
        """Try to open the ledger once, then go on in the background."""
        if self._opened is not None:
            self._ledger, self._problem = self._opened(), None
            return
        await self._check()
        self._keeping = asyncio.create_task(self._keep(), name="ledger-connection")

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._opened is None and self._ledger is not None:
            await self._ledger.close()
        self._ledger = None

    @contextlib.contextmanager
    def ends_when_lost(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """For the length of a block, let a time-out expire at once when the ledger is lost."""
        self._deadlines.add(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self._check()

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                if self._ledger is not None and self._is_replaced():
                    await self._drop()
                if self._ledger is None:
                    await self._open()
                else:
                    await self._ledger.lanes.clock()
        except LedgerError as error:
            self._lost(error)
        except TimeoutError:
            self._lost(LedgerUnavailable(f"The ledger {self._name} has not answered for {SILENT_SECONDS:g} s."))
        except Exception as error:  # whatever it is, the server goes on and tries again
            self._log.error("the ledger cannot be checked", exc_info=error)
            self._lost(LedgerUnavailable(f"The ledger {self._name} cannot be used: {type(error).__name__}."))
        else:
            self._back()

    async def _open(self) -> None:
        # A file that was there and is gone must not be replaced by an empty one.
        migrate = False if self._was_open else None
        self._ledger = await open_ledger(self._settings, migrate=migrate, readers=MIN_CONNECTIONS // 2)
        self._was_open = True
        if self._file is not None:
            self._inode = _inode(self._file)

    async def _drop(self) -> None:
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.close()

    def _is_replaced(self) -> bool:
        return self._file is not None and _inode(self._file) != self._inode

    def _lost(self, error: LedgerError) -> None:
        is_news = self._problem is None or self._problem.message != error.message
        self._problem = error
        for deadline in tuple(self._deadlines):
            with contextlib.suppress(RuntimeError):  # it expires already
                deadline.reschedule(0)
        if is_news:
            self._log.warning("ledger away", error=error.message)
            self._on_change(f"{error.message} {error.remedy} Until then requests are answered with 503.")

    def _back(self) -> None:
        was_lost, self._problem = self._problem is not None, None
        if was_lost and self._keeping is not None:
            self._log.info("ledger back")
            self._on_change(f"The ledger {self._name} answers.")

    def _error(self) -> LedgerError:
        """A new error each time: one that is raised again and again would collect its tracebacks."""
        problem = self._problem or LedgerUnavailable("The ledger is closed.", remedy="The server is stopping.")
        return type(problem)(problem.message, remedy=problem.remedy)

    @property
    def _name(self) -> str:
        return str(self._settings.shown()["ledger"])


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
