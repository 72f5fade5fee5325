"""Slots of a schedule, the locks that stand for them, and when a schedule was first seen.

When a schedule was first seen: nothing from before that moment is missed, and intervals count from it.

The ledger keeps it with the rule it belongs to, so that a schedule that was changed begins anew.

Slots: a schedule's single moments, the locks that stand for them in the ledger, and what to do about them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from shoal.config.schedules import Overlap, ScheduleConfig
from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger, Locks
from shoal.model.views import LockView

LOCK_SECONDS = 10.0
_STAMP = "%Y-%m-%dT%H:%M:%SZ"
_MANUAL = "+now"
MAX_LISTED = 50


async def read_first_seen(ledger: Ledger, name: str, config: ScheduleConfig) -> dt.datetime | None:
    """None when nobody has seen this schedule as it is now."""
    found = await ledger.settings.get(_scope(name))
    return None if found is None or found[1].get("rule") != config.rule else _moment(found[1])


async def record_first_seen(
    ledger: Ledger, name: str, config: ScheduleConfig, now: dt.datetime, *, by: str
) -> dt.datetime | None:
    """When it was first seen: by somebody before, or by us now. None while another node is writing it down.

    Only one node writes at a time, or two that see a new schedule together would count its intervals differently.
    """
    lock = f"schedule-first-seen:{name}"
    if not await ledger.locks.acquire(lock, by, LOCK_SECONDS):
        return None
    try:
        seen = await read_first_seen(ledger, name, config)
        if seen is None:
            seen = now.replace(microsecond=0)
            await ledger.settings.put(_scope(name), {"rule": config.rule, "since": seen.isoformat()}, by=by)
        return seen
    finally:
        with suppress(LedgerError):  # then its time runs out
            await ledger.locks.release(lock, by)


def _moment(value: dict[str, Any]) -> dt.datetime:
    return dt.datetime.fromisoformat(value["since"])


def _scope(name: str) -> str:
    return f"schedule:{name}"


class Slot(msgspec.Struct, frozen=True):
    """One moment of a schedule. `manual`: somebody asked for it, the schedule did not."""

    schedule: str
    at: dt.datetime
    manual: bool = False

    @property
    def name(self) -> str:
        return self.at.astimezone(dt.UTC).strftime(_STAMP) + (_MANUAL if self.manual else "")

    @property
    def lock_name(self) -> str:
        return lock_prefix(self.schedule) + self.name

    @property
    def idempotency_key(self) -> str:
        """What its run is made for."""
        return f"schedule {self.schedule} {self.name}"

    @property
    def log_name(self) -> str:
        return self.at.astimezone(dt.UTC).strftime("%Y%m%d_%H%M%S") + ".log"


def lock_prefix(schedule: str) -> str:
    """How the names of a schedule's locks begin; in the order of their names they are in the order of time."""
    return f"schedule:{schedule}:"


def parse_slot(schedule: str, lock: str) -> Slot:
    name = lock.removeprefix(lock_prefix(schedule))
    at = dt.datetime.strptime(name.removesuffix(_MANUAL), _STAMP).replace(tzinfo=dt.UTC)
    return Slot(schedule, at, name.endswith(_MANUAL))


class KnownSlots(msgspec.Struct, frozen=True):
    """What the ledger knows of a schedule's slots, the last one first."""

    slots: tuple[tuple[Slot, LockView], ...] = ()

    @property
    def last_taken(self) -> dt.datetime | None:
        """The last slot that was taken, whatever became of it."""
        return next((slot.at for slot, _ in self.slots if not slot.manual), None)

    @property
    def unfinished(self) -> list[tuple[Slot, LockView]]:
        """Those that have not ended, the oldest first."""
        return [(slot, lock) for slot, lock in reversed(self.slots) if lock.finished_at is None]


async def read_slots(locks: Locks, schedule: str) -> KnownSlots:
    """The newest slots, and the one that they were skipped for if that lies further back."""
    found = await locks.list(lock_prefix(schedule), limit=MAX_LISTED)
    behind = found[0].value.get("behind") if found else None
    if behind is not None and all(lock.name != behind for lock in found):
        earlier = await locks.get(behind)
        found += [earlier] if earlier is not None else []
    return KnownSlots(tuple((parse_slot(schedule, lock.name), lock) for lock in found))


class SlotDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to try, in this order.

    `resume`: somebody had this slot and has it no longer. `begin`: the first of these that can be taken. `skip`: these
    come while another is going, `blocked_by` that one.
    """

    resume: Slot | None = None
    begin: tuple[Slot, ...] = ()
    skip: tuple[Slot, ...] = ()
    blocked_by: Slot | None = None


def decide(
    schedule: str, known: KnownSlots, due: Sequence[dt.datetime], overlap: Overlap, now: dt.datetime
) -> SlotDecision | None:
    """None when there is nothing to do."""
    going = known.unfinished
    left = next((slot for slot, lock in going if lock.until <= now), None)
    if left is not None:
        return SlotDecision(resume=left)
    new = tuple(_slots(schedule, due))
    if not new or (going and overlap == "wait"):
        return None
    return SlotDecision(skip=new, blocked_by=going[0][0]) if going else SlotDecision(begin=new)


def _slots(schedule: str, moments: Iterable[dt.datetime]) -> Iterable[Slot]:
    return (Slot(schedule, moment) for moment in moments)
