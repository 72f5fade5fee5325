"""Events that operations emit while they work, for whoever shows or stores them.

An operation takes `on_event`, a function that gets each event as it happens; it must be quick and may be called from
any thread. Every event has a `text`, one sentence for a person; its fields are for programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from shoal.observe.doctor import Check
from shoal.observe.formatting import pluralize
from shoal.observe.meter import Reading


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened during an operation."""

    @property
    def text(self) -> str:
        """One sentence for a person; empty when there is nothing to say in words."""
        return ""


OnEvent: TypeAlias = Callable[[Event], None]


class Notice(Event, frozen=True, kw_only=True):
    """A sentence for the operator that needs no fields."""

    message: str

    @property
    def text(self) -> str:
        return self.message


class RunStarted(Event, frozen=True, kw_only=True):
    """A run begins, or is resumed with `remaining` open items."""

    run_id: str
    scraper: str
    resumed: bool = False
    remaining: int = 0

    @property
    def text(self) -> str:
        if not self.resumed:
            return f"Run {self.run_id} of {self.scraper} begins."
        left = f"{pluralize(self.remaining, 'item')} {'is' if self.remaining == 1 else 'are'} left"
        return f"Run {self.run_id} of {self.scraper} goes on: {left}. --fresh starts a new one."


class RunProgress(Event, frozen=True, kw_only=True):
    """How far a run is; emitted every half second while it is followed."""

    run_id: str
    reading: Reading


class RunEnded(Event, frozen=True, kw_only=True):
    """No more progress of this run follows; it has ended or work on it has stopped here."""

    run_id: str


class CheckFinished(Event, frozen=True, kw_only=True):
    """One check before the start passed or failed."""

    check: Check

    @property
    def text(self) -> str:
        return f"{self.check.name}: {self.check.text}"


def ignore(event: Event) -> None:
    """The `on_event` of a caller who wants no events."""
