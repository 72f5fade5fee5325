"""`shoal lanes`: what shares a limit and a delay, and how to change them while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import ask, find_run, operator
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.errors import InvalidSetting, NotFound

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.lane import LaneView
    from shoal.model.views import CursorPage

app = typer.Typer()

Key = Annotated[str, typer.Argument(metavar="LANE", help="The lane: a host, or the name of a group.")]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="A lane of this run, not a shared one.")]


@app.command()
@with_options
def ls(
    session: Session,
    run: OfRun = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, by name.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where the last list ended.")] = None,
) -> None:
    """List the lanes that all runs share, or those of one run."""

    async def work(ledger: Ledger) -> CursorPage[LaneView]:
        return await ledger.lanes.list(run_id=await _run_id(ledger, run), cursor=cursor, limit=limit)

    page = ask(session, work)
    if session.json:
        for lane in page.rows:
            session.record(lane)
    elif page.rows:
        session.table(
            ["LANE", "LIMIT", "DELAY", "TAKEN", "WAITING", "NEXT", "STATE", "WHY"],
            [
                (
                    lane.key,
                    lane.policy.limit,
                    _delay_text(lane),
                    lane.taken + lane.visiting,
                    lane.waiting,
                    f"{lane.next_seconds:.1f}s" if lane.next_seconds else "",
                    _state(lane),
                    lane.blocked_why if lane.blocked_seconds else "",
                )
                for lane in page.rows
            ],
        )
    else:
        session.note("There are no such lanes yet; they appear with their first item.")
    if page.cursor is not None:
        session.note(f"More may follow: use --cursor '{page.cursor}'.")


@app.command()
@with_options
def show(session: Session, lane: Key, run: OfRun = None) -> None:
    """Show all about one lane."""

    async def work(ledger: Ledger) -> LaneView:
        run_id = await _run_id(ledger, run)
        try:
            return await ledger.lanes.get(lane, run_id=run_id)
        except NotFound as error:
            raise NotFound(error.message, remedy=await _near(ledger, lane, run_id)) from None

    _print(session, ask(session, work))


@app.command("set")
@with_options
def set_(
    session: Session,
    lane: Key,
    limit: Annotated[int | None, typer.Option(help="Items under way at once.")] = None,
    delay: Annotated[str | None, typer.Option(help="Seconds between two starts: 0.5, or 1-3 for a spread.")] = None,
    run: OfRun = None,
) -> None:
    """Change a lane for all workers at once. What is set here outranks what scrapers declare."""
    if limit is None and delay is None:
        raise typer.BadParameter("say what to set: --limit, --delay, or both.", param_hint="set")
    spread = None if delay is None else _spread(delay)

    async def work(ledger: Ledger) -> LaneView:
        run_id = await _run_id(ledger, run)
        return await ledger.lanes.set(lane, run_id=run_id, limit=limit, delay=spread, by=operator())

    _print(session, ask(session, work))


@app.command()
@with_options
def pause(session: Session, lane: Key, run: OfRun = None) -> None:
    """Start nothing more of a lane until it is resumed."""
    _print(session, ask(session, lambda ledger: _set_paused(ledger, lane, run, True)))


@app.command()
@with_options
def resume(session: Session, lane: Key, run: OfRun = None) -> None:
    """Let a paused lane go on. A block that its site asked for stays until its time."""
    _print(session, ask(session, lambda ledger: _set_paused(ledger, lane, run, False)))


async def _set_paused(ledger: Ledger, lane: str, run: str | None, paused: bool) -> LaneView:
    return await ledger.lanes.set(lane, run_id=await _run_id(ledger, run), paused=paused, by=operator())


async def _run_id(ledger: Ledger, run: str | None) -> str | None:
    return None if run is None else (await find_run(ledger, run)).id


async def _near(ledger: Ledger, key: str, run_id: str | None) -> str:
    import difflib

    names = [lane.key for lane in (await ledger.lanes.list(run_id=run_id, limit=1_000)).rows]
    near = difflib.get_close_matches(key, names, n=3)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return hint + ("`shoal lanes ls` lists them." if run_id is None else f"`shoal lanes ls --run {run_id}` lists them.")


def _spread(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return float(low), float(high if dash else low)
    except ValueError:
        raise InvalidSetting(f"{text!r} is no delay: write seconds as 0.5, or a spread as 1-3.") from None


def _print(session: Session, lane: LaneView) -> None:
    if session.json:
        session.record(lane)
        return
    facts: dict[str, object] = {
        "lane": lane.key,
        "of": "all runs" if lane.run_id is None else f"run {lane.run_id}",
        "state": _state(lane),
        "limit": f"{lane.policy.limit} at once" + (", in order" if lane.policy.ordered else ""),
        "delay": _delay_text(lane) or "none",
        "set by": "an operator" if lane.set_by_operator else "the scraper's code",
        "taken": lane.taken,
        "waiting": lane.waiting,
    }
    if lane.visiting:
        facts["visits"] = f"{lane.visiting} requests that redirects or handlers sent here"
    if lane.floor:
        facts["at least"] = f"{lane.floor:g}s" + (f": {lane.floor_why}" if lane.floor_why else "")
    if lane.next_seconds:
        facts["next start"] = f"in {lane.next_seconds:.1f} s"
    if lane.blocked_seconds:
        facts["blocked"] = f"for another {lane.blocked_seconds:.0f} s: {lane.blocked_why}"
    session.table(["FACT", "VALUE"], list(facts.items()))


def _state(lane: LaneView) -> str:
    return "paused" if lane.paused else "blocked" if lane.blocked_seconds else "open"


def _delay_text(lane: LaneView) -> str:
    low, high = lane.policy.delay_min, lane.policy.delay_max
    return "" if not high else f"{low:g}s" if low == high else f"{low:g}-{high:g}s"
