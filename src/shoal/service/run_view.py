"""One run as its page shows it: how it stands, what was done to it, and who works on it."""

from __future__ import annotations

import msgspec

from shoal.model.run import Run
from shoal.model.views import AuditEvent, WorkerProgress
from shoal.model.worker import WorkerView
from shoal.observe.snapshot import VersionSkew, live_workers, version_skew
from shoal.service.inspect import MAX_EVENTS
from shoal.service.lookup import find_run
from shoal.service.overview import SharedReads, run_worker_counts
from shoal.service.status import RunStatus

MAX_WORKERS_SHOWN = 50
# A thousand workers have three thousand rows a minute: an hour of them would take too long for a page.
WORKER_MINUTES = 10


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """A run's status with its newest events, its present workers, and what workers did lately."""

    run: Run
    status: RunStatus
    events: tuple[AuditEvent, ...]
    workers: tuple[WorkerView, ...]
    progress: tuple[WorkerProgress, ...]
    skew: VersionSkew

    @property
    def worker_counts(self) -> dict[str, int]:
        """Workers that are live, draining and lost, the attempts of this run that they run, and how many are idle."""
        return run_worker_counts(self.run, self.workers)

    def worker_state(self, worker: str) -> str:
        """The state of a worker, `dead` without a heartbeat, or `gone` when it is not registered any more."""
        found = next((view for view in self.workers if view.id == worker), None)
        return "gone" if found is None else found.state.value if found.alive else "dead"


async def read_run_page(shared: SharedReads, run: str) -> RunPage:
    """Everything about one run; `run` is a name as for `lookup.find_run`."""
    ledger = shared.ledger
    found = await find_run(ledger, run)
    mine = tuple(worker for worker in await shared.workers.get() if worker.scope.includes_run(found.id, found.scraper))
    progress = await ledger.reads.workers(found.id, minutes=WORKER_MINUTES)
    return RunPage(
        run=found,
        status=await shared.run_reader(found.id).read(found),
        events=(await ledger.reads.events(run_id=found.id, limit=MAX_EVENTS)).rows,
        workers=mine,
        progress=tuple(progress[:MAX_WORKERS_SHOWN]),
        skew=version_skew(live_workers(mine, found)),
    )
