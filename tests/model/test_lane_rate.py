"""Rates as people write them."""

import pytest

from shoal.errors import InvalidSetting
from shoal.model.lane import parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2/s", 0.5),
        ("1/sec", 1.0),
        ("4/second", 0.25),
        ("30/min", 2.0),
        ("30/m", 2.0),
        ("60/minute", 1.0),
        ("1/10s", 10.0),
        ("1/2 min", 120.0),
        ("3/10seconds", 10 / 3),
        ("0.5/s", 2.0),
        ("360/h", 10.0),
        ("1/hour", 3600.0),
        ("1/d", 86400.0),
        ("86400/day", 1.0),
        (" 2 / S ", 0.5),
    ],
)
def test_rates(text: str, seconds: float) -> None:
    assert parse_rate(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "2", "/s", "2/", "s/2", "-1/s", "2/s/s", "1e3/s", "two/s", "2 per s", "٢/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a rate") as caught:
        parse_rate(text)
    assert "2/s" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("2/week", "has the unit 'week'; the units are s, min, h and d"),
        ("2/ms", "has the unit 'ms'"),
        ("0/s", "is zero"),
        ("1/2d", "means 172800 seconds between two starts"),
        ("1/0s", "means 0 seconds between two starts"),
    ],
)
def test_rates_that_make_no_sense(text: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        parse_rate(text)


def test_an_author_who_gives_a_number_is_told_what_a_rate_is() -> None:
    with pytest.raises(InvalidSetting, match="2 is not a rate"):
        parse_rate(2)  # type: ignore[arg-type]
