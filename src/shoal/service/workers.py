"""Workers and machines for operators, a page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import NotFound
from shoal.model.views import CursorPage
from shoal.observe.meter import MIN_RATE_SECONDS
from shoal.service.inspect import WorkerStatus
from shoal.service.lookup import ledger_now

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.worker import NodeView, WorkerView

RATE_MINUTES = 5
MAX_RUNS_OF_PAGE = 10


class WorkerItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a worker said it was running, and for how many seconds by now."""

    run_id: str
    item: int
    name: str
    seconds: float


class WorkerDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A worker with the items that it runs, as it said with its last heartbeat. `trouble`: what stops it.

    `per_minute`: items that it ended in the last minutes; None when its runs are not known, or it has just started.
    """

    status: WorkerStatus
    items: tuple[WorkerItem, ...]
    trouble: str | None
    per_minute: float | None = None


async def list_worker_page(
    ledger: Ledger, *, present: bool = True, node: str | None = None, cursor: str | None = None, limit: int = 50
) -> CursorPage[WorkerDetail]:
    """Return workers, newest first; with `present=False` also those that stopped or were declared dead."""
    from shoal.ledger.explain import heartbeat_problem

    page = await ledger.workers.page(present=present, node=node, cursor=cursor, limit=limit)
    running = [item for worker in page.rows if worker.report for item, _ in worker.report.items]
    held = await ledger.workers.held_items(running)
    runs = [run_id for worker in page.rows for run_id in worker.scope.run_ids] + [item.run_id for item in held.values()]
    rates = await _rates(ledger, page.rows, dict.fromkeys(runs))
    details = []
    for worker in page.rows:
        report, age = worker.report, worker.report_seconds or 0.0
        items = tuple(
            WorkerItem(run_id=held[item].run_id, item=item, name=held[item].name, seconds=round(seconds + age, 1))
            for item, seconds in (report.items if report is not None else ())
            if item in held
        )
        status = WorkerStatus(worker=worker, problem=heartbeat_problem(worker))
        details.append(
            WorkerDetail(
                status=status,
                items=items,
                trouble=None if report is None else report.trouble,
                per_minute=rates.get(worker.id),
            )
        )
    return CursorPage(tuple(details), page.cursor)


async def _rates(ledger: Ledger, workers: Sequence[WorkerView], runs: Iterable[str]) -> dict[str, float]:
    """Items that each worker ended per minute in these runs, the first few of them."""
    ended: Counter[str] = Counter()
    read = 0
    for run_id in islice(runs, MAX_RUNS_OF_PAGE):
        with suppress(NotFound):  # it was removed
            for progress in await ledger.reads.workers(run_id, minutes=RATE_MINUTES):
                ended[progress.worker] += progress.done + progress.dead + progress.skipped
            read += 1
    if not read:
        return {}
    clock = await ledger_now(ledger)
    # The ledger counts per whole minute, and the current minute is not over.
    covered = (RATE_MINUTES - 1) * 60 + clock.second + clock.microsecond / 1e6
    seconds = {worker.id: min(covered, (clock - worker.started_at).total_seconds()) for worker in workers}
    return {id: round(ended[id] * 60 / each, 2) for id, each in seconds.items() if each >= MIN_RATE_SECONDS}


async def list_nodes(ledger: Ledger) -> tuple[NodeView, ...]:
    """Return the machines of registered workers, by name."""
    return await ledger.workers.nodes()
