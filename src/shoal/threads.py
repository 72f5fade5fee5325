"""Threads for functions that block. They are daemons: a function that never returns cannot keep the process alive."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class Threads:
    """As many threads as there are calls at once; idle ones are used again.

    The standard pool is not used because it waits for its threads when Python ends, however long they take.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = 0
        self._all = 0
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread. When the caller is cancelled the call goes on, and its answer is dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            start = self._idle == 0
            if start:
                self._all += 1
            else:
                self._idle -= 1
        self._jobs.put((loop, future, function))
        if start:
            threading.Thread(target=self._work, name=f"shoal-handler-{self._all}", daemon=True).start()
        return await future

    def close(self) -> None:
        """Let idle threads end. Busy ones end with their call."""
        for _ in range(self._all):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, function = job
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = function()
            except (StopIteration, GeneratorExit) as stop:  # a future cannot carry these to whoever awaits it
                error = RuntimeError(f"{type(stop).__name__}: {stop.args[0] if stop.args else None!r}")
            except BaseException as raised:
                error = raised
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_settle, future, answer, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, future, function, answer, error


def _settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)
