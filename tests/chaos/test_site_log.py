"""The judgement of the campaign, on logs that are made up: each rule can be broken, and excuses reach no farther."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.site_log import Disturbance, Excuses, LostLease, Rules, Visit, judge, read_visits

PACED, NARROW, PROXIED = "10.0.0.1", "10.0.0.2", "10.0.0.3"
RULES = Rules({PACED: 0.25}, {NARROW: 2}, {PROXIED: ["10.0.0.50"]})
NODE, OTHER = "10.0.0.91", "10.0.0.92"


def visit(server: str, start: float, end: float | None = None, *, remote: str = NODE, path: str = "/page/1") -> Visit:
    return Visit(start, start if end is None else end, 200, server, remote, path)


def test_the_logs_of_both_servers_are_read_without_robots_txt(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text(
        "100.500 0.200 200 10.0.0.1 10.0.0.91 /page/a b\n100.600 0.000 404 10.0.0.1 10.0.0.91 /robots.txt\n"
    )
    second.write_text("100.700 0.001 429 10.0.0.2 10.0.0.92 /slow/1\n")
    assert list(read_visits(first, second)) == [
        Visit(100.3, 100.5, 200, "10.0.0.1", "10.0.0.91", "/page/a b"),
        Visit(100.699, 100.7, 429, "10.0.0.2", "10.0.0.92", "/slow/1"),
    ]


def test_requests_that_come_too_early_are_counted() -> None:
    polite = [visit(PACED, 10.0), visit(PACED, 10.25), visit(PACED, 10.45)]
    assert judge(polite, RULES, Excuses()).gaps == 0
    found = judge([*polite, visit(PACED, 10.6), visit(PACED, 10.61)], RULES, Excuses())
    assert (found.visits, found.gaps, found.crowds, len(found.examples)) == (5, 2, 0, 2)
    assert judge([*polite, visit(PACED, 10.51), visit(PACED, 10.52)], RULES, Excuses(), tolerance=0.2).gaps == 1


def test_requests_of_another_host_are_no_concern() -> None:
    assert judge([visit(PACED, 10.0), visit("10.0.0.9", 10.0), visit(NARROW, 10.0)], RULES, Excuses()).gaps == 0


def test_a_late_request_is_excused_by_the_disturbance_of_its_own_node_only() -> None:
    visits = [visit(PACED, 10.0, remote=OTHER), visit(PACED, 10.01)]
    for remotes, excused in ((["10.0.0.93"], False), ([NODE], True), ([OTHER], True), ([], True)):
        found = judge(visits, RULES, Excuses([Disturbance(8.0, 9.5, remotes)]))
        assert (found.gaps, found.late_gaps) == ((0, 1) if excused else (1, 0)), remotes


@pytest.mark.parametrize(("at", "excused"), [(99.9, False), (100.0, True), (109.0, True), (109.1, False)])
def test_a_disturbance_excuses_what_arrives_until_tcp_has_sent_it_again(at: float, excused: bool) -> None:
    found = judge([visit(PACED, at), visit(PACED, at)], RULES, Excuses([Disturbance(100.0, 104.0, [NODE])]))
    assert (found.gaps, found.late_gaps) == ((0, 1) if excused else (1, 0))


def test_more_at_once_than_allowed_are_counted_one_by_one() -> None:
    fitting = [visit(NARROW, 10.0, 10.3), visit(NARROW, 10.1, 10.3), visit(NARROW, 10.3, 10.6)]
    assert judge(fitting, RULES, Excuses()).crowds == 0
    crowd = [visit(NARROW, 10.0, 10.3), *(visit(NARROW, 10.1, 10.4) for _ in range(3))]
    assert judge(crowd, RULES, Excuses()).crowds == 2


@pytest.mark.parametrize(("end", "crowds"), [(10.105, 0), (10.11, 0), (10.12, 1)])
def test_a_request_may_seem_to_come_a_step_of_the_timer_before_another_ends(end: float, crowds: int) -> None:
    visits = [visit(NARROW, 9.8, end), visit(NARROW, 10.0, 10.3), visit(NARROW, 10.1, 10.4)]
    assert judge(visits, RULES, Excuses()).crowds == crowds


def test_a_disturbed_line_excuses_no_crowd() -> None:
    crowd = [visit(NARROW, 10.0, 10.3) for _ in range(3)]
    assert judge(crowd, RULES, Excuses([Disturbance(9.0, 11.0)])).crowds == 1


@pytest.mark.parametrize(
    ("lease", "excused"),
    [
        (LostLease(NARROW, "/slow/1", NODE, 9.0, 10.05), True),
        (LostLease(NARROW, "/slow/1", NODE, 9.0, 10.2), False),  # it still had its lease then
        (LostLease(NARROW, "/slow/1", "10.0.0.93", 9.0, 10.05), False),  # of another node
        (LostLease(NARROW, "/slow/2", NODE, 9.0, 10.05), False),  # of another item
        (LostLease(NARROW, "/slow/1", NODE, 10.01, 10.05), False),  # it was claimed later
        (LostLease(NARROW, "/slow/1", NODE, 8.0, 9.0, 9.5), False),  # its node had claimed it again
    ],
)
def test_a_crowd_is_excused_by_as_many_requests_as_had_lost_their_lease(lease: LostLease, excused: bool) -> None:
    orphan = visit(NARROW, 10.0, 10.5, path="/slow/1")
    crowd = [orphan, *(visit(NARROW, 10.1, 10.4, remote=OTHER, path=f"/slow/{n}") for n in (1, 3))]
    found = judge(crowd, RULES, Excuses(lost_leases=[lease]))
    assert (found.crowds, found.orphan_crowds) == ((0, 1) if excused else (1, 0))
    crowd.append(visit(NARROW, 10.2, 10.4, path="/slow/4"))
    assert judge(crowd, RULES, Excuses(lost_leases=[lease])).crowds >= 1, "one orphan excuses one"


def test_a_gap_is_excused_by_a_request_that_was_sent_without_a_lease() -> None:
    visits = [visit(PACED, 10.0, remote=OTHER, path="/page/7"), visit(PACED, 10.01)]
    lost = LostLease(PACED, "/page/1", NODE, 3.0, 9.0)
    assert judge(visits, RULES, Excuses(lost_leases=[lost])).orphan_gaps == 1
    assert judge(visits, RULES, Excuses(lost_leases=[lost._replace(ended=11.0)])).gaps == 1


def test_requests_that_do_not_come_through_an_exit_are_counted() -> None:
    visits = [visit(PROXIED, 10.0, remote="10.0.0.50"), visit(PROXIED, 11.0), visit(PACED, 12.0)]
    assert judge(visits, RULES, Excuses([Disturbance(0.0, 100.0)])).direct == 1
