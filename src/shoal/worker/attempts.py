"""Attempts on items of one scraper, and what became of each in the ledger's words."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Any

from shoal.define.blame import sentence
from shoal.define.policy import StagePolicy
from shoal.define.records import Output
from shoal.define.scraper import Scraper
from shoal.errors import AttemptEnded, Blocked, InvalidRecord, LedgerError, Permanent, StoreFailed, Throttled, Transient
from shoal.fetch.memory import MemoryBudget
from shoal.fetch.page import Page
from shoal.fetch.protocols import Fetcher
from shoal.model.item import Claimed, Lease
from shoal.model.log import Log
from shoal.model.outcome import DONE, Finished, OutcomeClass, judge
from shoal.model.redaction import redacted
from shoal.model.urlkey import host_or_none
from shoal.worker.attempt import Attempt, is_ordered
from shoal.worker.complaints import Complaints
from shoal.worker.gate import AttemptGate, Politeness
from shoal.worker.starts import NotNow, WorkerSide
from shoal.worker.threads import Threads

_CLASSES: Mapping[type[AttemptEnded], OutcomeClass] = {
    Permanent: OutcomeClass.PERMANENT,
    Transient: OutcomeClass.TRANSIENT,
    Throttled: OutcomeClass.THROTTLED,
    Blocked: OutcomeClass.BLOCKED,
}
# An item that another host made wait looks again after so long at most, and a moment later than it could.
LONGEST_PUT_OFF = 300.0
PUT_OFF_SPREAD = 1.0


class Attempts:
    """Makes attempts on items of one scraper. Nothing here knows about commits or other items."""

    def __init__(
        self,
        scraper: Scraper,
        fetcher: Fetcher,
        polite: Politeness | None,
        *,
        log: Log,
        in_lanes: bool = True,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.in_lanes = in_lanes
        self.scraper = scraper
        self.fetcher = fetcher
        self._polite = polite
        self.log = log
        self._rng = random.Random()
        self.threads = Threads()
        self.memory = memory or MemoryBudget()
        self.parsing_stages: set[str] = set()
        self._current: dict[Lease, Attempt] = {}
        self.complaints = Complaints(log)

    async def close(self) -> None:
        self.threads.close()
        if self._polite is not None:
            await self._polite.close()

    def serve(self, side: WorkerSide) -> None:
        """From now on attempts are made for this worker."""
        if self._polite is not None:
            self._polite.serve(side)

    async def make(self, claimed: Claimed, claimed_at: float) -> tuple[Finished, int]:
        """The end of one attempt, and about how many bytes it holds.

        Raises NotNow for an item that should go back; StoreFailed or LedgerError when none can be worked on.
        """
        began = time.monotonic()
        stage = self.scraper.stages.get(claimed.stage)
        if stage is None:
            return self._ended(claimed, Permanent(f"this code has no stage {claimed.stage!r}"), None, began), 0
        lease = claimed.lease
        run = self._current[lease] = Attempt(self, stage, claimed, claimed_at)
        try:
            output = await run.through()
        except (NotNow, StoreFailed, LedgerError):
            raise
        except AttemptEnded as ended:
            return self._ended(claimed, ended, run.page, began), 0
        except InvalidRecord as error:
            return self._ended(claimed, Permanent(str(error)), run.page, began), 0
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or is_ordered(error):
                raise
            self.complaints.bug(claimed, error)
            return self._ended(claimed, Transient(sentence(error)), run.page, began), 0
        finally:
            self._current.pop(lease, None)
        self.complaints.success()
        if output.dropped:
            self.complaints.refused(claimed, output.dropped)
        finished = Finished(
            lease=lease,
            verdict=DONE,
            records=tuple(output.records),
            follow_ups=tuple(output.follow_ups),
            seconds=time.monotonic() - began,
            detail=_detail(run.page, output),
        )
        return finished, output.size

    def under_way(self) -> list[tuple[Lease, float]]:
        """Every attempt that runs now, and when it began by the monotonic clock. Safe to call from another thread."""
        return [(attempt.claimed.lease, attempt.began) for attempt in list(self._current.values())]

    def name_of(self, lease: Lease) -> str:
        """The stage and the key of an item that is being worked on."""
        run = self._current.get(lease)
        return f"item {lease.item}" if run is None else f"{run.claimed.stage} {run.claimed.name}"

    def overdue(self, grace: float) -> list[tuple[Claimed, Finished]]:
        """Attempts that go on `grace` seconds after their time was up, because their handler ignores being cancelled.

        Each is told once, with the end it gets. Whatever the handler yields later is nobody's business any more.
        """
        now = asyncio.get_running_loop().time()
        late = [run for run in self._current.values() if (when := run.ends_at()) is not None and now > when + grace]
        for run in late:
            del self._current[run.claimed.lease]
        return [(run.claimed, self._ended(run.claimed, run.out_of_time(), run.page, run.began)) for run in late]

    def _ended(self, claimed: Claimed, ended: AttemptEnded, page: Page | None, began: float) -> Finished:
        outcome = next(found for kind, found in _CLASSES.items() if isinstance(ended, kind))
        stage = self.scraper.stages.get(claimed.stage)
        policy = stage.policy if stage is not None else StagePolicy()
        message, retry_after, own_lane = ended.message, ended.retry_after, True
        if isinstance(ended, Throttled) and ended.host is not None and not _is_own_host(claimed, ended.host):
            # Not all at once when the host is open again; and an operator may open it sooner.
            own_lane = False
            retry_after = min(retry_after or 0.0, LONGEST_PUT_OFF) + self._rng.uniform(0.0, PUT_OFF_SPREAD)
            if ended.host not in message:
                message = f"{ended.host} asks to wait: {message}"
        verdict = judge(
            outcome,
            tries=claimed.tries,
            max_attempts=policy.max_attempts(claimed.max_attempts),
            error=redacted(message, self.scraper.secrets),
            retry_after=retry_after,
            own_lane=own_lane,
            policy=policy.retry,
            rng=self._rng,
        )
        detail = {**(_failure_detail(page) or {}), **ended.detail} or None
        return Finished(lease=claimed.lease, verdict=verdict, seconds=time.monotonic() - began, detail=detail)

    def run_of_lane(self, claimed: Claimed) -> str | None:
        """The run that the item's lane belongs to; None for a lane that all runs share."""
        stage = self.scraper.stages.get(claimed.stage)
        return claimed.run_id if stage is not None and stage.policy.ordered else None

    def gate(self, claimed: Claimed, claimed_at: float) -> AttemptGate | None:
        if self._polite is None:
            return None
        if self._polite.robots is None and claimed.lane is None and claimed.url is not None:
            return None  # nothing to keep to, nothing to tell
        return AttemptGate(self._polite, claimed, claimed_at, run_of_lane=self.run_of_lane(claimed))


def _is_own_host(claimed: Claimed, host: str) -> bool:
    return claimed.url is not None and host_or_none(claimed.url) == host


def _detail(page: Page | None, output: Output) -> dict[str, Any] | None:
    """What is worth keeping about a success: only what is out of the ordinary, because most are not."""
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
