"""`shoal status`: one screen about the newest runs, or about one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cli.render.options import OptionalRunName, with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import reason_text
from shoal.observe.formatting import pluralize
from shoal.service import records

if TYPE_CHECKING:
    from shoal.model.egress import PoolView
    from shoal.model.views import Counts
    from shoal.observe.failures import Failures
    from shoal.observe.meter import Reading
    from shoal.observe.sinks import SinkStatus
    from shoal.service.status import RunStatus, RunStatusDetail

MAX_PARTITIONS = 30
MAX_WORKERS = 10
MAX_FAILURES = 10


@with_options
def status(session: Session, run: OptionalRunName = None) -> None:
    """Show how the newest runs stand, or everything about one of them."""
    from shoal.service.status import newest_runs_status, read_run_status

    settings = session.settings
    if run is None:
        _show_runs(session, session.with_ledger(lambda ledger: newest_runs_status(ledger, settings)))
        return
    detail = session.with_ledger(lambda ledger: read_run_status(ledger, settings, run))
    if session.json:
        session.record(records.status_detail_record(detail))
    else:
        _print_detail(session, detail)


def _show_runs(session: Session, found: list[RunStatus]) -> None:
    if session.json:
        for each in found:
            session.record(records.status_record(each))
    elif not found:
        session.note("The ledger has no runs yet. Start one with `shoal run`.")
    else:
        _print_runs(session, found)


def _print_runs(session: Session, found: list[RunStatus]) -> None:
    from shoal.observe.formatting import format_percent, format_rate

    session.table(
        ["RUN", "SCRAPER", "STATE", "TOTAL", "DONE", "DONE %", "DEAD", "SKIPPED", "LEFT", "RATE", "ETA", "WAITING FOR"],
        [
            (
                reading.snapshot.run.id,
                reading.snapshot.run.scraper,
                reading.snapshot.run.state,
                reading.total,
                reading.done,
                "growing" if reading.total_grows else format_percent(reading.done_share),
                reading.dead,
                reading.skipped,
                reading.snapshot.counts.remaining,
                format_rate(reading.rate),
                "" if reading.ended else reading.eta_text,
                "" if reading.ended else reading.waiting_for,
            )
            for reading in (each.reading for each in found)
        ],
    )
    for each in found:
        for condition in each.conditions:
            session.data(f"Alert ({condition.kind.value}) of run {each.reading.snapshot.run.id}: {condition.text}")
    _print_egress(session, next((pools for each in found if (pools := each.reading.snapshot.egress)), ()))
    _print_sinks(session, found[0].sinks)


def _print_detail(session: Session, detail: RunStatusDetail) -> None:
    from shoal.observe.snapshot import VERSION_SKEW_REMEDY

    reading = detail.reading
    _print_head(session, reading)
    for condition in detail.conditions:
        session.data(f"Alert ({condition.kind.value}): {condition.text}")
    for line in detail.skew.lines if not reading.ended else ():
        session.data(f"{line} {VERSION_SKEW_REMEDY}")
    _print_latency(session, detail)
    _print_partitions(session, reading)
    if detail.workers:
        _print_title(session, "Workers (last hour)")
        session.table(
            ["WORKER", "STATE", "LEASED", "DONE", "DEAD", "SKIPPED"],
            [
                (each.worker, detail.worker_state(each.worker), each.leased, each.done, each.dead, each.skipped)
                for each in detail.workers[:MAX_WORKERS]
            ],
        )
        _print_rest(session, len(detail.workers) - MAX_WORKERS, "worker")
    if detail.failures.groups:
        _print_failures(session, detail.failures)
    _print_egress(session, detail.reading.snapshot.egress)
    _print_sinks(session, detail.sinks)


def _print_latency(session: Session, detail: RunStatusDetail) -> None:
    """How long items waited for a worker, and how long attempts took."""
    from shoal.observe.formatting import format_latency
    from shoal.service.status import LATENCY_MINUTES

    if detail.work.count:
        parts = [
            f"{name} p50 {format_latency(each.p50)} p95 {format_latency(each.p95)} p99 {format_latency(each.p99)}"
            for name, each in (("wait", detail.wait), ("work", detail.work))
        ]
        session.data(f"{', '.join(parts)} ({pluralize(detail.work.count, 'attempt')} in {LATENCY_MINUTES} minutes)")


def _print_egress(session: Session, pools: Sequence[PoolView]) -> None:
    if pools:
        from shoal.observe.egress import egress_line

        session.data(f"Egress  {egress_line(pools)}")


def _print_sinks(session: Session, sinks: Sequence[SinkStatus]) -> None:
    if sinks:
        from shoal.cli.sinks import print_sinks

        _print_title(session, "Sinks")
        print_sinks(session, sinks)


def _print_head(session: Session, reading: Reading) -> None:
    from shoal.observe.formatting import format_duration, format_time

    run = reading.snapshot.run
    text = f"Run {run.id} of {run.scraper} is {run.state.value}, begun {format_time(run.created_at)}"
    if run.finished_at is not None:
        text += f", took {format_duration((run.finished_at - run.created_at).total_seconds())}"
    session.data(session.styled(text, BOLD))
    session.data(reading.line)
    for reason in reading.snapshot.gates if not reading.ended else ():
        session.data(f"  {reason_text(reason)}")


def _print_partitions(session: Session, reading: Reading) -> None:
    partitions = reading.snapshot.partitions
    rows: list[tuple[object, ...]] = [
        (each.stage, each.partition, *_cells(each.counts)) for each in partitions[:MAX_PARTITIONS]
    ]
    if len(partitions) != 1:
        rows.append(("all", "", *_cells(reading.snapshot.counts)))
    _print_title(session, "Items")
    session.table(["STAGE", "PARTITION", *map(str.upper, records.STATES), "RECORDS"], rows)
    _print_rest(session, len(partitions) - MAX_PARTITIONS, "partition")


def _print_failures(session: Session, failures: Failures) -> None:
    _print_title(session, "Failures" if failures.complete else f"Failures (of {failures.items_read} that were read)")
    session.table(
        ["ITEMS", "CLASS", "GROUP", "ITEM", "MESSAGE"],
        [
            (group.items, group.outcome, _ids_text(group.failure_ids), group.example, group.display_text)
            for group in failures.groups[:MAX_FAILURES]
        ],
    )
    _print_rest(session, len(failures.groups) - MAX_FAILURES, "kind")


def _ids_text(ids: Sequence[int]) -> str:
    """`7`, or `7 +2` when the same failure is in several groups, of other hosts or stages."""
    return f"{ids[0]} +{len(ids) - 1}" if len(ids) > 1 else str(ids[0]) if ids else ""


def _cells(counts: Counts) -> tuple[int, ...]:
    return (*records.state_counts(counts).values(), counts.results)


def _print_title(session: Session, text: str) -> None:
    session.data("\n" + session.styled(text, BOLD))


def _print_rest(session: Session, count: int, what: str) -> None:
    if count > 0:
        session.data(f"... and {pluralize(count, f'more {what}')}; --json has them all.")
