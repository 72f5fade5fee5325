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
from shoal.observe.snapshot import Moment, look

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 10.0
WHY_SECONDS = 1.0
# Of the time that passes, at most this part goes into asking the ledger why.
WHY_SHARE = 0.05


class Show(Protocol):
    """Where a run is shown."""

    def look(self, reading: Reading) -> None:
        """Show how the run stands now."""

    def tell(self, text: str) -> None:
        """Say one line; on a terminal it stands above the bars. May be called from any thread."""


class Lines:
    """For logs and pipes: the first reading, then one every ten seconds, and the last."""

    def __init__(self, note: Callable[[str], None], *, every: float = LINE_SECONDS) -> None:
        self._note = note
        self._every = every
        self._next_at = 0.0
        self._last = ""

    def look(self, reading: Reading) -> None:
        now = time.monotonic()
        if now < self._next_at and not (reading.ended and reading.line != self._last):
            return
        self._next_at, self._last = now + self._every, reading.line
        self._note(redacted(reading.line))

    def tell(self, text: str) -> None:
        self._note(text)


class Silence:
    """For `-q`."""

    def look(self, reading: Reading) -> None: ...

    def tell(self, text: str) -> None: ...


@contextmanager
def showing(note: Callable[[str], None], *, quiet: bool, title: str) -> Iterator[Show]:
    """The right kind of show for where stderr goes. `note` says a plain line there; `title` names what is shown."""
    if quiet:
        yield Silence()
    elif (console := _terminal()) is None:
        yield Lines(note)
    else:
        from shoal.observe.screen import on_screen

        with on_screen(console, title) as screen:
            yield screen


async def follow(ledger: Ledger, run_id: str, show: Show, *, every: float = 0.5) -> Moment:
    """Show the run until it has ended, and return its last moment.

    An outage of the ledger is told once and waited out. Raises NotFound when the run is removed meanwhile.
    """
    meter, why, troubled = Meter(), _Why(ledger, run_id), False
    while True:
        try:
            moment = await look(ledger, run_id, gates=await why.gates())
        except LedgerError as error:
            if not troubled:
                show.tell(f"{redacted(error.message)} Looking again until it answers.")
            troubled = True
        else:
            if troubled:
                show.tell("The ledger answers again.")
            troubled = False
            if moment.ended:
                # What held it back a second ago is no longer true.
                moment = await look(ledger, run_id)
            show.look(meter.read(moment, time.monotonic()))
            if moment.ended:
                return moment
        await asyncio.sleep(every)


class _Why:
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
            self._next_at = answered + max(WHY_SECONDS, (answered - asked) / WHY_SHARE)
        return self._gates


def _terminal() -> Console | None:
    """stderr as a terminal that can redraw, or None. Pipes do not pay for importing rich."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal and not console.is_dumb_terminal else None
