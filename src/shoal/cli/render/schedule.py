"""What `shoal schedule` prints: schedules in their own time zone, and how slots ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from shoal.cli.render.session import Session
from shoal.config.schedules import ScheduleConfig
from shoal.observe.formatting import format_duration
from shoal.service.console import Console
from shoal.service.events import Event
from shoal.service.schedule import ScheduleStatus, SlotEnded


class ScheduleConsole(Console):
    """Shows events, and prints the end of each slot as a JSON value with --json."""

    def __init__(self, session: Session) -> None:
        super().__init__(quiet=session.quiet, print_note=session.note, print_error=session.complain)
        self._session = session

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, SlotEnded) and self._session.json:
            slot = event.report.slot
            shown = {key: value for key, value in event.report.value.items() if key != "behind"}
            self._session.record({"schedule": slot.schedule, "slot": slot.name, **shown})


def print_schedules(
    session: Session, schedules: Mapping[str, ScheduleConfig], found: Mapping[str, ScheduleStatus]
) -> None:
    if session.json:
        for name, config in schedules.items():
            session.record(_record(name, config, found[name]))
        return
    session.table(
        ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST SLOT", "STATE", "RUN", "NODE"],
        [_row(name, config, found[name]) for name, config in schedules.items()],
    )


def print_next(session: Session, name: str, config: ScheduleConfig, status: ScheduleStatus, number: int) -> None:
    slots = status.next(number)
    if session.json:
        for slot in slots:
            local = slot.astimezone(ZoneInfo(config.timezone)).isoformat()
            session.record({"schedule": name, "at": slot, "local": local})
        return
    if config.every is not None and not status.seen:
        session.note("No node runs this schedule yet: its intervals count from the first `shoal schedule start`.")
    session.table(
        ["AT", "UTC", "IN"],
        [(_local(slot, config), slot.strftime("%Y-%m-%d %H:%M:%SZ"), _until(slot, status)) for slot in slots],
    )


def _row(name: str, config: ScheduleConfig, status: ScheduleStatus) -> tuple[object, ...]:
    slot = status.next()[0]
    return (
        name,
        config.cron or f"every {format_duration(config.every or 0)}",
        config.timezone if config.cron else None,
        f"{_local(slot, config)}, in {_until(slot, status)}",
        None if status.last is None else _local(status.last[0].at, config),
        status.state,
        status.run_id,
        status.node,
    )


def _record(name: str, config: ScheduleConfig, status: ScheduleStatus) -> dict[str, Any]:
    return {
        "schedule": name,
        **msgspec.structs.asdict(config),
        "next": status.next()[0],
        "slot": None if status.last is None else status.last[0].name,
        "state": status.state,
        "run_id": status.run_id,
        "node": status.node,
        "why": status.why,
    }


def _until(slot: dt.datetime, status: ScheduleStatus) -> str:
    return format_duration((slot - status.now).total_seconds())


def _local(moment: dt.datetime, config: ScheduleConfig) -> str:
    return moment.astimezone(ZoneInfo(config.timezone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")
