"""Places for workers: the setting `worker_limit` is the most workers of a scraper that work at a time, on all machines.

A place is a lock in the ledger. It expires with the lease unless its worker renews it, so that the place of a worker
that was killed is free when its items are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.worker import WORKER_PLACE_PREFIX, new_worker_id
from shoal.observe.formatting import pluralize

MIN_PLACE_SECONDS = 5.0
POLL_SECONDS = 0.25


class WorkerPlace:
    """A place that is held. `on_lost` is called when another worker has it, because it was not renewed in time."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None


@asynccontextmanager
async def hold_worker_place(
    ledger: Ledger, scraper: str, limit: int, *, lease: float, report: Callable[[str], None]
) -> AsyncIterator[WorkerPlace]:
    """Hold one of `limit` places of a scraper; wait for it while others have all of them. A limit of 0 means none."""
    place = WorkerPlace()
    if not limit:
        yield place
        return
    owner, seconds = new_worker_id(), max(MIN_PLACE_SECONDS, lease)
    name = await _acquire(ledger, scraper, limit, owner, seconds, report)
    renewing = asyncio.create_task(_renew(ledger, name, owner, seconds, place))
    try:
        yield place
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(LedgerError):  # then it expires
            await ledger.locks.release(name, owner)


async def _acquire(
    ledger: Ledger, scraper: str, limit: int, owner: str, seconds: float, report: Callable[[str], None]
) -> str:
    """The name of the place that was free."""
    names = [f"{WORKER_PLACE_PREFIX}{scraper}/{number}" for number in range(1, limit + 1)]
    reported = False
    while True:
        for name in names:
            if await ledger.locks.acquire(name, owner, seconds):
                return name
        if not reported:
            holders = [held.taken_by for held in [await ledger.locks.get(name) for name in names] if held is not None]
            most = pluralize(limit, "worker")
            report(f"{scraper} has {most} at a time (worker_limit), now {', '.join(holders)}. Waiting for a place.")
            reported = True
        await asyncio.sleep(POLL_SECONDS)


async def _renew(ledger: Ledger, name: str, owner: str, seconds: float, place: WorkerPlace) -> None:
    while True:
        await asyncio.sleep(min(2.0, seconds / 5))
        with suppress(LedgerError):  # the worker waits for the ledger too
            renewed = await ledger.locks.renew(name, owner, seconds) or await ledger.locks.acquire(name, owner, seconds)
            if not renewed:
                place.on_lost()
                return
