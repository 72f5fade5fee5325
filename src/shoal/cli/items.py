"""`shoal items`: find items, see why they are not running, give them another try or end them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ItemId, ItemKey, RunName, ask, find_item, find_run, operator
from shoal.cli.items_choice import Choice, chosen, count_of, with_filter
from shoal.cli.items_shown import gate_records, print_item, print_items
from shoal.cli.render.confirm import Yes, confirm
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import gate_text, item_name
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.errors import WrongState
from shoal.model.item import FINAL_STATES, OPEN_STATES, ItemState
from shoal.observe.formatting import pluralize

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import AttemptView, ItemFilter, ItemView, WaitReason

# An item whose last error has some text in it is looked for among all that ended badly: for so long when nothing was
# found yet, and then no longer than a reader would notice.
MOST_SECONDS, ENOUGH_SECONDS = 2.0, 0.2

app = typer.Typer()

Stage = Annotated[str | None, typer.Option(help="The stage of the item named by --key.")]
AFew = Annotated[int | None, typer.Option(min=1, help="At most so many: try a few first.")]


@app.command()
@with_options
@with_filter
def ls(
    session: Session,
    run: RunName,
    choice: Choice,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where the last list ended.")] = None,
) -> None:
    """List a run's items in the order they came."""
    rows, following = ask(session, lambda ledger: _list(ledger, run, chosen(choice), limit, cursor))
    print_items(session, rows)
    if following is not None:
        session.note(f"More may follow: use --cursor {following}.")
    elif not rows:
        session.note("No item is like that.")


@app.command()
@with_options
def show(session: Session, run: RunName, item: ItemId = None, key: ItemKey = None, stage: Stage = None) -> None:
    """Show all about one item: its facts, its attempts, and why it is not running."""

    async def work(ledger: Ledger) -> tuple[ItemView, list[AttemptView], list[WaitReason]]:
        found_run = await find_run(ledger, run)
        view = await find_item(ledger, found_run, item, key, stage)
        attempts = await ledger.reads.attempts(found_run.id, view.id)
        return view, attempts, await ledger.reads.why_item(found_run.id, view.id)

    print_item(session, *ask(session, work))


@app.command()
@with_options
def why(session: Session, run: RunName, item: ItemId = None, key: ItemKey = None, stage: Stage = None) -> None:
    """Say why an item is not running, and since when. Without an item: why the run does not go on faster."""

    async def work(ledger: Ledger) -> tuple[Run, ItemView | None, list[WaitReason]]:
        found = await find_run(ledger, run)
        if item is None and key is None:
            return found, None, await ledger.reads.why_run(found.id)
        view = await find_item(ledger, found, item, key, stage)
        return found, view, await ledger.reads.why_item(found.id, view.id)

    found, view, gates = ask(session, work)
    if session.json:
        for record in gate_records(gates):
            session.record(record)
        return
    for gate in gates:
        session.data(gate_text(gate))
    if not gates:
        session.note("Nothing holds it back.")
    if view is not None and view.state is ItemState.DEAD:
        again = f"{command_line()} items retry {found.id} {view.id}{ledger_flag(session.settings)}"
        session.note(f"Give it another life with: {again}")


@app.command()
@with_options
@with_filter
def retry(
    session: Session,
    run: RunName,
    choice: Choice,
    item: ItemId = None,
    key: ItemKey = None,
    limit: AFew = None,
    yes: Yes = False,
) -> None:
    """Give dead items another life, as if new; cancelled ones with --state cancelled. --limit tries a few first."""
    choice = choice._replace(item=item, key=key, states=choice.states or [ItemState.DEAD])
    found, which = _confirmed(session, run, choice, limit, ("To be tried again", "retried"), yes=yes)
    told = session.progress("Retried so far: {} items. If this is interrupted, the same command goes on.")
    done = ask(
        session, lambda ledger: ledger.steering.retry(found.id, which, limit=limit, by=operator(), on_progress=told)
    )
    _say_changed(session, found, "retried", done)


