"""All targets of all stored results on one page, hits and misses alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Of more figures with one unit than this, so many are shown.
MANY_FIGURES, HIGHEST_SHOWN = 100, 20
HEAD = """# Results

Written by `python -m bench` from the JSON files beside it; `bench/README.md` says what is compared and how to read it.
Ratios are from contenders taking turns in one run; absolute figures are those of two shared cores.

"""


def write_summary(out: Path) -> None:
    found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    # The report of `make chaos` is beside them and has a page of its own.
    reports = [report for report in found if "targets" in report]
    page = HEAD + _targets(reports) + "".join(_figures(report, out) for report in reports)
    (out / "README.md").write_text(page)


def _targets(reports: list[dict[str, Any]]) -> str:
    lines = ["| benchmark | claim | value | wanted | |", "|---|---|---|---|---|"]
    for report in reports:
        for target in report["targets"]:
            verdict = "hit" if target["hit"] else "**MISS**"
            lines.append(
                f"| {report['name']} | {target['claim']} | {target['value']:.2f} | {target['wanted']} | {verdict} |"
            )
    return "\n".join(lines) + "\n"


def _shown(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All, but of very many with the same unit the highest ones: the file beside this page has the others."""
    by_unit: dict[str, list[float]] = {}
    for figure in figures:
        by_unit.setdefault(figure["unit"], []).append(figure["median"])
    least = {unit: sorted(medians)[-HIGHEST_SHOWN] for unit, medians in by_unit.items() if len(medians) > MANY_FIGURES}
    return [figure for figure in figures if figure["median"] >= least.get(figure["unit"], figure["median"])]


def _figures(report: dict[str, Any], out: Path) -> str:
    name = report["name"]
    plots = [f"![{name}]({path.name})" for path in sorted(out.glob(f"{name}*.svg"))]
    lines = [
        "",
        f"## {name}",
        "",
        report["question"],
        "",
        *plots,
        "",
        "| what | median | spread | unit |",
        "|---|---|---|---|",
    ]
    for figure in _shown(report["figures"]):
        value = f"{figure['median']:,.0f}" if figure["median"] >= 1000 else f"{figure['median']:.3g}"
        lines.append(f"| {figure['name']} | {value} | {figure['spread']:.0%} | {figure['unit']} |")
    return "\n".join(lines) + "\n"
