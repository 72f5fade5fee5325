"""The runs that a worker serves: whether they may still have work for it, and what they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shoal.errors import LedgerError, NotFound
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.model.worker import Scope
from shoal.observe.holdup import holdup
from shoal.observe.moment import look

OPEN = (RunState.ACTIVE, RunState.PAUSED)
RUNS_LOOKED_AT = 200
RUNS_EXPLAINED = 5
# A worker that had nothing to do for so long says why, then looks again ever more seldom.
IDLE_SECONDS = 3.0
LONGEST_IDLE_SECONDS = 60.0


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


async def open_runs(ledger: Ledger, scope: Scope) -> list[Run]:
    """Runs of this scope that may still have work, the newest first.

    A run that is not sealed may get more items; a run that is paused may go on. With stages given, a run still counts
    until it has ended as a whole, because its other stages may feed these.
    """
    return [run for run in await runs_served(ledger, scope) if run.state in OPEN]


async def anything_left(ledger: Ledger, scope: Scope) -> bool:
    """Whether a run of this scope may still have work for a worker of this scope."""
    return bool(await open_runs(ledger, scope))


async def explain_idleness(
    ledger: Ledger, scope: Scope, is_idle: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    """Say why the worker has nothing to do: each run that it serves, and what that waits for. For ever.

    Told once, and again when a reason has changed.
    """
    told: list[tuple[str, str]] = []
    nap = IDLE_SECONDS
    while True:
        await asyncio.sleep(nap)
        if not is_idle():
            told, nap = [], IDLE_SECONDS
            continue
        nap = min(2 * nap, LONGEST_IDLE_SECONDS)
        try:
            reasons = await _reasons(ledger, scope)
        except (LedgerError, NotFound):
            continue  # whoever works for this worker says that
        if (causes := [(run_id, cause) for run_id, cause, _ in reasons]) != told and is_idle():
            told = causes
            tell("\n".join(text for *_, text in reasons))


async def _reasons(ledger: Ledger, scope: Scope) -> list[tuple[str, str, str]]:
    """Run, cause, and a sentence about it."""
    runs = await open_runs(ledger, scope)
    if not runs:
        return [("", "", "Nothing to do: no run is open. The worker waits for one.")]
    reasons = []
    for run in runs[:RUNS_EXPLAINED]:
        found = holdup((moment := await look(ledger, run.id)).counts, moment.gates)
        text = f"Nothing to do for run {run.id} of {run.scraper}: "
        if run.state is RunState.PAUSED:
            text += f"it is paused. `shoal runs resume {run.id}` lets it go on, `shoal runs cancel {run.id}` ends it."
        else:
            text += f"it waits for {found.cause}. {found.text}" if found.cause != "nothing" else found.text
        reasons.append((run.id, found.cause, text.rstrip()))
    if len(runs) > RUNS_EXPLAINED:
        reasons.append(("", "", f"... and {len(runs) - RUNS_EXPLAINED} more open runs."))
    return reasons
