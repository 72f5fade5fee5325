"""Side by side: every contender once per round, in another order each time, because the machine is never quiet."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping

Contender = Callable[[], float]


def alternate(contenders: Mapping[str, Contender], rounds: int) -> dict[str, list[float]]:
    """Measure all contenders `rounds` times. Odd rounds go backwards, so that nobody always runs after somebody."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        names = list(contenders)
        for name in reversed(names) if turn % 2 else names:
            gc.collect()
            samples[name].append(contenders[name]())
    return samples


def paired_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the rounds' ratios: what disturbed a round disturbed both sides of it."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    middle = len(ratios) // 2
    return ratios[middle] if len(ratios) % 2 else (ratios[middle - 1] + ratios[middle]) / 2
