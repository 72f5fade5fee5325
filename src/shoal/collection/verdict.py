"""What became of a member's run, from the ledger alone: never from words in a log."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from shoal.config.deadlimit import DeadLimit
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.views import Counts
from shoal.observe.failures import failures
from shoal.observe.words import counted


class Status(StrEnum):
    SUCCESS = "success"
    WARNING = "warning"
    FAILED = "failed"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`reason`: why it is no plain success."""

    status: Status
    reason: str = ""
    counts: Counts = Counts()


async def verdict_on(ledger: Ledger, run: Run, max_dead: DeadLimit) -> Verdict:
    """Success: all done, with records. Warning: done within the limits, but not all, or without a record."""
    counts = await ledger.reads.stats(run.id)
    if run.state is RunState.CANCELLED:
        return Verdict(status=Status.FAILED, reason="its run was cancelled", counts=counts)
    if run.state is not RunState.FINISHED:
        left = f"unfinished, {counted(counts.remaining, 'item')} left"
        return Verdict(status=Status.FAILED, reason=left, counts=counts)
    if counts.dead:
        groups = (await failures(ledger, run.id)).groups
        main = f": {groups[0].outcome}, {groups[0].told}" if groups else ""
        reason = f"{counts.dead} of {counted(counts.total, 'item')} dead{main}"
        too_many = max_dead.exceeded(counts.dead, counts.total)
        return Verdict(status=Status.FAILED if too_many else Status.WARNING, reason=reason, counts=counts)
    if not counts.results:
        return Verdict(status=Status.WARNING, reason="no records", counts=counts)
    return Verdict(status=Status.SUCCESS, counts=counts)
