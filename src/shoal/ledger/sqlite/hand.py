"""A thread that does one thing at a time for asyncio callers. Leaner than an executor: every call takes this way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

# A job is told whether somebody still waits for its answer, so that it can undo what nobody would learn of.
Job = Callable[[Callable[[], bool]], T]


class DatabaseThread:
    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Job[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, job))
        return await future

    def stop(self) -> None:
        """The thread ends after what it has been given so far."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            future, job = given
            if future.cancelled():
                continue
            answer: Any = None
            problem: BaseException | None = None
            try:
                answer = job(future.cancelled)
            except BaseException as error:
                problem = error
            with suppress(RuntimeError):  # the loop was closed: nobody waits
                future.get_loop().call_soon_threadsafe(_resolve, future, answer, problem)
            del given, future, job, answer, problem


def _resolve(future: asyncio.Future[Any], answer: Any, problem: BaseException | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(answer)
