"""What a node decides to do when it looks at a schedule's slots."""

from __future__ import annotations

import datetime as dt

from shoal.fleet.schedule.slots import KnownSlots, Slot, SlotDecision, decide, parse_slot
from shoal.model.views import LockView

NOW = dt.datetime(2026, 11, 16, 12, 0, 30, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


def slot(minutes_ago: int, *, manual: bool = False) -> Slot:
    return Slot("news", NOW - minutes_ago * MINUTE, manual)


def lock(of: Slot, *, until: dt.datetime, finished: bool = False) -> tuple[Slot, LockView]:
    return of, LockView(
        name=of.lock_name, taken_by="a", taken_at=of.at, until=until, finished_at=NOW if finished else None, value={}
    )


def test_a_slot_is_found_again_by_its_lock_name() -> None:
    for one in (Slot("a.b", NOW), Slot("a.b", NOW, manual=True)):
        assert parse_slot("a.b", one.lock_name) == one
    assert Slot("a.b", NOW).lock_name == "schedule:a.b:2026-11-16T12:00:30Z"
    assert Slot("a.b", NOW).idempotency_key == "schedule a.b 2026-11-16T12:00:30Z"


def test_a_due_slot_begins_when_none_is_unfinished() -> None:
    over = KnownSlots((lock(slot(5), until=NOW - MINUTE, finished=True),))
    for overlap in ("skip", "wait"):
        assert decide("news", over, [slot(1).at], overlap, NOW) == SlotDecision(begin=(slot(1),))
        assert decide("news", KnownSlots(), [], overlap, NOW) is None


def test_a_slot_that_is_due_during_another_is_skipped_or_waits() -> None:
    going = KnownSlots((lock(slot(5), until=NOW + MINUTE),))
    assert decide("news", going, [slot(1).at], "skip", NOW) == SlotDecision(skip=(slot(1),), blocked_by=slot(5))
    assert decide("news", going, [slot(1).at], "wait", NOW) is None


def test_a_slot_whose_node_lost_it_is_resumed_first() -> None:
    skipped = lock(slot(1), until=NOW + MINUTE, finished=True)
    left = KnownSlots((skipped, lock(slot(5), until=NOW)))
    for overlap in ("skip", "wait"):
        assert decide("news", left, [slot(0).at], overlap, NOW) == SlotDecision(resume=slot(5))


def test_a_manual_slot_does_not_advance_the_timetable() -> None:
    manual = lock(slot(1, manual=True), until=NOW, finished=True)
    assert KnownSlots((manual,)).last_taken is None
    assert KnownSlots((manual, lock(slot(9), until=NOW, finished=True))).last_taken == slot(9).at
