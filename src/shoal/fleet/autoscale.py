"""The size of a pool: set by an operator through the ledger, or chosen by the autoscaler every few seconds.

A size that an operator sets suspends the autoscaler until the operator sets AUTO.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shoal.autoscale.rules import ScalingDelays, ScalingInputs
from shoal.autoscale.scaler import ACTION, AttemptTotals, Autoscaler, read_backlog
from shoal.errors import LedgerError, NotFound
from shoal.fleet.pool import Pool
from shoal.fleet.pool_workers import PoolWorkers
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.model.worker import Scope

SIZE_POLL_SECONDS = 1.0
# Instead of a number: the autoscaler decides again.
AUTO = 0
POLL_SECONDS = 2.0
# A process takes a second to start and may take half a minute to drain.
DELAYS = ScalingDelays(between_growth=4.0, cooldown=30.0, cpu_full=6.0, idle=30.0, avoid_failed_size=300.0)
UNIT = "workers"
# The ledger counts by whole minutes: two of them hold at least the last one.
MINUTES = 2


async def set_desired_size(ledger: Ledger, scraper: str, workers: int, *, by: str) -> None:
    await ledger.settings.put(_scope(scraper), {"workers": workers}, by=by)


async def read_desired_size(ledger: Ledger, scraper: str) -> tuple[int, int]:
    """Its version and the number of workers; zeros when none was ever set."""
    found = await ledger.settings.get(_scope(scraper))
    return (0, 0) if found is None else (found[0], int(found[1]["workers"]))


async def watch_desired_size(ledger: Ledger, scraper: str, apply: Callable[[int], Awaitable[None]], seen: int) -> None:
    """Call `apply` for every version after `seen`; never ends by itself."""
    while True:
        await asyncio.sleep(SIZE_POLL_SECONDS)
        try:
            version, workers = await read_desired_size(ledger, scraper)
            if version > seen:
                await apply(workers)
                seen = version
        except LedgerError:
            continue  # tried again in a moment; progress reports the outage


def _scope(scraper: str) -> str:
    return f"pool:{scraper}"


class PoolAutoscaler:
    """Resizes a pool within the scaler's bounds."""

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        pool: Pool,
        pool_workers: PoolWorkers,
        scaler: Autoscaler,
        *,
        items_per_worker: int,
    ) -> None:
        self._ledger = ledger
        self._run_id = run.id
        self._scraper = run.scraper
        self._pool = pool
        self._pool_workers = pool_workers
        self._scaler = scaler
        self._items_per_worker = items_per_worker
        self._is_manual = False
        self._subject = f"pool {socket.gethostname()}"

    async def apply_desired_size(self, workers: int) -> None:
        """Apply what an operator set: a number, or AUTO. Raises LedgerError."""
        self._is_manual = workers != AUTO
        before = self._pool.size
        if self._is_manual:
            await self._pool.scale(workers)
            why = f"an operator asked for it; the autoscaler rests until `shoal pool scale {self._scraper} auto`"
        else:
            why = "an operator let the autoscaler decide again"
        most = self._scaler.bounds.most
        detail = {"from": before, "to": self._pool.size, "most": most, "what": UNIT, "why": why}
        await self._ledger.runs.record_event(self._run_id, ACTION, self._subject, detail, by=self._subject)

    async def run(self) -> None:
        """Until cancelled. While the ledger does not answer, the size stays as it is."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._is_manual or self._pool.stopping:
                continue
            with suppress(LedgerError, NotFound):  # outages and removed runs are reported elsewhere
                await self._adjust()

    async def _adjust(self) -> None:
        pool, now = self._pool, self._pool.size
        backlog = await read_backlog(self._ledger, Scope(run_ids=(self._run_id,)))
        held = await self._pool_workers.count_leases(pool.pids)
        recent = await self._ledger.reads.recent(self._run_id, minutes=MINUTES)
        # An item that dies at its first attempt, such as a missing page, is no sign of overload. Those that died of
        # transient errors have retries too.
        totals = AttemptTotals(
            recent.done + recent.dead + recent.skipped + recent.retried + recent.throttled,
            recent.retried + min(recent.dead, recent.retried),
            recent.throttled,
        )
        inputs = ScalingInputs(
            at=time.monotonic(),
            backlog=backlog.ready,
            waiting_for_lanes=backlog.waiting_for_lanes,
            idle=max(0, pool.expected - -(-held // self._items_per_worker)),
            each=self._items_per_worker,
        )
        decision = self._scaler.decide(now, inputs, totals)
        if self._is_manual or not backlog.run_ids:
            return  # the operator set a size meanwhile, or the run is not active
        if decision.target != now:
            await pool.resize(decision.target, decision.why)
        await self._scaler.report(self._ledger.runs, backlog.run_ids, self._subject, now, decision)
