"""What `shoal pool` prints: its checks, its plan, and who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.autoscale.rules import Bounds
from shoal.cli.render.session import RED, Session
from shoal.fleet.plan import PlannedWorker, Workload
from shoal.fleet.pool_workers import PoolSlot, WorkerTotals
from shoal.observe.doctor import Check
from shoal.observe.formatting import format_duration, pluralize

MAX_NAMED = 8


def print_check(session: Session, check: Check) -> None:
    if session.json:
        session.record({"check": check.name, "ok": check.ok, "text": check.text, "fix": check.fix})
        return
    mark = "ok    " if check.ok else session.styled("failed", RED)
    session.data(f"{mark}  {check.name:<10}  {check.text}")
    if check.fix:
        session.data(f"{'':<8}{'':<12}{check.fix}")


def how_many(workers: int, bounds: Bounds | None) -> str:
    """`3 workers`, or `2 to 10 workers` for a pool that may choose."""
    return pluralize(workers, "worker") if bounds is None else f"{bounds.least} to {bounds.most} workers"


def print_plan(
    session: Session,
    workers: Sequence[PlannedWorker],
    workload: Workload,
    bounds: Bounds | None = None,
    *,
    only: bool = False,
) -> None:
    if session.json:
        for worker in workers:
            session.record(worker)
        return
    session.data("")
    session.table(
        ["WORKER", "PARTITIONS", "WAITING", "ETA", "OWN"],
        [(w.number, len(w.partitions), w.waiting, _eta(w.eta), _named(w.partitions)) for w in workers],
    )
    left = sum(worker.waiting for worker in workers)
    eta = None if workload.speed is None else left / (workload.speed * len(workers)) * 60
    if bounds is not None:
        session.data(f"It begins with {pluralize(len(workers), 'worker')}, and has more or fewer as needed.")
    session.data(
        f"{pluralize(left, 'item')} {'waits' if left == 1 else 'wait'} for {how_many(len(workers), bounds)}, "
        f"{workload.done} of {workload.total} are done; eta {_eta(eta)}. "
        + (
            "Each takes its own partitions and no others."
            if only
            else "Who has nothing left of its own takes over from others."
        )
    )


def print_work(session: Session, slots: Sequence[PoolSlot], totals: Mapping[int, WorkerTotals]) -> None:
    """A line per worker, restarts of all its processes included."""
    rows: dict[int, dict[str, object]] = {}
    for slot in slots:
        tally = totals.get(slot.number, WorkerTotals())
        before = rows.get(slot.number, {}).get("restarts", 0)
        rows[slot.number] = {
            "worker": slot.number,
            "done": tally.done,
            "dead": tally.dead,
            "restarts": slot.restarts + int(str(before)),
            "end": slot.state.value,
        }
    if session.json:
        for row in rows.values():
            session.record(row)
    else:
        session.table(["WORKER", "DONE", "DEAD", "RESTARTS", "END"], [list(row.values()) for row in rows.values()])


def _eta(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _named(partitions: Sequence[str]) -> str:
    rest = len(partitions) - MAX_NAMED
    return ", ".join(partitions[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
