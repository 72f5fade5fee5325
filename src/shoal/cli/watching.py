"""The watch beside a command that works: from its beginning until what is to be told was told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shoal.config import Settings
from shoal.model.log import Log
from shoal.notify.alert_thread import AlertThread
from shoal.wiring import build_alert_thread
from shoal.worker.options import StopReason, WorkSummary

# Somebody wants the process to end: what it leaves behind is no news to them.
_ON_REQUEST = (StopReason.STOPPED, StopReason.ORDERED, StopReason.TIMED_OUT)


@asynccontextmanager
async def watched(settings: Settings, log: Log) -> AsyncIterator[AlertThread]:
    """Watch all runs of the ledger for the length of a block; `tell_end` tells of those that ended in it."""
    alert_thread = build_alert_thread(settings, log)
    alert_thread.start()
    try:
        yield alert_thread
    finally:
        await alert_thread.close(drain=0)


async def tell_end(alert_thread: AlertThread, run_ids: Sequence[str], report: WorkSummary) -> None:
    """Before the process ends: how its runs ended, told to people, for some seconds at most."""
    if report.stop_reason not in _ON_REQUEST:
        await alert_thread.close(run_ids, broken=report.worker if report.stop_reason is StopReason.BROKEN else "")
