"""Egress in words."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from shoal.model.egress import BudgetView, ExitState, ExitView, PoolView
from shoal.observe.egress import clock_text, egress_line, pool_text, state_text

NOON = dt.datetime(2026, 3, 2, 14, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("pool", "text"),
    [
        (PoolView(pool="homes", kind="proxies", exits=50, good=50), "homes: 50 of 50 good"),
        (
            PoolView(pool="homes", kind="proxies", exits=50, good=47, banned=3, first_back=900.0),
            "homes: 47 of 50 good, 3 banned until 14:15",
        ),
        (
            PoolView(pool="homes", kind="proxies", exits=3, good=1, resting=1, trial=1, first_back=None),
            "homes: 1 of 3 good, 1 resting until an operator frees it, 1 to be tried",
        ),
        (
            PoolView(
                pool="github",
                kind="tokens",
                exits=3,
                good=3,
                budgets=(BudgetView(resource="core", capacity=15_000, left=3_211, reset_seconds=700.0),),
            ),
            "github: 3,211 of 15,000 calls left, full again at 14:11",
        ),
        (
            PoolView(
                pool="github",
                kind="tokens",
                exits=3,
                good=2,
                banned=1,
                first_back=3_600.0,
                budgets=(
                    BudgetView(resource="core", capacity=10, left=10),
                    BudgetView(resource="search", capacity=30, left=4, reset_seconds=12.0),
                ),
            ),
            "github: core 10 of 10 calls left, search 4 of 30 calls left, full again at 14:00:12, 2 of 3 good, "
            "1 banned until 15:00",
        ),
    ],
)
def test_a_pool_in_one_line(pool: PoolView, text: str) -> None:
    assert pool_text(pool, NOON) == text
    assert egress_line([pool, pool], NOON) == f"{text}; {text}"


def test_times_are_as_exact_as_they_are_near() -> None:
    assert clock_text(59.0, NOON) == "14:00:59"
    assert clock_text(3_600.0, NOON) == "15:00"
    assert clock_text(86_400.0, NOON) == "2026-03-03 14:00"


def test_the_state_of_an_exit() -> None:
    view = ExitView(pool="homes", kind="proxies", key="k", label="a:1", state=ExitState.BANNED, until=60.0)
    assert state_text(view, NOON) == "banned until 14:01:00"
    assert state_text(msgspec.structs.replace(view, until=None), NOON) == "banned until freed"
    assert state_text(ExitView(pool="p", kind="tor", key="k", label="a", state=ExitState.GOOD), NOON) == "good"
