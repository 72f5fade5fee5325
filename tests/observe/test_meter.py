"""Readings from constructed snapshots: rates, ETAs, and what cannot be estimated."""

import datetime as dt

import pytest

from shoal.model.run import RunState
from shoal.model.views import WaitReason
from shoal.observe.meter import GROWING_TEXT, Meter
from tests.support.snapshots import NOON, moment


def test_progress_line() -> None:
    meter = Meter()
    gates = (
        WaitReason(code="waiting", text="43764 items wait for their lanes.", items=43_764),
        WaitReason(code="lane_limit", text="The lane example.com is full.", items=9),
    )
    meter.read(moment(*gates, done=47_908, dead=27, ready=27_312, waiting=43_764, leased=989), 0.0)
    reading = meter.read(moment(*gates, done=48_210, dead=37, ready=27_000, waiting=43_764, leased=989), 60.0)
    assert reading.line.startswith("done 48210/120000 40% 312/min ok 99% waiting: host limit 60% dead 37 eta ")
    assert reading.eta_text == "3h27-4h13"


def test_one_sample_has_no_rate_and_no_eta() -> None:
    meter = Meter()
    first = meter.read(moment(ready=10), 0.0)
    assert (first.rate, first.eta, first.ok, first.growing) == (None, None, None, False)
    assert first.line == "done 0/10 0% -/min ok - waiting: free workers 100% dead 0 eta -"
    hasty = meter.read(moment(ready=5, done=5), 0.5)
    assert hasty.rate is None
    assert meter.read(moment(ready=2, done=8), 4.0).rate == pytest.approx(120)


def test_the_initial_rate_counts_for_the_time_before_the_first_sample() -> None:
    meter = Meter(rate=60.0)
    assert meter.read(moment(ready=120), 0.0).eta == pytest.approx((108, 132))
    assert meter.read(moment(ready=60, done=60), 10.0).rate == pytest.approx(60 + 50)
    assert meter.read(moment(ready=0, done=120), 60.0).rate == pytest.approx(120)


def test_a_slow_run_has_its_rate_although_nothing_ended_in_the_last_seconds() -> None:
    meter = Meter(rate=6.0)
    meter.read(moment(ready=120), 0.0)
    reading = meter.read(moment(ready=120), 3.0)
    assert reading.rate == pytest.approx(6 * 57 / 60)
    assert reading.eta is not None


def test_the_rate_is_that_of_the_last_minute() -> None:
    meter = Meter()
    done = 0
    for second in range(0, 400, 5):
        done += 50 if second < 200 else 5
        reading = meter.read(moment(ready=10_000 - done, done=done), float(second))
    assert reading.rate == pytest.approx(60)


def test_samples_further_apart_than_the_window_have_a_rate() -> None:
    meter = Meter()
    meter.read(moment(ready=1000), 0.0)
    assert meter.read(moment(ready=400, done=600), 600.0).rate == pytest.approx(60)


def test_the_eta_spans_the_recent_rates() -> None:
    meter = Meter()
    for second in range(0, 61, 5):
        done = second * 10 if second <= 45 else 450 + (second - 45) * 2
        reading = meter.read(moment(ready=1000 - done, done=done), float(second))
    assert reading.eta is not None
    low, high = reading.eta
    assert low == pytest.approx(520 / 8, rel=0.01)  # the speed of the whole minute
    assert high == pytest.approx(520 / 2, rel=0.01)  # that of its last quarter


def test_new_items_change_only_the_upper_end_of_the_eta() -> None:
    quiet, busy = Meter(), Meter()
    for meter, new in ((quiet, 0), (busy, 30)):
        meter.read(moment(ready=1000), 0.0)
        reading = meter.read(moment(ready=940 + new, done=60), 60.0)
        assert reading.eta is not None
        if new:
            assert reading.eta[0] == pytest.approx(970, rel=0.01)
            assert reading.eta[1] == pytest.approx(1940, rel=0.01)
        else:
            assert reading.eta == pytest.approx((846, 1034), rel=0.01)


@pytest.mark.parametrize(("new", "growing"), [(0, False), (80, False), (96, True), (300, True)])
def test_no_eta_while_the_frontier_grows(new: int, growing: bool) -> None:
    meter = Meter()
    meter.read(moment(ready=500), 0.0)
    reading = meter.read(moment(ready=400 + new, done=100), 30.0)
    assert (reading.growing, reading.eta is None) == (growing, growing)
    assert (reading.eta_text == GROWING_TEXT) == growing


