"""How a run ended: printed at its end, and turned into an exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from shoal.cli.render.session import BOLD, Session
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.model.run import RunState
from shoal.observe.formatting import pluralize, printable

if TYPE_CHECKING:
    from shoal.service.run import RunReport
    from shoal.worker.options import WorkSummary

MAX_FAILURES = 5
EXIT_INTERRUPTED = 130
EXIT_TIMED_OUT = 124


def exit_code(report: RunReport) -> int:
    """Never 0 for a run that failed, was interrupted or was cancelled."""
    if report.finished:
        return 1 if report.too_many_dead else 0
    if report.run.state is RunState.CANCELLED:
        return 1
    return 0 if report.work is None else exit_code_of_worker(report.work)


def exit_code_of_worker(summary: WorkSummary) -> int:
    from shoal.worker.options import StopReason

    match summary.stop_reason:
        case StopReason.STOPPED | StopReason.ORDERED:
            return EXIT_INTERRUPTED
        case StopReason.TIMED_OUT:
            return EXIT_TIMED_OUT
        case StopReason.BROKEN:
            return 1
        case _:
            return 0


def print_summary(session: Session, report: RunReport, resume_arguments: str | None, *, exported: bool = False) -> None:
    """The run in a few lines and what to type next; with -q only what is wrong.

    `resume_arguments`: what `shoal run` needs to resume it; None when nothing is to be proposed. `exported`: the
    records were exported already.
    """
    run, counts = report.run, report.counts
    if session.json:
        session.record(
            {
                "run_id": run.id,
                "scraper": run.scraper,
                "state": run.state.value,
                "mode": report.settings.mode,
                "counts": {**msgspec.structs.asdict(counts), "remaining": counts.remaining, "total": counts.total},
                "worker": report.work,
            }
        )
        return
    if not session.quiet and report.work is not None:
        _print_figures(session, report, report.work)
    if report.finished and report.too_many_dead:
        allowed = report.settings.max_dead
        session.complain(f"Too many items are dead: {counts.dead} of {counts.total}; allowed: {allowed}.")
    if resume_arguments is not None:
        _print_next(session, report, resume_arguments, exported=exported)


def _print_figures(session: Session, report: RunReport, work: WorkSummary) -> None:
    run, counts = report.run, report.counts
    state = f"unfinished ({work.stop_reason.value})" if run.state is RunState.ACTIVE else run.state.value
    per_second = work.attempts / work.seconds if work.seconds else 0.0
    session.data(session.styled(f"Run {run.id} of {run.scraper} is {state}", BOLD))
    session.data(
        f"  {counts.done} done, {counts.dead} dead, {counts.remaining} left; {pluralize(counts.results, 'record')}; "
        f"{pluralize(work.attempts, 'attempt')} here in {work.seconds:.1f} s ({per_second:.1f}/s)"
    )
    if work.dropped:
        refused = f"{pluralize(work.dropped, 'item')} {'was' if work.dropped == 1 else 'were'} refused"
        session.data(f"  {refused}, the first: {printable(work.first_dropped)}")
    for group in report.failures.groups[:MAX_FAILURES]:
        session.data(f"  {group.items} dead: {group.outcome}, {group.display_text}")


def _print_next(session: Session, report: RunReport, resume_arguments: str, *, exported: bool) -> None:
    run, counts = report.run, report.counts
    shoal, flag = command_line(), ledger_flag(report.settings)
    if run.state is RunState.ACTIVE:
        session.note(f"Go on with: {shoal} run {resume_arguments}{flag}")
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
