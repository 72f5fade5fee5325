"""What `shoal pool` prints: checks, plan, what each worker did, and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from shoal.autoscale.rules import Bounds
from shoal.cli.render.run import exit_code
from shoal.cli.render.session import RED, Session
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.model.run import RunState
from shoal.observe.doctor import Check
from shoal.observe.formatting import format_duration, pluralize
from shoal.service.console import Console
from shoal.service.events import CheckFinished, Event
from shoal.service.pool import PoolPlan
from shoal.service.pool_run import PoolReport, PoolWorkerReport
from shoal.service.records import check_record

MAX_NAMED = 8


class PoolConsole(Console):
    """Prints checks as data and shows the other events. `check_failed`: a failed check was printed."""

    def __init__(self, session: Session) -> None:
        super().__init__(quiet=session.quiet, print_note=session.note, print_error=session.complain)
        self._session = session
        self.check_failed = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, CheckFinished):
            self.check_failed |= not event.check.ok
            _print_check(self._session, event.check)
        else:
            super().__call__(event)


def format_size(workers: int, bounds: Bounds | None) -> str:
    """`3 workers`, or `2 to 10 workers` for a pool that chooses."""
    return pluralize(workers, "worker") if bounds is None else f"{bounds.least} to {bounds.most} workers"


def print_plan(session: Session, plan: PoolPlan) -> None:
    workers = plan.workers
    if session.json:
        for n, worker in enumerate(workers):
            session.record(
                {
                    "number": worker.number,
                    "partitions": worker.partitions,
                    "remaining": worker.waiting,
                    "eta_seconds": worker.eta,
                    "egress": {planned.pool: planned.part(n) for planned in plan.egress},
                }
            )
        return
    session.data("")
    session.table(
        ["WORKER", "PARTITIONS", "REMAINING", "ETA", *(planned.pool.upper() for planned in plan.egress), "OWN"],
        [
            (
                *(w.number, len(w.partitions), w.waiting, _format_eta(w.eta)),
                *(f"{planned.part(n)} of {planned.exits}" for planned in plan.egress),
                _format_names(w.partitions),
            )
            for n, w in enumerate(workers)
        ],
    )
    left = sum(worker.waiting for worker in workers)
    speed = plan.workload.speed
    eta = None if speed is None else left / (speed * len(workers)) * 60
    if plan.bounds is not None:
        session.data(f"It begins with {pluralize(len(workers), 'worker')}, and has more or fewer as needed.")
    session.data(
        f"{pluralize(left, 'item')} {'waits' if left == 1 else 'wait'} for {format_size(len(workers), plan.bounds)}, "
        f"{plan.workload.done} of {plan.workload.total} are done; eta {_format_eta(eta)}. {_who_takes_what(plan)}"
    )


def _who_takes_what(plan: PoolPlan) -> str:
    if plan.only:
        return "Each takes its own partitions and no others."
    if any(plan.assignment):
        return "A worker that has finished its own partitions takes items of the others."
    return "No worker has partitions of its own: each takes what comes first in the run."


def print_workers(session: Session, workers: Sequence[PoolWorkerReport]) -> None:
    """A line per worker."""
    if session.json:
        for worker in workers:
            fields = msgspec.structs.asdict(worker)
            session.record({"number": fields.pop("worker"), **fields})
    else:
        session.table(
            ["WORKER", "DONE", "DEAD", "SKIPPED", "RESTARTS", "END"],
            [(w.worker, w.done, w.dead, w.skipped, w.restarts, w.end) for w in workers],
        )


def print_end(session: Session, report: PoolReport, target: str, kept_options: str) -> None:
    """Of a run that has not ended: how to resume it, and what went wrong. `kept_options` hold for its rest too."""
    run, own = report.run.run, report.partitions
    if run.state is not RunState.ACTIVE:
        return
    if own is not None and not own.remaining:
        session.note(f"The partitions of this pool are done: {pluralize(own.total, 'item')}, {own.dead} of them dead.")
    again = f"pool {shlex.quote(target)} --run-id {run.id}{kept_options}"
    session.note(f"Continue with: {command_line()} {again}{ledger_flag(report.run.settings)}")
    if _has_failed(report):
        session.complain(f"The run has not ended: {pluralize(report.failed_workers, 'worker')} failed.")
    elif own is not None and _too_many_dead(report):
        allowed = report.run.settings.max_dead
        session.complain(f"Too many items are dead: {own.dead} of {own.wanted}; allowed: {allowed}.")


def pool_exit_code(report: PoolReport) -> int:
    unfinished = report.run.run.state is RunState.ACTIVE
    return 1 if unfinished and (_has_failed(report) or _too_many_dead(report)) else exit_code(report.run)


def _has_failed(report: PoolReport) -> bool:
    return report.failed_workers > 0 and not report.stopped


def _too_many_dead(report: PoolReport) -> bool:
    own = report.partitions
    return own is not None and report.run.settings.max_dead.exceeded(own.dead, own.wanted)


def _print_check(session: Session, check: Check) -> None:
    if session.json:
        session.record(check_record(check))
        return
    mark = "warn  " if check.warning else "ok    " if check.ok else session.styled("failed", RED)
    session.data(f"{mark}  {check.name:<10}  {check.text}")
    if check.fix:
        session.data(f"{'':<8}{'':<12}{check.fix}")


def _format_eta(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _format_names(partitions: Sequence[str]) -> str:
    rest = len(partitions) - MAX_NAMED
    return ", ".join(partitions[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
