"""One attempt: fetch, call the handler, collect its output, classify its end.

The steps of one attempt: fetch, call the handler, follow links, all within its time.

Attempts on items of one scraper, and what became of each in the ledger's words.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from shoal.define.author_code import error_summary
from shoal.define.context import Http, Item
from shoal.define.follow import Follow
from shoal.define.policy import StagePolicy
from shoal.define.providers import FunctionKind, Inject
from shoal.define.records import Output
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.errors import AttemptEnded, Blocked, InvalidRecord, LedgerError, Permanent, StoreFailed, Throttled, Transient
from shoal.fetch.classify import classify_page
from shoal.fetch.memory import MemoryBudget
from shoal.fetch.page import Page
from shoal.fetch.protocols import Fetcher, Request
from shoal.model.item import ClaimedItem, Lease, NewItem
from shoal.model.log import Log
from shoal.model.outcome import DONE, FinishedAttempt, OutcomeClass, decide_attempt
from shoal.model.redaction import redacted
from shoal.model.url_key import host_or_none
from shoal.threads import Threads
from shoal.worker.failure_log import FailureLog
from shoal.worker.lane_starts import ReleaseItem, WorkerCallbacks
from shoal.worker.politeness import AttemptGate, Politeness

# From this size on, building the tree takes long enough to be noticed by the other items; a thread does it.
PARSE_IN_THREAD_BYTES = 256 << 10
_CLASSES: Mapping[type[AttemptEnded], OutcomeClass] = {
    Permanent: OutcomeClass.PERMANENT,
    Transient: OutcomeClass.TRANSIENT,
    Throttled: OutcomeClass.THROTTLED,
    Blocked: OutcomeClass.BLOCKED,
}
# An item that another host made wait looks again after so long at most, and a moment later than it could.
MAX_OTHER_HOST_DELAY = 300.0
OTHER_HOST_JITTER = 1.0


class Attempt:
    """The state of one attempt while it runs. `page` is what was fetched, for the report of what went wrong."""

    __slots__ = ("_attempts", "_deadline", "_gate", "_stage", "began", "claimed", "page")

    def __init__(self, attempts: AttemptRunner, stage: AnyStage, claimed: ClaimedItem, claimed_at: float) -> None:
        self._attempts = attempts
        self._stage = stage
        self._gate = attempts.gate(claimed, claimed_at)
        self._deadline = asyncio.timeout(stage.policy.timeout)
        self.claimed = claimed
        self.began = time.monotonic()
        self.page: Page | None = None

    def ends_at(self) -> float | None:
        """When its time is up, on the loop's clock."""
        return self._deadline.when()

    def timeout_error(self) -> Transient:
        doing = "its page was fetched" if self._stage.fetches and self.page is None else "its handler ran"
        return Transient(f"timed out after {self._stage.policy.timeout:g} s while {doing}")

    async def run(self) -> Output:
        share = self._attempts.memory.open_share(self._deadline)
        try:
            async with self._deadline:
                if self._gate is not None:
                    self._gate.set_deadline(self._deadline)
                return await self._run_steps()
        except TimeoutError:
            if not self._deadline.expired():
                raise
            raise self.timeout_error() from None
        finally:
            share.close()

    async def _run_steps(self) -> Output:
        stage, claimed, attempts = self._stage, self.claimed, self._attempts
        scraper = attempts.scraper
        output = Output(stage.name, scraper.stages, stage.record, in_lanes=attempts.in_lanes)
        item = Item.from_claimed(claimed)
        if stage.fetches:
            self.page = page = await self._fetch_page()
            if len(page.body) > PARSE_IN_THREAD_BYTES and stage.name in attempts.parsing_stages:
                await attempts.threads.run(page.parse)
        elif claimed.paced and self._gate is not None and not stage.signature.injects(Inject.HTTP):
            await self._gate.start()  # what it visits is its own business; this is when it starts
        await self._call(output, item)
        if self.page is not None:
            if self.page.parsed:
                attempts.parsing_stages.add(stage.name)
            if stage.follow is not None:
                await self._follow(self.page, stage.follow, output, item)
        return output

    async def _follow(self, page: Page, follow: Follow, output: Output, item: Item) -> None:
        def find() -> list[NewItem]:
            return follow.items(page, item, self._stage)

        large = len(page.body) > PARSE_IN_THREAD_BYTES
        for new in await self._attempts.threads.run(find) if large else find():
            output.add(new)

    async def _fetch_page(self) -> Page:
        stage, claimed = self._stage, self.claimed
        if claimed.url is None:
            raise Permanent(f"the stage {stage.name} asks for a Page, but the item {claimed.name!r} has no URL")
        scraper = self._attempts.scraper
        headers = {**scraper.headers, **stage.headers} if scraper.headers or stage.headers else {}
        page = await self._attempts.fetcher.fetch(
            Request(url=claimed.url, headers=headers), gate=self._gate, jar=self._jar()
        )
        self.page = page
        if (ended := classify_page(page)) is not None:
            if isinstance(ended, Throttled) and self._gate is not None:
                await self._gate.on_throttled(ended)
            raise ended
        if stage.blocked is not None and (reason := stage.blocked(page)):
            raise Blocked(
                f"soft block: {reason}" if isinstance(reason, str) else "soft block: the author's rule says so"
            )
        return page

    async def _call(self, output: Output, item: Item) -> None:
        function = self._stage.function
        arguments = {name: self._injected_value(inject, item) for name, inject in self._stage.signature.injected}
        match self._stage.signature.kind:
            case FunctionKind.ASYNC_GENERATOR:
                values: AsyncGenerator[Any, None] = function(**arguments)
                try:
                    async for value in values:
                        output.add(value)
                except BaseException:
                    await values.aclose()
                    raise
            case FunctionKind.COROUTINE:
                await _add_all(output, await function(**arguments))
            case FunctionKind.PLAIN:
                await self._attempts.threads.run(lambda: _add_returned(output, function(**arguments)))

    def _injected_value(self, inject: Inject, item: Item) -> Any:
        attempts = self._attempts
        match inject:
            case Inject.PAGE:
                return self.page
            case Inject.ITEM:
                return item
            case Inject.LOG:
                return attempts.log.bind(stage=self._stage.name, item=item.key)
            case Inject.HTTP:
                headers = {**attempts.scraper.headers, **self._stage.headers}
                return Http(attempts.fetcher, gate=self._gate, jar=self._jar(), headers=headers)
            case _:
                return attempts.scraper.settings

    def _jar(self) -> str | None:
        return (self.claimed.lane or self._stage.name) if self._attempts.scraper.cookies else None


