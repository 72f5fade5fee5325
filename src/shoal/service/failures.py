"""Groups of dead items of a run: lists, and muting them. To retry a group, see `steer.retry_items`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.errors import LedgerError
from shoal.service.lookup import find_run

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.failures import FailurePage, FailureView

# A list puts so many dead items into groups itself, for ledgers on which no worker runs.
GROUPED_BY_LISTS = 500


async def group_dead_items(ledger: Ledger, run_id: str) -> None:
    """Group some dead items of a run now, so that they have a number, unless the ledger cannot be written."""
    with suppress(LedgerError):
        await ledger.failures.group(run_id, at_most=GROUPED_BY_LISTS)


async def list_failure_groups(
    ledger: Ledger, run: str, *, muted: bool | None = False, cursor: str | None = None, limit: int = 50
) -> FailurePage:
    """Return the groups of a run's dead items, the one with the newest death first.

    `muted`: True for the muted ones, None for all. What no worker has put into a group yet is grouped here, a bounded
    number at a time; the rest is counted in `ungrouped`.
    """
    run_id = (await find_run(ledger, run)).id
    if cursor is None:
        await group_dead_items(ledger, run_id)
    return await ledger.failures.list(run_id, muted=muted, cursor=cursor, limit=limit)


async def read_failure_group(ledger: Ledger, run: str, failure: int) -> FailureView:
    """Return one group. Raises NotFound."""
    return await ledger.failures.get((await find_run(ledger, run)).id, failure)


async def mute_failure(ledger: Ledger, run: str, failure: int, *, by: str = "") -> FailureView:
    """Hide a group in lists, with an event. Alerts about failures do not change."""
    return await ledger.failures.mute((await find_run(ledger, run)).id, failure, by=by)


async def unmute_failure(ledger: Ledger, run: str, failure: int, *, by: str = "") -> FailureView:
    """Show a group in lists again, with an event."""
    return await ledger.failures.unmute((await find_run(ledger, run)).id, failure, by=by)
