"""Runs attempts on items of one scraper and decides how each ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.define.author_code import error_summary, is_programming_error
from shoal.define.context import Failure
from shoal.define.policy import StagePolicy
from shoal.define.records import Output
from shoal.define.stage import AnyStage
from shoal.errors import (
    AttemptEnded,
    Blocked,
    ClientMissing,
    Dropped,
    EgressUnavailable,
    ExitFailed,
    InvalidRecord,
    LedgerError,
    LoggedOut,
    LoginBroken,
    LoginFailed,
    Permanent,
    SecretMissing,
    Skipped,
    StoreFailed,
    Throttled,
    Transient,
)
from shoal.fetch.page import Page
from shoal.model.egress import MAX_SWITCHES
from shoal.model.item import ClaimedItem, Lease
from shoal.model.lane import is_loopback_lane
from shoal.model.outcome import DONE, DecisionKind, FinishedAttempt, OutcomeClass, decide_attempt
from shoal.model.redaction import redacted
from shoal.model.url_key import host_or_none
from shoal.worker.attempt import Attempt, is_cancellation, lane_run_id
from shoal.worker.attempt_hooks import HookFailed
from shoal.worker.attempt_resources import AttemptResources
from shoal.worker.failure_log import FailureLog
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.providers import ProviderFailed

if TYPE_CHECKING:
    from shoal.egress.pool import ExitIdentity

_OUTCOMES: Mapping[type[AttemptEnded], OutcomeClass] = {
    Permanent: OutcomeClass.PERMANENT,
    Skipped: OutcomeClass.SKIPPED,
    Transient: OutcomeClass.TRANSIENT,
    Throttled: OutcomeClass.THROTTLED,
    EgressUnavailable: OutcomeClass.THROTTLED,
    Blocked: OutcomeClass.BLOCKED,
}
# An item that waits for another host is tried again after this long at most, plus jitter.
MAX_OTHER_HOST_DELAY = 300.0
OTHER_HOST_JITTER = 1.0
# An item whose exits all failed waits this long: by then they are banned, or work again.
FAILED_EXITS_SECONDS = 5.0


class AttemptRunner:
    """Runs attempts on items of one scraper. It knows nothing about leases, commits or other items."""

    def __init__(self, resources: AttemptResources, failure_log: FailureLog) -> None:
        self._resources = resources
        self._scraper = resources.scraper
        self._rng = random.Random()
        # None when the author set a pace, and once the default one was announced.
        host_lane = resources.scraper.host_lane
        self._default_pace = host_lane if host_lane.loopback_limit is not None else None
        self._current: dict[Lease, Attempt] = {}
        self.failure_log = failure_log

    async def start(self) -> None:
        """Raises UsageError for egress that can never work."""
        if self._resources.egress is not None:
            await self._resources.egress.start()

    async def close(self) -> None:
        await self._resources.close()

    async def run(self, claimed: ClaimedItem, claimed_at: float) -> tuple[FinishedAttempt, int]:
        """Run one attempt. Returns its result and about how many bytes that holds.

        Raises ReleaseItem when the lease should be returned; StoreFailed, SecretMissing, ClientMissing, LoginBroken or
        LedgerError when no item can be processed.
        """
        began = time.monotonic()
        waited = None if claimed.waited is None else claimed.waited + began - claimed_at
        stage = self._scraper.stages.get(claimed.stage)
        if stage is None:
            ended = Permanent(f"this code has no stage {claimed.stage!r}")
            return self._finish_failed(claimed, ended, None, began, waited), 0
        if claimed.paced and self._default_pace is not None:
            self._announce_default_pace(claimed.lane or "")
        tried: list[ExitIdentity] = []
        reruns = 0
        while True:
            avoid = [each.exit.key for each in tried]
            again = bool(tried or reruns)
            attempt = Attempt(self._resources, stage, claimed, claimed_at, avoid=avoid, again=again)
            attempt.waited = waited
            result = await self._run_once(attempt)
            if attempt.session is not None and self._resources.logins is not None:
                error = result if isinstance(result, BaseException) else None
                error = self._resources.logins.record_end(attempt.session, error, reruns)
                if error is None and not isinstance(result, Output):
                    reruns += 1
                    continue  # after a new login
                result = error or result
            if attempt.identity is not None:
                tried.append(attempt.identity)
            if isinstance(result, Output):
                break
            if not _may_switch(result, tried):
                return await self._finish_error(attempt, self._uncharged(stage, result, tried))
        output = result
        self.failure_log.record_success()
        if output.dropped:
            self.failure_log.log_dropped_items(claimed, output.dropped)
        if output.dropped_records:
            self.failure_log.log_dropped_records(claimed, output.dropped_records)
        finished = FinishedAttempt(
            lease=claimed.lease,
            decision=DONE,
            records=tuple(output.records),
            record_keys=tuple(output.record_keys),
            follow_ups=tuple(output.follow_ups),
            seconds=time.monotonic() - began,
            waited=waited,
            detail=_with_egress(_detail(attempt, output, self._scraper.secrets), attempt),
        )
        return finished, output.size

    async def _run_once(self, attempt: Attempt) -> Output | BaseException:
        """What the attempt yielded, or the error that ended it. Raises what is not about the item."""
        try:
            return await self._result_of(attempt)
        finally:
            if attempt.identity is not None:
                attempt.identity.release()

    async def _result_of(self, attempt: Attempt) -> Output | BaseException:
        lease = attempt.claimed.lease
        self._current[lease] = attempt
        result: Output | BaseException
        try:
            result = await attempt.run()
        except (ReleaseItem, StoreFailed, SecretMissing, ClientMissing, LoginBroken, LedgerError):
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or is_cancellation(error):
                raise
            result = error
        finally:
            is_overdue = self._current.pop(lease, None) is not attempt
        if is_overdue:
            return attempt.timeout_error()  # the item has ended: it is not run again
        if attempt.identity is not None:
            if isinstance(result, Transient):
                result = await attempt.identity.judge(result)
            attempt.record_egress(result if isinstance(result, BaseException) else None)
        return result

    def _uncharged(self, stage: AnyStage, error: BaseException, tried: list[ExitIdentity]) -> BaseException:
        """The error; as one that does not charge the item if only its exits can be the reason.

        Raises ReleaseItem when no exit can be used at all: it is claimed again when one can.
        """
        resources = self._resources
        egress = None if resources.registration is None else resources.egress
        if isinstance(error, EgressUnavailable) and egress is not None and egress.is_waiting(stage.name):
            raise ReleaseItem
        if isinstance(error, ExitFailed) and not any(identity.works_for_others for identity in tried):
            return EgressUnavailable(error.message, retry_after=FAILED_EXITS_SECONDS)
        return error

    def _announce_default_pace(self, lane: str) -> None:
        pace = self._default_pace
        if pace is not None and not is_loopback_lane(lane):
            self._default_pace = None
            self._resources.log.info(
                "no pace is set: the default is gentle",
                host=lane,
                at_once=pace.limit,
                seconds_between=pace.delay_min,
                change_with="rate=, delay= or concurrency= of a stage",
            )

    async def _finish_error(self, attempt: Attempt, error: BaseException) -> tuple[FinishedAttempt, int]:
        """The result of an attempt that raised an error, with what the stage's `on_error` function yields."""
        claimed = attempt.claimed
        ended = self._ended_by(claimed, error)
        finished = self._finish_failed(claimed, ended, attempt.page, attempt.began, attempt.waited)
        if attempt.identity is not None or attempt.captured:
            finished = msgspec.structs.replace(finished, detail=_with_egress(finished.detail, attempt))
        stage = self._scraper.stages[claimed.stage]
        if stage.error_function is None or finished.decision.kind is not DecisionKind.DEAD:
            return finished, 0
        failure = Failure(
            message=finished.decision.error or "",
            outcome=finished.decision.outcome.value,
            attempts=claimed.tries + 1,
            page=attempt.page,
        )
        try:
            output = await attempt.call_error_function(failure)
        except (StoreFailed, SecretMissing, LedgerError):
            raise
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt) or is_cancellation(problem):
                raise
            # The item ends as it would have without the function.
            self.failure_log.log_error_function(claimed, problem)
            return finished, 0
        if output.dropped:
            self.failure_log.log_dropped_items(claimed, output.dropped)
        finished = msgspec.structs.replace(finished, records=tuple(output.records), follow_ups=tuple(output.follow_ups))
        return finished, output.size

    def _ended_by(self, claimed: ClaimedItem, error: BaseException) -> AttemptEnded:
        """How an error ends its attempt."""
        if isinstance(error, AttemptEnded | InvalidRecord):
            return self._ended_on_purpose(claimed, error)
        if isinstance(error, ProviderFailed):
            self.failure_log.log_provider_error(claimed, error)
            return Transient(str(error))
        if isinstance(error, HookFailed):
            self.failure_log.log_hook_error(claimed, error)
            if not error.is_permanent:
                return Transient(str(error))
            self.failure_log.record_programming_error(claimed)
            return Permanent(str(error))
        if isinstance(error, Dropped):
            return Permanent(f"{error_summary(error)}: only an on_record hook can drop a record")
        self.failure_log.log_handler_error(claimed, error)
        if not is_programming_error(error):
            return Transient(error_summary(error))
        # The code will not be different in the next attempt, so the page is not fetched again for it.
        self.failure_log.record_programming_error(claimed)
        return Permanent(error_summary(error))

    def _ended_on_purpose(self, claimed: ClaimedItem, error: AttemptEnded | InvalidRecord) -> AttemptEnded:
        if isinstance(error, InvalidRecord):
            return Permanent(str(error))
        if isinstance(error, LoggedOut):
            scraper = self._scraper.name
            return Permanent(f"{error.message}: {claimed.stage} has no login; declare one with @{scraper}.login")
        return error

    def running_attempts(self) -> list[tuple[Lease, float]]:
        """The running attempts and when each began, by the monotonic clock. Safe to call from another thread."""
        return [(attempt.claimed.lease, attempt.began) for attempt in list(self._current.values())]

    def lift_timeouts(self) -> None:
        """Let the running attempts take as long as they like."""
        for attempt in self._current.values():
            attempt.lift_timeout()

    def describe_item(self, lease: Lease) -> str:
        """The stage and the key of a running item."""
        attempt = self._current.get(lease)
        return f"item {lease.item}" if attempt is None else f"{attempt.claimed.stage} {attempt.claimed.name}"

    def pop_overdue(self, grace: float) -> list[tuple[ClaimedItem, FinishedAttempt]]:
        """Remove attempts that run `grace` seconds after their timeout because their handler ignores its cancellation.

        Returns each once, with its result. What the handler yields later is discarded.
        """
        now = asyncio.get_running_loop().time()
        late = [
            attempt
            for attempt in self._current.values()
            if (when := attempt.ends_at()) is not None and now > when + grace
        ]
        for attempt in late:
            del self._current[attempt.claimed.lease]
        return [
            (
                attempt.claimed,
                self._finish_failed(
                    attempt.claimed, attempt.timeout_error(), attempt.page, attempt.began, attempt.waited
                ),
            )
            for attempt in late
        ]

    def _finish_failed(
        self, claimed: ClaimedItem, ended: AttemptEnded, page: Page | None, began: float, waited: float | None
    ) -> FinishedAttempt:
        outcome = next(found for kind, found in _OUTCOMES.items() if isinstance(ended, kind))
        stage = self._scraper.stages.get(claimed.stage)
        policy = stage.policy if stage is not None else StagePolicy()
        message, retry_after, own_lane = ended.message, ended.retry_after, True
        if isinstance(ended, EgressUnavailable):
            own_lane = False
            retry_after = min(retry_after or FAILED_EXITS_SECONDS, MAX_OTHER_HOST_DELAY)
            retry_after += self._rng.uniform(0.0, OTHER_HOST_JITTER)
        if isinstance(ended, Throttled) and ended.host is not None and not _is_own_host(claimed, ended.host):
            # Jitter spreads the retries; the cap is there because an operator may open the host sooner.
            own_lane = False
            retry_after = min(retry_after or 0.0, MAX_OTHER_HOST_DELAY) + self._rng.uniform(0.0, OTHER_HOST_JITTER)
            if ended.host not in message:
                message = f"{ended.host} asks to wait: {message}"
        decision = decide_attempt(
            outcome,
            tries=claimed.tries,
            max_attempts=policy.max_attempts(claimed.max_attempts),
            error=redacted(message, self._scraper.secrets),
            retry_after=retry_after,
            own_lane=own_lane,
            policy=policy.retry,
            rng=self._rng,
        )
        if isinstance(ended, EgressUnavailable):
            decision = msgspec.structs.replace(decision, kind=DecisionKind.EGRESS)
        detail = {**(_failure_detail(page, self._scraper.secrets) or {}), **ended.detail} or None
        seconds = time.monotonic() - began
        return FinishedAttempt(lease=claimed.lease, decision=decision, seconds=seconds, detail=detail, waited=waited)

    def is_ordered(self, claimed: ClaimedItem) -> bool:
        """Whether items of its lane run one after another: the next one may be the first of all that are ready."""
        stage = self._scraper.stages.get(claimed.stage)
        return claimed.lane is not None and stage is not None and stage.policy.ordered

    def lane_run_id(self, claimed: ClaimedItem) -> str | None:
        """The run that the item's lane belongs to; None for a lane that all runs share."""
        return lane_run_id(self._scraper.stages.get(claimed.stage), claimed)