def test_input_items_are_not_growth() -> None:
    meter = Meter()
    assert meter.read(moment(sealed=False), 0.0).eta_text == "-"
    assert meter.read(moment(sealed=False, ready=400), 3.0).eta_text == GROWING_TEXT
    assert meter.read(moment(ready=500), 6.0).eta_text == "-"
    reading = meter.read(moment(ready=495, done=5), 9.0)
    assert (reading.growing, reading.eta is None) == (False, False)
    assert meter.read(moment(ready=505, done=10), 12.0).growing


def test_past_growth_is_not_growth() -> None:
    meter = Meter()
    meter.read(moment(ready=10), 0.0)
    assert meter.read(moment(ready=110, done=10), 10.0).growing
    meter.read(moment(ready=105, done=15), 20.0)
    assert not meter.read(moment(ready=98, done=22), 34.0).growing


def test_a_run_without_items_has_no_rate() -> None:
    unsealed = WaitReason(code="unsealed", text="The run is open for more items.")
    reading = Meter().read(moment(unsealed, sealed=False), 0.0)
    assert reading.line == "no items yet, waiting: more items"


def test_an_unsealed_run_without_open_items_has_no_eta() -> None:
    assert Meter().read(moment(sealed=False, done=9), 0.0).eta_text == "-"
    assert Meter().read(moment(done=9), 0.0).eta_text == "0s"


def test_the_eta_is_not_before_the_last_delay() -> None:
    due = WaitReason(code="delayed_retry", text="later", items=1, until=NOON + dt.timedelta(seconds=500))
    meter = Meter()
    meter.read(moment(due, ready=10, delayed=1), 0.0)
    reading = meter.read(moment(due, delayed=1, done=10), 10.0)
    assert reading.eta == (500.0, 500.0)
    assert reading.eta_text == "8m"


def test_a_stall_has_no_eta() -> None:
    meter = Meter()
    for second in (0.0, 30.0, 70.0, 140.0):
        reading = meter.read(moment(ready=10, done=5), second)
    assert (reading.rate, reading.eta_text) == (0.0, "-")


def test_retried_items_do_not_give_a_negative_rate() -> None:
    meter = Meter()
    meter.read(moment(done=50, dead=50), 0.0)
    assert meter.read(moment(done=50, ready=50), 10.0).rate is None
    assert meter.read(moment(done=60, ready=40), 20.0).rate == pytest.approx(60)


def test_dead_items_are_not_done() -> None:
    reading = Meter().read(moment(state=RunState.FINISHED, done=25, dead=276), 0.0)
    assert reading.line == "done 25/301 8% -/min ok 8% dead 276, finished"
    assert (reading.share, reading.done_share) == (1.0, 25 / 301)


def test_skipped_items_are_not_wanted() -> None:
    reading = Meter().read(moment(state=RunState.FINISHED, done=60, dead=1, skipped=60), 0.0)
    assert reading.line == "done 60/61 98% -/min ok 98% dead 1 skipped 60, finished"
    assert (reading.share, reading.done_share) == (1.0, 60 / 61)


def test_a_total_that_grows_has_no_percentage() -> None:
    meter = Meter()
    meter.read(moment(ready=50), 0.0)
    slower = meter.read(moment(ready=40, done=20), 5.0)
    assert (slower.total_grows, slower.growing, slower.eta is None) == (True, False, False)
    assert slower.line.startswith("done 20 of 60 found 240/min ok 100% waiting: ")
    settled = meter.read(moment(ready=10, done=50), 25.0)
    assert settled.total_grows is False
    assert settled.line.startswith("done 50/60 83% ")
    assert Meter().read(moment(ready=50, sealed=False), 0.0).line.startswith("done 0 of 50 found ")


def test_no_eta_without_a_live_worker() -> None:
    nobody = WaitReason(code="no_worker", text="No worker is alive.")
    meter = Meter(rate=60.0)
    meter.read(moment(nobody, ready=50, done=10), 0.0)
    reading = meter.read(moment(nobody, ready=45, done=15), 10.0)
    assert (reading.eta, reading.waiting_for) == (None, "a live worker")


def test_an_ended_run() -> None:
    reading = Meter().read(moment(state=RunState.FINISHED, done=9, dead=1), 0.0)
    assert (reading.ended, reading.share, reading.ok, reading.eta) == (True, 1.0, 0.9, (0.0, 0.0))
    assert Meter().read(moment(), 0.0).share == 0.0
