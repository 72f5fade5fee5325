"""`shoal stats`: the counts of one run, in the older systems' words and in Shoal's own (S1.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.finding import LATEST, RunName, ask, find_run
from shoal.cli.render.options import with_options
from shoal.cli.render.session import Session
from shoal.cli.render.tables import per_state
from shoal.errors import NotFound

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import Counts

OLDER_WORDS = ("pending", "claimed", "completed", "failed", "remaining", "total")


@with_options
def stats(
    session: Session,
    scraper: Annotated[str, typer.Argument(metavar="SCRAPER", help="The scraper's name.")],
    run: RunName,
    stage: Annotated[str | None, typer.Option(help="Only this stage.")] = None,
) -> None:
    """Count a run's items by state.

    Pending, claimed, completed, failed, remaining, total; then Shoal's own states.
    """
    found, counts = ask(session, lambda ledger: _stats(ledger, scraper, run, stage))
    values = {**{word: getattr(counts, word) for word in OLDER_WORDS}, **per_state(counts)}
    values |= {"results": counts.results, "duplicates": counts.duplicates}
    if session.json:
        session.record({"scraper": found.scraper, "run": found.id, "stage": stage, **values})
    else:
        session.table(["STATE", "ITEMS"], list(values.items()))


async def _stats(ledger: Ledger, scraper: str, name: str, stage: str | None) -> tuple[Run, Counts]:
    run = await find_run(ledger, f"{LATEST}:{scraper}" if name == LATEST else name)
    if run.scraper != scraper:
        raise NotFound(
            f"The run {run.id} is not one of {scraper}, but of {run.scraper}.",
            remedy=f"Use `shoal stats {run.scraper} {run.id}`.",
        )
    return run, await ledger.reads.stats(run.id, stage=stage)
