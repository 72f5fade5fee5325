"""The campaign's own check of `why`: a reason that is not true is found."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from shoal.model.item import ItemState
from shoal.model.views import ItemView, WaitReason
from tests.chaos.waits import Facts, false_reasons

LANE = {
    "paused": False,
    "blocked": False,
    "paced": False,
    "ordered": False,
    "max_active": 2,
    "slots_granted": 0,
    "taken": 2,
    "holders": 2,
}
FACTS = Facts(
    run_state="active",
    lane=LANE,
    pids=frozenset({7}),
    pid=7,
    silent=0.0,
    quiet=30.0,
    overdue=-5.0,
    moves=True,
    has_workers=True,
    exits_failed=False,
)


def item(state: ItemState) -> ItemView:
    nothing: dict[str, Any] = dict.fromkeys(ItemView.__struct_fields__)
    return ItemView(**{**nothing, "id": 1, "state": state, "since": dt.datetime.now(dt.UTC)})


def wrong(state: ItemState, *codes: str, items: int | None = None, **facts: Any) -> list[str]:
    reasons = [WaitReason(code=code, text="", items=items) for code in codes]
    return false_reasons(item(state), reasons, FACTS._replace(**facts))


def test_no_reason_is_wrong() -> None:
    assert wrong(ItemState.LEASED) == ["no reason is named"]


@pytest.mark.parametrize(
    ("state", "codes", "true", "false"),
    [
        (ItemState.READY, ["run_paused"], {"run_state": "paused"}, {}),
        (ItemState.LEASED, ["running"], {}, {"pids": frozenset({8})}),
        (ItemState.LEASED, ["claimed"], {}, {"quiet": 500.0}),
        (ItemState.LEASED, ["held_by_dead"], {"silent": 8.0}, {"silent": 80.0}),
        (ItemState.WAITING, ["lane_limit", "lane_rank"], {}, {"lane": {**LANE, "holders": 1}}),
        (ItemState.WAITING, ["lane_delay"], {"lane": {**LANE, "paced": True}}, {}),
        (ItemState.WAITING, ["lane_blocked"], {"lane": {**LANE, "blocked": True}}, {}),
        (ItemState.WAITING, ["lane_paused"], {"lane": {**LANE, "paused": True}}, {}),
        (ItemState.DELAYED, ["delayed_retry"], {}, {"overdue": 60.0}),
        (ItemState.DELAYED, ["delayed_egress"], {"exits_failed": True}, {}),
        (ItemState.READY, ["no_worker", "queue_rank"], {"has_workers": False}, {}),
        (ItemState.READY, ["egress"], {"exits_failed": True}, {}),
    ],
)
def test_a_reason_is_compared_with_what_is_the_case(
    state: ItemState, codes: list[str], true: dict[str, Any], false: dict[str, Any]
) -> None:
    assert wrong(state, *codes, **true) == []
    assert wrong(state, *codes, **false) != []


def test_a_rank_explains_only_while_others_move() -> None:
    assert wrong(ItemState.READY, "queue_rank", items=5) == []
    assert wrong(ItemState.READY, "queue_rank", items=5, moves=False) != []
    assert wrong(ItemState.READY, "queue_rank", items=0) != []
    assert wrong(ItemState.WAITING, "lane_rank", items=5) != [], "the lane is open, by what is said"


def test_a_reason_that_nothing_leads_to_is_wrong() -> None:
    assert wrong(ItemState.READY, "ledger_full") != []
