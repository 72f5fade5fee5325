"""How schedules are shown: when they come due, in words and in their own time zone, and what became of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from shoal.cli.render.session import Session
from shoal.config.schedules import ScheduleConfig
from shoal.errors import LedgerNotMigrated
from shoal.fleet.schedule.slots import Slot, read_first_seen, read_slots
from shoal.fleet.schedule.timetable import Timetable, next_slots
from shoal.ledger.protocols import Ledger
from shoal.model.views import LockView
from shoal.observe.formatting import format_duration
from shoal.wiring import ledger_context, sqlite_path


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stands. `seen`: whether somebody keeps it or has kept it. `run_id`: the last slot's run."""

    now: dt.datetime
    table: Timetable
    seen: bool = False
    last: tuple[Slot, LockView] | None = None
    run_id: str | None = None


def print_schedules(session: Session, schedules: Mapping[str, ScheduleConfig]) -> None:
    found = _ask(session, schedules)
    rows = [(name, config, found[name]) for name, config in schedules.items()]
    if session.json:
        for name, config, shown in rows:
            session.record(_record(name, config, shown))
        return
    session.table(
        ["SCHEDULE", "WHEN", "ZONE", "NEXT", "LAST SLOT", "STATE", "RUN", "NODE"],
        [
            (
                name,
                config.cron or f"every {format_duration(config.every or 0)}",
                config.timezone if config.cron else None,
                _moment(next_slots(shown.table, shown.now, 1)[0], shown.now, config),
                None if shown.last is None else _local(shown.last[0].at, config),
                _state(shown),
                shown.run_id,
                _node(shown),
            )
            for name, config, shown in rows
        ],
    )


def print_next(session: Session, name: str, config: ScheduleConfig, number: int) -> None:
    shown = _ask(session, {name: config})[name]
    slots = next_slots(shown.table, shown.now, number)
    if session.json:
        for slot in slots:
            session.record({"schedule": name, "at": slot, "local": slot.astimezone(_zone(config)).isoformat()})
        return
    if config.every is not None and not shown.seen:
        session.note("Nobody keeps this schedule yet: its intervals count from the first `shoal schedule start`.")
    session.table(["AT", "UTC", "IN"], [_next_row(slot, shown.now, config) for slot in slots])


def _next_row(slot: dt.datetime, now: dt.datetime, config: ScheduleConfig) -> tuple[str, str, str]:
    return _local(slot, config), slot.strftime("%Y-%m-%d %H:%M:%SZ"), format_duration((slot - now).total_seconds())


def _ask(session: Session, schedules: Mapping[str, ScheduleConfig]) -> dict[str, Shown]:
    """What the ledger knows. Looking must not make a SQLite file; where none is, this machine's clock will be its."""

    async def asking() -> dict[str, Shown]:
        try:
            async with ledger_context(session.settings, migrate=False) as ledger:
                return {name: await _look(ledger, name, config) for name, config in schedules.items()}
        except LedgerNotMigrated:
            if sqlite_path(session.settings.ledger) is None:
                raise
            now = dt.datetime.now(dt.UTC)
            return {name: Shown(now=now, table=Timetable(config, now)) for name, config in schedules.items()}

    return session.wait(asking())


async def _look(ledger: Ledger, name: str, config: ScheduleConfig) -> Shown:
    now = (await ledger.health.check()).clock
    first_seen = await read_first_seen(ledger, name, config)
    known = await read_slots(ledger.locks, name)
    # One that is going says more than those that were skipped for it.
    last = known.unfinished[0] if known.unfinished else known.slots[0] if known.slots else None
    run_id = None
    if last is not None:
        run = await ledger.runs.by_idempotency_key(last[0].idempotency_key)
        run_id = run.id if run is not None else last[1].value.get("run_id")
    return Shown(
        now=now, table=Timetable(config, first_seen or now), seen=first_seen is not None, last=last, run_id=run_id
    )


def _record(name: str, config: ScheduleConfig, shown: Shown) -> dict[str, Any]:
    slot = None if shown.last is None else shown.last[0]
    return {
        "schedule": name,
        **msgspec.structs.asdict(config),
        "next": next_slots(shown.table, shown.now, 1)[0],
        "slot": None if slot is None else slot.name,
        "state": _state(shown),
        "run_id": shown.run_id,
        "node": _node(shown),
        "why": None if shown.last is None else shown.last[1].value.get("why"),
    }


def _state(shown: Shown) -> str | None:
    if shown.last is None:
        return None
    lock = shown.last[1]
    if lock.finished_at is not None:
        return str(lock.value.get("state"))
    return "going" if lock.until > shown.now else "left"


def _node(shown: Shown) -> str | None:
    if shown.last is None:
        return None
    lock = shown.last[1]
    # The taker's name is its node's with a number and a random part behind it.
    return str(lock.value.get("node") or lock.taken_by.rsplit("-", 2)[0])


def _moment(slot: dt.datetime, now: dt.datetime, config: ScheduleConfig) -> str:
    return f"{_local(slot, config)}, in {format_duration((slot - now).total_seconds())}"


def _local(moment: dt.datetime, config: ScheduleConfig) -> str:
    return moment.astimezone(_zone(config)).strftime("%a %Y-%m-%d %H:%M:%S %Z")


def _zone(config: ScheduleConfig) -> dt.tzinfo:
    return ZoneInfo(config.timezone)
