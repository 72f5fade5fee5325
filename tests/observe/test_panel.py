"""The panel at every width: numbers are whole, lines fit, and ended is not done."""

import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from shoal.model.run import RunState
from shoal.model.views import Counts, WaitReason
from shoal.observe.failures import FailureCount
from shoal.observe.meter import Meter, Reading
from shoal.observe.panel import ASCII_BAR, PLAIN_BAR, BarStyle, PanelPart, draw_bar, panel_lines
from shoal.observe.snapshot import Snapshot
from tests.support.snapshots import moment, parted

NUMBER = re.compile(r"\d[\d,]*")
BIG = st.integers(0, 10**8)
COUNTS = st.builds(Counts, ready=BIG, waiting=BIG, delayed=BIG, leased=BIG, done=BIG, dead=BIG, cancelled=BIG)
NAMES = st.text(st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="\u200b"), max_size=60)
FAILURES = st.builds(
    FailureCount,
    outcome=st.just("transient"),
    error=st.text("abc {}500", max_size=120),
    attempts=st.integers(1, 10**7),
    dead=st.integers(0, 5),
    last=st.sampled_from(["http://127.0.0.1:8000/p/16", "key 7", "https://a.example/" + "x" * 90]),
)


def lines_of(reading: Reading, parts: list[PanelPart], width: int, bar: BarStyle = PLAIN_BAR) -> list[str]:
    hidden = 8 if parts else 0
    lines = panel_lines("shop 20260131_120000", reading, parts, width, hidden_parts=hidden, bar=bar)
    return [line.plain for line in lines]


def read(snapshot: Snapshot, *, grows: bool = False, failures: tuple[FailureCount, ...] = ()) -> Reading:
    reading = Meter(rate=312.0).read(snapshot, 0.0)
    return msgspec.structs.replace(reading, total_grows=grows, failures=failures)


@settings(deadline=None, max_examples=150)
@given(
    COUNTS,
    st.lists(st.tuples(NAMES, COUNTS), max_size=5),
    st.integers(40, 160),
    st.booleans(),
    st.lists(FAILURES, max_size=3),
)
def test_no_number_is_cut_at_any_width(
    counts: Counts, parts: list[tuple[str, Counts]], width: int, grows: bool, failures: list[FailureCount]
) -> None:
    wait = WaitReason(code="lane_limit", text="The lane a.example is full: 2 of 2 places are taken.", items=9)
    snapshot = parted({("page", ""): counts}, wait)
    shown = [PanelPart(name, own) for name, own in parts]
    lines = lines_of(read(snapshot, grows=grows, failures=tuple(failures)), shown, width)
    assert all(cell_len(line) <= width for line in lines), [line for line in lines if cell_len(line) > width]
    numbers = set(NUMBER.findall(" ".join(lines)))
    for own in (counts, *(own for _, own in parts)):
        assert {f"{own.done:,}", f"{own.total:,}"} <= numbers
        assert not own.dead or f"{own.dead:,}" in numbers
    assert f"{counts.remaining:,}" in numbers
    for failure in failures:
        assert any(f"x {failure.attempts:,}" in line for line in lines)
    if parts:
        assert "  and 8 more" in lines


@settings(deadline=None, max_examples=100)
@given(COUNTS, st.integers(6, 60))
def test_a_bar_is_full_only_when_nothing_is_open(counts: Counts, width: int) -> None:
    bar = draw_bar(counts, width, ASCII_BAR).plain
    assert len(bar) == width
    assert ("-" in bar) == (counts.remaining > 0 or counts.total == 0)
    assert ("#" in bar, "x" in bar, "." in bar) == (counts.done > 0, counts.dead > 0, counts.cancelled > 0)


def test_bars_shrink_first_then_names() -> None:
    parts = [PanelPart("a-partition-of-the-run", Counts(done=1_204, ready=2_106, leased=8, dead=3))]
    reading = read(moment(done=1_204, ready=2_106, leased=8, dead=3))
    bars, names = [], []
    for width in range(120, 39, -4):
        row = lines_of(reading, parts, width)[1]
        assert "1,204/3,321" in row
        bars.append(row.count("━") + row.count("─") + row.count("x"))
        names.append("a-partition-of-the-run" in row)
    assert bars == sorted(bars, reverse=True)
    assert bars[0] > 20
    assert all(named for bar, named in zip(bars, names, strict=True) if bar), (
        "a name is whole as long as there is a bar"
    )


def test_ended_is_not_done() -> None:
    """The bar is full, of two kinds, and the percentage is that of done items."""
    lines = lines_of(read(moment(state=RunState.FINISHED, done=25, dead=276)), [], 80)
    assert "25/301" in lines[0]
    assert lines[0].endswith(" 8%")
    assert "─" not in lines[0]
    assert not any("100%" in line for line in lines)
    assert "276 dead" in lines[1]
    assert "finished" in lines[1]


def test_a_growing_total_is_shown_as_such() -> None:
    lines = lines_of(read(moment(done=1_204, ready=2_106), grows=True), [], 80)
    assert not any("%" in line for line in lines[:1])
    assert lines[1].startswith("1,204 done of 3,310 found, still growing, 312/min")


def test_failures_have_a_line_each() -> None:
    failures = (
        FailureCount(outcome="transient", error="500 Internal Server Error", attempts=25, dead=0, last="http://h/p/16"),
        FailureCount(outcome="permanent", error="404 Not Found", attempts=3, dead=3, last="http://h/"),
        FailureCount(outcome="transient", error="timed out after 30 s", attempts=9, dead=2, last="key 7"),
        FailureCount(outcome="permanent", error="410 Gone", attempts=2_000, dead=2_000, last="k", complete=False),
        FailureCount(outcome="permanent", error="401", attempts=1, dead=1, last="k"),
    )
    assert lines_of(read(moment(ready=1), failures=failures), [], 80)[-5:] == [
        "500 Internal Server Error x 25, last: /p/16",
        "404 Not Found x 3 dead, last: http://h/",
        "timed out after 30 s x 9, 2 dead, last: key 7",
        "410 Gone x 2,000+ dead, last: k",
        "and 1 more kind of failure",
    ]
    (narrow,) = [line for line in lines_of(read(moment(ready=1), failures=failures[:1]), [], 40) if "500" in line]
    assert narrow == "500 Internal Server Error x 25"
