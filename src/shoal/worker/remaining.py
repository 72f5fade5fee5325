"""Whether a worker still has something to wait for."""

from __future__ import annotations

from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope

OPEN = (RunState.ACTIVE, RunState.PAUSED)
RUNS_LOOKED_AT = 200


async def anything_left(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope.

    A run that is not sealed may get more items; a run that is paused may go on. With stages given, a run still counts
    until it has ended as a whole, because its other stages may feed these.
    """
    if scope.run_ids:
        runs = [run for run_id in scope.run_ids if (run := await _run_or_none(ledger, run_id)) is not None]
    else:
        runs = list((await ledger.runs.list(scraper=scope.scraper, limit=RUNS_LOOKED_AT)).rows)
    return any(run.state in OPEN for run in runs)


async def _run_or_none(ledger: Ledger, run_id: str) -> Run | None:
    """None for a run that was removed meanwhile: nothing is left of it."""
    try:
        return await ledger.runs.get(run_id)
    except NotFound:
        return None
