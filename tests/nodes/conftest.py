"""The data centre of these tests, once per test process, and the table of recovery times at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import LONG, MissingPartError, missing
from tests.support.node_lab import Fleet, Lab

_RECOVERY = "recovery"
_SEEN: list[tuple[str, float, float]] = []
Recovered = Callable[[str, float, float], None]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Nodes with a database, a site, and room for workers."""
    try:
        with Lab(fsync=LONG) as lab:
            yield lab
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def fleet(lab: Lab, tmp_path: Path) -> Iterator[Fleet]:
    """A project on every working node, with a ledger of its own; cables are mended afterwards."""
    with Fleet(lab, tmp_path) as fleet:
        yield fleet


@pytest.fixture
def recovered(record_property: Callable[[str, object], None]) -> Recovered:
    """Note how many seconds a recovery took, and demand that it was within the bound."""

    def note(what: str, seconds: float, bound: float) -> None:
        record_property(_RECOVERY, [what, seconds, bound])
        assert seconds <= bound, f"{what}: {seconds:.2f} s, more than {bound:g} s"

    return note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _SEEN.extend(tuple(value) for name, value in report.user_properties if name == _RECOVERY)  # type: ignore[arg-type, misc]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each kind of accident: how often, how long it took, what it may take."""
    if not _SEEN:
        return
    terminalreporter.section("recovery times, seconds")
    rows: dict[str, list[tuple[float, float]]] = {}
    for what, seconds, bound in _SEEN:
        rows.setdefault(what, []).append((seconds, bound))
    width = max(map(len, rows))
    terminalreporter.line(f"{'what happened':<{width}}  times   median  longest  bound")
    for what, times in sorted(rows.items()):
        taken = sorted(seconds for seconds, _ in times)
        bound = max(bound for _, bound in times)
        middle = taken[len(taken) // 2]
        terminalreporter.line(f"{what:<{width}}  {len(taken):>5}  {middle:>7.2f}  {taken[-1]:>7.2f}  {bound:>5.1f}")
