"""What a run came to: shown at its end, and turned into an exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.render.session import BOLD, Session
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.cli.working import INTERRUPTED, TIMED_OUT
from shoal.model.run import Run, RunState
from shoal.observe.formatting import pluralize, printable

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.views import Counts
    from shoal.worker.options import WorkSummary

MOST_FAILURES = 5


def exit_code(run: Run, counts: Counts, report: WorkSummary, settings: Settings) -> int:
    """Never 0 for a run that failed, was interrupted or was cancelled."""
    from shoal.worker.options import StopReason

    if run.state is RunState.FINISHED:
        return 1 if settings.max_dead.exceeded(counts.dead, counts.total) else 0
    if run.state is RunState.CANCELLED:
        return 1
    match report.stop_reason:
        case StopReason.STOPPED | StopReason.ORDERED:
            return INTERRUPTED
        case StopReason.TIMED_OUT:
            return TIMED_OUT
        case StopReason.BROKEN:
            return 1
        case _:
            return 0


async def print_summary(
    session: Session,
    ledger: Ledger,
    run: Run,
    report: WorkSummary,
    settings: Settings,
    resumption: str | None,
    *,
    exported: bool = False,
) -> None:
    """The run in a few lines, and what to type next; with -q only what is wrong.

    `resumption` is what to say to `shoal run` to go on; None when there is nothing to propose. `exported` says that
    the records were handed out already.
    """
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
    if not session.quiet:
        await _print_facts(session, ledger, run, counts, report)
    if run.state is RunState.FINISHED and settings.max_dead.exceeded(counts.dead, counts.total):
        session.complain(f"Too many items are dead: {counts.dead} of {counts.total}; allowed: {settings.max_dead}.")
    if resumption is not None:
        _print_next(session, run, counts, settings, resumption, exported=exported)


async def _print_facts(session: Session, ledger: Ledger, run: Run, counts: Counts, report: WorkSummary) -> None:
    from shoal.observe.failures import read_failures

    per_second = report.attempts / report.seconds if report.seconds else 0.0
    session.data(session.styled(f"Run {run.id} of {run.scraper} is {_state(run, report)}", BOLD))
    session.data(
        f"  {counts.done} done, {counts.dead} dead, {counts.remaining} left; {pluralize(counts.results, 'record')}; "
        f"{pluralize(report.attempts, 'attempt')} here in {report.seconds:.1f} s ({per_second:.1f}/s)"
    )
    if report.dropped:
        refused = f"{pluralize(report.dropped, 'item')} {'was' if report.dropped == 1 else 'were'} refused"
        session.data(f"  {refused}, the first: {printable(report.first_dropped)}")
    if counts.dead:
        for group in (await read_failures(ledger, run.id)).groups[:MOST_FAILURES]:
            session.data(f"  {group.items} dead: {group.outcome}, {group.display_text}")


def _state(run: Run, report: WorkSummary) -> str:
    if run.state is RunState.ACTIVE:
        return f"unfinished ({report.stop_reason.value})"
    return run.state.value


def _print_next(
    session: Session, run: Run, counts: Counts, settings: Settings, resumption: str, *, exported: bool
) -> None:
    shoal, flag = command_line(), ledger_flag(settings)
    if run.state is RunState.ACTIVE:
        session.note(f"Go on with: {shoal} run {resumption}{flag}")
        return
    commands = []
    if counts.results and not exported:
        commands.append(f"export {run.id} -o {shlex.quote(run.scraper)}.jsonl")
    if counts.results:
        commands.append(f"results sample {run.id}")
    if counts.dead:
        commands += [f"items ls {run.id} --state dead", f"items retry {run.id}"]
    if commands:
        session.note("Next:")
    for command in commands:
        session.note(f"  {shoal} {command}{flag}")
