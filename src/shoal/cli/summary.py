"""What a run came to: shown at its end, and turned into an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shoal.cli.scrapers import command_line
from shoal.cli.session import BOLD, Session
from shoal.cli.working import INTERRUPTED, TIMED_OUT
from shoal.model.run import Run, RunState

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.views import Counts
    from shoal.worker.options import WorkReport

MOST_FAILURES = 5


def exit_code(run: Run, counts: Counts, report: WorkReport, settings: Settings) -> int:
    """Never 0 for a run that failed, was interrupted or was cancelled."""
    from shoal.worker.options import Ending

    if run.state is RunState.FINISHED:
        return 1 if settings.max_dead.exceeded(counts.dead, counts.total) else 0
    if run.state is RunState.CANCELLED:
        return 1
    match report.ending:
        case Ending.STOPPED | Ending.ORDERED:
            return INTERRUPTED
        case Ending.TIMED_OUT:
            return TIMED_OUT
        case _:
            return 0


async def print_summary(
    session: Session,
    ledger: Ledger,
    run: Run,
    report: WorkReport,
    settings: Settings,
    resumption: str | None,
) -> None:
    """The run in a few lines, and what to type next; `resumption` is what to say to `shoal run` to go on."""
    from shoal.observe.failures import failures

    counts = await ledger.reads.stats(run.id)
    if session.json:
        session.record(
            {
                "run_id": run.id,
                "scraper": run.scraper,
                "state": run.state.value,
                "mode": settings.mode,
                "counts": {**msgspec.structs.asdict(counts), "remaining": counts.remaining, "total": counts.total},
                "worker": report,
            }
        )
        return
    per_second = report.attempts / report.seconds if report.seconds else 0.0
    session.data(session.styled(f"Run {run.id} of {run.scraper} is {_state(run, report)}", BOLD))
    session.data(
        f"  {counts.done} done, {counts.dead} dead, {counts.remaining} left; {counts.results} records; "
        f"{report.attempts} attempts here in {report.seconds:.1f} s ({per_second:.1f}/s)"
    )
    if counts.dead:
        for group in (await failures(ledger, run.id)).groups[:MOST_FAILURES]:
            session.data(f"  {group.items} dead: {group.outcome}, {group.message}")
        if run.state is RunState.FINISHED and settings.max_dead.exceeded(counts.dead, counts.total):
            session.complain(f"{counts.dead} of {counts.total} items are dead; {settings.max_dead} are allowed.")
    if resumption is not None:
        _print_next(session, run, counts, settings, resumption)


def _state(run: Run, report: WorkReport) -> str:
    if run.state is RunState.ACTIVE:
        return f"unfinished ({report.ending.value})"
    return run.state.value


def _print_next(session: Session, run: Run, counts: Counts, settings: Settings, resumption: str) -> None:
    shoal = command_line()
    flag = "" if settings.origins["ledger"].kind != "flag" else f" --ledger {settings.shown()['ledger']}"
    if run.state is RunState.ACTIVE:
        session.note(f"Go on with: {shoal} run {resumption}{flag}")
        return
    session.note("Next:")
    session.note(f"  {shoal} export {run.id} -o {run.scraper}.jsonl{flag}")
    session.note(f"  {shoal} results sample {run.id}{flag}")
    if counts.dead:
        session.note(f"  {shoal} items ls {run.id} --state dead{flag}")
        session.note(f"  {shoal} items retry {run.id}{flag}")