def is_cancellation(error: BaseException) -> bool:
    """Whether somebody wants this attempt to end: its task was cancelled, or is being closed by the interpreter.

    A CancelledError may also have escaped from a handler's own task, and a GeneratorExit may have been raised by it.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here any more
        task = None
    if isinstance(error, GeneratorExit):
        return task is None
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _add_all(output: Output, value: Any) -> None:
    if hasattr(value, "__aiter__"):
        async for each in value:
            output.add(each)
    else:
        _add_returned(output, value)


def _add_returned(output: Output, value: Any) -> None:
    """A returned value: a record, an item, or an iterable of such."""
    if (
        isinstance(value, Iterable)
        and not isinstance(value, Mapping | str | bytes)
        and not hasattr(value, "model_dump")
    ):
        for each in value:
            output.add(each)
    else:
        output.add(value)


class AttemptRunner:
    """Makes attempts on items of one scraper. Nothing here knows about commits or other items."""

    def __init__(
        self,
        scraper: Scraper,
        fetcher: Fetcher,
        politeness: Politeness | None,
        *,
        log: Log,
        in_lanes: bool = True,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.in_lanes = in_lanes
        self.scraper = scraper
        self.fetcher = fetcher
        self._politeness = politeness
        self.log = log
        self._rng = random.Random()
        self.threads = Threads()
        self.memory = memory or MemoryBudget()
        self.parsing_stages: set[str] = set()
        self._current: dict[Lease, Attempt] = {}
        self.failure_log = FailureLog(log)

    async def close(self) -> None:
        self.threads.close()
        if self._politeness is not None:
            await self._politeness.close()

    def set_worker(self, callbacks: WorkerCallbacks) -> None:
        """From now on attempts are made for this worker."""
        if self._politeness is not None:
            self._politeness.set_worker(callbacks)

    async def run(self, claimed: ClaimedItem, claimed_at: float) -> tuple[FinishedAttempt, int]:
        """The end of one attempt, and about how many bytes it holds.

        Raises ReleaseItem for an item that should go back; StoreFailed or LedgerError when none can be worked on.
        """
        began = time.monotonic()
        stage = self.scraper.stages.get(claimed.stage)
        if stage is None:
            return self._finish_failed(claimed, Permanent(f"this code has no stage {claimed.stage!r}"), None, began), 0
        lease = claimed.lease
        attempt = self._current[lease] = Attempt(self, stage, claimed, claimed_at)
        try:
            output = await attempt.run()
        except (ReleaseItem, StoreFailed, LedgerError):
            raise
        except AttemptEnded as ended:
            return self._finish_failed(claimed, ended, attempt.page, began), 0
        except InvalidRecord as error:
            return self._finish_failed(claimed, Permanent(str(error)), attempt.page, began), 0
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
        """Every attempt that runs now, and when it began by the monotonic clock. Safe to call from another thread."""
        return [(attempt.claimed.lease, attempt.began) for attempt in list(self._current.values())]

    def describe_item(self, lease: Lease) -> str:
        """The stage and the key of an item that is being worked on."""
        attempt = self._current.get(lease)
        return f"item {lease.item}" if attempt is None else f"{attempt.claimed.stage} {attempt.claimed.name}"

    def pop_overdue(self, grace: float) -> list[tuple[ClaimedItem, FinishedAttempt]]:
        """Attempts that go on `grace` seconds after their time was up, because their handler ignores being cancelled.

        Each is told once, with the end it gets. Whatever the handler yields later is nobody's business any more.
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
        outcome = next(found for kind, found in _CLASSES.items() if isinstance(ended, kind))
        stage = self.scraper.stages.get(claimed.stage)
        policy = stage.policy if stage is not None else StagePolicy()
        message, retry_after, own_lane = ended.message, ended.retry_after, True
        if isinstance(ended, Throttled) and ended.host is not None and not _is_own_host(claimed, ended.host):
            # Not all at once when the host is open again; and an operator may open it sooner.
            own_lane = False
            retry_after = min(retry_after or 0.0, MAX_OTHER_HOST_DELAY) + self._rng.uniform(0.0, OTHER_HOST_JITTER)
            if ended.host not in message:
                message = f"{ended.host} asks to wait: {message}"
        decision = decide_attempt(
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
        return FinishedAttempt(lease=claimed.lease, decision=decision, seconds=time.monotonic() - began, detail=detail)

    def lane_run_id(self, claimed: ClaimedItem) -> str | None:
        """The run that the item's lane belongs to; None for a lane that all runs share."""
        stage = self.scraper.stages.get(claimed.stage)
        return claimed.run_id if stage is not None and stage.policy.ordered else None

    def gate(self, claimed: ClaimedItem, claimed_at: float) -> AttemptGate | None:
        if self._politeness is None:
            return None
        if self._politeness.robots is None and claimed.lane is None and claimed.url is not None:
            return None  # nothing to keep to, nothing to tell
        return AttemptGate(self._politeness, claimed, claimed_at, lane_run_id=self.lane_run_id(claimed))


def _is_own_host(claimed: ClaimedItem, host: str) -> bool:
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
