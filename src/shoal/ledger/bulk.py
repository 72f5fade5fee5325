"""Bulk changes on a filter, page by page: the same on both ledgers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shoal.errors import InvalidSetting
from shoal.ledger.protocols import Reads
from shoal.model.item import FINAL_STATES, OPEN_STATES, ItemState
from shoal.model.views import ItemFilter

PAGE = 1_000
RETRYABLE = (ItemState.DEAD, ItemState.CANCELLED)

Change = Callable[[list[int]], Awaitable[int]]


def checked_for_retry(which: ItemFilter) -> ItemFilter:
    """Dead items unless cancelled ones are asked for too."""
    states = which.states or (ItemState.DEAD,)
    if not set(states) <= set(RETRYABLE):
        raise InvalidSetting(
            f"Items that are {', '.join(states)} cannot be retried: only dead and cancelled ones have ended badly."
        )
    return ItemFilter(
        states=states, stage=which.stage, partition=which.partition, outcome=which.outcome, error=which.error
    )


def checked_for_cancel(which: ItemFilter) -> ItemFilter:
    states = which.states or OPEN_STATES
    if set(states) & set(FINAL_STATES):
        raise InvalidSetting("Items that have ended cannot be cancelled: name open states only.")
    return ItemFilter(
        states=states, stage=which.stage, partition=which.partition, outcome=which.outcome, error=which.error
    )


async def change_matching(reads: Reads, run_id: str, which: ItemFilter, limit: int | None, change: Change) -> int:
    """Apply `change` to the items that match, a page at a time, at most `limit` of them."""
    if limit is not None and limit < 1:
        raise InvalidSetting(f"The limit is {limit!r}; it must be at least 1.")
    changed = 0
    cursor: str | None = None
    while True:
        room = PAGE if limit is None else min(PAGE, limit - changed)
        page = await reads.items(run_id, which, cursor=cursor, limit=room)
        if page.rows:
            changed += await change([row.id for row in page.rows])
        cursor = page.cursor
        if cursor is None or (limit is not None and changed >= limit):
            return changed