def _may_switch(error: BaseException, tried: list[ExitIdentity]) -> bool:
    """Whether the item is tried again at once with another identity, without being charged for this one."""
    keys = {identity.key for identity in tried}
    is_of_exit = isinstance(error, Blocked | ExitFailed | LoginFailed)
    return is_of_exit and 0 < len(tried) <= MAX_SWITCHES and len(keys) == len(tried)


def _is_own_host(claimed: ClaimedItem, host: str) -> bool:
    return claimed.url is not None and host_or_none(claimed.url) == host


def _detail(attempt: Attempt, output: Output, secrets: Sequence[str]) -> dict[str, Any] | None:
    """What is unusual about a successful attempt, and what it counted; None for most of them."""
    detail: dict[str, Any] = {}
    page = attempt.page
    if attempt.counters.values:
        detail["counters"] = dict(attempt.counters.values)
    if page is not None:
        if page.history:
            detail["url"] = redacted(page.url, secrets)
        if page.not_modified:
            detail["not_modified"] = True
    if output.dropped:
        detail["dropped"] = len(output.dropped)
        detail["first_dropped"] = redacted(output.dropped[0][:500], secrets)
    if output.dropped_records:
        detail["dropped_records"] = {
            hook: {"count": dropped.count, "first": redacted(dropped.first[:500], secrets)}
            for hook, dropped in output.dropped_records.items()
        }
    if output.too_deep:
        detail["too_deep"] = output.too_deep
    return detail or None


def _with_egress(detail: Mapping[str, Any] | None, attempt: Attempt) -> Mapping[str, Any] | None:
    """The detail with what the attempt went out as, and with what was kept of its page."""
    if attempt.captured:
        detail = {**(detail or {}), "capture": dict(attempt.captured)}
    if attempt.identity is None:
        return detail
    return {**(detail or {}), "egress": attempt.identity.exit.name}


def _failure_detail(page: Page | None, secrets: Sequence[str]) -> dict[str, Any] | None:
    if page is None:
        return None
    detail: dict[str, Any] = {"status": page.status, "bytes": len(page.body)}
    if page.history:
        detail["url"] = redacted(page.url, secrets)
    return detail
