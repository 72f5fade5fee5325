"""What ended within the last minute, and how."""

from __future__ import annotations

from collections import deque

import msgspec

SECONDS = 60.0


class Ends(msgspec.Struct, frozen=True):
    """Attempts that ended, those among them that failed, and those that the site asked to wait."""

    all: int = 0
    failed: int = 0
    throttled: int = 0


class Window:
    """Fed with counts that grow, it knows what came within the last minute.

    Counts may also drop, when whoever keeps them forgets old ones; what came at that moment is left out.
    """

    def __init__(self) -> None:
        self._before: Ends | None = None
        self._steps: deque[tuple[float, Ends]] = deque()

    def add(self, at: float, ends: Ends) -> None:
        before, self._before = self._before or ends, ends
        step = Ends(ends.all - before.all, ends.failed - before.failed, ends.throttled - before.throttled)
        if min(step.all, step.failed, step.throttled) >= 0 and step.all:
            self._steps.append((at, step))
        while self._steps and self._steps[0][0] < at - SECONDS:
            self._steps.popleft()

    def forget(self) -> None:
        """From now on only what is yet to come counts."""
        self._steps.clear()

    @property
    def total(self) -> Ends:
        steps = [step for _, step in self._steps]
        return Ends(
            sum(step.all for step in steps), sum(step.failed for step in steps), sum(step.throttled for step in steps)
        )
