"""How `shoal alerts watch` watches."""

from __future__ import annotations

import asyncio
import signal

from shoal.cli.render.session import Session
from shoal.cli.watching import watched
from shoal.cli.working import open_logs_for
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import new_worker_id
from shoal.notify.alert_thread import DRAIN_SECONDS
from shoal.notify.delivery import Deliveries, check_addresses, send
from shoal.notify.watch import AlertChecker
from shoal.wiring import ledger_context


async def watch_alone(session: Session, settings: Settings, *, once: bool) -> None:
    """Until a signal comes, or for one look. The ledger must be there already."""
    await check_addresses(settings)
    logs = open_logs_for(session, settings, "alerts", session.note)
    try:
        async with ledger_context(settings, migrate=False, on_waiting=None if once else session.note) as ledger:
            if once:
                await _look_once(settings, ledger, logs.log)
                return
        await _until_told_to_stop(session, settings, logs.log)
    finally:
        logs.close()


async def _look_once(settings: Settings, ledger: Ledger, log: Log) -> None:
    by = f"watch-{new_worker_id()}"
    await AlertChecker(settings, by=by, log=log).check_recent_runs(ledger)
    deliveries = Deliveries(settings, send, by=by, log=log)
    await deliveries.start_pending(ledger)
    await deliveries.drain(DRAIN_SECONDS)


async def _until_told_to_stop(session: Session, settings: Settings, log: Log) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, told.set)
    try:
        async with watched(settings, log):
            session.note(f"Watching {settings.shown()['ledger']}; Ctrl-C ends it.")
            await told.wait()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
