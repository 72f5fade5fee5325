"""Progress of a run on stderr: bars on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.model.views import WaitReason
from shoal.model.worker import WorkerView
from shoal.observe.failures import FailureCount, read_failures
from shoal.observe.meter import Meter, Reading
from shoal.observe.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0
MIN_GATES_SECONDS = 1.0
MAX_FAILURES_SHOWN = 2_000
# Reading the gates takes at most this share of the time.
MAX_GATES_SHARE = 0.05


FailureSource: TypeAlias = Callable[[Snapshot], Awaitable[tuple[FailureCount, ...]]]


class ProgressDisplay(Protocol):
    """Shows the progress of a run."""

    def update(self, reading: Reading) -> None:
        """Show the current reading."""

    def print_line(self, text: str) -> None:
        """Print one line, on a terminal above the bars. May be called from any thread."""


class TerminalDisplay(ProgressDisplay, Protocol):
    """A display on stderr, which has room for a note, and can make way for a debugger."""

    def show_note(self, text: str) -> None:
        """Show this line with the readings from now on."""

    def suspend(self) -> None:
        """Give the terminal back until `resume`. Calls may be nested, from any thread."""

    def resume(self) -> None:
        """Continue."""


class LineDisplay:
    """Prints the first reading, then one every ten seconds, and the last one."""

    def __init__(self, print_line: Callable[[str], None], *, every: float = LINE_SECONDS) -> None:
        self._print_line = print_line
        self._every = every
        self._next_at = 0.0
        self._last = ""
        self._note = ""

    def show_note(self, text: str) -> None:
        self._note = text

    def update(self, reading: Reading) -> None:
        now = time.monotonic()
        if now < self._next_at and not (reading.ended and reading.line != self._last):
            return
        self._next_at, self._last = now + self._every, reading.line
        self._print_line(redacted(reading.line))
        if self._note:
            self._print_line(redacted(self._note))

    def print_line(self, text: str) -> None:
        self._print_line(text)

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


class NullDisplay:
    """Shows nothing (`-q`)."""

    def update(self, reading: Reading) -> None: ...

    def show_note(self, text: str) -> None: ...

    def print_line(self, text: str) -> None: ...

    def suspend(self) -> None: ...

    def resume(self) -> None: ...


@contextmanager
def open_display(print_line: Callable[[str], None], *, quiet: bool, title: str) -> Iterator[TerminalDisplay]:
    """Open the display that suits stderr. `print_line` prints a line there when it is not a terminal."""
    if quiet:
        yield NullDisplay()
    elif (console := _terminal()) is None:
        yield LineDisplay(print_line)
    else:
        from shoal.observe.screen import open_screen

        with open_screen(console, title) as screen:
            yield screen


async def follow_run(
    ledger: Ledger,
    run_id: str,
    display: ProgressDisplay,
    *,
    every: float = 0.5,
    failures: FailureSource | None = None,
) -> Snapshot:
    """Show the run until it ends, and return its last snapshot. `failures` says why attempts failed, to be shown too.

    Reports an outage of the ledger once and polls until it is over. Raises NotFound when the run is removed.
    """
    meter, gate_cache, ledger_is_down = Meter(), GateCache(ledger, run_id), False
    while True:
        try:
            snapshot = await take_snapshot(ledger, run_id, gates=await gate_cache.gates())
        except LedgerError as error:
            if not ledger_is_down:
                display.print_line(f"{redacted(error.message)} Retrying until the ledger answers.")
            ledger_is_down = True
        else:
            if ledger_is_down:
                display.print_line("The ledger answers again.")
            ledger_is_down = False
            if snapshot.ended:
                # The cached gates describe the run before its end.
                snapshot = await take_snapshot(ledger, run_id)
            reading = meter.read(snapshot, time.monotonic())
            if failures is not None:
                reading = msgspec.structs.replace(reading, failures=await failures(snapshot))
            display.update(reading)
            if snapshot.ended:
                return snapshot
        await asyncio.sleep(every)


class LedgerFailures:
    """The dead items of a run by their errors, for those who do not work on it themselves.

    They are read again when more items have died, but only as often as MAX_GATES_SHARE allows.
    """

    def __init__(self, ledger: Ledger, run_id: str) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._read: tuple[FailureCount, ...] = ()
        self._dead = 0
        self._next_at = 0.0

    async def __call__(self, snapshot: Snapshot) -> tuple[FailureCount, ...]:
        started_at = time.monotonic()
        if snapshot.counts.dead != self._dead and started_at >= self._next_at:
            self._dead = snapshot.counts.dead
            self._read = (await read_failures(self._ledger, self._run_id, limit=MAX_FAILURES_SHOWN)).counts()
            ended_at = time.monotonic()
            self._next_at = ended_at + max(MIN_GATES_SECONDS, (ended_at - started_at) / MAX_GATES_SHARE)
        return self._read


class GateCache:
    """The gates of a run, read again only as often as MAX_GATES_SHARE allows."""

    def __init__(
        self, ledger: Ledger, run_id: str, *, workers: Callable[[], Awaitable[Sequence[WorkerView]]] | None = None
    ) -> None:
        """`workers` returns the present workers, when the caller knows them already."""
        self._ledger = ledger
        self._run_id = run_id
        self._workers = workers
        self._gates: Sequence[WaitReason] = ()
        self._next_at = 0.0

    async def gates(self) -> Sequence[WaitReason]:
        started_at = time.monotonic()
        if started_at >= self._next_at:
            workers = None if self._workers is None else await self._workers()
            self._gates = await self._ledger.reads.why_run(self._run_id, workers=workers)
            ended_at = time.monotonic()
            self._next_at = ended_at + max(MIN_GATES_SECONDS, (ended_at - started_at) / MAX_GATES_SHARE)
        return self._gates


def _terminal() -> Console | None:
    """stderr as a terminal that can redraw, else None. rich is imported for terminals only."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None
