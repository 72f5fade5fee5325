"""What `shoal run` prints: its plan (`--dry-run`), how it ended, what to type next; and its exit code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from shoal.cli.render.session import BOLD, Session
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.errors import EXIT_INTERRUPTED, EXIT_TIMED_OUT
from shoal.model.run import RunState
from shoal.observe.formatting import format_ends, keyed_records_text, pluralize, printable
from shoal.observe.sinks import undelivered_lines
from shoal.service.records import failure_records, run_record, sink_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.model.run import Run
    from shoal.observe.failures import Failures
    from shoal.service.begin import RunBusy, RunPlan, UrlSource
    from shoal.service.run import RunReport
    from shoal.worker.state import WorkSummary

COUNTED = 100_000
MAX_FAILURES = 5
MAX_WARNINGS = 5


def print_plan(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    choice: str,
    urls: UrlSource | None,
    *,
    least: int | None = None,
) -> None:
    """Say which run it would be, on which ledger, with how many items to start from. Writes nothing."""
    plan, seeds = session.wait(_look(scraper, settings, choice, urls))
    run, remaining = (plan.run, plan.remaining) if plan is not None else (None, 0)
    obeys_robots = scraper.obeys_robots(settings.robots)
    if session.json:
        session.record(
            {
                "run_id": None if run is None else run.id,
                "scraper": scraper.name,
                "mode": settings.mode,
                "ledger": settings.shown()["ledger"],
                "remaining": remaining,
                "start_items": seeds,
                "start_items_complete": seeds < COUNTED,
                "concurrency": settings.concurrency,
                "min_concurrency": least,
                "user_agent": settings.agent,
                "robots": obeys_robots,
                "store": settings.store or None,
                "stages": [
                    {name.replace(" ", "_"): value for name, value in stage.items()} for stage in _stages(scraper)
                ],
            }
        )
        return
    facts = {
        "scraper": scraper.name,
        "mode": settings.mode,
        "ledger": settings.shown()["ledger"],
        "run": "a new one" if run is None else f"{run.id} ({pluralize(remaining, 'item')} left)",
        "starts from": pluralize(seeds, "item") if seeds < COUNTED else f"{COUNTED} items and more",
        "at once": settings.concurrency if least is None else f"{least} to {settings.concurrency}",
        "user agent": settings.agent,
        "robots.txt": "obeyed" if obeys_robots else "ignored",
        "store": settings.store or "none",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        session.data(f"{name.ljust(width)}  {value}")
    session.data("")
    stages = _stages(scraper)
    session.table([name.upper() for name in stages[0]], [list(stage.values()) for stage in stages])


def _stages(scraper: Scraper) -> list[dict[str, object]]:
    """Each stage with the lane that holds for it: stages that go by host share the strictest policy."""
    return [
        {
            "stage": stage.name,
            "lane": "host" if stage.by_host else "own",
            "at once": spec.lane.limit,
            "delay": _delay(spec.lane.delay_min, spec.lane.delay_max),
            "timeout": f"{stage.policy.timeout:g} s",
            "retries": stage.policy.retries,
            "backoff": f"{stage.policy.backoff_factor:g}^n, at most {stage.policy.backoff_cap:g} s",
        }
        for stage, spec in zip(scraper.stages.values(), scraper.run_spec().stages, strict=True)
    ]


def _delay(low: float, high: float) -> str:
    if high == 0:
        return "none"
    return f"{low:.3g} s" if low == high else f"{low:.3g}-{high:.3g} s"


async def _look(
    scraper: Scraper, settings: Settings, choice: str, urls: UrlSource | None
) -> tuple[RunPlan | None, int]:
    from shoal.errors import LedgerNotMigrated
    from shoal.service.begin import RunChoice, plan_run
    from shoal.wiring import ledger_context, sqlite_path

    plan = None
    try:
        async with ledger_context(settings, migrate=False) as ledger:
            plan = await plan_run(ledger, scraper, RunChoice(choice))
    except LedgerNotMigrated:
        if sqlite_path(settings.ledger) is None:
            raise
    count = 0
    async for _ in scraper.seeds():
        count += 1
        if count >= COUNTED:
            return plan, count
    if urls is not None:
        async for _ in urls:
            count += 1
            if count >= COUNTED:
                break
    return plan, count


def exit_code(report: RunReport) -> int:
    """Never 0 for a run that failed, was interrupted or was cancelled."""
    if report.finished:
        return 0 if report.ok else 1
    if report.run.state is RunState.CANCELLED:
        return 1
    return 0 if report.work is None else exit_code_of_worker(report.work)


def exit_code_of_worker(summary: WorkSummary) -> int:
    from shoal.worker.state import StopReason

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
                **run_record(run, counts),
                "mode": report.settings.mode,
                "work": report.work,
                "failures": failure_records(report.failures),
                "failures_complete": report.failures.complete,
                "coverage": report.coverage,
                "sinks": [sink_record(sink) for sink in report.sinks],
                "counters": dict(report.counters),
            }
        )
        return
    if not session.quiet and report.work is not None:
        _print_figures(session, report, report.work)
    for warning in report.coverage[:MAX_WARNINGS]:
        session.complain(f"Check the field: {printable(warning.text)}.")
    if len(report.coverage) > MAX_WARNINGS:
        session.complain(f"And {pluralize(len(report.coverage) - MAX_WARNINGS, 'more field')}.")
    if session.quiet:
        print_deaths(session, counts.dead, _death_lines(report.failures))
    if report.finished and report.too_many_dead:
        allowed = report.settings.max_dead
        session.complain(f"Too many items are dead: {counts.dead} of {counts.wanted}; allowed: {allowed}.")
    elif report.finished and report.only_failures:
        session.complain(f"Nothing was found, and {pluralize(counts.dead, 'item')} failed.")
    for line in undelivered_lines(report.sinks):
        session.complain(line)
    if resume_arguments is not None:
        _print_next(session, report, resume_arguments, exported=exported)


def _print_figures(session: Session, report: RunReport, work: WorkSummary) -> None:
    run, counts = report.run, report.counts
    state = f"unfinished ({work.stop_reason.value})" if run.state is RunState.ACTIVE else run.state.value
    per_second = work.attempts / work.seconds if work.seconds else 0.0
    session.data(session.styled(f"Run {run.id} of {run.scraper} is {state}", BOLD))
    session.data(
        f"  {format_ends(counts.done, counts.dead, counts.skipped, counts.cancelled)}, {counts.remaining} left; "
        f"{pluralize(counts.results, 'record')}"
    )
    session.data(f"  {pluralize(work.attempts, 'attempt')} here in {work.seconds:.1f} s ({per_second:.1f}/s)")
    if keyed := keyed_records_text(counts):
        session.data(f"  records by key: {keyed}")
    if report.counters:
        session.data("  counted: " + ", ".join(f"{name} {number:,}" for name, number in report.counters.items()))
    if work.dropped:
        refused = f"{pluralize(work.dropped, 'item')} {'was' if work.dropped == 1 else 'were'} refused"
        session.data(f"  {refused}, the first: {printable(work.first_dropped)}")
    for hook, dropped in work.dropped_by_hooks.items():
        left_out = f"{pluralize(dropped.count, 'record')} {'was' if dropped.count == 1 else 'were'} dropped"
        session.data(f"  {left_out} by {hook}, the first: {printable(dropped.first)}")
    for line in _death_lines(report.failures):
        session.data(f"  {line}")


def print_deaths(session: Session, dead: int, lines: Sequence[str]) -> None:
    """With -q, on stderr: why items died. Otherwise the summary says it."""
    if dead:
        session.complain("\n  ".join([f"{pluralize(dead, 'item')} died:", *lines]))


def _death_lines(failures: Failures) -> list[str]:
    lines = [
        f"{group.items} dead: {group.outcome}, {group.display_text}, last: {printable(group.last)}"
        for group in failures.groups[:MAX_FAILURES]
    ]
    more = len(failures.groups) - MAX_FAILURES
    return [*lines, f"and {pluralize(more, 'more kind')} of failure"] if more > 0 else lines


def _print_next(session: Session, report: RunReport, resume_arguments: str, *, exported: bool) -> None:
    run, counts = report.run, report.counts
    shoal, flag = command_line(), ledger_flag(report.settings)
    if run.state is RunState.ACTIVE:
        session.note(f"Continue with: {shoal} run {resume_arguments}{flag}")
        return
    commands = []
    if counts.results and not exported:
        commands.append(f"export {run.id} -o {shlex.quote(run.scraper)}.jsonl")
    if counts.results:
        commands.append(f"results sample {run.id}")
    if counts.dead:
        commands += [f"items ls {run.id} --state dead", f"items retry {run.id}"]
    if counts.skipped:
        commands.append(f"items ls {run.id} --state skipped")
    if commands:
        session.note("Next:")
    for command in commands:
        session.note(f"  {shoal} {command}{flag}")


def print_already_ended(session: Session, run: Run) -> None:
    if session.json:
        key, state = run.idempotency_key, run.state.value
        session.record({"run_id": run.id, "scraper": run.scraper, "state": state, "idempotency_key": key})
    else:
        session.note(f"Run {run.id} of {run.scraper} was created for this idempotency key and is {run.state.value}.")


def print_busy(session: Session, busy: RunBusy) -> None:
    """For programs: which run is in the way. The error itself is printed as every error is."""
    if session.json:
        run_id = busy.run.id if busy.run is not None else None
        session.record({"status": "busy", "scraper": busy.scraper, "run_id": run_id, "own": busy.own})
