"""How many items a worker works on at once, when it may choose: it looks now and then, and the elastic rule decides."""

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
from shoal.model.outcome import AttemptDecision, OutcomeClass
from shoal.worker.lease_buffer import LeaseBuffer
from shoal.worker.registration import Registration
from shoal.worker.slots import Slots

SAMPLE_SECONDS = 0.1
SAMPLES = 10
# Places are cheap: they come within seconds and go within half a minute.
DELAYS = ScalingDelays(between_growth=1.0, cooldown=10.0, cpu_full=3.0, idle=20.0, avoid_failed_size=60.0)
# What fewer attempts at once may cure. A page that is not there is not among it.
_FAILED = {OutcomeClass.TRANSIENT, OutcomeClass.BLOCKED}


class AutoConcurrency:
    """Moves the slots between `min_concurrency` and `concurrency` of the worker's options."""

    def __init__(
        self, ledger: Ledger, registration: Registration, lease_buffer: LeaseBuffer, slots: Slots, log: Log
    ) -> None:
        self._ledger = ledger
        self._registration = registration
        self._lease_buffer = lease_buffer
        self._slots = slots
        self._log = log
        self._totals = AttemptTotals()

    def record_outcome(self, decision: AttemptDecision) -> None:
        """An attempt was committed."""
        totals = self._totals
        self._totals = AttemptTotals(
            totals.all + 1,
            totals.failed + (decision.outcome in _FAILED),
            totals.throttled + (decision.outcome is OutcomeClass.THROTTLED),
        )

    async def run(self) -> None:
        """Until it is cancelled. While the ledger is away everything stays as it is."""
        options = self._registration.options
        bounds = Bounds(options.initial_concurrency, options.concurrency)
        scaler = Autoscaler(bounds, DELAYS, options.limits, what="items at once", log=self._log, machine=Machine())
        while self._registration.events.stop_reason is None:
            began, used = time.monotonic(), time.process_time()
            running = await self._average_busy()
            process = (time.process_time() - used) / (time.monotonic() - began)
            with suppress(LedgerError, NotFound):  # others tell of outages, and of a run that was removed
                backlog = await read_backlog(self._ledger, options.scope)
                await self._apply(scaler, self._measure(backlog, running, process), backlog.run_ids)

    async def _average_busy(self) -> float:
        """How many slots were busy in the last second, on average: between two items each is free for a moment."""
        seen = 0
        for _ in range(SAMPLES):
            await asyncio.sleep(SAMPLE_SECONDS)
            seen += len(self._slots.running)
        return seen / SAMPLES

    async def _apply(self, scaler: Autoscaler, signs: ScalingInputs, run_ids: Sequence[str]) -> None:
        now = self._slots.capacity
        decision = scaler.decide(now, signs, self._totals)
        if decision.target != now:
            self._slots.resize(decision.target)
        await scaler.report(self._ledger.runs, run_ids, f"worker {self._registration.id}", now, decision)

    def _measure(self, backlog: Backlog, running: float, process: float) -> ScalingInputs:
        return ScalingInputs(
            at=time.monotonic(),
            backlog=backlog.ready + self._lease_buffer.buffered,
            waiting_for_lanes=backlog.waiting_for_lanes,
            idle=max(0, round(self._slots.capacity - running)),
            process=process,
        )
