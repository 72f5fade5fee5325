"""`shoal lanes`: see and change the limits and delays that items share, while runs go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import print_facts
from shoal.config.egress import parse_duration
from shoal.errors import InvalidSetting
from shoal.observe.formatting import pluralize
from shoal.service import inspect, records, steer
from shoal.service.lookup import find_lane, operator

if TYPE_CHECKING:
    from shoal.model.lane import LaneView

app = typer.Typer()

Key = Annotated[str, typer.Argument(metavar="LANE", help="The lane: a host, or the name of a group.")]
OfRun = Annotated[str | None, typer.Option("--run", metavar="RUN", help="A lane of this run, not a shared one.")]


@app.command()
@with_options
def ls(
    session: Session,
    run: OfRun = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, by name.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue where the last list ended.")] = None,
) -> None:
    """List the lanes that all runs share, or those of one run."""
    page = session.with_ledger(lambda ledger: inspect.list_lanes(ledger, run=run, cursor=cursor, limit=limit))
    if session.json:
        for lane in page.rows:
            session.record(records.lane_record(lane))
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
    """Show everything about one lane."""
    _print(session, session.with_ledger(lambda ledger: find_lane(ledger, lane, run=run)))


@app.command("set")
@with_options
def set_(
    session: Session,
    lane: Key,
    limit: Annotated[int | None, typer.Option(help="Items that run at once.")] = None,
    delay: Annotated[str | None, typer.Option(help="Seconds between two starts: 0.5, or 1-3 for a spread.")] = None,
    run: OfRun = None,
) -> None:
    """Change a lane for all workers at once. What is set here outranks what scrapers declare."""
    if limit is None and delay is None:
        raise typer.BadParameter("say what to set: --limit, --delay, or both.", param_hint="set")
    spread = None if delay is None else _parse_delay(delay)
    changed = session.with_ledger(
        lambda ledger: steer.set_lane(ledger, lane, run=run, limit=limit, delay=spread, by=operator())
    )
    _print(session, changed)


@app.command()
@with_options
def pause(session: Session, lane: Key, run: OfRun = None) -> None:
    """Start no more items of a lane until it is resumed."""
    _set_paused(session, lane, run, True)


@app.command()
@with_options
def resume(session: Session, lane: Key, run: OfRun = None) -> None:
    """Start items of a paused lane again. A block that its site asked for stays until its time."""
    _set_paused(session, lane, run, False)


@app.command()
@with_options
def block(
    session: Session,
    lane: Key,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="So long, such as 90s, 30m or 2h; 0 lifts it.")],
    why: Annotated[str, typer.Option(help="The reason, for whoever looks later.")] = "blocked by an operator",
    run: OfRun = None,
) -> None:
    """Start no item of a lane for a while, on all machines; --for 0 lifts a block, also one that the site asked for."""
    seconds = 0.0 if for_.strip() in ("0", "0s") else parse_duration(for_)
    if seconds is None:
        raise InvalidSetting(f"{for_!r} is not a time: write 90s, 30m, 2h or a number of seconds.")
    _print(
        session,
        session.with_ledger(lambda ledger: steer.block_lane(ledger, lane, seconds, why=why, run=run, by=operator())),
    )


def _set_paused(session: Session, lane: str, run: str | None, paused: bool) -> None:
    changed = session.with_ledger(
        lambda ledger: steer.set_lane(ledger, lane, run=run, paused=paused, by=operator()),
    )
    _print(session, changed)


def _parse_delay(text: str) -> tuple[float, float]:
    low, dash, high = text.partition("-")
    try:
        return float(low), float(high if dash else low)
    except ValueError:
        raise InvalidSetting(f"{text!r} is not a delay: write seconds such as 0.5, or a range such as 1-3.") from None


def _print(session: Session, lane: LaneView) -> None:
    if session.json:
        session.record(records.lane_record(lane))
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
        facts["visits"] = f"{pluralize(lane.visiting, 'request')} that redirects or handlers sent here"
    if lane.floor:
        facts["at least"] = f"{lane.floor:g}s" + (f": {lane.floor_why}" if lane.floor_why else "")
    if lane.next_seconds:
        facts["next start"] = f"in {lane.next_seconds:.1f} s"
    if lane.blocked_seconds:
        facts["blocked"] = f"for another {lane.blocked_seconds:.0f} s: {lane.blocked_why}"
    print_facts(session, facts)


def _state(lane: LaneView) -> str:
    return "paused" if lane.paused else "blocked" if lane.blocked_seconds else "open"


def _delay_text(lane: LaneView) -> str:
    low, high = lane.policy.delay_min, lane.policy.delay_max
    return "" if not high else f"{low:g}s" if low == high else f"{low:g}-{high:g}s"
