"""Runs attempts on items of one scraper and decides how each ended."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from shoal.define.author_code import error_summary
from shoal.define.policy import StagePolicy
from shoal.define.records import Output
from shoal.errors import AttemptEnded, Blocked, InvalidRecord, LedgerError, Permanent, StoreFailed, Throttled, Transient
from shoal.fetch.page import Page
from shoal.model.item import ClaimedItem, Lease
from shoal.model.outcome import DONE, FinishedAttempt, OutcomeClass, decide_attempt
from shoal.model.redaction import redacted
from shoal.model.url_key import host_or_none
from shoal.worker.attempt import Attempt, AttemptResources, is_cancellation, lane_run_id
from shoal.worker.failure_log import FailureLog
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.providers import ProviderFailed

_OUTCOMES: Mapping[type[AttemptEnded], OutcomeClass] = {
    Permanent: OutcomeClass.PERMANENT,
    Transient: OutcomeClass.TRANSIENT,
    Throttled: OutcomeClass.THROTTLED,
    Blocked: OutcomeClass.BLOCKED,
}
# An item that waits for another host is tried again after this long at most, plus jitter.
MAX_OTHER_HOST_DELAY = 300.0
OTHER_HOST_JITTER = 1.0


class AttemptRunner:
    """Runs attempts on items of one scraper. It knows nothing about leases, commits or other items."""

    def __init__(self, resources: AttemptResources, failure_log: FailureLog) -> None:
        self._resources = resources
        self._scraper = resources.scraper
        self._rng = random.Random()
        self._current: dict[Lease, Attempt] = {}
        self.failure_log = failure_log

    async def close(self) -> None:
        await self._resources.close()

    async def run(self, claimed: ClaimedItem, claimed_at: float) -> tuple[FinishedAttempt, int]:
        """Run one attempt. Returns its result and about how many bytes that holds.

        Raises ReleaseItem when the lease should be returned; StoreFailed or LedgerError when no item can be processed.
        """
        began = time.monotonic()
        stage = self._scraper.stages.get(claimed.stage)
        if stage is None:
            return self._finish_failed(claimed, Permanent(f"this code has no stage {claimed.stage!r}"), None, began), 0
        lease = claimed.lease
        attempt = self._current[lease] = Attempt(self._resources, stage, claimed, claimed_at)
        try:
            output = await attempt.run()
        except (ReleaseItem, StoreFailed, LedgerError):
            raise
        except AttemptEnded as ended:
            return self._finish_failed(claimed, ended, attempt.page, began), 0
        except InvalidRecord as error:
            return self._finish_failed(claimed, Permanent(str(error)), attempt.page, began), 0
        except ProviderFailed as failed:
            self.failure_log.log_provider_error(claimed, failed)
            return self._finish_failed(claimed, Transient(str(failed)), attempt.page, began), 0
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or is_cancellation(error):
                raise
            self.failure_log.log_handler_error(claimed, error)
            return self._finish_failed(claimed, Transient(error_summary(error)), attempt.page, began), 0
        finally:
            self._current.pop(lease, None)
        self.failure_log.record_success()
        if output.dropped:
            self.failure_log.log_dropped_items(claimed, output.dropped)
        finished = FinishedAttempt(
            lease=lease,
            decision=DONE,
            records=tuple(output.records),
            follow_ups=tuple(output.follow_ups),
            seconds=time.monotonic() - began,
            detail=_detail(attempt.page, output),
        )
        return finished, output.size

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
                self._finish_failed(attempt.claimed, attempt.timeout_error(), attempt.page, attempt.began),
            )
            for attempt in late
        ]

    def _finish_failed(
        self, claimed: ClaimedItem, ended: AttemptEnded, page: Page | None, began: float
    ) -> FinishedAttempt:
        outcome = next(found for kind, found in _OUTCOMES.items() if isinstance(ended, kind))
        stage = self._scraper.stages.get(claimed.stage)
        policy = stage.policy if stage is not None else StagePolicy()
        message, retry_after, own_lane = ended.message, ended.retry_after, True
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
        detail = {**(_failure_detail(page) or {}), **ended.detail} or None
        return FinishedAttempt(lease=claimed.lease, decision=decision, seconds=time.monotonic() - began, detail=detail)

    def lane_run_id(self, claimed: ClaimedItem) -> str | None:
        """The run that the item's lane belongs to; None for a lane that all runs share."""
        return lane_run_id(self._scraper.stages.get(claimed.stage), claimed)


def _is_own_host(claimed: ClaimedItem, host: str) -> bool:
    return claimed.url is not None and host_or_none(claimed.url) == host


def _detail(page: Page | None, output: Output) -> dict[str, Any] | None:
    """What is unusual about a successful attempt; None for most of them."""
    detail: dict[str, Any] = {}
    if page is not None:
        if page.history:
            detail["url"] = redacted(page.url)
        if page.not_modified:
            detail["not_modified"] = True
    if output.dropped:
        detail["dropped"] = len(output.dropped)
        detail["first_dropped"] = redacted(output.dropped[0][:500])
    return detail or None


def _failure_detail(page: Page | None) -> dict[str, Any] | None:
    if page is None:
        return None
    detail: dict[str, Any] = {"status": page.status, "bytes": len(page.body)}
    if page.history:
        detail["url"] = redacted(page.url)
    return detail
