"""The rules of bans, trials and blocks, for any history of one exit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.model.egress import ExitReport, ExitState, HealthRules, HostReport
from shoal.model.exit_health import (
    MICRO,
    ExitRecord,
    HostRecord,
    after_host_report,
    after_report,
    merge_reports,
    set_by_operator,
    with_trial,
)

RULES = HealthRules(ban_after=3, ban_for=100, block_after=2, block_for=50)
COUNT = st.integers(0, 5)
WORKER = st.integers(1, 3)
HOSTS = st.lists(
    st.builds(HostReport, host=st.sampled_from(("a", "b")), succeeded=COUNT, blocked=COUNT, blocks_in_row=COUNT),
    max_size=2,
    unique_by=lambda report: report.host,
).map(tuple)
REPORTS = st.builds(
    ExitReport,
    key=st.just("k"),
    succeeded=COUNT,
    failed=COUNT,
    failures_in_row=COUNT,
    error=st.sampled_from(("", "reset")),
    trial=st.booleans(),
    hosts=HOSTS,
)
STEPS = st.one_of(
    st.tuples(st.just("report"), WORKER, REPORTS),
    st.tuples(st.just("trial"), WORKER, st.floats(1, 60)),
    st.tuples(st.just("pass"), st.integers(1, 200)),
    st.tuples(st.just("set"), st.sampled_from(("good", "banned", "resting")), st.none() | st.integers(1, 200)),
)


@given(st.lists(STEPS, max_size=30))
def test_any_history_of_an_exit(steps: list[tuple[object, ...]]) -> None:
    record, now = ExitRecord(), 0
    holder: tuple[int, int] | None = None  # who tries it, until when
    by_operator = False
    for step in steps:
        before, was = record, record.state_at(now)
        match step:
            case ("pass", int(seconds)):
                now += seconds * MICRO
            case ("report", int(worker), ExitReport() as report):
                record = after_report(record, worker, report, RULES, now)
                state = record.state_at(now)
                assert record.failed == before.failed + report.failed
                assert record.failures_in_row <= record.failed
                if was in (ExitState.BANNED, ExitState.RESTING):
                    assert (record.state, record.until, record.by) == (before.state, before.until, before.by)
                if was is ExitState.GOOD:
                    is_banned = report.failed > 0 and record.failures_in_row >= RULES.ban_after
                    assert (state is ExitState.BANNED) == is_banned
                if was is ExitState.TRIAL and state is not ExitState.TRIAL:
                    assert report.trial
                    assert holder is not None
                    assert holder[0] == worker
                    assert (state is ExitState.GOOD) == (report.answered > 0)
                if state is ExitState.BANNED and was is not ExitState.BANNED:
                    assert record.until == now + 100 * MICRO
                    assert record.why
                if was is ExitState.TRIAL and (state is not was or record.trial_by is None):
                    holder = None
            case ("trial", int(worker), float(seconds)):
                tried = with_trial(record, worker, seconds, now)
                is_free = holder is None or holder[1] <= now or holder[0] == worker
                assert (tried is not None) == (was is ExitState.TRIAL and is_free)
                if tried is not None:
                    record, holder = tried, (worker, now + round(seconds * MICRO))
            case ("set", str(wanted), seconds):
                record = set_by_operator(record, ExitState(wanted), seconds, "why", "ann", now)  # type: ignore[arg-type]
                assert record.state_at(now) == wanted
                assert (record.until is None) == (seconds is None or wanted == "good")
                holder, by_operator = None, True
        assert by_operator or record.by == ""
        if record.state is ExitState.GOOD:
            assert (record.until, record.why, record.by, record.trial_by) == (None, "", "", None)
        assert (record.trial_by is None) == (record.trial_until is None)


@given(st.lists(st.tuples(st.integers(0, 100), COUNT, COUNT, COUNT), max_size=30))
def test_any_history_of_an_exit_at_a_host(steps: list[tuple[int, int, int, int]]) -> None:
    record, now = HostRecord(), 0
    for seconds, succeeded, blocked, in_row in steps:
        now += seconds * MICRO
        before = record
        report = HostReport(host="a", succeeded=succeeded, blocked=blocked, blocks_in_row=in_row)
        record = after_host_report(before, report, RULES, now)
        assert record.blocks_in_row <= record.blocked
        is_blocked = before.blocked_until is not None and before.blocked_until > now
        if is_blocked:
            assert record.blocked_until == before.blocked_until
        elif blocked and record.blocks_in_row >= RULES.block_after:
            assert record.blocked_until == now + 50 * MICRO
        else:
            assert record.blocked_until == before.blocked_until


@given(st.lists(REPORTS, min_size=1, max_size=5))
def test_merged_reports_count_the_same(reports: list[ExitReport]) -> None:
    gentle = HealthRules(ban_after=1_000, ban_for=1, block_after=1_000, block_for=1)
    one_by_one = ExitRecord()
    for report in reports:
        one_by_one = after_report(one_by_one, 1, report, gentle, 0)
    (merged,) = merge_reports(reports)
    assert after_report(ExitRecord(), 1, merged, gentle, 0) == one_by_one
    for host in ("a", "b"):
        record = HostRecord()
        for report in reports:
            for found in report.hosts:
                if found.host == host:
                    record = after_host_report(record, found, gentle, 0)
        at_once = [found for found in merged.hosts if found.host == host]
        assert [after_host_report(HostRecord(), found, gentle, 0) for found in at_once] == [record] * len(at_once)
