"""Alerts for operators: list them, test the addresses, check for new ones once or until stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from shoal.config.values import Addresses
from shoal.errors import UsageError
from shoal.model.worker import new_worker_id
from shoal.notify.alert_thread import DRAIN_SECONDS
from shoal.notify.delivery import Deliveries, send, send_text
from shoal.notify.watch import AlertChecker, RaisedAlert, list_alerts
from shoal.service.lookup import find_run_id
from shoal.wiring import build_alert_thread

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.log import Log

TEST_TITLE = "Shoal: a test"
TEST_TEXT = "This is a test of Shoal's alerts. If you can read it, alerts will reach you."


class AddressTest(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an address accepted the test message. `address` is without its secrets; `reason` is None when it did."""

    address: str
    reason: str | None


async def list_raised_alerts(ledger: Ledger, *, run: str | None = None, limit: int = 20) -> list[RaisedAlert]:
    """Return alerts with their delivery, newest first: of one run, or of the runs that began last."""
    return await list_alerts(ledger, await find_run_id(ledger, run), limit=limit)


async def send_test_message(settings: Settings) -> list[AddressTest]:
    """Send a test message to every address of `notify`, those of scrapers' tables included.

    Raises UsageError when there is no address.
    """
    tables = [table.values.get("notify", Addresses()) for table in settings.scrapers.values()]
    addresses = Addresses(tuple(dict.fromkeys(url for each in (settings.notify, *tables) for url in each.urls)))
    if not addresses:
        raise UsageError("There is no address to send to.", remedy="Set notify, for example by SHOAL_NOTIFY.")
    reasons = await send_text(addresses.urls, TEST_TITLE, TEST_TEXT)
    return [
        AddressTest(address=shown, reason=reason or None)
        for shown, reason in zip(addresses.shown(), reasons, strict=True)
    ]


async def check_alerts_once(settings: Settings, ledger: Ledger, *, log: Log) -> None:
    """Raise the alerts that are due for recent runs, and deliver what is undelivered."""
    by = f"watch-{new_worker_id()}"
    await AlertChecker(settings, by=by, log=log).check_recent_runs(ledger)
    deliveries = Deliveries(settings, send, by=by, log=log)
    await deliveries.start_pending(ledger)
    await deliveries.drain(DRAIN_SECONDS)


async def watch_alerts(settings: Settings, stop: asyncio.Event, *, log: Log) -> None:
    """Raise and deliver alerts of all runs of the ledger until `stop` is set; no worker is needed for it."""
    alert_thread = build_alert_thread(settings, log)
    alert_thread.start()
    try:
        await stop.wait()
    finally:
        await alert_thread.close(drain=0)
