"""What `shoal run FOLDER` prints: the plan, and how every member ended."""

from __future__ import annotations

import shlex
from pathlib import Path

from shoal.cli.render.session import BOLD, RED, Session
from shoal.cli.scrapers import KEPT_OPTIONS, command_line, ledger_flag
from shoal.errors import EXIT_INTERRUPTED, EXIT_TIMED_OUT
from shoal.fleet.collection.member_runner import MemberStatus, member_command
from shoal.fleet.collection.members import CollectionPlan, Member
from shoal.fleet.collection.scraper import NOT_RUN, GroupReport, MemberReport, Summary
from shoal.observe.formatting import format_duration, format_ends, format_time, pluralize, printable
from shoal.service.collection import CollectionPlanned, CollectionReport

ICONS = {MemberStatus.SUCCESS.value: "+", MemberStatus.WARNING.value: "!", MemberStatus.FAILED.value: "x", NOT_RUN: "-"}
UNFINISHED = "unfinished"
MAX_REASON = 160


def print_plan(session: Session, plan: CollectionPlan, folder: Path, at_once: int) -> None:
    """S2.5: the command of each single, the members of each group in their order."""
    if session.json:
        for member in plan.members:
            session.record({"member": member.key, "group": member.group, "command": _command(member)})
        return
    session.data(f"{folder}: {CollectionPlanned.of(plan, at_once).text}")
    _list(session, f"Singles, {'side by side' if at_once > 1 else 'one after another'}", plan.singles)
    for name, members in plan.groups.items():
        _list(session, f"Group {name}, one after another", members, numbered=True)
    session.data("\nNothing was started.")


def stopped_exit_code(report: CollectionReport) -> int:
    """The exit code when members were not run."""
    return EXIT_TIMED_OUT if report.timed_out else EXIT_INTERRUPTED


def print_members(session: Session, report: CollectionReport, target: str) -> None:
    """S2.13, S2.11, S2.24: a line for every member, for every group, and the totals with what to do next.

    With --json the lines go to stderr, so that the log of a schedule has them.
    """
    run, summary, seconds = report.run, report.summary, report.seconds
    groups, totals = summary.groups(stopped_exit_code(report)), _totals(summary)
    if session.json:
        for member in summary.members:
            session.record(member)
        session.record({"run_id": run.id, "at": summary.at, **totals, "seconds": round(seconds, 1), "groups": groups})
    print_line = session.note if session.json else session.data
    print_line(session.styled(f"Collection run {run.id}, {format_time(summary.at)}", BOLD))
    width = max(len(member.member) for member in summary.members)
    for member in summary.members:
        line = f"{ICONS[member.status]} {member.member.ljust(width)}  {_text(member)}"
        print_line(session.styled(line, RED) if member.status == MemberStatus.FAILED else line)
    for group in groups:
        line = f"{ICONS[group.status]} {f'group {group.group}'.ljust(width)}  {_group_text(group)}"
        print_line(session.styled(line, RED) if group.status == MemberStatus.FAILED else line)
    rate = "" if summary.success_rate is None else f" | Success rate {summary.success_rate:.1%}"
    print_line(
        f"Total {totals['total']} | Success {totals['success']} | Warnings {totals['warnings']} | "
        f"Failed {totals['failed']}"
        + (f" | Not finished {totals['not_run']}" if totals["not_run"] else "")
        + f"{rate} | {format_duration(seconds)}"
    )
    # The options of this run hold for its rest too: without -o nothing of it would be exported.
    again = f"{command_line()} run {shlex.quote(target)}"
    same = f"{session.typed(*KEPT_OPTIONS)}{ledger_flag(report.settings)}"
    if totals["not_run"]:
        session.note(f"Continue with: {again} --resume{same}")
    if totals["failed"]:
        session.note(f"Try those that failed again: {again} --failed{same}")


def _list(session: Session, title: str, members: tuple[Member, ...], *, numbered: bool = False) -> None:
    if not members:
        return
    session.data("\n" + session.styled(f"{title} ({len(members)})", BOLD))
    width = max(len(member.key) for member in members)
    for number, member in enumerate(members, 1):
        what = f"cannot be used: {member.broken}" if member.broken is not None else _command(member)
        session.data(f"  {f'{number}. ' if numbered else ''}{member.key.ljust(width)}  {what}")


def _command(member: Member) -> str:
    return shlex.join((command_line(), *member_command(member)))


def _text(member: MemberReport) -> str:
    # What was interrupted has run, so it is not called `not run`.
    facts = [UNFINISHED if member.status == NOT_RUN and member.run_id is not None else member.status]
    if member.run_id is not None:
        facts.append(f"{format_ends(member.done, member.dead, member.skipped)}, {pluralize(member.records, 'record')}")
    if member.seconds is not None:
        facts.append(format_duration(member.seconds))
    if member.run_id is not None:
        facts.append(f"run {member.run_id}")
    if member.reason:
        facts.append(_short(printable(member.reason)))
    if member.log is not None and member.status != MemberStatus.SUCCESS:
        facts.append(f"log {printable(member.log)}")
    return "; ".join(facts)


def _short(reason: str) -> str:
    """The log, and `--json`, have the whole reason."""
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 3].rstrip()}..."


def _group_text(group: GroupReport) -> str:
    parts = {"success": group.success, "warnings": group.warnings, "failed": group.failed}
    parts["not finished"] = group.not_run
    counts = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    seconds = format_duration(group.seconds)
    return f"{group.status}; {pluralize(group.total, 'member')}: {counts}; {seconds}; exit code {group.exit_code}"


def _totals(summary: Summary) -> dict[str, object]:
    return {
        "total": len(summary.members),
        "success": summary.count(MemberStatus.SUCCESS),
        "warnings": summary.count(MemberStatus.WARNING),
        "failed": summary.count(MemberStatus.FAILED),
        "not_run": summary.count(NOT_RUN),
        "success_rate": summary.success_rate,
    }
