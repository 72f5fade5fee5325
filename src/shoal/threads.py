"""Threads for functions that block: handlers that are not `async`, and the connections of a SQLite ledger."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
# It gets a function that says whether the caller was cancelled, so that it can undo what nobody will learn of.
CancellableJob = Callable[[Callable[[], bool]], T]


class ThreadRunner:
    """Calls functions in threads, at most `max_threads` at once, in the order of the calls; idle threads are reused.

    The threads are daemons: a function that never returns does not keep the process alive, whereas the standard
    executor waits for its threads when Python exits.
    """

    def __init__(self, name: str, *, max_threads: int = sys.maxsize) -> None:
        self._name = name
        self._max_threads = max_threads
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], CancellableJob[Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # negative while calls wait for a thread
        self._threads = 0

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread. When the caller is cancelled, a call under way continues and its result is
        dropped."""
        return await self.run_cancellable(lambda _: function())

    async def run_cancellable(self, job: CancellableJob[T]) -> T:
        """The same for a function that can find out whether the caller was cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            must_start = self._idle <= 0 and self._threads < self._max_threads
            if must_start:
                self._threads += 1
            else:
                self._idle -= 1
        self._jobs.put((future, job))
        if must_start:
            name = self._name if self._max_threads == 1 else f"{self._name}-{self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """Let the threads end after the calls made so far."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    result = job(future.cancelled)
                except (StopIteration, GeneratorExit) as stop:  # a future does not accept these
                    error = RuntimeError(f"{type(stop).__name__}: {stop.args[0] if stop.args else None!r}")
                except BaseException as raised:
                    error = raised
            with self._lock:
                self._idle += 1
            with suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_resolve, future, result, error)
            del entry, future, job, result, error


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
