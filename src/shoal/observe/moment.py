"""A run at one moment, as the ledger tells it. A few small reads, none of which counts rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.views import Counts, Gate, PartitionProgress, added

ENDED = (RunState.FINISHED, RunState.CANCELLED)


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """`counts` is the sum of `partitions`, so the two never disagree. `gates`: what holds the run back, worst first.

    `at` is when it was looked at, by this machine's clock: good enough to show, not to decide by.
    """

    at: dt.datetime
    run: Run
    counts: Counts
    partitions: tuple[PartitionProgress, ...]
    gates: tuple[Gate, ...]

    @property
    def ended(self) -> bool:
        return self.run.state in ENDED

    @property
    def stages(self) -> dict[str, Counts]:
        """Counts per stage, in the order of the run's stages."""
        return {
            stage: added(part.counts for part in self.partitions if part.stage == stage) for stage in self.run.stages
        }


async def look(ledger: Ledger, run_id: str, *, gates: Sequence[Gate] | None = None) -> Moment:
    """The run now. Given `gates`, those are used again: asking why is the dearest of the reads."""
    run = await ledger.runs.get(run_id)
    partitions = tuple(await ledger.reads.partitions(run_id))
    if gates is None:
        gates = await ledger.reads.why_run(run_id)
    counts = added(part.counts for part in partitions)
    return Moment(at=dt.datetime.now(dt.UTC), run=run, counts=counts, partitions=partitions, gates=tuple(gates))
