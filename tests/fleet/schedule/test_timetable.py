"""When slots come due: time zones, clocks that change, short months, and what becomes of missed slots."""

from __future__ import annotations

import datetime as dt
from itertools import islice

import pytest

from shoal.config.schedules import Missed, ScheduleConfig
from shoal.fleet.schedule.slots import MAX_BACKFILL, Timetable, next_slots

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
BERLIN = "Europe/Berlin"


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def slots(cron: str, after: str, number: int = 3, timezone: str = "UTC") -> list[str]:
    table = Timetable(ScheduleConfig(cron=cron, timezone=timezone), LONG_AGO)
    return [moment.strftime("%m-%d %H:%M") for moment in next_slots(table, utc(after), number)]


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "expected"),
    [
        pytest.param("0 2 * * *", BERLIN, "2026-06-01 12:00", ["06-02 00:00", "06-03 00:00"], id="summer"),
        pytest.param("0 2 * * *", BERLIN, "2026-01-01 12:00", ["01-02 01:00", "01-03 01:00"], id="winter"),
        # On 2026-03-29 there is no time from 02:00 to 03:00 in Berlin: the end of the gap is 01:00 in UTC.
        pytest.param("30 2 * * *", BERLIN, "2026-03-28 00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"], id="gap"),
        pytest.param("0,30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-29 01:00", "03-30 00:00"], id="gap, once"),
        pytest.param("*/30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-30 00:00", "03-30 00:30"], id="gap, with a star"),
        pytest.param("30 * * * *", BERLIN, "2026-03-29 00:00", ["03-29 00:30", "03-29 01:30"], id="gap, hourly"),
        pytest.param("30 2 * * *", BERLIN, "2026-03-29 01:00", ["03-30 00:30"], id="gap, from its end"),
        # On 2026-10-25 the time from 02:00 to 03:00 comes twice in Berlin: from 00:00 and from 01:00 in UTC.
        pytest.param("30 2 * * *", BERLIN, "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"], id="fold"),
        pytest.param("30 2 * * *", BERLIN, "2026-10-25 01:10", ["10-26 01:30"], id="fold, from within"),
        pytest.param(
            "*/30 2 * * *",
            BERLIN,
            "2026-10-24 12:00",
            ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-26 01:00"],
            id="fold, with a star",
        ),
        pytest.param(
            "30 * * * *", BERLIN, "2026-10-25 00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"], id="fold, hourly"
        ),
        pytest.param("0 0 31 * *", "UTC", "2026-01-31 00:00", ["03-31 00:00", "05-31 00:00"], id="the 31st"),
        pytest.param("0 0 29 2 *", "UTC", "2026-01-01 00:00", ["02-29 00:00"], id="the 29th of February"),
        pytest.param("0 12 * * MON", "UTC", "2026-11-16 12:00", ["11-23 12:00"], id="a weekday, not the same moment"),
    ],
)
def test_cron_in_its_time_zone(cron: str, timezone: str, after: str, expected: list[str]) -> None:
    assert slots(cron, after, len(expected), timezone) == expected


def test_the_hour_that_occurs_twice_has_each_slot_once() -> None:
    table = Timetable(ScheduleConfig(cron="0,10,20,30,40,50 2 * * *", timezone=BERLIN), LONG_AGO)
    whole = list(islice(table.after(utc("2026-10-24 12:00")), 12))
    assert whole == sorted(set(whole))
    for minute in range(0, 180, 5):
        begin = utc("2026-10-25 00:00") + dt.timedelta(minutes=minute)
        assert next(table.after(begin)) == next(slot for slot in whole if slot > begin)


def test_six_fields_have_seconds() -> None:
    table = Timetable(ScheduleConfig(cron="*/20 * * * * *"), LONG_AGO)
    assert [slot.second for slot in next_slots(table, utc("2026-01-01 00:00:05"), 4)] == [20, 40, 0, 20]


def test_intervals_count_from_the_first_sight() -> None:
    since = utc("2026-01-01 10:00:07").replace(microsecond=400_000)
    table = Timetable(ScheduleConfig(every=86_400), since)
    assert next_slots(table, since, 2) == [utc("2026-01-02 10:00:07"), utc("2026-01-03 10:00:07")]
    assert next(table.after(utc("2026-01-05 10:00:07"))) == utc("2026-01-06 10:00:07")
    assert next(table.after(LONG_AGO)) == utc("2026-01-02 10:00:07")


def due(missed: Missed, behind: str | None, now: str, *, since: str = "2026-01-01 00:00") -> tuple[list[str], bool]:
    found = Timetable(ScheduleConfig(cron="0 * * * *", missed=missed), utc(since)).due(
        None if behind is None else utc(behind), utc(now)
    )
    return [slot.strftime("%d %H:%M") for slot in found.slots], found.has_dropped


@pytest.mark.parametrize(
    ("missed", "behind", "now", "expected"),
    [
        ("once", "2026-01-02 02:00", "2026-01-02 02:59", ([], False)),
        ("once", "2026-01-02 02:00", "2026-01-02 03:00", (["02 03:00"], False)),
        ("once", "2026-01-02 02:00", "2026-01-02 05:30", (["02 05:00"], True)),
        ("once", None, "2026-01-01 00:30", ([], False)),
        ("all", "2026-01-02 02:00", "2026-01-02 05:30", (["02 03:00", "02 04:00", "02 05:00"], False)),
        ("skip", "2026-01-02 02:00", "2026-01-02 03:00:59", (["02 03:00"], False)),
        ("skip", "2026-01-02 02:00", "2026-01-02 03:01:01", ([], True)),
        ("skip", "2026-01-02 02:00", "2026-01-02 05:00:10", (["02 05:00"], True)),
    ],
)
def test_missed_slots_by_policy(missed: Missed, behind: str | None, now: str, expected: tuple[list[str], bool]) -> None:
    assert due(missed, behind, now) == expected


def test_slots_before_the_first_sight_are_not_missed() -> None:
    assert due("all", None, "2026-01-02 05:30", since="2026-01-02 04:00") == (["02 05:00"], False)
    assert due("all", "2026-01-01 04:00", "2026-01-02 05:30", since="2026-01-02 04:10") == (["02 05:00"], False)


def test_at_most_the_last_hundred_missed_slots_run() -> None:
    found = Timetable(ScheduleConfig(cron="0 * * * *", missed="all"), LONG_AGO).due(None, utc("2026-01-10 00:30"))
    assert len(found.slots) == MAX_BACKFILL
    assert found.slots[-1] == utc("2026-01-10 00:00")
    assert found.slots[0] == utc("2026-01-10 00:00") - dt.timedelta(hours=MAX_BACKFILL - 1)
    assert found.has_dropped


def test_years_without_a_node_cost_no_more_than_a_minute() -> None:
    table = Timetable(ScheduleConfig(cron="* * * * * *"), LONG_AGO)
    assert table.due(None, utc("2026-01-10 00:30")).slots == (utc("2026-01-10 00:30"),)
    rare = Timetable(ScheduleConfig(cron="0 0 29 2 *", missed="all"), LONG_AGO)
    assert [slot.year for slot in rare.due(None, utc("2026-01-10 00:30")).slots] == [2020, 2024]
