"""`shoal runs`: list, show, pause, resume, cancel, remove and compare runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.cli.render.compare import RecordChanges
from shoal.cli.render.options import RUN_HELP, LatestRunName, RunName, Yes, confirm, with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import print_facts, print_runs
from shoal.model.run import Run
from shoal.observe.formatting import pluralize
from shoal.service import inspect, records, steer
from shoal.service.compare import compare_records
from shoal.service.lookup import LATEST, operator

CONTINUES = "If this is interrupted, workers continue it."

app = typer.Typer()


@app.command()
@with_options
def ls(
    session: Session,
    scraper: Annotated[str | None, typer.Option(help="Only runs of this scraper.")] = None,
    state: Annotated[str | None, typer.Option(help="Only runs that are active, paused, finished, cancelled.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue where the last list ended.")] = None,
) -> None:
    """List runs, newest first."""
    if state is not None and state not in inspect.RUN_STATES:
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(inspect.RUN_STATES)}.", param_hint="--state")
    page = session.with_ledger(
        lambda ledger: inspect.list_runs(ledger, scraper=scraper, state=state, cursor=cursor, limit=limit)
    )
    print_runs(session, page.rows)
    if not page.rows and not session.json:
        session.note("No run matches." if scraper or state else "The ledger has no runs yet.")
    if page.cursor is not None:
        session.note(f"More runs follow: use --cursor {page.cursor}.")


@app.command()
@with_options
def show(session: Session, run: LatestRunName = LATEST) -> None:
    """Show what a run was made from, and what happened to it."""
    detail = session.with_ledger(lambda ledger: inspect.read_run(ledger, run))
    if session.json:
        session.record(records.run_detail_record(detail))
    else:
        _print_run(session, detail)


@app.command()
@with_options
def pause(session: Session, run: LatestRunName = LATEST) -> None:
    """Stop claims of a run. Running attempts may end."""
    paused = session.with_ledger(lambda ledger: steer.pause_run(ledger, run, by=operator()))
    _print_state(session, paused, "Its items are no longer claimed; `shoal runs resume` continues it.")


@app.command()
@with_options
def seal(session: Session, run: LatestRunName = LATEST) -> None:
    """Declare that no more items will be added to a run: it finishes when none is open."""
    sealed = session.with_ledger(lambda ledger: steer.seal_run(ledger, run, by=operator()))
    _print_state(session, sealed, "It gets no more items from outside and finishes when none is open.")


@app.command()
@with_options
def resume(session: Session, run: LatestRunName = LATEST) -> None:
    """Make a run active again, from paused, finished or cancelled."""
    resumed = session.with_ledger(lambda ledger: steer.resume_run(ledger, run, by=operator()))
    if resumed.had_ended:
        _print_state(session, resumed.run, "It accepts items again; `shoal run --resume` runs it to its end.")
    else:
        _print_state(session, resumed.run, "Workers claim its items again.")


@app.command()
@with_options
def cancel(session: Session, run: RunName, yes: Yes = False) -> None:
    """End every open item of a run as cancelled, leased ones too."""
    found = session.with_ledger(lambda ledger: inspect.read_counts(ledger, run))
    open_items = found.counts.remaining
    question = f"To be cancelled: {pluralize(open_items, 'open item')} of run {found.run.id} ({found.run.scraper})."
    confirm(session, question, yes=yes)
    progress = session.progress(f"Cancelled so far: {{}} of {pluralize(open_items, 'item')}. {CONTINUES}")
    cancelled = session.with_ledger(
        lambda ledger: steer.cancel_run(ledger, found.run.id, by=operator(), on_progress=progress)
    )
    if session.json:
        session.record({"run_id": found.run.id, "cancelled": cancelled})
    else:
        session.data(f"Run {found.run.id} is cancelled, and with it {pluralize(cancelled, 'item')}.")


@app.command()
@with_options
def rm(session: Session, run: RunName, yes: Yes = False) -> None:
    """Remove a run with all its items, attempts and results. This cannot be undone."""
    found = session.with_ledger(lambda ledger: inspect.read_counts(ledger, run))
    contents = f"{pluralize(found.counts.total, 'item')} and {pluralize(found.counts.results, 'record')}"
    question = f"To be deleted permanently: run {found.run.id} ({found.run.scraper}) with {contents}."
    confirm(session, question, yes=yes)
    progress = session.progress(f"Deleted so far: about {{}} rows. {CONTINUES}")
    session.with_ledger(lambda ledger: steer.remove_run(ledger, found.run.id, by=operator(), on_progress=progress))
    if session.json:
        session.record({"run_id": found.run.id, "items": found.counts.total, "records": found.counts.results})
    else:
        session.data(f"Run {found.run.id} is removed, and with it {contents}.")


@app.command()
@with_options
def compare(
    session: Session,
    first: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help=f"{RUN_HELP} By default the one before OTHER.", show_default=False),
    ] = None,
    second: Annotated[
        str, typer.Argument(metavar="[OTHER]", help="The run to compare it with; by default the newest.")
    ] = LATEST,
    limit: Annotated[int, typer.Option(min=0, help="Show at most so many records that differ.")] = 20,
    records_too: Annotated[
        bool, typer.Option("--records/--no-records", help="Compare the records too: all of both runs are read.")
    ] = True,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if the records differ.")] = False,
) -> None:
    """Compare two runs: counts, rate, share of successes, why items died, and which records are new, changed, gone.

    Records are matched by their record key or, without one, by the key of their item and their position.
    """
    one, other = session.with_ledger(lambda ledger: inspect.compare_runs(ledger, first, second))
    _print_figures(session, *map(records.figures_record, (one, other)))
    if not records_too:
        return
    shown = RecordChanges(session, limit)
    totals = session.with_ledger(lambda ledger: compare_records(ledger, one.run, other.run, on_change=shown.add))
    shown.print_totals(totals)
    if exit_code and totals.differs:
        raise typer.Exit(1)


def _print_figures(session: Session, one: records.Record, other: records.Record) -> None:
    if session.json:
        session.record({"kind": "runs", "runs": [one, other]})
        return
    states = ("scraper", "state", "minutes", "total", *records.STATES)
    names = (*states, "records", "duplicates", "rate_per_minute", "ok_percent")
    rows = [(name.replace("_", " "), one[name], other[name], _difference(one[name], other[name])) for name in names]
    for kind in sorted(one["deaths"].keys() | other["deaths"].keys()):
        here, there = one["deaths"].get(kind, 0), other["deaths"].get(kind, 0)
        rows.append((f"dead: {kind}", here, there, _difference(here, there)))
    session.table(["", one["run_id"], other["run_id"], "DIFFERENCE"], rows)
    if not (one["deaths_complete"] and other["deaths_complete"]):
        session.note("Too many dead items: only the first ones were grouped.")


def _difference(one: Any, other: Any) -> str:
    if not isinstance(one, int | float) or not isinstance(other, int | float) or one == other:
        return ""
    return f"{other - one:+g}" if isinstance(other - one, int) else f"{other - one:+.1f}"


def _print_run(session: Session, detail: inspect.RunDetail) -> None:
    import msgspec

    from shoal.observe.formatting import format_time

    run = detail.run
    facts = records.run_detail_record(detail)
    del facts["events"]
    facts |= {"created_at": format_time(run.created_at), "finished_at": format_time(run.finished_at)}
    facts |= {"sealed": "yes" if run.sealed else "no", "stages": ", ".join(run.stages)}
    facts["settings"] = msgspec.json.encode(facts["settings"]).decode()
    print_facts(session, facts)
    if detail.events:
        session.data("\n" + session.styled("Events, newest first", BOLD))
        session.table(
            ["WHEN", "WHAT", "BY", "DETAIL"],
            [(format_time(e.at), e.action, e.actor, msgspec.json.encode(e.detail).decode()) for e in detail.events],
        )


def _print_state(session: Session, run: Run, explanation: str) -> None:
    if session.json:
        session.record({"run_id": run.id, "scraper": run.scraper, "state": run.state})
    else:
        session.data(f"Run {run.id} is {run.state.value}. {explanation}")
