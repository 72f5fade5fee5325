"""SVG plots of a report."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from bench.figures import Bars, Lines, Report

matplotlib.use("svg")
from matplotlib import pyplot as plt

# No dates and no random ids in the files: the same figures give the same plot.
matplotlib.rcParams["svg.hashsalt"] = "shoal"


def draw(report: Report, folder: Path) -> None:
    for number, plot in enumerate(report.plots):
        suffix = "" if number == 0 else f"-{number + 1}"
        figure, axes = plt.subplots(figsize=(7, 0.5 + 0.4 * len(plot.values)) if isinstance(plot, Bars) else (7, 4))
        if isinstance(plot, Bars):
            _bars(axes, plot)
        else:
            _lines(axes, plot)
        axes.set_title(plot.title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        figure.savefig(folder / f"{report.name}{suffix}.svg", metadata={"Date": None})
        plt.close(figure)


def _bars(axes: plt.Axes, plot: Bars) -> None:
    names = [name for name, _ in plot.values]
    values = [value for _, value in plot.values]
    drawn = axes.barh(names, values, color=["#2a6f97" if name.startswith("shoal") else "#adb5bd" for name in names])
    axes.bar_label(drawn, [f"{value:,.0f}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(plot.unit)
    axes.margins(x=0.15)


def _lines(axes: plt.Axes, plot: Lines) -> None:
    for name, points in plot.series:
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
    if plot.log_x:
        axes.set_xscale("symlog")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.legend(frameon=False)
