"""`shoal runs`: list, show, pause, resume, cancel, remove and compare runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import RunName, ask, find_run, operator
from shoal.cli.render.confirm import Yes, confirm
from shoal.cli.render.options import with_options
from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import print_runs, run_record
from shoal.cli.runs_compare import compare
from shoal.model.redaction import without_secret_settings
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import Counts, Event

EVENTS = 20
GOES_ON = "If this is interrupted, workers go on with it."

app = typer.Typer()
app.command()(compare)


@app.command()
@with_options
def ls(
    session: Session,
    scraper: Annotated[str | None, typer.Option(help="Only runs of this scraper.")] = None,
    state: Annotated[str | None, typer.Option(help="Only runs that are active, paused, finished, cancelled.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, newest first.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the last list ended.")] = None,
) -> None:
    """List runs, newest first."""
    found, following = ask(session, lambda ledger: _list(ledger, scraper, _run_state(state), limit, cursor))
    print_runs(session, found)
    if not found and not session.json:
        session.note("No run is like that." if scraper or state else "The ledger has no runs yet.")
    if following is not None:
        session.note(f"More runs follow: use --cursor {following}.")


@app.command()
@with_options
def show(session: Session, run: RunName) -> None:
    """Show what a run was made from, and what happened to it."""
    found, counts, events = ask(session, lambda ledger: _show(ledger, run))
    if session.json:
        session.record({**run_record(found, counts), **_origin(found), "events": events})
    else:
        _print_run(session, found, counts, events)


@app.command()
@with_options
def pause(session: Session, run: RunName) -> None:
    """Stop claims of a run. What is being worked on may end."""

    async def work(ledger: Ledger) -> Run:
        found = await find_run(ledger, run)
        await ledger.runs.pause(found.id, by=operator())
        return await ledger.runs.get(found.id)

    _say_state(session, ask(session, work), "Claims have stopped; `shoal runs resume` goes on.")


@app.command()
@with_options
def resume(session: Session, run: RunName) -> None:
    """Make a run active again, from paused, finished or cancelled."""

    async def work(ledger: Ledger) -> tuple[Run, bool]:
        found = await find_run(ledger, run)
        await ledger.runs.resume(found.id, by=operator())
        return await ledger.runs.get(found.id), found.state in ("finished", "cancelled")

    found, had_ended = ask(session, work)
    more = "It takes items again; `shoal run --resume` works it off." if had_ended else "Workers claim its items again."
    _say_state(session, found, more)


@app.command()
@with_options
def cancel(session: Session, run: RunName, yes: Yes = False) -> None:
    """End every open item of a run as cancelled, those being worked on too."""
    found, counts = ask(session, lambda ledger: _with_counts(ledger, run))
    what = f"To be cancelled: {pluralize(counts.remaining, 'open item')} of run {found.id} ({found.scraper})."
    confirm(session, what, yes=yes)
    told = session.progress(f"Cancelled so far: {{}} of {counts.remaining:,} items. {GOES_ON}")
    cancelled = ask(session, lambda ledger: ledger.runs.cancel(found.id, by=operator(), on_progress=told))
    if session.json:
        session.record({"run": found.id, "cancelled": cancelled})
    else:
        session.data(f"Run {found.id} is cancelled, and with it {pluralize(cancelled, 'item')}.")


@app.command()
@with_options
def rm(session: Session, run: RunName, yes: Yes = False) -> None:
    """Remove a run with all its items, attempts and results. This cannot be undone."""
    found, counts = ask(session, lambda ledger: _with_counts(ledger, run))
    hit = f"{pluralize(counts.total, 'item')} and {pluralize(counts.results, 'result')}"
    what = f"To be deleted for good: run {found.id} ({found.scraper}) with {hit}."
    confirm(session, what, yes=yes)
    told = session.progress(f"Deleted so far: about {{}} rows. {GOES_ON}")
    ask(session, lambda ledger: ledger.runs.remove(found.id, by=operator(), on_progress=told))
    if session.json:
        session.record({"run": found.id, "items": counts.total, "results": counts.results})
    else:
        session.data(f"Run {found.id} is removed, and with it {hit}.")


async def _list(
    ledger: Ledger, scraper: str | None, state: str | None, limit: int, cursor: str | None
) -> tuple[list[tuple[Run, Counts]], str | None]:
    found: list[tuple[Run, Counts]] = []
    while True:
        page = await ledger.runs.list(scraper=scraper, cursor=cursor, limit=min(100, limit - len(found)))
        wanted = [run for run in page.rows if state in (None, run.state)]
        found += [(run, await ledger.reads.stats(run.id)) for run in wanted]
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            # A full page has a cursor even when it was the last.
            more = cursor and (await ledger.runs.list(scraper=scraper, cursor=cursor, limit=1)).rows
            return found, cursor if more else None


async def _show(ledger: Ledger, name: str) -> tuple[Run, Counts, tuple[Event, ...]]:
    run, counts = await _with_counts(ledger, name)
    return run, counts, (await ledger.reads.events(run_id=run.id, limit=EVENTS)).rows


async def _with_counts(ledger: Ledger, name: str) -> tuple[Run, Counts]:
    run = await find_run(ledger, name)
    return run, await ledger.reads.stats(run.id)


def _run_state(state: str | None) -> str | None:
    from shoal.ledger.runs import NOT_REMOVED

    if state is not None and state not in NOT_REMOVED:
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(NOT_REMOVED)}.", param_hint="--state")
    return state


def _origin(run: Run) -> dict[str, object]:
    return {
        "stages": run.stages,
        "max_attempts": run.max_attempts,
        "max_rescues": run.max_rescues,
        "code_version": run.code_version,
        "settings": without_secret_settings(run.settings),
    }


def _print_run(session: Session, run: Run, counts: Counts, events: tuple[Event, ...]) -> None:
    import msgspec

    from shoal.observe.formatting import format_time

    facts = run_record(run, counts) | _origin(run)
    facts |= {"created_at": format_time(run.created_at), "finished_at": format_time(run.finished_at)}
    facts |= {"sealed": "yes" if run.sealed else "no", "stages": ", ".join(run.stages)}
    facts["settings"] = msgspec.json.encode(facts["settings"]).decode()
    session.table(["FACT", "VALUE"], [(name.replace("_", " "), value) for name, value in facts.items()])
    if events:
        session.data("\n" + session.styled("What happened, newest first", BOLD))
        session.table(
            ["WHEN", "WHAT", "BY", "DETAIL"],
            [(format_time(e.at), e.action, e.actor, msgspec.json.encode(e.detail).decode()) for e in events],
        )


def _say_state(session: Session, run: Run, more: str) -> None:
    if session.json:
        session.record({"run": run.id, "scraper": run.scraper, "state": run.state})
    else:
        session.data(f"Run {run.id} is {run.state.value}. {more}")
