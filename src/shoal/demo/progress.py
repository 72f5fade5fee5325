"""How the demo looks while it runs: bars on a terminal, plain lines anywhere else. All of it goes to stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from shoal.demo.story import Moment, Watcher
from shoal.model.views import Counts, Gate

LINE_SECONDS = 0.5
# These say that all is well; the others say what the run is held back by.
_HARMLESS = {"leased", "ready", "waiting"}


class Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._next_at = 0.0

    def look(self, moment: Moment) -> None:
        if time.monotonic() < self._next_at and moment.counts.remaining:
            return
        self._next_at = time.monotonic() + LINE_SECONDS
        counts = moment.counts
        ended = counts.total - counts.remaining
        share = 100 * ended // max(1, counts.total)
        self._say(f"ended {ended}/{counts.total} {share}% {states_text(counts)}; {blocker_text(moment.gates)}")

    def tell(self, text: str) -> None:
        self._say(text)


class Screen:
    """A bar for the whole, one for each partition, and a line saying what holds it back."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._bars = Progress(
            TextColumn("{task.description:<8}", style="bold"),
            BarColumn(bar_width=32),
            TextColumn("{task.completed:>3.0f}/{task.total:<3.0f}"),
            TextColumn("{task.fields[states]}", style="dim"),
            console=live.console,
        )
        self._tasks: dict[str, TaskID] = {}

    def look(self, moment: Moment) -> None:
        self._bar("all", moment.counts)
        by_partition: dict[str, list[Counts]] = {}
        for progress in moment.partitions:
            by_partition.setdefault(progress.partition, []).append(progress.counts)
        for partition, counts in sorted(by_partition.items()):
            self._bar(partition, added(counts))
        blocker = Text(blocker_text(moment.gates), style="yellow", no_wrap=True, overflow="ellipsis")
        self._live.update(Group(self._bars, blocker))

    def tell(self, text: str) -> None:
        self._live.console.print(text, highlight=False)

    def _bar(self, name: str, counts: Counts) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, states="")
        self._bars.update(
            self._tasks[name],
            total=counts.total,
            completed=counts.total - counts.remaining,
            states=states_text(counts),
        )


class Silence:
    """For `-q`."""

    def look(self, moment: Moment) -> None: ...

    def tell(self, text: str) -> None: ...


@contextmanager
def watching(say: Callable[[str], None], *, quiet: bool) -> Iterator[Watcher]:
    """The right kind of watcher for where stderr goes."""
    console = Console(stderr=True)
    if quiet:
        yield Silence()
    elif console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, refresh_per_second=12, transient=True) as live:
            yield Screen(live)
    else:
        yield Lines(say)


def states_text(counts: Counts) -> str:
    """The states that have items, in the order an item goes through them."""
    named = ("ready", "waiting", "delayed", "leased", "done", "dead")
    return " ".join(f"{name} {count}" for name in named if (count := getattr(counts, name)))


def blocker_text(gates: Sequence[Gate]) -> str:
    """What holds the run back most."""
    return next((gate.text for gate in gates if gate.code not in _HARMLESS), "nothing holds it back")


def added(many: Sequence[Counts]) -> Counts:
    return Counts(**{name: sum(getattr(one, name) for one in many) for name in Counts.__struct_fields__})
