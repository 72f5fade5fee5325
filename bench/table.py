"""Reports as text: targets with their verdict first, then what they were computed from."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Report


def print_report(report: Report, seconds: float) -> None:
    print(f"\n== {report.name}: {report.question}  ({seconds:.0f} s)")
    for target in report.targets:
        print(f"  {'hit ' if target.hit else 'MISS'}  {target.value:9.2f}  wanted {target.wanted:<8}  {target.claim}")
    width = max((len(figure.name) for figure in report.figures), default=0)
    for figure in report.figures:
        spread = f"  (spread {figure.spread:.0%})" if len(figure.samples) > 1 else ""
        print(f"        {figure.name:<{width}}  {_number(figure.value):>12} {figure.unit}{spread}")
    for note in report.notes:
        print(f"        {note}")


def print_summary(reports: Sequence[Report]) -> None:
    targets = [(report.name, target) for report in reports for target in report.targets]
    missed = [(name, target) for name, target in targets if not target.hit]
    if targets:
        print(f"\n{len(targets) - len(missed)} of {len(targets)} targets hit")
    for name, target in missed:
        print(f"  MISS  {name}: {target.claim}: {target.value:.2f}, wanted {target.wanted}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
