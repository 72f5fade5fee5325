"""How much there is to take."""

from __future__ import annotations

import msgspec

from shoal.ledger.protocols import Ledger
from shoal.model.run import RunState
from shoal.model.worker import Scope

RUNS_LOOKED_AT = 50


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """`ready`: items that could be taken now. `behind_lanes`: those that wait for their lanes."""

    run_ids: tuple[str, ...] = ()
    ready: int = 0
    behind_lanes: int = 0


async def backlog_of(ledger: Ledger, scope: Scope) -> Backlog:
    """What a worker of this scope could take, of the runs that are active. Raises LedgerError."""
    ready = behind_lanes = 0
    run_ids = tuple(await _active(ledger, scope))
    for run_id in run_ids:
        for part in await ledger.reads.partitions(run_id):
            if _takes(scope, part.stage, part.partition):
                ready += part.counts.ready
                behind_lanes += part.counts.waiting
    return Backlog(run_ids=run_ids, ready=ready, behind_lanes=behind_lanes)


async def _active(ledger: Ledger, scope: Scope) -> list[str]:
    if scope.run_ids:
        runs = [await ledger.runs.get(run_id) for run_id in scope.run_ids]
    else:
        runs = list((await ledger.runs.list(scraper=scope.scraper, limit=RUNS_LOOKED_AT)).rows)
    return [run.id for run in runs if run.state is RunState.ACTIVE]


def _takes(scope: Scope, stage: str, partition: str) -> bool:
    is_its_stage = not scope.stages or stage in scope.stages
    return is_its_stage and (scope.steal or not scope.partitions or partition in scope.partitions)
