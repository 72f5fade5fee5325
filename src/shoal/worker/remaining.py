"""The runs that a worker serves, and whether they may still have work for it."""

from __future__ import annotations

from shoal.errors import NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope

OPEN = (RunState.ACTIVE, RunState.PAUSED)
RUNS_LOOKED_AT = 200


async def runs_served(ledger: Ledger, scope: Scope, *, newest: int = RUNS_LOOKED_AT) -> list[Run]:
    """The runs that the scope names, or the newest of its scraper. A run that was removed meanwhile is left out."""
    if not scope.run_ids:
        return list((await ledger.runs.list(scraper=scope.scraper, limit=newest)).rows)
    runs: list[Run] = []
    for run_id in scope.run_ids:
        try:
            runs.append(await ledger.runs.get(run_id))
        except NotFound:
            continue
    return runs


async def anything_left(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope.

    A run that is not sealed may get more items; a run that is paused may go on. With stages given, a run still counts
    until it has ended as a whole, because its other stages may feed these.
    """
    return any(run.state in OPEN for run in await runs_served(ledger, scope))
