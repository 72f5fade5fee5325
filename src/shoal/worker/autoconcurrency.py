"""Adjusts how many items a worker processes at once: measures load and backlog, and applies the scaling rule."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from shoal.autoscale.machine import Machine
from shoal.autoscale.rules import Bounds, ScalingDelays, ScalingInputs
from shoal.autoscale.scaler import AttemptTotals, Autoscaler, Backlog, read_backlog
from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.outcome import OutcomeClass
from shoal.worker.commit import Committer
from shoal.worker.registration import Registration
from shoal.worker.slots import Slots
from shoal.worker.state import LeaseBuffer

SAMPLE_SECONDS = 0.1
SAMPLES = 10
# Slots are cheap: they are added within seconds and removed within half a minute.
DELAYS = ScalingDelays(between_growth=1.0, cooldown=10.0, cpu_full=3.0, idle=20.0, avoid_failed_size=60.0)
# Failures that lower concurrency may cure.
_FAILED = (OutcomeClass.TRANSIENT, OutcomeClass.BLOCKED)


class AutoConcurrency:
    """Moves the slots between `min_concurrency` and `concurrency` of the worker's options."""

    def __init__(
        self,
        ledger: Ledger,
        registration: Registration,
        lease_buffer: LeaseBuffer,
        slots: Slots,
        committer: Committer,
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._registration = registration
        self._lease_buffer = lease_buffer
        self._slots = slots
        self._committer = committer
        self._log = log

    async def run(self) -> None:
        """Adjust until cancelled. Nothing changes while the ledger cannot be reached."""
        options = self._registration.options
        bounds = Bounds(options.initial_concurrency, options.concurrency)
        scaler = Autoscaler(bounds, DELAYS, options.limits, what="items at once", log=self._log, machine=Machine())
        while self._registration.identity.events.stop_reason is None:
            began, used = time.monotonic(), time.process_time()
            running = await self._average_busy()
            process = (time.process_time() - used) / (time.monotonic() - began)
            with suppress(LedgerError, NotFound):  # other parts log outages; a run may have been removed
                backlog = await read_backlog(self._ledger, options.scope)
                await self._apply(scaler, self._measure(backlog, running, process), backlog.run_ids)

    async def _average_busy(self) -> float:
        """The average number of busy slots over a second: a slot is free for a moment between two items."""
        busy = 0
        for _ in range(SAMPLES):
            await asyncio.sleep(SAMPLE_SECONDS)
            busy += len(self._slots.running)
        return busy / SAMPLES

    async def _apply(self, scaler: Autoscaler, inputs: ScalingInputs, run_ids: Sequence[str]) -> None:
        now = self._slots.capacity
        decision = scaler.decide(now, inputs, self._totals())
        if decision.target != now:
            self._slots.resize(decision.target)
        await scaler.report(self._ledger.runs, run_ids, f"worker {self._registration.identity.id}", now, decision)

    def _measure(self, backlog: Backlog, running: float, process: float) -> ScalingInputs:
        return ScalingInputs(
            at=time.monotonic(),
            backlog=backlog.ready + self._lease_buffer.buffered,
            waiting_for_lanes=backlog.waiting_for_lanes,
            idle=max(0, round(self._slots.capacity - running)),
            process=process,
        )

    def _totals(self) -> AttemptTotals:
        outcomes = self._committer.outcomes
        return AttemptTotals(
            outcomes.total(), sum(outcomes[outcome] for outcome in _FAILED), outcomes[OutcomeClass.THROTTLED]
        )
