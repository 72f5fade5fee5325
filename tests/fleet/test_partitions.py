"""Who gets which partitions: evenly, or as an assignment says, which is checked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.fleet.plan import (
    Workload,
    assign_evenly,
    check_all_assigned,
    plan_workers,
    read_assignment,
    resize_assignment,
)

STATES = [f"S{number:02d}" for number in range(51)]


def written(folder: Path, text: str, name: str = "states.txt") -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("workers", "sizes"), [(10, {5: 9, 6: 1}), (3, {17: 3}), (25, {2: 24, 3: 1}), (60, {1: 51, 0: 9})]
)
def test_any_number_of_workers_covers_51_partitions(workers: int, sizes: dict[int, int]) -> None:
    """S3.1, S3.2: every partition once, none left out, one more or less for each."""
    shares = assign_evenly(dict.fromkeys(STATES, 7), workers)
    assert sorted(name for share in shares for name in share) == STATES
    assert Counter(map(len, shares)) == sizes


def test_the_large_partitions_are_spread() -> None:
    shares = assign_evenly({"large": 100, "middle": 90, "small": 10, "tiny": 5}, 2)
    assert shares == (("large", "tiny"), ("middle", "small"))


def test_items_without_a_partition_are_shared() -> None:
    outlook = Workload(waiting={"": 11, "A": 4}, total=15)
    shares = assign_evenly(outlook.waiting, 2)
    assert shares == (("A",), ())
    assert [worker.waiting for worker in plan_workers(outlook, shares)] == [4 + 6, 5]


def test_the_eta_is_measured_or_unknown() -> None:
    """S3.9: what a worker has before it, at the speed of one worker."""
    shares = assign_evenly({"A": 30, "B": 10}, 2)
    assert [w.eta for w in plan_workers(Workload(waiting={"A": 30, "B": 10}, speed=20.0), shares)] == [90.0, 30.0]
    assert [w.eta for w in plan_workers(Workload(waiting={"A": 30, "B": 10}), shares)] == [None, None]


def test_an_assignment_in_lines_and_in_toml(tmp_path: Path) -> None:
    lines = written(tmp_path, "# west\n[1] NY, VT\n\n[0] CA, MT, RI  # and so on\n")
    table = written(tmp_path, '0 = ["CA", "MT", "RI"]\n1 = ["NY", "VT"]\n', "states.toml")
    assert read_assignment(lines) == read_assignment(table) == (("CA", "MT", "RI"), ("NY", "VT"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[0] CA, MT\n[1] MT\n", "MT is assigned more than once"),
        ("[0] CA, CA\n", "CA is assigned more than once"),
        ("[0] CA\n[0] MT\n", "worker 0 stands there 2 times"),
        ("[0] CA\n[2] MT\n", "worker 1 stands there 0 times"),
        ("[0] CA\nMT, RI\n", "line 2 cannot be understood"),
        ("# nothing\n", "it is empty"),
    ],
)
def test_a_wrong_assignment_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """S3.22"""
    with pytest.raises(UsageError, match=complaint):
        read_assignment(written(tmp_path, text))


def test_wrong_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="first cannot be understood"):
        read_assignment(written(tmp_path, 'first = ["CA"]\n', "states.toml"))
    with pytest.raises(UsageError, match="not valid TOML"):
        read_assignment(written(tmp_path, "[0] CA\n", "states.toml"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_assignment(tmp_path / "none.txt")


def test_an_assignment_must_cover_the_run() -> None:
    """S3.22: what is missing is named, and so is what nobody knows."""
    assert check_all_assigned((("CA", "MT"), ("RI",)), ["CA", "RI", ""]) == ["MT"]
    with pytest.raises(UsageError, match=r"MT, NY are assigned to nobody\. The run knows no NV\."):
        check_all_assigned((("CA", "NV"),), ["CA", "MT", "NY"])


def test_an_assignment_for_another_number_of_workers() -> None:
    """S3.7: with fewer workers the partitions of the missing ones are dealt out, with more nobody loses any."""
    assigned = (("A", "B"), ("C",), ("D", "E", "F"))
    assert resize_assignment(assigned, 2) == (("A", "B", "D", "F"), ("C", "E"))
    assert resize_assignment(assigned, 4) == (*assigned, ())
