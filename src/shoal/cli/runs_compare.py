"""`shoal runs compare`: two runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.finding import ask, find_run
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import STATES, run_record

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run

RUN_HELP = "A run's id, `latest`, or `latest:SCRAPER`."


@with_options
def compare(
    session: Session,
    first: Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="The one to compare it with.")],
) -> None:
    """Compare two runs: counts, rate, share that went well, and why items died."""
    one, other = ask(session, lambda ledger: _facts(ledger, first, second))
    if session.json:
        session.record([one, other])
        return
    names = ("scraper", "state", "minutes", "total", *STATES, "results", "duplicates", "per_minute", "ok_percent")
    rows = [(name.replace("_", " "), one[name], other[name], _difference(one[name], other[name])) for name in names]
    for kind in sorted(one["deaths"].keys() | other["deaths"].keys()):
        here, there = one["deaths"].get(kind, 0), other["deaths"].get(kind, 0)
        rows.append((f"dead: {kind}", here, there, _difference(here, there)))
    session.table(["", one["run"], other["run"], "DIFFERENCE"], rows)
    if not (one["deaths_complete"] and other["deaths_complete"]):
        session.note("So many items died that the kinds of only the first ones were counted.")


async def _facts(ledger: Ledger, first: str, second: str) -> tuple[dict[str, Any], dict[str, Any]]:
    runs = await find_run(ledger, first), await find_run(ledger, second)
    return await _facts_of(ledger, runs[0]), await _facts_of(ledger, runs[1])


async def _facts_of(ledger: Ledger, run: Run) -> dict[str, Any]:
    from shoal.observe.failures import read_failures
    from shoal.observe.meter import overall_rate
    from shoal.observe.snapshot import take_snapshot

    snapshot = await take_snapshot(ledger, run.id, gates=())
    clock = (await ledger.health.check()).clock
    counts, rate, died = snapshot.counts, overall_rate(snapshot, clock), await read_failures(ledger, run.id)
    judged = counts.done + counts.dead
    return {
        **run_record(run, counts),
        "minutes": round(((run.finished_at or clock) - run.created_at).total_seconds() / 60, 1),
        "per_minute": None if rate is None else round(rate, 1),
        "ok_percent": round(100 * counts.done / judged, 1) if judged else None,
        "deaths": {f"{group.outcome}, {group.message or 'no message'}": group.items for group in died.groups},
        "deaths_complete": died.complete,
    }


def _difference(one: Any, other: Any) -> str:
    if not isinstance(one, int | float) or not isinstance(other, int | float) or one == other:
        return ""
    return f"{other - one:+g}" if isinstance(other - one, int) else f"{other - one:+.1f}"
