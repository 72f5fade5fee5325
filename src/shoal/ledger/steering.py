"""Operator commands on both ledgers: retry, cancel, release and replay, page by page for those that take a filter."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from shoal.errors import InvalidSetting, UsageError
from shoal.ledger.catalog import Catalog
from shoal.ledger.commits import check_finished
from shoal.ledger.protocols import OnProgress, Reads
from shoal.model.item import FINAL_STATES, OPEN_STATES, RETRYABLE_STATES, ItemState
from shoal.model.outcome import DecisionKind, FinishedAttempt
from shoal.model.views import ItemFilter, ReplayReport

PAGE = 1_000
# An item that moves between two tables while they are read may be missed, so there is another pass.
MAX_PASSES = 3


class BaseSteering(ABC):
    """Operator commands on items. Changes are made a page at a time, so that none blocks the workers for long."""

    def __init__(self, catalog: Catalog, reads: Reads) -> None:
        self._catalog = catalog
        self._reads = reads

    @abstractmethod
    async def _release(self, older_than: float, run_no: int | None, reason: str) -> int: ...

    @abstractmethod
    async def _retry(self, run_no: int, items: list[int]) -> int: ...

    @abstractmethod
    async def _cancel(self, run_no: int, items: list[int], reason: str) -> int: ...

    @abstractmethod
    async def _replay(self, finished: FinishedAttempt, replay_id: str) -> ReplayReport: ...

    @abstractmethod
    async def _record_event(
        self, run_no: int | None, by: str, action: str, subject: str, detail: dict[str, Any]
    ) -> None: ...

    async def release(self, *, older_than: float, run_id: str | None = None, by: str = "") -> int:
        if not older_than >= 0:
            raise InvalidSetting(f"older_than is {older_than!r}; it must be 0 or more seconds.")
        no = None if run_id is None else (await self._catalog.run(run_id)).no
        released = await self._release(older_than, no, f"Released by {by or 'an operator'}.")
        await self._record_event(
            no, by, "leases.released", run_id or "all", {"older_than": older_than, "items": released}
        )
        return released

    async def retry(
        self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "", on_progress: OnProgress = int
    ) -> int:
        no = (await self._catalog.run(run_id)).no
        which = replace(which, states=which.states or (ItemState.DEAD,))
        if not set(which.states) <= set(RETRYABLE_STATES):
            raise InvalidSetting(
                f"Items that are {', '.join(which.states)} cannot be retried; dead, skipped and cancelled ones can."
            )
        retried = await self._change(run_id, which, limit, on_progress, lambda items: self._retry(no, items))
        await self._record_event(no, by, "items.retried", run_id, {"items": retried})
        return retried

    async def cancel(
        self,
        run_id: str,
        which: ItemFilter,
        *,
        limit: int | None = None,
        by: str = "",
        reason: str | None = None,
        on_progress: OnProgress = int,
    ) -> int:
        no = (await self._catalog.run(run_id)).no
        which = replace(which, states=which.states or OPEN_STATES)
        if set(which.states) & set(FINAL_STATES):
            raise InvalidSetting("Ended items cannot be cancelled: give open states only.")
        error = reason or f"Cancelled by {by or 'an operator'}."
        cancelled = 0

        def report_total(in_this_pass: int) -> None:
            on_progress(cancelled + in_this_pass)

        for _ in range(MAX_PASSES):
            left = None if limit is None else limit - cancelled
            in_this_pass = await self._change(
                run_id, which, left, report_total, lambda items: self._cancel(no, items, error)
            )
            cancelled += in_this_pass
            if not in_this_pass or cancelled == limit:
                break
        if cancelled or reason is None:
            detail = {"items": cancelled} if reason is None else {"items": cancelled, "reason": reason}
            await self._record_event(no, by, "items.cancelled", run_id, detail)
        return cancelled

    async def replay(self, finished: FinishedAttempt) -> ReplayReport:
        if finished.decision.kind is not DecisionKind.DONE:
            raise UsageError("Only an attempt that is done replaces the results of an item.")
        check_finished([finished])
        # The same attempt has the same id, so a call that is repeated after an error finds that it took effect.
        content = hashlib.sha256("\0".join(finished.records).encode()).hexdigest()
        return await self._replay(finished, content[:32])

    async def _change(
        self,
        run_id: str,
        which: ItemFilter,
        limit: int | None,
        on_progress: OnProgress,
        change: Callable[[list[int]], Awaitable[int]],
    ) -> int:
        if limit is not None and limit < 1:
            raise InvalidSetting(f"The limit is {limit!r}; it must be at least 1.")
        changed = 0
        cursor: str | None = None
        while True:
            room = PAGE if limit is None else min(PAGE, limit - changed)
            page = await self._reads.items(run_id, which, cursor=cursor, limit=room)
            if page.rows:
                # An item that moved while the page was read may be in it twice.
                changed += await change(list(dict.fromkeys(row.id for row in page.rows)))
                on_progress(changed)
            cursor = page.cursor
            if cursor is None or (limit is not None and changed >= limit):
                return changed
