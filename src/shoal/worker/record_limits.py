"""Ends stages that have stored as many records as `max_records` allows: their open items are cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from enum import Enum

import msgspec

from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, ItemState, Lease
from shoal.model.log import Log
from shoal.model.views import ItemFilter
from shoal.worker.state import LeaseBuffer, WorkerIdentity

# How long a count of records that was read is used.
COUNT_SECONDS = 0.1
# How long a count of the records of other runs is used.
ELSEWHERE_SECONDS = 5.0
# How often an item asks again while the last records may come from attempts that run.
ASK_AGAIN_SECONDS = 0.05
# How often a worker looks for further items of a stage that is complete; one worker does it for all.
SWEEP_SECONDS = 1.0
LOCK_SECONDS = 60.0
_UNCLAIMED = (ItemState.READY, ItemState.WAITING, ItemState.DELAYED)


class RecordLimit(msgspec.Struct, frozen=True):
    """After how many records a stage ends: those of the run, or with `of_scraper` those of all runs of the scraper."""

    records: int
    of_scraper: bool = False

    def describe(self, stage: str) -> str:
        return f"the stage {stage} has its {self.records} records{' in all runs' * self.of_scraper} (max_records)"


class StartDecision(Enum):
    """Whether an item of a limited stage may start."""

    START = "start"
    COMPLETE = "complete"
    STOPPED = "stopped"


class RecordLimits:
    """Decides before each attempt of a stage with `max_records` whether more records are wanted.

    Records of other runs are counted anew every few seconds: as a rule those runs have ended.

    An attempt that runs is expected to store one record. So the attempts of one worker end at the limit when each
    stores at most one; those that run in other workers are not known here and may add theirs.
    """

    def __init__(
        self,
        ledger: Ledger,
        identity: WorkerIdentity,
        lease_buffer: LeaseBuffer,
        limits: Mapping[str, RecordLimit],
        log: Log,
    ) -> None:
        self._ledger = ledger
        self._identity = identity
        self._lease_buffer = lease_buffer
        self._limits = dict(limits)
        self._log = log
        self._stages: dict[tuple[str, str], _LimitedStage] = {}

    def applies_to(self, claimed: ClaimedItem) -> bool:
        return claimed.stage in self._limits

    async def ask(self, claimed: ClaimedItem) -> StartDecision:
        """Wait until it is known whether the item is wanted. START counts it as running until its lease has ended."""
        limit = self._limits[claimed.stage].records
        stage = self._stages.setdefault((claimed.run_id, claimed.stage), _LimitedStage())
        while self._identity.events.stop_reason is None and not self._identity.lost:
            stored = await self._stored(stage, claimed)
            if stored is None or stored >= limit:
                return StartDecision.COMPLETE
            if stored + len(stage.running) < limit:
                stage.running.add(claimed.lease)
                return StartDecision.START
            await asyncio.sleep(ASK_AGAIN_SECONDS)
        return StartDecision.STOPPED

    async def cancel_items(self, claimed: ClaimedItem) -> None:
        """End this item and, at most once a second, all unclaimed items of its stage."""
        stage = self._stages.setdefault((claimed.run_id, claimed.stage), _LimitedStage())
        await self._cancel(claimed, ItemFilter(ids=(claimed.item,)))
        now = time.monotonic()
        if now - stage.swept_at < SWEEP_SECONDS:
            return
        stage.swept_at = now
        name, owner = f"max_records:{claimed.run_id}:{claimed.stage}", self._identity.id
        if not await self._ledger.locks.acquire(name, owner, LOCK_SECONDS):
            return
        try:
            ended = await self._cancel(claimed, ItemFilter(stage=claimed.stage, states=_UNCLAIMED))
        finally:
            await self._ledger.locks.release(name, owner)
        self._log.info(
            "stage has its records; open items cancelled",
            stage=claimed.stage,
            max_records=self._limits[claimed.stage].records,
            items=ended + 1,
        )

    async def _stored(self, stage: _LimitedStage, claimed: ClaimedItem) -> int | None:
        """The records of the stage that count; None when the run was removed. One slot reads for all."""
        async with stage.lock:
            running = stage.running & self._lease_buffer.leases
            # Attempts that were committed since the last reading are in the ledger's count only.
            if running != stage.running or time.monotonic() - stage.read_at >= COUNT_SECONDS:
                stage.running = running
                try:
                    if self._limits[claimed.stage].of_scraper:
                        await self._count_elsewhere(stage, claimed)
                    own = await self._ledger.reads.stats(claimed.run_id, stage=claimed.stage)
                    stage.stored = stage.elsewhere + own.results
                except NotFound:
                    return None
                stage.read_at = time.monotonic()
            return stage.stored

    async def _count_elsewhere(self, stage: _LimitedStage, claimed: ClaimedItem) -> None:
        if time.monotonic() - stage.elsewhere_at >= ELSEWHERE_SECONDS:
            stage.elsewhere = await self._ledger.reads.records_elsewhere(claimed.run_id, claimed.stage)
            stage.elsewhere_at = time.monotonic()

    async def _cancel(self, claimed: ClaimedItem, which: ItemFilter) -> int:
        reason = self._limits[claimed.stage].describe(claimed.stage)
        try:
            return await self._ledger.steering.cancel(claimed.run_id, which, by=self._identity.id, reason=reason)
        except NotFound:  # the run was removed, and its items with it
            return 0


class _LimitedStage:
    """What a worker knows about a stage of a run: records as last read, also of other runs, and its own attempts."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.stored = 0
        self.elsewhere = 0
        self.elsewhere_at = float("-inf")
        self.read_at = float("-inf")
        self.swept_at = float("-inf")
        self.running: set[Lease] = set()
