"""Text for durations, percentages, counts, times and rates."""

from __future__ import annotations

import datetime as dt
import math

from shoal.model.views import Counts

MINUTE, HOUR, DAY = 60, 3_600, 86_400


def format_duration(seconds: float) -> str:
    """`0.4s`, `45s`, `12m`, `3h40`, `2d4h`: at most two units, rounded."""
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    if whole < 2 * MINUTE:
        return f"{whole}s"
    minutes = round(whole / MINUTE)
    if minutes < MINUTE:
        return f"{minutes}m"
    if whole < 2 * DAY:
        return f"{minutes // MINUTE}h{minutes % MINUTE:02d}"
    hours = round(whole / HOUR)
    return f"{hours // 24}d{hours % 24}h"


def format_latency(seconds: float | None) -> str:
    """`0.4ms`, `12ms`, `850ms`, then as `format_duration`; `-` for None."""
    if seconds is None:
        return "-"
    milliseconds = seconds * 1_000
    if milliseconds < 9.95:
        return f"{milliseconds:.1f}".removesuffix(".0") + "ms"
    return f"{milliseconds:.0f}ms" if milliseconds < 999.5 else format_duration(seconds)


def format_percent(share: float) -> str:
    """A whole percentage, rounded down: 0% means none and 100% means all."""
    if 0 < share < 0.01:
        return "<1%"
    return f"{math.floor(share * 100 + 1e-9)}%"


def format_ends(done: int, dead: int, skipped: int, cancelled: int = 0) -> str:
    """`12 done, 3 dead, 2 skipped, 4 cancelled`; the last two are named only where there are some."""
    more = (("skipped", skipped), ("cancelled", cancelled))
    return f"{done} done, {dead} dead" + "".join(f", {number} {end}" for end, number in more if number)


def pluralize(number: int | str, noun: str, plural: str | None = None) -> str:
    """`1 item`, `2 items`, `10000 or more items`; `plural` for nouns such as `retry`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def format_time(time: dt.datetime | None) -> str:
    """A time in UTC, to the second; empty for None."""
    return "" if time is None else time.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def format_rate(rate: float | None, *, thousands: str = "") -> str:
    """`312/min`, `4.2/min`; `-/min` for an unknown rate. `thousands` separates groups of digits."""
    if rate is None:
        return "-/min"
    return f"{rate:.1f}/min" if 0 < rate < 9.95 else f"{rate:,.0f}/min".replace(",", thousands)


def printable(text: str) -> str:
    """Replace control characters: keys and errors contain data of sites and must not control the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def keyed_records_text(counts: Counts) -> str:
    """`120 new, 10 changed, 4 unchanged, 3 duplicates dropped`; empty without records that have a key."""
    figures = (
        (counts.new_records, "new"),
        (counts.changed_records, "changed"),
        (counts.unchanged_records, "unchanged"),
        (counts.dropped_records, "duplicate dropped" if counts.dropped_records == 1 else "duplicates dropped"),
    )
    return ", ".join(f"{number:,} {what}" for number, what in figures if number)
