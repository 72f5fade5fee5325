"""Logs failures by kind: the first of a kind at once, how many followed every half minute.

A run of a million pages must not log the same failure a million times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType

import msgspec

from shoal.define.author_code import error_summary, is_library_code
from shoal.define.records import DroppedRecords
from shoal.model.failures import first_line, message_shape
from shoal.model.item import ClaimedItem
from shoal.model.log import Log
from shoal.model.outcome import EXCEEDED_RETRIES, AttemptDecision, DecisionKind
from shoal.observe.failures import FailureCount
from shoal.worker.attempt_hooks import HookFailed
from shoal.worker.providers import ProviderFailed

# What displays that count failures leave out of the log they show.
ATTEMPT_FAILED, MORE_ATTEMPTS_FAILED = "attempt failed", "more attempts failed"
MAX_KINDS = 1_000
REPEAT_SECONDS = 30.0
# After this many errors at one line of the author's code and no success, retrying will not help.
SAME_ERROR_LIMIT = 20


class RepeatedFailure(msgspec.Struct):
    """A kind of failure: how often it occurred since it was last logged, and the fields of the last one.

    `attempts` and `dead` count failed attempts, and the items that died of them, since the worker began.
    """

    event: str
    fields: dict[str, object]
    count: int = 0
    attempts: int = 0
    dead: int = 0


class FailureLog:
    """Logs the first failure of a kind as a warning, and how many followed every half minute and at the end.

    Every failure is logged at debug level; the ledger has them all. `dropped`: invalid items that handlers yielded;
    `dropped_records`: records that hooks dropped, by hook.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._logged: dict[str, RepeatedFailure] = {}
        self._traced: set[str] = set()
        self._skipped: set[str] = set()
        self._bugs: dict[str, int] = {}
        self._succeeded = False
        self.broken_items: list[tuple[str, int]] = []
        self.dropped = 0
        self.first_dropped = ""
        self.dropped_records: dict[str, DroppedRecords] = {}

    def record_success(self) -> None:
        self._succeeded = True
        self.broken_items.clear()

    def record_programming_error(self, claimed: ClaimedItem) -> None:
        """Remember an item that died of the author's code before anything succeeded: the code may be broken."""
        if not self._succeeded and len(self.broken_items) < MAX_KINDS:
            self.broken_items.append((claimed.run_id, claimed.item))

    def log_handler_error(self, claimed: ClaimedItem, error: BaseException) -> None:
        """Log an error of the author's code; its first occurrence with the traceback."""
        self._log_author_error("handler failed", claimed, error, error_summary(error))

    def log_provider_error(self, claimed: ClaimedItem, failed: ProviderFailed) -> None:
        """Log that a provider could not be set up; the first time with the traceback."""
        self._log_author_error("a provider failed", claimed, failed.error, str(failed))

    def log_error_function(self, claimed: ClaimedItem, error: BaseException) -> None:
        """Log an error of a stage's `on_error` function; its first occurrence with the traceback.

        It is not what the attempt ended with, so it does not stop the worker.
        """
        self._trace("on_error function failed", claimed, error, error_summary(error))

    def log_hook_error(self, claimed: ClaimedItem, failed: HookFailed) -> None:
        """Log an error of a hook; its first occurrence with the traceback."""
        self._log_author_error("a hook failed", claimed, failed.error, str(failed))

    def _log_author_error(self, event: str, claimed: ClaimedItem, error: BaseException, summary: str) -> None:
        if len(self._bugs) < MAX_KINDS or summary in self._bugs:
            self._bugs[summary] = self._bugs.get(summary, 0) + 1
        self._trace(event, claimed, error, summary)

    def _trace(self, event: str, claimed: ClaimedItem, error: BaseException, summary: str) -> None:
        if summary not in self._traced and len(self._traced) < MAX_KINDS:
            self._traced.add(summary)
            cause = (type(error), error, _author_traceback(error.__traceback__))
            self._log.error(event, stage=claimed.stage, item=claimed.name, error=summary, exc_info=cause)

    def log_failed_attempt(self, claimed: ClaimedItem, decision: AttemptDecision) -> None:
        """Log an attempt that did not succeed. A skipped item is no failure: only the first of a kind is logged."""
        fields: dict[str, object] = {
            "stage": claimed.stage,
            "item": claimed.name,
            "outcome": decision.outcome.value,
            "error": decision.error,
        }
        if decision.kind is DecisionKind.SKIPPED:
            self._log_skipped(claimed, fields)
            return
        if decision.kind is not DecisionKind.DEAD:
            fields["retry_in"] = round(decision.delay, 1)
        kind = f"{claimed.stage} {decision.kind.value} {decision.outcome.value} {message_shape(decision.error or '')}"
        emit = self._log.warning if self._is_new(kind, MORE_ATTEMPTS_FAILED, fields) else self._log.debug
        emit(ATTEMPT_FAILED, **fields)
        if (known := self._logged.get(kind)) is not None:
            known.attempts += 1
            known.dead += decision.kind is DecisionKind.DEAD

    def counts(self) -> tuple[FailureCount, ...]:
        """Failed attempts by outcome and message, the most frequent first. A retried item counts for each attempt."""
        found: dict[tuple[str, str], list[RepeatedFailure]] = {}
        for known in self._logged.values():
            if known.attempts:
                error = str(known.fields["error"] or "").removeprefix(EXCEEDED_RETRIES)
                found.setdefault((str(known.fields["outcome"]), message_shape(error)), []).append(known)
        counted = (
            FailureCount(
                outcome=outcome,
                error=first_line(str(kinds[-1].fields["error"] or "").removeprefix(EXCEEDED_RETRIES)),
                attempts=sum(kind.attempts for kind in kinds),
                dead=sum(kind.dead for kind in kinds),
                last=str(kinds[-1].fields["item"]),
            )
            for (outcome, _), kinds in found.items()
        )
        return tuple(sorted(counted, key=lambda each: -each.attempts))

    def _log_skipped(self, claimed: ClaimedItem, fields: dict[str, object]) -> None:
        kind = f"{claimed.stage} skipped {message_shape(str(fields['error']))}"
        is_new = kind not in self._skipped and len(self._skipped) < MAX_KINDS
        if is_new:
            self._skipped.add(kind)
        emit = self._log.info if is_new else self._log.debug
        emit("item skipped", **fields)

    def log_dropped_items(self, claimed: ClaimedItem, reasons: list[str]) -> None:
        """Log invalid items that a handler yielded."""
        self.dropped += len(reasons)
        self.first_dropped = self.first_dropped or reasons[0]
        fields: dict[str, object] = {"stage": claimed.stage, "item": claimed.name, "first": reasons[0]}
        is_new = self._is_new(f"refused {claimed.stage}", "more items were dropped", fields, len(reasons))
        emit = self._log.warning if is_new else self._log.debug
        emit("items were dropped", count=len(reasons), **fields)

    def log_dropped_records(self, claimed: ClaimedItem, dropped: Mapping[str, DroppedRecords]) -> None:
        """Log records that hooks dropped: on purpose, so this is no warning."""
        for hook, found in dropped.items():
            total = self.dropped_records.setdefault(hook, DroppedRecords(found.first))
            if not total.count:
                self._log.info(
                    "records are dropped", hook=hook, stage=claimed.stage, item=claimed.name, why=found.first
                )
            total.count += found.count

    async def run(self) -> None:
        """Log how many failures of each kind followed, until cancelled."""
        while True:
            await asyncio.sleep(REPEAT_SECONDS)
            self.log_repeated()

    def log_repeated(self) -> None:
        """Log how many failures of each kind occurred since it was last logged."""
        for kind in self._logged.values():
            if kind.count:
                self._log.warning(kind.event, count=kind.count, **kind.fields)
                kind.count = 0

    @property
    def constant_error(self) -> str | None:
        """The error that every attempt ends with, if there is one."""
        if self._succeeded:
            return None
        return next((summary for summary, times in self._bugs.items() if times >= SAME_ERROR_LIMIT), None)

    def _is_new(self, kind: str, event: str, fields: dict[str, object], count: int = 1) -> bool:
        """Whether this is the first of its kind. The others are counted and logged later as `event`."""
        if (known := self._logged.get(kind)) is not None:
            known.count += count
            known.fields = fields
            return False
        if len(self._logged) >= MAX_KINDS:
            return False
        self._logged[kind] = RepeatedFailure(event, fields)
        return True


def _author_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the author's first line."""
    part = trace
    while part is not None and is_library_code(part.tb_frame.f_code.co_filename):
        part = part.tb_next
    return part or trace
