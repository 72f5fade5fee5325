"""The live display on a terminal: a bar for the run, bars for its busiest parts, and the bottleneck."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.model.redaction import redacted
from shoal.model.views import Counts, sum_counts
from shoal.observe.formatting import format_percent, format_rate, printable
from shoal.observe.meter import Reading
from shoal.observe.snapshot import Snapshot

MAX_PARTS = 5
MAX_NAME_LENGTH = 24


class Screen:
    """Redraws the bars at every update; printed lines scroll above them."""

    def __init__(self, live: Live, title: str) -> None:
        self._live = live
        self._title = title
        self._shown: list[str] = []
        self._note = ""

    def show_note(self, text: str) -> None:
        self._note = text

    def update(self, reading: Reading) -> None:
        width = self._live.console.width
        bars = Table.grid(padding=(0, 1), expand=False)
        for column in range(4):
            bars.add_column(no_wrap=True, justify="right" if column == 2 else "left", overflow="ellipsis")
        bar_width = max(10, min(40, width // 3))
        ended = reading.total - reading.snapshot.counts.remaining
        _add_row(bars, Text(self._title, style="bold"), (ended, reading.total), bar_width, _status(reading))
        for name, counts in self._busiest(reading.snapshot):
            states = Text(_states(counts), style="dim")
            _add_row(bars, Text(printable(name)), (counts.total - counts.remaining, counts.total), bar_width, states)
        parts: list[RenderableType] = [bars, _bottleneck(reading)]
        if self._note:
            note = Text(printable(redacted(self._note)), style="dim")
            note.truncate(width, overflow="ellipsis")
            parts.append(note)
        self._live.update(Group(*parts), refresh=True)

    def print_line(self, text: str) -> None:
        for line in redacted(text).splitlines():
            self._live.console.print(Text(printable(line)), soft_wrap=True)

    def _busiest(self, snapshot: Snapshot) -> list[tuple[str, Counts]]:
        """The parts with most remaining items. A part keeps its place until it ends, so that bars do not jump."""
        parts = _parts(snapshot)
        if len(parts) < 2:
            return []
        kept = [name for name in self._shown if name in parts and parts[name].remaining]
        rest = sorted((name for name in parts if name not in kept), key=lambda name: -parts[name].remaining)
        self._shown = [*kept, *rest][:MAX_PARTS]
        return [(name, parts[name]) for name in parts if name in self._shown]


@contextmanager
def open_screen(console: Console, title: str) -> Iterator[Screen]:
    """Show the display inside the block and erase it at the end. Prints to stderr appear above it."""
    with Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # data for a file or a pipe must not go to the terminal
    ) as live:
        yield Screen(live, title)


def _add_row(table: Table, name: Text, progress: tuple[int, int], bar_width: int, status: Text) -> None:
    name.truncate(MAX_NAME_LENGTH, overflow="ellipsis")
    done, total = progress
    bar = ProgressBar(total=max(1, total), completed=done, width=bar_width)
    table.add_row(name, bar, Text(f"{done}/{total}"), status)


def _status(reading: Reading) -> Text:
    text = Text(f"{format_percent(reading.share)} ended {format_rate(reading.rate)}")
    if reading.ok is not None:
        text.append(f" ok {format_percent(reading.ok)}", style="green" if reading.ok >= 0.9 else "yellow")
    if reading.dead:
        text.append(f" dead {reading.dead}", style="red")
    if reading.skipped:
        text.append(f" skipped {reading.skipped}")
    text.append(f" eta {reading.eta_text}", style="cyan")
    return text


def _bottleneck(reading: Reading) -> Text:
    text = f"waiting: {reading.waiting_for}"
    if reading.bottleneck.text:
        text += f". {reading.bottleneck.text}"
    return Text(printable(redacted(text)), style="yellow", no_wrap=True, overflow="ellipsis")


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


def _states(counts: Counts) -> str:
    """Counts of the states that have items, in the order in which an item passes them."""
    named = ("ready", "waiting", "delayed", "leased", "dead", "skipped")
    return " ".join(f"{name} {count}" for name in named if (count := getattr(counts, name)))
