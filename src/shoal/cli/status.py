"""`shoal status`: one screen about the newest runs, or about one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run, is_member
from shoal.cli.options import with_options
from shoal.cli.records import STATES, gate_text, per_state, reading_record
from shoal.cli.session import BOLD, Session

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import Counts, WorkerProgress
    from shoal.notify.conditions import Sign
    from shoal.observe.failures import Failures
    from shoal.observe.meter import Reading
    from shoal.observe.snapshot import Skew

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


async def _newest(ledger: Ledger, settings: Settings) -> list[tuple[Reading, list[Sign]]]:
    # A collection stands for its members, which would fill the screen.
    runs = [run for run in (await ledger.runs.list(limit=LOOKED_AT)).rows if not is_member(run)][:NEWEST]
    return [(await _reading(ledger, run.id), await _signs(ledger, settings, run)) for run in runs]


async def _signs(ledger: Ledger, settings: Settings, run: Run) -> list[Sign]:
    """The alerts that hold now. How a run ended is no alert to somebody who looks at it."""
    from shoal.notify.conditions import rules_of
    from shoal.notify.watch import clock, signs_of

    if run.finished_at is not None:
        return []
    return await signs_of(ledger, run, await clock(ledger), rules_of(settings.with_table_of(run.scraper)))


async def _one(
    ledger: Ledger, settings: Settings, name: str
) -> tuple[Reading, list[Sign], list[WorkerProgress], Failures, Skew, dict[str, str]]:
    from shoal.observe.failures import failures
    from shoal.observe.snapshot import skew, workers_of

    run = await find_run(ledger, name)
    present = await ledger.workers.list()
    return (
        await _reading(ledger, run.id),
        await _signs(ledger, settings, run),
        await ledger.reads.workers(run.id, minutes=60),
        await failures(ledger, run.id, limit=FAILURES_LOOKED_AT),
        skew(workers_of(present, run)),
        {worker.id: worker.state.value if worker.alive else "dead" for worker in present},
    )


async def _reading(ledger: Ledger, run_id: str) -> Reading:
    from shoal.observe.meter import Meter, recent_rate
    from shoal.observe.snapshot import look

    moment = await look(ledger, run_id)
    return Meter(await recent_rate(ledger, moment)).read(moment, time.monotonic())


def _show_runs(session: Session, found: list[tuple[Reading, list[Sign]]]) -> None:
    from shoal.observe.formatting import per_minute, percent

    if session.json:
        for reading, signs in found:
            session.record({**reading_record(reading), "alerts": signs})
    elif not found:
        session.note("The ledger has no runs yet. Start one with `shoal run`.")
    else:
        session.table(
            ["RUN", "SCRAPER", "STATE", "DONE", "LEFT", "DEAD", "ENDED", "RATE", "ETA", "WAITING FOR"],
            [
                (
                    reading.moment.run.id,
                    reading.moment.run.scraper,
                    reading.moment.run.state,
                    reading.done,
                    reading.moment.counts.remaining,
                    reading.dead,
                    percent(reading.share),
                    per_minute(reading.rate),
                    "" if reading.ended else reading.eta_text,
                    "" if reading.ended else reading.waiting_for,
                )
                for reading, _ in found
            ],
        )
        for reading, signs in found:
            for sign in signs:
                session.data(f"Alert ({sign.kind.value}) of run {reading.moment.run.id}: {sign.text}")


def _show_run(
    session: Session,
    reading: Reading,
    signs: list[Sign],
    workers: list[WorkerProgress],
    failures: Failures,
    skew: Skew,
    states: dict[str, str],
) -> None:
    if session.json:
        from msgspec import to_builtins

        moment = reading.moment
        session.record(
            {
                **reading_record(reading),
                "alerts": signs,
                "gates": moment.gates,
                "partitions": moment.partitions,
                "workers": [{**to_builtins(one), "state": states.get(one.worker, "gone")} for one in workers],
                "failures": failures,
                "versions": skew.versions,
                "codes": skew.codes,
            }
        )
        return
    _print_head(session, reading)
    for sign in signs:
        session.data(f"Alert ({sign.kind.value}): {sign.text}")
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
            [(group.items, group.outcome, group.example, group.told) for group in failures.groups[:MOST_FAILURES]],
        )
        _rest(session, len(failures.groups) - MOST_FAILURES, "kinds")


def _print_head(session: Session, reading: Reading) -> None:
    from shoal.observe.formatting import span, stamp

    run = reading.moment.run
    text = f"Run {run.id} of {run.scraper} is {run.state.value}, begun {stamp(run.created_at)}"
    if run.finished_at is not None:
        text += f", took {span((run.finished_at - run.created_at).total_seconds())}"
    session.data(session.styled(text, BOLD))
    session.data(reading.line)
    for gate in reading.moment.gates if not reading.ended else ():
        session.data(f"  {gate_text(gate)}")


def _print_skew(session: Session, reading: Reading, skew: Skew) -> None:
    from shoal.observe.snapshot import REMEDY

    for line in skew.lines if not reading.ended else ():
        session.data(f"{line} {REMEDY}")


def _print_parts(session: Session, reading: Reading) -> None:
    parts = reading.moment.partitions
    rows: list[tuple[object, ...]] = [
        (part.stage, part.partition, *_cells(part.counts)) for part in parts[:MOST_PARTITIONS]
    ]
    if len(parts) != 1:
        rows.append(("all", "", *_cells(reading.moment.counts)))
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
