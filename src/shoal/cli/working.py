"""What `shoal run` and `shoal worker` share: a worker under the eyes of a person who may press Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.cli.render.session import Session

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.observe.logs import Logs
    from shoal.worker.watchdog import EndProcess
    from shoal.worker.worker import Worker

T = TypeVar("T")
INTERRUPTED = 130
TIMED_OUT = 124
SHOW_CURSOR = "\x1b[?25h"  # a progress display hides it


def settle_memory() -> None:
    """Tell Python that what is loaded stays, and not to look for garbage after every few pages.

    Parsed trees are many small objects and few cycles; looking less often saves a tenth of the time of parsing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class Signals:
    """How often somebody asked to stop."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def obeying_signals(worker: Worker, tell: Callable[[str], None]) -> Iterator[Signals]:
    """The first SIGINT or SIGTERM drains, the second gives up at once, a third ends the process where it stands.

    Python's own signal handlers are used, not the loop's: they run even while a handler blocks the loop. When it goes
    on blocking, the worker's watchdog ends the process.
    """
    loop = asyncio.get_running_loop()
    signals = Signals()

    def say(text: str) -> None:
        # The signal may have come in the middle of writing to the terminal, where this thread must not write again.
        threading.Thread(target=tell, args=(text,), daemon=True).start()

    def on_signal(number: int, frame: FrameType | None) -> None:
        signals.count += 1
        if signals.count == 1:
            say("Stopping: what runs is finished, the rest goes back. Press Ctrl-C again to give up at once.")
            loop.call_soon_threadsafe(worker.drain)
        elif signals.count == 2:
            say("Giving back what runs.")
            loop.call_soon_threadsafe(worker.stop_now)
        else:
            # Nothing is lost: what was not committed goes to others when the lease ends.
            os._exit(INTERRUPTED)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_when_hung(logs: Logs, session: Session) -> EndProcess:
    """A function that ends the process when the worker's event loop hangs: it closes the log and prints the reason."""

    def end(code: int, why: str) -> None:
        logs.close()
        if session.quiet:  # otherwise the log has just said it
            session.complain(f"This process ends itself: {why}.")
        if sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)
            sys.stderr.flush()
        os._exit(code)

    return end


def open_logs_for(session: Session, settings: Settings, name: str, tell: Callable[[str], None]) -> Logs:
    """The log of a run: JSON lines in its file; on stderr what the settings ask for.

    On a terminal that shows progress, only warnings are said unless a level was chosen.
    """
    from shoal.observe.logs import Stream, open_logs

    on_terminal = sys.stderr.isatty()
    level = settings.log_level
    if on_terminal and settings.origins["log_level"].kind == "default":
        level = "warning"
    stream: Stream | None = None if session.quiet else (tell if on_terminal else sys.stderr)
    file = Path(settings.log_dir).expanduser() / f"{name}.log" if settings.log_dir else None
    return open_logs(format=settings.log_format, level=level, file=file, stream=stream, secrets=settings.secrets())


async def make_room(session: Session, settings: Settings, ledger: Ledger, run: Run, *, by: str) -> None:
    """On a ledger of this machine: free what dead processes hold, and pause what was left unfinished by them."""
    from shoal.service.begin import mark_local_dead_workers, pause_abandoned_runs
    from shoal.wiring import sqlite_path
    from shoal.worker.single_lock import was_abandoned

    file = sqlite_path(settings.ledger)
    if file is None:
        return
    await mark_local_dead_workers(ledger)
    for other in await pause_abandoned_runs(ledger, run.id, lambda name: was_abandoned(name, file), by=by):
        session.note(f"Run {other.id} of {other.scraper} is unfinished and was paused: nobody works on it.")


async def beside(main: Coroutine[Any, Any, T], *others: asyncio.Task[Any]) -> T:
    """Wait for the main thing. When one of the others fails first, break off and raise its error."""
    task = asyncio.create_task(main)
    waiting: set[asyncio.Task[Any]] = {task, *others}
    try:
        while not task.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for other in done - {task}:
                other.result()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
