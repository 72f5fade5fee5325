"""The live display on a terminal: redraws the panel, prints lines above it, and makes way for a debugger."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from shoal.model.redaction import redacted
from shoal.model.views import Counts, sum_counts
from shoal.observe.formatting import printable
from shoal.observe.meter import Reading
from shoal.observe.panel import ASCII_BAR, PLAIN_BAR, BarStyle, PanelPart, panel_lines
from shoal.observe.snapshot import Snapshot

MAX_PARTS = 5
# Lines besides the parts; a panel that is higher than the terminal cannot be redrawn.
OTHER_LINES = 12


class Screen:
    """Redraws the panel at every update; printed lines scroll above it."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._shown: list[str] = []
        self._note = ""
        self._bar = _bar_style(console)
        self._lock = threading.RLock()
        self._suspended = 0
        self._live = self._start()

    def show_note(self, text: str) -> None:
        self._note = text

    def update(self, reading: Reading) -> None:
        console = self._console
        parts, hidden = self._busiest(reading.snapshot, max(0, min(MAX_PARTS, console.height - OTHER_LINES)))
        lines = panel_lines(
            self._title, reading, parts, console.width, hidden_parts=hidden, note=self._note, bar=self._bar
        )
        with self._lock:
            if not self._suspended:
                self._live.update(Group(*lines[: console.height - 1]), refresh=True)

    def print_line(self, text: str) -> None:
        for line in redacted(text).splitlines():
            self._console.print(Text(printable(line)), soft_wrap=True)

    def suspend(self) -> None:
        """Erase the panel and give the terminal and its streams back, until `resume`. Calls may be nested."""
        with self._lock:
            self._suspended += 1
            if self._suspended == 1:
                self._live.stop()

    def resume(self) -> None:
        with self._lock:
            self._suspended -= 1
            if self._suspended == 0:
                self._live = self._start()

    def close(self) -> None:
        with self._lock:
            self._suspended += 1
            self._live.stop()

    def _start(self) -> Live:
        """A new one each time: one that is started again would erase what was printed meanwhile."""
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # data for a file or a pipe must not go to the terminal
        )
        live.start()
        return live

    def _busiest(self, snapshot: Snapshot, most: int) -> tuple[list[PanelPart], int]:
        """The parts with most remaining items, and how many others there are.

        A part keeps its place until it ends, so that bars do not jump.
        """
        parts = _parts(snapshot)
        if len(parts) < 2:
            return [], 0
        kept = [name for name in self._shown if name in parts and parts[name].remaining]
        rest = sorted((name for name in parts if name not in kept), key=lambda name: -parts[name].remaining)
        self._shown = [*kept, *rest][:most]
        shown = [PanelPart(name, parts[name]) for name in parts if name in self._shown]
        return shown, len(parts) - len(shown)


@contextmanager
def open_screen(console: Console, title: str) -> Iterator[Screen]:
    """Show the display inside the block and erase it at the end. Prints to stderr appear above it."""
    screen = Screen(console, title)
    try:
        yield screen
    finally:
        screen.close()


def _bar_style(console: Console) -> BarStyle:
    if not (console.encoding or "").lower().startswith("utf"):
        return ASCII_BAR
    return PLAIN_BAR if console.no_color or console.color_system is None else BarStyle()


def _parts(snapshot: Snapshot) -> dict[str, Counts]:
    """Counts by partition, by stage, or by both, depending on which of them the run has several of."""
    if len({part.partition for part in snapshot.partitions}) < 2:
        return {stage: counts for stage, counts in snapshot.stages.items() if counts.total}
    several_stages = len({part.stage for part in snapshot.partitions}) > 1
    parts: dict[str, Counts] = {}
    for part in snapshot.partitions:
        name = f"{part.stage} {part.partition or '-'}" if several_stages else part.partition or "-"
        parts[name] = sum_counts([parts[name], part.counts]) if name in parts else part.counts
    return parts
