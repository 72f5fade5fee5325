"""`shoal status`: one screen about the newest runs, or about one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run, is_member
from shoal.cli.render.options import with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import STATES, gate_text, per_state, reading_record

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import Counts, WorkerProgress
    from shoal.notify.conditions import AlertCondition
    from shoal.observe.failures import Failures
    from shoal.observe.meter import Reading
    from shoal.observe.snapshot import VersionSkew

NEWEST = 10
LOOKED_AT = 200
MOST_PARTITIONS = 30
MOST_WORKERS = 10
MOST_FAILURES = 10
FAILURES_LOOKED_AT = 2_000


@with_options
def status(
    session: Session,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, `latest`, or `latest:SCRAPER`.", show_default=False),
    ] = None,
) -> None:
    """Show how the newest runs stand, or all about one of them."""
    if run is None:
        _show_runs(session, ask(session, lambda ledger: _newest(ledger, session.settings)))
    else:
        _show_run(session, *ask(session, lambda ledger: _one(ledger, session.settings, run)))


async def _newest(ledger: Ledger, settings: Settings) -> list[tuple[Reading, list[AlertCondition]]]:
    # A collection stands for its members, which would fill the screen.
    runs = [run for run in (await ledger.runs.list(limit=LOOKED_AT)).rows if not is_member(run)][:NEWEST]
    return [(await _reading(ledger, run.id), await _signs(ledger, settings, run)) for run in runs]


async def _signs(ledger: Ledger, settings: Settings, run: Run) -> list[AlertCondition]:
    """The alerts that hold now. How a run ended is no alert to somebody who looks at it."""
    from shoal.notify.conditions import alert_rules
    from shoal.notify.watch import ledger_now, read_conditions

    if run.finished_at is not None:
        return []
    return await read_conditions(
        ledger, run, await ledger_now(ledger), alert_rules(settings.with_scraper_table(run.scraper))
    )


async def _one(
    ledger: Ledger, settings: Settings, name: str
) -> tuple[Reading, list[AlertCondition], list[WorkerProgress], Failures, VersionSkew, dict[str, str]]:
    from shoal.observe.failures import read_failures
    from shoal.observe.snapshot import live_workers, version_skew

    run = await find_run(ledger, name)
    present = await ledger.workers.list()
    return (
        await _reading(ledger, run.id),
        await _signs(ledger, settings, run),
        await ledger.reads.workers(run.id, minutes=60),
        await read_failures(ledger, run.id, limit=FAILURES_LOOKED_AT),
        version_skew(live_workers(present, run)),
        {worker.id: worker.state.value if worker.alive else "dead" for worker in present},
    )


async def _reading(ledger: Ledger, run_id: str) -> Reading:
    from shoal.observe.meter import Meter, recent_rate
    from shoal.observe.snapshot import take_snapshot

    snapshot = await take_snapshot(ledger, run_id)
    return Meter(await recent_rate(ledger, snapshot)).read(snapshot, time.monotonic())


def _show_runs(session: Session, found: list[tuple[Reading, list[AlertCondition]]]) -> None:
    from shoal.observe.formatting import format_percent, format_rate

    if session.json:
        for reading, conditions in found:
            session.record({**reading_record(reading), "alerts": conditions})
    elif not found:
        session.note("The ledger has no runs yet. Start one with `shoal run`.")
    else:
        session.table(
            ["RUN", "SCRAPER", "STATE", "DONE", "LEFT", "DEAD", "ENDED", "RATE", "ETA", "WAITING FOR"],
            [
                (
                    reading.snapshot.run.id,
                    reading.snapshot.run.scraper,
                    reading.snapshot.run.state,
                    reading.done,
                    reading.snapshot.counts.remaining,
                    reading.dead,
                    format_percent(reading.share),
                    format_rate(reading.rate),
                    "" if reading.ended else reading.eta_text,
                    "" if reading.ended else reading.waiting_for,
                )
                for reading, _ in found
            ],
        )
        for reading, conditions in found:
            for condition in conditions:
                session.data(f"Alert ({condition.kind.value}) of run {reading.snapshot.run.id}: {condition.text}")


def _show_run(
    session: Session,
    reading: Reading,
    conditions: list[AlertCondition],
    workers: list[WorkerProgress],
    failures: Failures,
    skew: VersionSkew,
    states: dict[str, str],
) -> None:
    if session.json:
        from msgspec import to_builtins

        snapshot = reading.snapshot
        session.record(
            {
                **reading_record(reading),
                "alerts": conditions,
                "gates": snapshot.gates,
                "partitions": snapshot.partitions,
                "workers": [{**to_builtins(one), "state": states.get(one.worker, "gone")} for one in workers],
                "failures": failures,
                "versions": skew.versions,
                "codes": skew.codes,
            }
        )
        return
    _print_head(session, reading)
    for condition in conditions:
        session.data(f"Alert ({condition.kind.value}): {condition.text}")
    _print_skew(session, reading, skew)
    _print_parts(session, reading)
    if workers:
        _title(session, "Workers (last hour)")
        session.table(
            ["WORKER", "STATE", "LEASED", "DONE", "DEAD"],
            [
                (one.worker, states.get(one.worker, "gone"), one.leased, one.done, one.dead)
                for one in workers[:MOST_WORKERS]
            ],
        )
        _rest(session, len(workers) - MOST_WORKERS, "workers")
    if failures.groups:
        _title(session, "Failures" if failures.complete else f"Failures (of the first {failures.looked_at})")
        session.table(
            ["ITEMS", "CLASS", "ITEM", "MESSAGE"],
            [
                (group.items, group.outcome, group.example, group.display_text)
                for group in failures.groups[:MOST_FAILURES]
            ],
        )
        _rest(session, len(failures.groups) - MOST_FAILURES, "kinds")


def _print_head(session: Session, reading: Reading) -> None:
    from shoal.observe.formatting import format_duration, format_time

    run = reading.snapshot.run
    text = f"Run {run.id} of {run.scraper} is {run.state.value}, begun {format_time(run.created_at)}"
    if run.finished_at is not None:
        text += f", took {format_duration((run.finished_at - run.created_at).total_seconds())}"
    session.data(session.styled(text, BOLD))
    session.data(reading.line)
    for gate in reading.snapshot.gates if not reading.ended else ():
        session.data(f"  {gate_text(gate)}")


def _print_skew(session: Session, reading: Reading, skew: VersionSkew) -> None:
    from shoal.observe.snapshot import REMEDY

    for line in skew.lines if not reading.ended else ():
        session.data(f"{line} {REMEDY}")


def _print_parts(session: Session, reading: Reading) -> None:
    parts = reading.snapshot.partitions
    rows: list[tuple[object, ...]] = [
        (part.stage, part.partition, *_cells(part.counts)) for part in parts[:MOST_PARTITIONS]
    ]
    if len(parts) != 1:
        rows.append(("all", "", *_cells(reading.snapshot.counts)))
    _title(session, "Items")
    session.table(["STAGE", "PARTITION", *map(str.upper, STATES), "RESULTS"], rows)
    _rest(session, len(parts) - MOST_PARTITIONS, "partitions")


def _cells(counts: Counts) -> tuple[int, ...]:
    return (*per_state(counts).values(), counts.results)


def _title(session: Session, text: str) -> None:
    session.data("\n" + session.styled(text, BOLD))


def _rest(session: Session, count: int, what: str) -> None:
    if count > 0:
        session.data(f"... and {count} more {what}; --json has them all.")
