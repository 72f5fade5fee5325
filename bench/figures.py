"""What a benchmark hands back: figures with their samples, targets with a verdict, and what to draw."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Of what is sampled batch by batch, the first few show enough.
MOST_SAMPLES = 30


@dataclass(frozen=True)
class Figure:
    """One measured quantity. The value is the median of its samples."""

    name: str
    unit: str
    samples: tuple[float, ...]

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """How far apart the samples lie, relative to the median: below 0.1 is quiet, above 0.5 is a guess.

        Of a few rounds it is the whole range, of many short turns the middle half.
        """
        low, high = min(self.samples), max(self.samples)
        if len(self.samples) >= 8:
            low, _, high = statistics.quantiles(self.samples, n=4)
        return (high - low) / self.value if self.value else 0.0


@dataclass(frozen=True)
class Target:
    """A ratio with a bound. `at_least`: more is better; otherwise the bound must not be passed."""

    claim: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def hit(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def wanted(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass(frozen=True)
class Bars:
    title: str
    unit: str
    values: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Lines:
    title: str
    x_label: str
    y_label: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    log_x: bool = False


@dataclass
class Report:
    name: str
    question: str
    sizes: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plots: list[Bars | Lines] = field(default_factory=list)

    def add(self, name: str, unit: str, samples: Sequence[float]) -> Figure:
        figure = Figure(name, unit, tuple(samples))
        self.figures.append(figure)
        return figure

    def target(self, claim: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        if at_least is not None:
            self.targets.append(Target(claim, value, at_least))
        if at_most is not None:
            self.targets.append(Target(claim, value, at_most, at_least=False))

    def bars(self, title: str, unit: str) -> None:
        """Draw all figures of one unit side by side."""
        values = tuple((figure.name, figure.value) for figure in self.figures if figure.unit == unit)
        self.plots.append(Bars(title, unit, values))

    def as_json(self, machine: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": self.name,
            "question": self.question,
            "sizes": self.sizes,
            "targets": [
                {"claim": t.claim, "value": round(t.value, 4), "wanted": t.wanted, "hit": t.hit} for t in self.targets
            ],
            "figures": [
                {
                    "name": f.name,
                    "unit": f.unit,
                    "median": round(f.value, 4),
                    "spread": round(f.spread, 3),
                    "count": len(f.samples),
                    "samples": [round(sample, 4) for sample in f.samples[:MOST_SAMPLES]],
                }
                for f in self.figures
            ],
            "notes": self.notes,
            "machine": machine,
        }


def percentile(samples: Sequence[float], percent: float) -> float:
    """The sample below which so many percent of them lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
