"""The bottleneck of a run, formatting, and normalized failure messages."""

import msgspec
import pytest

from shoal.model.failures import message_shape
from shoal.model.views import Counts, FailedItem, WaitReason
from shoal.observe.failures import group_failures
from shoal.observe.formatting import format_duration, format_percent, format_rate, pluralize
from shoal.observe.meter import Meter
from shoal.observe.snapshot import find_bottleneck
from tests.support.snapshots import NOON, moment


def gate(code: str, items: int | None = None) -> WaitReason:
    return WaitReason(code=code, text=f"About {code}.", items=items)


@pytest.mark.parametrize(
    ("counts", "gates", "cause", "share", "about"),
    [
        (Counts(ready=5), [gate("run_paused"), gate("ready", 5)], "the run is paused", None, "run_paused"),
        (Counts(ready=5), [gate("no_worker"), gate("ready", 5)], "a live worker", None, "no_worker"),
        (
            Counts(ready=5, leased=1),
            [gate("no_worker"), gate("held_by_dead", 1), gate("ready", 5)],
            "a live worker",
            None,
            "no_worker. About held_by_dead",
        ),
        (
            Counts(ready=1, leased=4),
            [gate("held_by_dead", 3), gate("leased", 1), gate("ready", 1)],
            "items of dead workers",
            0.6,
            "held_by_dead",
        ),
        (Counts(leased=5), [gate("ledger_full"), gate("leased", 5)], "space on the ledger's disk", None, "ledger_full"),
        (Counts(ready=5, leased=1), [gate("no_worker"), gate("ready", 5)], "free workers", 5 / 6, "no_worker"),
        (Counts(done=5), [gate("unsealed")], "more items", None, "unsealed"),
        (Counts(leased=4, ready=1), [gate("leased", 4), gate("ready", 1)], "nothing", None, "leased"),
        (Counts(waiting=6, leased=4), [gate("waiting", 6), gate("lane_limit", 6)], "host limit", 0.6, "lane_limit"),
        (
            Counts(ready=3, waiting=6, leased=1),
            [gate("ready", 3), gate("waiting", 6), gate("lane_workers", 6)],
            "free workers",
            0.6,
            "lane_workers",
        ),
        (
            Counts(waiting=6, leased=4),
            [gate("waiting", 6), gate("lane_blocked")],
            "rate limit of the site",
            0.6,
            "lane_blocked",
        ),
        (
            Counts(delayed=3),
            [gate("lane_blocked"), gate("delayed_blocked", 3)],
            "rate limit of the site",
            1.0,
            "lane_blocked",
        ),
        (
            Counts(waiting=6, leased=4),
            [gate("waiting", 6), gate("lane_order", 6)],
            "earlier items of their groups",
            0.6,
            "lane_order",
        ),
        (Counts(delayed=2), [gate("delayed_order", 2)], "earlier items of their groups", 1.0, "delayed_order"),
        (Counts(waiting=6, leased=4), [], "their lanes", 0.6, None),
        (Counts(waiting=6), [gate("waiting", 6), gate("lane_paused")], "paused lane", 1.0, "lane_paused"),
        (
            Counts(waiting=2, delayed=2, leased=3),
            [gate("waiting", 2), gate("lane_delay"), gate("delayed_lane", 2)],
            "host delay",
            4 / 7,
            "lane_delay",
        ),
        (Counts(delayed=8, ready=2), [gate("delayed_retry", 8)], "retries", 0.8, "delayed_retry"),
        (
            Counts(ready=3, waiting=6, leased=1),
            [WaitReason(code="egress", text="About egress.", items=9, pool="homes"), gate("waiting", 6)],
            "egress homes",
            0.9,
            "egress",
        ),
        (Counts(ready=1, delayed=9), [gate("egress", 1), gate("delayed_egress", 9)], "a login", 1.0, "egress"),
        (Counts(ready=1, delayed=9), [gate("ready", 1), gate("delayed_egress", 9)], "egress", 0.9, "delayed_egress"),
        (Counts(ready=9, waiting=1), [gate("egress", 2), gate("ready", 7)], "free workers", 0.7, "ready"),
        (Counts(ready=1, waiting=9), [gate("egress", 2), gate("lane_limit", 8)], "host limit", 0.8, "lane_limit"),
        (Counts(delayed=8), [gate("delayed_throttled", 8)], "rate limit of the site", 1.0, "delayed_throttled"),
    ],
)
def test_bottleneck(
    counts: Counts, gates: list[WaitReason], cause: str, share: float | None, about: str | None
) -> None:
    found = find_bottleneck(counts, gates)
    assert found.cause == cause
    assert found.share == pytest.approx(share)
    if about is not None:
        assert found.text == f"About {about}."


