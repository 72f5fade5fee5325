"""Workers and machines for operators, a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.model.views import CursorPage
from shoal.service.inspect import WorkerStatus

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.worker import NodeView


class RunningItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a worker said it was running, and for how many seconds by now."""

    run_id: str
    item: int
    name: str
    seconds: float


class WorkerDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with the items that it runs, as it said with its last heartbeat. `trouble`: what stops it."""

    status: WorkerStatus
    items: tuple[RunningItem, ...]
    trouble: str | None


async def list_worker_page(
    ledger: Ledger, *, present: bool = True, node: str | None = None, cursor: str | None = None, limit: int = 50
) -> CursorPage[WorkerDetail]:
    """Return workers, newest first; with `present=False` also those that stopped or were declared dead."""
    from shoal.ledger.explain import heartbeat_problem

    page = await ledger.workers.page(present=present, node=node, cursor=cursor, limit=limit)
    running = [item for worker in page.rows if worker.report for item, _ in worker.report.items]
    held = await ledger.workers.held_items(running)
    details = []
    for worker in page.rows:
        report, age = worker.report, worker.report_seconds or 0.0
        items = tuple(
            RunningItem(run_id=held[item].run_id, item=item, name=held[item].name, seconds=round(seconds + age, 1))
            for item, seconds in (report.items if report is not None else ())
            if item in held
        )
        status = WorkerStatus(worker=worker, problem=heartbeat_problem(worker))
        details.append(WorkerDetail(status=status, items=items, trouble=None if report is None else report.trouble))
    return CursorPage(tuple(details), page.cursor)


async def list_nodes(ledger: Ledger) -> tuple[NodeView, ...]:
    """Return the machines of registered workers, by name."""
    return await ledger.workers.nodes()
