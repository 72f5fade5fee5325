"""The watch beside a command that works: from its beginning until what is to be told was told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shoal.config import Settings
from shoal.model.log import Log
from shoal.notify.alert_thread import Tower
from shoal.wiring import build_alert_thread
from shoal.worker.options import StopReason, WorkSummary

# Somebody wants the process to end: what it leaves behind is no news to them.
_ON_REQUEST = (StopReason.STOPPED, StopReason.ORDERED, StopReason.TIMED_OUT)


@asynccontextmanager
async def watched(settings: Settings, log: Log) -> AsyncIterator[Tower]:
    """Watch all runs of the ledger for the length of a block; `tell_end` tells of those that ended in it."""
    tower = build_alert_thread(settings, log)
    tower.start()
    try:
        yield tower
    finally:
        await tower.close(settle=0)


async def tell_end(tower: Tower, run_ids: Sequence[str], report: WorkSummary) -> None:
    """Before the process ends: how its runs ended, told to people, for some seconds at most."""
    if report.stop_reason not in _ON_REQUEST:
        await tower.close(run_ids, broken=report.worker if report.stop_reason is StopReason.BROKEN else "")
