"""Runs coroutines for callers without an event loop, and for those inside one, such as notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from shoal.config import Settings
from shoal.export.records import decode_record, result_pages
from shoal.model.views import ResultRow
from shoal.service.events import StopRequest
from shoal.wiring import event_loop_factory, open_ledger

T = TypeVar("T")


def run_to_end(work: Callable[[], Coroutine[Any, Any, T]], stop: StopRequest) -> T:
    """Run a coroutine to its end and return its result. Inside a running event loop it runs in a thread.

    There the caller's thread waits, and a KeyboardInterrupt in it requests a stop, as Ctrl-C does for a command.
    """
    if not inside_event_loop():
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            return runner.run(work())
    thread = LoopThread()
    try:
        return thread.run(work(), on_interrupt=stop.request)
    finally:
        thread.close()


def iterate_records(settings: Settings, run_id: str, *, stage: str | None = None) -> Iterator[dict[str, Any]]:
    """The records of a run, read page by page by an event loop in a thread."""
    thread = LoopThread()
    try:
        ledger = thread.run(open_ledger(settings, migrate=False))
        try:
            pages = aiter(result_pages(ledger, run_id, stage=stage))
            while (rows := thread.run(_next_page(pages))) is not None:
                for row in rows:
                    yield decode_record(row)
        finally:
            thread.run(ledger.close())
    finally:
        thread.close()


async def _next_page(pages: AsyncIterator[tuple[ResultRow, ...]]) -> tuple[ResultRow, ...] | None:
    return await anext(pages, None)


def inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        factory = event_loop_factory() or asyncio.new_event_loop
        self._loop = factory()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shoal-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, on_interrupt: Callable[[], None] | None = None) -> T:
        """Wait for the result. A KeyboardInterrupt cancels the work; with `on_interrupt` it calls that instead, and is
        raised when the work has ended.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        interrupted = False
        while True:
            try:
                result = future.result()
            except KeyboardInterrupt:
                if on_interrupt is None:
                    future.cancel()
                    raise
                interrupted = True
                on_interrupt()
                continue
            if interrupted:
                raise KeyboardInterrupt
            return result

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
