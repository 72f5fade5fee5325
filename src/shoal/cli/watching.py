"""The watch beside a command that works: from its beginning until what is to be told was told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shoal.config import Settings
from shoal.model.log import Log
from shoal.notify.alert_thread import Tower
from shoal.wiring import build_tower
from shoal.worker.options import Ending, WorkReport

# Somebody wants the process to end: what it leaves behind is no news to them.
_ON_REQUEST = (Ending.STOPPED, Ending.ORDERED, Ending.TIMED_OUT)


@asynccontextmanager
async def watched(settings: Settings, log: Log) -> AsyncIterator[Tower]:
    """Watch all runs of the ledger for the length of a block; `tell_end` tells of those that ended in it."""
    tower = build_tower(settings, log)
    tower.start()
    try:
        yield tower
    finally:
        await tower.close(settle=0)


async def tell_end(tower: Tower, run_ids: Sequence[str], report: WorkReport) -> None:
    """Before the process ends: how its runs ended, told to people, for some seconds at most."""
    if report.ending not in _ON_REQUEST:
        await tower.close(run_ids, broken=report.worker if report.ending is Ending.BROKEN else "")
