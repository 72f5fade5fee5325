"""How a run looks while it goes: bars on a terminal, a plain line now and then anywhere else. All of it on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.model.views import WaitReason
from shoal.observe.meter import Meter, Reading
from shoal.observe.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0
GATES_SECONDS = 1.0
# Of the time that passes, at most this part goes into asking the ledger why.
GATES_SHARE = 0.05


class ProgressDisplay(Protocol):
    """Where a run is shown."""

    def update(self, reading: Reading) -> None:
        """Show how the run stands now."""

    def print_line(self, text: str) -> None:
        """Say one line; on a terminal it stands above the bars. May be called from any thread."""


class LineDisplay:
    """For logs and pipes: the first reading, then one every ten seconds, and the last."""

    def __init__(self, note: Callable[[str], None], *, every: float = LINE_SECONDS) -> None:
        self._note = note
        self._every = every
        self._next_at = 0.0
        self._last = ""

    def update(self, reading: Reading) -> None:
        now = time.monotonic()
        if now < self._next_at and not (reading.ended and reading.line != self._last):
            return
        self._next_at, self._last = now + self._every, reading.line
        self._note(redacted(reading.line))

    def print_line(self, text: str) -> None:
        self._note(text)


class NullDisplay:
    """For `-q`."""

    def update(self, reading: Reading) -> None: ...

    def print_line(self, text: str) -> None: ...


@contextmanager
def open_display(note: Callable[[str], None], *, quiet: bool, title: str) -> Iterator[ProgressDisplay]:
    """The right kind of show for where stderr goes. `note` says a plain line there; `title` names what is shown."""
    if quiet:
        yield NullDisplay()
    elif (console := _terminal()) is None:
        yield LineDisplay(note)
    else:
        from shoal.observe.screen import open_screen

        with open_screen(console, title) as screen:
            yield screen


async def follow_run(ledger: Ledger, run_id: str, display: ProgressDisplay, *, every: float = 0.5) -> Snapshot:
    """Show the run until it has ended, and return its last moment.

    An outage of the ledger is told once and waited out. Raises NotFound when the run is removed meanwhile.
    """
    meter, gate_cache, ledger_is_down = Meter(), _GateCache(ledger, run_id), False
    while True:
        try:
            snapshot = await take_snapshot(ledger, run_id, gates=await gate_cache.gates())
        except LedgerError as error:
            if not ledger_is_down:
                display.print_line(f"{redacted(error.message)} Looking again until it answers.")
            ledger_is_down = True
        else:
            if ledger_is_down:
                display.print_line("The ledger answers again.")
            ledger_is_down = False
            if snapshot.ended:
                # What held it back a second ago is no longer true.
                snapshot = await take_snapshot(ledger, run_id)
            display.update(meter.read(snapshot, time.monotonic()))
            if snapshot.ended:
                return snapshot
        await asyncio.sleep(every)


class _GateCache:
    """What holds the run back, asked anew only as often as it is cheap."""

    def __init__(self, ledger: Ledger, run_id: str) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._gates: Sequence[WaitReason] = ()
        self._next_at = 0.0

    async def gates(self) -> Sequence[WaitReason]:
        asked = time.monotonic()
        if asked >= self._next_at:
            self._gates = await self._ledger.reads.why_run(self._run_id)
            answered = time.monotonic()
            self._next_at = answered + max(GATES_SECONDS, (answered - asked) / GATES_SHARE)
        return self._gates


def _terminal() -> Console | None:
    """stderr as a terminal that can redraw, or None. Pipes do not pay for importing rich."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None