def test_the_bottleneck_says_when_egress_may_go_on() -> None:
    why = WaitReason(code="egress", text="2 items wait.", items=2, pool="homes", since=NOON)
    found = find_bottleneck(Counts(ready=2), [why])
    assert (found.cause, found.text) == ("egress homes", "2 items wait. It has waited since 2026-01-31 12:00:00Z.")
    found = find_bottleneck(Counts(ready=2), [msgspec.structs.replace(why, until=NOON)])
    assert found.text == "2 items wait. It may go on at 2026-01-31 12:00:00Z."


@pytest.mark.parametrize("gates", [[gate("no_worker")], [gate("run_paused")], [gate("ledger_full")]])
def test_a_blocked_run_has_no_eta(gates: list[WaitReason]) -> None:
    """The rate of the last minutes says nothing about it."""
    assert Meter(600.0).read(moment(*gates, ready=10, done=5), 0.0).eta_text == "-"
    assert Meter(600.0).read(moment(ready=10, done=5), 0.0).eta_text != "-"


def test_formatting() -> None:
    assert [format_duration(s) for s in (0, 0.44, 9, 45, 119, 120, 3_599, 13_200, 93_600, 187_200)] == [
        *("0s", "0.4s", "9s", "45s", "119s", "2m", "1h00", "3h40", "26h00", "2d4h")
    ]
    assert [format_percent(s) for s in (0, 0.001, 0.29, 0.9999, 1)] == ["0%", "<1%", "29%", "99%", "100%"]
    assert [format_rate(r) for r in (None, 0.0, 4.24, 312.4)] == ["-/min", "0/min", "4.2/min", "312/min"]
    assert [pluralize(n, "item") for n in (0, 1, "9 or more")] == ["0 items", "1 item", "9 or more items"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("404 Not Found", "404 Not Found"),
        ("HTTP 503", "HTTP 503"),
        ("no answer from https://a.example/x?y=1 after 30.5 s", "no answer from URL after N s"),
        ("cannot parse 'abc'", "cannot parse '...'"),
        ("item 12345 has 7 faults", "item N has N faults"),
        ("No such product 297", "No such product N"),
        ("No such product 3", "No such product N"),
        ("product code 123 is unknown", "product code N is unknown"),
        ("the site answered 503", "the site answered 503"),
        ("the proxy answered CONNECT with 502.", "the proxy answered CONNECT with 502."),
        ("HTTP/1.1 404 for page 300", "HTTP/1.1 404 for page N"),
        ("Exceeded retries: 403 with a challenge page", "Exceeded retries: 403 with a challenge page"),
        ("page 300: status code: 404", "page N: status code: 404"),
        ("page 300 failed: 404 Not Found", "page N failed: 404 Not Found"),
        ("0xDEADBEEF and 404.5 and 404 items", "N and N and N items"),
        ("first\nsecond", "first"),
    ],
)
def test_similar_messages_are_normalized_to_one(message: str, expected: str) -> None:
    assert message_shape(message) == expected


def test_a_group_shows_one_full_message() -> None:
    def failed(item: int, message: str) -> FailedItem:
        return FailedItem(
            item=item, stage="page", url="", outcome="transient", error_message=message, retry_count=0, failed_at=NOON
        )

    several, one = group_failures(
        [failed(1, "cannot parse 'a'"), failed(2, "cannot parse 'b'"), failed(3, "no 'c'\x1b")]
    )
    assert (several.message, several.sample, several.items, several.example) == (
        "cannot parse '...'",
        "cannot parse 'a'",
        2,
        1,
    )
    assert (several.display_text, one.display_text) == ("for example: cannot parse 'a'", "no 'c'?")
