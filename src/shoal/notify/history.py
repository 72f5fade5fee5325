"""Alerts that were raised, and what became of telling people about them."""

from __future__ import annotations

import datetime as dt

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.views import Errand
from shoal.notify.alert import RAISED, TOLD, Alert, telling
from shoal.notify.watch import clock

LOOKED_AT = 1_000
NOT_SENT, UNDER_WAY, WAITING = "not sent", "being sent", "waits for somebody who sends"


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """`told`: delivered, undelivered (given up), or how far it has come; `not sent` when nobody was to be told."""

    at: dt.datetime
    alert: Alert
    told: str


async def raised_alerts(ledger: Ledger, run_id: str | None = None, *, limit: int = 50) -> list[Raised]:
    """The newest first, of one run or of the runs that began last."""
    suffix = "" if run_id is None else f"{run_id}:"
    found = await ledger.errands.list(RAISED + suffix, limit=LOOKED_AT)
    told = {errand.name: errand for errand in await ledger.errands.list(TOLD + suffix, limit=LOOKED_AT)}
    now = await clock(ledger)
    raised = [_raised(errand, errand.finished_at, told, now) for errand in found if errand.finished_at is not None]
    return sorted(raised, key=lambda one: one.at, reverse=True)[:limit]


def _raised(errand: Errand, at: dt.datetime, told: dict[str, Errand], now: dt.datetime) -> Raised:
    alert = msgspec.convert(errand.value, Alert)
    telling_it = told.get(telling(alert))
    if telling_it is None:
        state = NOT_SENT
    elif telling_it.finished_at is not None:
        state = str(telling_it.value["state"])
    else:
        state = UNDER_WAY if telling_it.until > now else WAITING
    return Raised(at=at, alert=alert, told=state)
