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
MAX_INTERVAL_SECONDS = 2.0
POLL_SECONDS = 0.25


class WorkerPlace:
    """A place that is held; one without a name is that of a worker without a limit.

    The event loop renews it, and so does the heartbeat of the worker, which goes on while a handler blocks the loop.
    `on_lost` is called on the loop when another worker has it, because it was not renewed in time.
    """

    def __init__(self, name: str = "", owner: str = "", seconds: float = 0.0) -> None:
        self._name = name
        self._owner = owner
        self._seconds = seconds
        self.on_lost: Callable[[], None] = lambda: None

    async def renew(self, ledger: Ledger) -> bool:
        """Renew it, over the ledger of the calling thread. False: another worker has it."""
        place = self._name, self._owner, self._seconds
        return not self._name or await ledger.locks.renew(*place) or await ledger.locks.acquire(*place)

    async def release(self, ledger: Ledger) -> None:
        await ledger.locks.release(self._name, self._owner)


@asynccontextmanager
async def hold_worker_place(
    ledger: Ledger, scraper: str, limit: int, *, lease: float, report: Callable[[str], None]
) -> AsyncIterator[WorkerPlace]:
    """Hold one of `limit` places of a scraper; wait for it while others have all of them. A limit of 0 means none."""
    if not limit:
        yield WorkerPlace()
        return
    owner, seconds = new_worker_id(), max(MIN_PLACE_SECONDS, lease)
    place = WorkerPlace(await _acquire(ledger, scraper, limit, owner, seconds, report), owner, seconds)
    renewing = asyncio.create_task(_renew(ledger, place, min(MAX_INTERVAL_SECONDS, seconds / 5)))
    try:
        yield place
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(LedgerError):  # then it expires
            await place.release(ledger)


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


async def _renew(ledger: Ledger, place: WorkerPlace, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        with suppress(LedgerError):  # the worker waits for the ledger too
            if not await place.renew(ledger):
                place.on_lost()
                return
