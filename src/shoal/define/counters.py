"""Counters of an author: what a handler counts, by name, stored with its attempt and summed up for the run."""

from __future__ import annotations

import re

from shoal.errors import InvalidRecord

MAX_COUNTERS = 50
# What a scraper counts whose runs store only what is new: the summary of a collection reads these names.
NEW, KNOWN, LEFT_OUT = "new", "known", "left_out"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class Counters:
    """What one attempt counts; a handler asks for it with a parameter `counters: Counters`.

    `counters.add("accepted", 12)`. The numbers are stored with the item's completion, so an attempt that fails counts
    nothing, and one that is repeated counts once. An attempt may use 50 names.
    """

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, int] = {}

    def add(self, name: str, number: int = 1) -> None:
        """Add to a counter. Raises InvalidRecord for a name or a number that cannot be stored."""
        if not _NAME.fullmatch(name):
            raise InvalidRecord(
                f"{name!r} is not the name of a counter.", remedy="Use letters, digits and _, at most 64 of them."
            )
        if type(number) is not int or not 0 <= number < 1 << 53:
            raise InvalidRecord(f"{number!r} cannot be added to {name}.", remedy="Count with whole numbers from 0 on.")
        if name not in self.values and len(self.values) >= MAX_COUNTERS:
            raise InvalidRecord(f"There are more than {MAX_COUNTERS} counters.", remedy="Count fewer different things.")
        self.values[name] = self.values.get(name, 0) + number

    def __repr__(self) -> str:
        return f"Counters({self.values})"
