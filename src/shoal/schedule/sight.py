"""When a schedule was first seen: nothing from before that moment is missed, and intervals count from it.

The ledger keeps it with the rule it belongs to, so that a schedule that was changed begins anew.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any

from shoal.config.schedules import ScheduleConfig
from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger

WRITING_SECONDS = 10.0


async def known_sight(ledger: Ledger, name: str, config: ScheduleConfig) -> dt.datetime | None:
    """None when nobody has seen this schedule as it is now."""
    found = await ledger.settings.get(_scope(name))
    return None if found is None or found[1].get("rule") != config.rule else _moment(found[1])


async def first_sight(
    ledger: Ledger, name: str, config: ScheduleConfig, now: dt.datetime, *, by: str
) -> dt.datetime | None:
    """When it was first seen: by somebody before, or by us now. None while another node is writing it down.

    Only one node writes at a time, or two that see a new schedule together would count its intervals differently.
    """
    errand = f"schedule-sight:{name}"
    if not await ledger.errands.take(errand, by, WRITING_SECONDS):
        return None
    try:
        seen = await known_sight(ledger, name, config)
        if seen is None:
            seen = now.replace(microsecond=0)
            await ledger.settings.put(_scope(name), {"rule": config.rule, "since": seen.isoformat()}, by=by)
        return seen
    finally:
        with suppress(LedgerError):  # then its time runs out
            await ledger.errands.drop(errand, by)


def _moment(value: dict[str, Any]) -> dt.datetime:
    return dt.datetime.fromisoformat(value["since"])


def _scope(name: str) -> str:
    return f"schedule:{name}"
