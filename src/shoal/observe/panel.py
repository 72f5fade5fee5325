"""The lines of the live panel, laid out for a width: bars shrink first, then names; numbers are never cut.

Colours are few: red is for errors, and what matters less is dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len
from rich.text import Text

from shoal.model.redaction import redacted
from shoal.model.views import Counts
from shoal.observe.egress import egress_line
from shoal.observe.failures import FailureCount
from shoal.observe.formatting import format_percent, format_rate, printable
from shoal.observe.meter import Reading

MAX_BAR, MIN_BAR = 40, 6
MAX_NAME, MIN_NAME = 48, 6
MAX_FAILURES = 4
MAX_WAITING_LINES = 3
GAP, INDENT = "  ", "  "
_OTHER_ENDS = ("skipped", "cancelled")


class BarStyle(msgspec.Struct, frozen=True):
    """The characters of a bar: done, dead, otherwise ended, still to do. Without colours they differ."""

    done: str = "━"
    dead: str = "━"
    other: str = "━"
    rest: str = "─"


PLAIN_BAR = BarStyle(done="━", dead="x", other="·", rest="─")
ASCII_BAR = BarStyle(done="#", dead="x", other=".", rest="-")


class PanelPart(msgspec.Struct, frozen=True):
    """A row: a stage or a partition, or with `is_run` the whole run."""

    name: str
    counts: Counts
    is_run: bool = False


def panel_lines(
    title: str,
    reading: Reading,
    parts: Sequence[PanelPart],
    width: int,
    *,
    hidden_parts: int = 0,
    note: str = "",
    bar: BarStyle,
) -> list[Text]:
    """All lines of the panel, none of them wider than `width`. `hidden_parts`: how many parts are not among `parts`."""
    run = PanelPart(title, reading.snapshot.counts, is_run=True)
    lines = _rows([run, *parts], width, shows_share=not reading.total_grows, style=bar)
    if hidden_parts > 0:
        lines.append(Text(f"{INDENT}and {hidden_parts:,} more", style="dim"))
    lines += _join(_figures(reading), width)
    if not reading.ended:
        lines += _waiting_lines(reading, width)
    if reading.snapshot.egress:
        words = [Text(word) for word in f"egress {egress_line(reading.snapshot.egress)}".split(" ")]
        lines += _join(words, width, mark="")
    if note:
        words = [Text(word, style="dim") for word in printable(redacted(note)).split(" ")]
        lines += _join(words, width, mark="")
    lines += [_failure_line(failure, width) for failure in reading.failures[:MAX_FAILURES]]
    if (more := len(reading.failures) - MAX_FAILURES) > 0:
        lines.append(Text(f"and {more:,} more kinds of failure" if more > 1 else "and 1 more kind of failure", "dim"))
    return lines


def _rows(parts: Sequence[PanelPart], width: int, *, shows_share: bool, style: BarStyle) -> list[Text]:
    """One row per part in columns: name, bar, done of total, share, states."""
    names = [printable(part.name) if part.is_run else INDENT + printable(part.name) for part in parts]
    numbers = [f"{part.counts.done:,}/{part.counts.total:,}" for part in parts]
    shares = [format_percent(part.counts.done / max(1, part.counts.total)) if shows_share else "" for part in parts]
    states = [[] if part.is_run else _states(part.counts) for part in parts]
    columns = [max(map(len, numbers)), max(map(len, shares))]
    fixed = sum(len(GAP) + column for column in columns if column)
    states_width = max(len(", ".join(state.plain for state in row)) for row in states)
    if states_width and fixed + len(GAP) + states_width + MIN_NAME > width:
        states_width = 0  # they go to lines of their own
    if fixed + MIN_NAME > width:
        columns[1], fixed = 0, len(GAP) + columns[0]
    if states_width:
        fixed += len(GAP) + states_width
    name_width = min(max(map(cell_len, names)), MAX_NAME)
    bar_width = min(MAX_BAR, width - fixed - name_width - len(GAP))
    if bar_width < MIN_BAR:
        bar_width, name_width = 0, max(1, min(name_width, width - fixed))
    lines = []
    for part, name, number, share, state in zip(parts, names, numbers, shares, states, strict=True):
        line = Text(no_wrap=True, overflow="crop")
        label = Text(name, style="bold" if part.is_run else "")
        label.truncate(name_width, overflow="ellipsis", pad=True)
        line.append_text(label)
        if bar_width:
            line.append(GAP).append_text(draw_bar(part.counts, bar_width, style))
        line.append(GAP + number.rjust(columns[0]))
        if columns[1]:
            line.append(GAP + share.rjust(columns[1]))
        if states_width and state:
            line.append(GAP).append_text(Text(", ", style="dim").join(state))
        line.rstrip()
        lines.append(line)
        if state and not states_width:
            lines += _join(state, width, indent=INDENT * 2)
    return lines


def draw_bar(counts: Counts, width: int, style: BarStyle) -> Text:
    """A bar of done, dead, otherwise ended and open items; what exists has at least one cell."""
    ended = counts.total - counts.remaining
    groups = [
        (counts.done, style.done, "cyan"),
        (counts.dead, style.dead, "red"),
        (ended - counts.done - counts.dead, style.other, "dim"),
        (counts.remaining, style.rest, "dim"),
    ]
    cells = _share_out([count for count, _, _ in groups], width) if counts.total else [0, 0, 0, width]
    bar = Text()
    for number, (_, character, colour) in zip(cells, groups, strict=True):
        bar.append(character * number, style=colour)
    return bar


def _share_out(counts: Sequence[int], width: int) -> list[int]:
    """Whole cells in proportion to the counts; each count but 0 gets one, and the largest takes what is left."""
    total = sum(counts)
    cells = [count and max(1, count * width // total) for count in counts]
    cells[max(range(len(counts)), key=lambda n: counts[n])] += width - sum(cells)
    return cells


def _figures(reading: Reading) -> list[Text]:
    """What the rows do not say: the growing total, rate, success, dead and open items, and the expected end."""
    counts = reading.snapshot.counts
    figures: list[Text] = []
    if reading.total_grows:
        figures += [Text(f"{reading.done:,} done of {reading.total:,} found"), Text("still growing")]
    figures.append(Text(format_rate(reading.rate, thousands=",")))
    if reading.ok is not None:
        figures.append(Text(f"{format_percent(reading.ok)} ok"))
    if reading.dead:
        figures.append(Text(f"{reading.dead:,} dead", style="red"))
    figures += [Text(f"{count:,} {name}") for name in _OTHER_ENDS if (count := getattr(counts, name))]
    figures.append(Text(f"{counts.remaining:,} left"))
    if counts.leased:
        figures.append(Text(f"{counts.leased:,} leased"))
    if reading.ended:
        figures.append(Text(str(reading.snapshot.run.state)))
    elif reading.eta is not None:
        figures.append(Text(f"eta {reading.eta_text}"))
    return figures


def _waiting_lines(reading: Reading, width: int) -> list[Text]:
    text = f"waiting: {reading.waiting_for}"
    if reading.bottleneck.text:
        text += f". {reading.bottleneck.text}"
    words = [Text(word) for word in printable(redacted(text)).split(" ")]
    lines = _join(words, width, mark="")
    if len(lines) > MAX_WAITING_LINES:
        lines = lines[:MAX_WAITING_LINES]
        lines[-1].append("…") if lines[-1].cell_len < width else lines[-1].truncate(width, overflow="ellipsis")
    for line in lines:
        line.stylize("yellow" if reading.bottleneck.blocks_run else "dim")
    return lines


def _failure_line(failure: FailureCount, width: int) -> Text:
    """`500 Internal Server Error x 25, last: /p/16`: the item is shortened first, then the error."""
    error, count = printable(redacted(failure.error)) or failure.outcome, f" {failure.count_text}"
    label = ", last: "
    room = width - cell_len(error) - len(count) - len(label)
    last = redacted(failure.last_text)
    if room < MIN_NAME:
        last, label, room = "", "", 0
    elif cell_len(last) > room:
        while cell_len(last) > room - 1:
            last = last[1:]
        last = f"…{last}"
    shown = Text(error)
    shown.truncate(max(1, width - len(count) - len(label) - cell_len(last)), overflow="ellipsis")
    return Text.assemble((shown.plain, "red"), (count, "red"), (label + last, "dim"), no_wrap=True, overflow="crop")


def _states(counts: Counts) -> list[Text]:
    """How many items are worked on, and how many are dead."""
    leased = [Text(f"{counts.leased:,} leased", style="dim")] if counts.leased else []
    return [*leased, Text(f"{counts.dead:,} dead", style="red")] if counts.dead else leased


def _join(pieces: Sequence[Text], width: int, *, mark: str = ",", indent: str = "") -> list[Text]:
    """Pieces one after another, with a mark after each but the last, on as many lines as they need."""
    lines: list[Text] = []
    for number, piece in enumerate(pieces, 1):
        piece.truncate(width - len(indent) - len(mark), overflow="ellipsis")
        if number < len(pieces):
            piece.append(mark)
        if lines and lines[-1].cell_len + 1 + piece.cell_len <= width:
            lines[-1].append(" ").append_text(piece)
        else:
            lines.append(Text(indent, no_wrap=True, overflow="crop").append_text(piece))
    return lines