@app.command()
@with_options
@with_filter
def cancel(
    session: Session,
    run: RunName,
    choice: Choice,
    item: ItemId = None,
    key: ItemKey = None,
    limit: AFew = None,
    yes: Yes = False,
) -> None:
    """End open items as cancelled, those being worked on too."""
    choice = choice._replace(item=item, key=key, states=choice.states or list(OPEN_STATES))
    found, which = _confirmed(session, run, choice, limit, ("To be cancelled", "cancelled"), yes=yes)
    told = session.progress("Cancelled so far: {} items. If this is interrupted, the same command goes on.")
    done = ask(
        session, lambda ledger: ledger.steering.cancel(found.id, which, limit=limit, by=operator(), on_progress=told)
    )
    _say_changed(session, found, "cancelled", done)


@app.command()
@with_options
def replay(session: Session, run: RunName, item: ItemId = None, key: ItemKey = None, stage: Stage = None) -> None:
    """Run one item again that has ended badly. What is done stays done: its results are stored once and for all."""

    async def work(ledger: Ledger) -> tuple[Run, ItemView, int]:
        found = await find_run(ledger, run)
        view = await find_item(ledger, found, item, key, stage)
        _check_replay(found, view)
        which = chosen(Choice(item=view.id, states=[view.state]))
        return found, view, await ledger.steering.retry(found.id, which, by=operator())

    found, view, done = ask(session, work)
    if session.json:
        session.record({"run": found.id, "item": view.id, "was": view.state, "retried": done})
    else:
        session.data(f"Item {view.id} ({item_name(view)}) was {view.state.value} and is tried again.")


async def _list(
    ledger: Ledger, name: str, which: ItemFilter, limit: int, cursor: str | None
) -> tuple[list[ItemView], str | None]:
    run = await find_run(ledger, name)
    rows: list[ItemView] = []
    began = time.monotonic()
    while time.monotonic() - began < (ENOUGH_SECONDS if rows else MOST_SECONDS):
        page = await ledger.reads.items(run.id, which, cursor=cursor, limit=limit - len(rows))
        rows += page.rows
        cursor = page.cursor
        if cursor is None or len(rows) == limit:
            break
    return rows, cursor


def _confirmed(
    session: Session, run: str, choice: Choice, limit: int | None, words: tuple[str, str], *, yes: bool
) -> tuple[Run, ItemFilter]:
    """The run and the items meant, after a preview of their number and a yes. `words`: what is to be, what was done."""
    found, which, count = ask(session, lambda ledger: _preview(ledger, run, choice, limit))
    if not count:
        raise typer.Exit(_nothing(session, words[1], found))
    confirm(session, f"{words[0]}: {pluralize(count, 'item')} of run {found.id}.", yes=yes)
    return found, which


async def _preview(ledger: Ledger, name: str, choice: Choice, limit: int | None) -> tuple[Run, ItemFilter, int | str]:
    run = await find_run(ledger, name)
    if choice.item is not None or choice.key is not None:
        view = await find_item(ledger, run, choice.item, choice.key, choice.stage)
        choice = choice._replace(item=view.id)
    which = chosen(choice)
    return run, which, await count_of(ledger, run.id, which, limit)


def _check_replay(run: Run, view: ItemView) -> None:
    if view.state is ItemState.DONE:
        raise WrongState(
            f"Item {view.id} is done: its results are stored, and the ledger stores results once.",
            remedy="Enqueue it into a fresh run, or under another key.",
        )
    if view.state not in FINAL_STATES:
        raise WrongState(
            f"Item {view.id} is {view.state.value}: it has not ended yet.",
            remedy=f"`shoal items why {run.id} {view.id}` says what it waits for.",
        )


def _nothing(session: Session, what: str, run: Run) -> int:
    if session.json:
        session.record({"run": run.id, what: 0})
    else:
        session.note(f"No item of run {run.id} is like that; nothing was {what}.")
    return 0


def _say_changed(session: Session, run: Run, what: str, count: int) -> None:
    if session.json:
        session.record({"run": run.id, what: count})
    else:
        session.data(f"{what.capitalize()}: {pluralize(count, 'item')} of run {run.id}.")
