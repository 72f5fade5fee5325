"""When an exit is banned, tried again and good; when a host's blocks keep it from this host. Pure rules.

The SQLite ledger applies these functions; the PostgreSQL ledger has them as SQL (functions/71_exits.sql). Times are
microseconds of the ledger's clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from shoal.model.egress import ExitReport, ExitState, HealthRules, HostReport

MICRO = 1_000_000


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An exit's health as it is stored: good, banned or resting.

    `until`: when that ends; None: never, or until an operator ends it. `by`: the operator who set it, or empty.
    `trial_by`: the worker that tries it now, until `trial_until`.
    """

    state: ExitState = ExitState.GOOD
    until: int | None = None
    why: str = ""
    by: str = ""
    trial_by: int | None = None
    trial_until: int | None = None
    succeeded: int = 0
    failed: int = 0
    failures_in_row: int = 0
    error: str = ""
    used_at: int | None = None

    def state_at(self, now: int) -> ExitState:
        return ExitState(exit_state(self.state, self.until, now))


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An exit at a host. `blocked_until`: it is kept from the host so long."""

    succeeded: int = 0
    blocked: int = 0
    blocks_in_row: int = 0
    blocked_until: int | None = None
    error: str = ""


def exit_state(state: str, until: int | None, now: int) -> str:
    """The state now: after a rest an exit is good, after a ban it is tried."""
    if until is None or until > now:
        return str(state)
    return ExitState.TRIAL.value if state == ExitState.BANNED else ExitState.GOOD.value


def after_report(record: ExitRecord, worker: int, report: ExitReport, rules: HealthRules, now: int) -> ExitRecord:
    """Count what happened, ban an exit that failed too often, and end the trial of this worker.

    Only the worker that tries an exit ends its ban. Nothing but time or an operator ends what an operator set.
    """
    in_row = _row(record.failures_in_row, report.succeeded, report.failed, report.failures_in_row)
    counted = replace(
        record,
        succeeded=record.succeeded + report.succeeded,
        failed=record.failed + report.failed,
        failures_in_row=in_row,
        error=report.error or record.error,
        used_at=now if report.answered or report.failed else record.used_at,
    )
    match record.state_at(now):
        case ExitState.GOOD if report.failed and in_row >= rules.ban_after:
            why = f"{in_row} failures in a row"
            return _banned(counted, now, rules.ban_for, f"{why}: {report.error}" if report.error else why)
        case ExitState.GOOD:
            return _good(counted)
        case ExitState.TRIAL if report.trial and record.trial_by == worker:
            if report.answered:
                return replace(_good(counted), failures_in_row=0)
            if report.failed:
                why = "the trial after its ban failed"
                return _banned(counted, now, rules.ban_for, f"{why}: {report.error}" if report.error else why)
            return replace(counted, trial_by=None, trial_until=None)
        case _:
            return counted


def after_host_report(record: HostRecord, report: HostReport, rules: HealthRules, now: int) -> HostRecord:
    """Count a host's answers, and keep the exit from a host that blocks it. A block is not prolonged while it lasts."""
    in_row = _row(record.blocks_in_row, report.succeeded, report.blocked, report.blocks_in_row)
    is_blocked = record.blocked_until is not None and record.blocked_until > now
    blocks_now = not is_blocked and report.blocked > 0 and in_row >= rules.block_after
    return HostRecord(
        succeeded=record.succeeded + report.succeeded,
        blocked=record.blocked + report.blocked,
        blocks_in_row=in_row,
        blocked_until=now + round(rules.block_for * MICRO) if blocks_now else record.blocked_until,
        error=report.error or record.error,
    )


def with_trial(record: ExitRecord, worker: int, seconds: float, now: int) -> ExitRecord | None:
    """The exit while this worker tries it; None: its ban is not over, or another worker tries it."""
    is_taken = record.trial_until is not None and record.trial_until > now and record.trial_by != worker
    if record.state_at(now) is not ExitState.TRIAL or is_taken:
        return None
    return replace(record, trial_by=worker, trial_until=now + round(seconds * MICRO))


def after_ban(record: ExitRecord, now: int) -> ExitRecord | None:
    """The exit when its ban ends now, so that it is tried; None: it is not banned, or an operator banned it."""
    if record.state_at(now) is not ExitState.BANNED or record.by:
        return None
    return replace(record, until=now)


def set_by_operator(
    record: ExitRecord, state: ExitState, seconds: float | None, why: str, by: str, now: int
) -> ExitRecord:
    """Banned, resting or good, as an operator wants it. After a rest and when freed it has no failures in a row."""
    until = None if seconds is None else now + round(seconds * MICRO)
    if state is ExitState.GOOD:
        return replace(_good(record), failures_in_row=0)
    in_row = 0 if state is ExitState.RESTING else record.failures_in_row
    return replace(
        record, state=state, until=until, why=why, by=by, trial_by=None, trial_until=None, failures_in_row=in_row
    )


def merge_reports(reports: Iterable[ExitReport]) -> list[ExitReport]:
    """One report per exit, with one entry per host: later ones are added to earlier ones."""
    merged: dict[str, ExitReport] = {}
    for report in reports:
        before = merged.get(report.key, ExitReport(key=report.key))
        merged[report.key] = ExitReport(
            key=report.key,
            succeeded=before.succeeded + report.succeeded,
            failed=before.failed + report.failed,
            failures_in_row=_row(before.failures_in_row, report.succeeded, report.failed, report.failures_in_row),
            error=report.error or before.error,
            trial=before.trial or report.trial,
            hosts=_merge_hosts((*before.hosts, *report.hosts)),
        )
    return list(merged.values())


def _merge_hosts(reports: Iterable[HostReport]) -> tuple[HostReport, ...]:
    merged: dict[str, HostReport] = {}
    for report in reports:
        before = merged.get(report.host, HostReport(host=report.host))
        merged[report.host] = HostReport(
            host=report.host,
            succeeded=before.succeeded + report.succeeded,
            blocked=before.blocked + report.blocked,
            blocks_in_row=_row(before.blocks_in_row, report.succeeded, report.blocked, report.blocks_in_row),
            error=report.error or before.error,
        )
    return tuple(merged.values())


def _row(before: int, succeeded: int, failed: int, since_success: int) -> int:
    """Failures in a row: a success ends the row before it, not the failures after it."""
    return min(since_success, failed) if succeeded else before + failed


def _good(record: ExitRecord) -> ExitRecord:
    return replace(record, state=ExitState.GOOD, until=None, why="", by="", trial_by=None, trial_until=None)


def _banned(record: ExitRecord, now: int, seconds: float, why: str) -> ExitRecord:
    return replace(
        record,
        state=ExitState.BANNED,
        until=now + round(seconds * MICRO),
        why=why,
        by="",
        trial_by=None,
        trial_until=None,
    )
