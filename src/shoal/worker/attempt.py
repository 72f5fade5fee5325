"""One attempt: fetch what the handler asks for, call it, and put what became of it into the ledger's words."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from shoal.define.blame import sentence
from shoal.define.http import Http
from shoal.define.inject import Shape, Wish
from shoal.define.item import Item
from shoal.define.records import Output
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.errors import AttemptEnded, Blocked, InvalidRecord, Permanent, Throttled, Transient
from shoal.fetch.classify import verdict_on
from shoal.fetch.page import Page
from shoal.fetch.protocols import Fetcher, Request
from shoal.model.item import Claimed, Lease
from shoal.model.log import Log
from shoal.model.outcome import DONE, Finished, OutcomeClass, RetryPolicy, judge
from shoal.worker.gate import AttemptGate, NotNow, Politeness
from shoal.worker.threads import Threads

# From this size on, building the tree takes long enough to be noticed by the other items; a thread does it.
PARSE_IN_THREAD_BYTES = 256 << 10
TOLD_BUGS = 1_000
_CLASSES: Mapping[type[AttemptEnded], OutcomeClass] = {
    Permanent: OutcomeClass.PERMANENT,
    Transient: OutcomeClass.TRANSIENT,
    Throttled: OutcomeClass.THROTTLED,
    Blocked: OutcomeClass.BLOCKED,
}


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
        retry: RetryPolicy | None = None,
    ) -> None:
        self._in_lanes = in_lanes
        self._scraper = scraper
        self._fetcher = fetcher
        self._polite = polite
        self._log = log
        self._retry = retry or RetryPolicy()
        self._rng = random.Random()
        self._threads = Threads()
        self._parsing_stages: set[str] = set()
        self._current: dict[Lease, _Running] = {}
        self._told_bugs: set[str] = set()

    def close(self) -> None:
        self._threads.close()

    async def make(self, claimed: Claimed, claimed_at: float) -> tuple[Finished, int]:
        """The end of one attempt, and about how many bytes it holds. Raises NotNow for an item that should go back."""
        began = time.monotonic()
        stage = self._scraper.stages.get(claimed.stage)
        if stage is None:
            return self._ended(claimed, Permanent(f"this code has no stage {claimed.stage!r}"), None, began), 0
        run = self._current[claimed.lease] = _Running(self, stage, claimed, claimed_at)
        try:
            output = await run.through()
        except NotNow:
            raise
        except AttemptEnded as ended:
            return self._ended(claimed, ended, run.page, began), 0
        except InvalidRecord as error:
            return self._ended(claimed, Permanent(str(error)), run.page, began), 0
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | GeneratorExit) or _is_ordered(error):
                raise
            self._tell_bug(stage, claimed, error)
            return self._ended(claimed, Transient(sentence(error)), run.page, began), 0
        finally:
            self._current.pop(claimed.lease, None)
        if output.dropped:
            self._log.warning(
                "items were dropped",
                stage=stage.name,
                item=claimed.name,
                count=len(output.dropped),
                first=output.dropped[0],
            )
        finished = Finished(
            lease=claimed.lease,
            verdict=DONE,
            records=tuple(output.records),
            follow_ups=tuple(output.follow_ups),
            seconds=time.monotonic() - began,
            detail=_detail(run.page, output),
        )
        return finished, output.size

    def overdue(self, grace: float) -> list[tuple[Claimed, Finished]]:
        """Attempts that go on `grace` seconds after their time was up, because their handler ignores being cancelled.

        Each is told once, with the end it gets. Whatever the handler yields later is nobody's business any more.
        """
        now = asyncio.get_running_loop().time()
        late = [run for run in self._current.values() if (when := run.ends_at()) is not None and now > when + grace]
        for run in late:
            del self._current[run.claimed.lease]
        return [(run.claimed, self._ended(run.claimed, run.out_of_time(), run.page, run.began)) for run in late]

    def _tell_bug(self, stage: AnyStage, claimed: Claimed, error: BaseException) -> None:
        """An error of the author's code: with its traceback the first time, a word the other times."""
        blame = sentence(error)
        facts = {"stage": stage.name, "item": claimed.name, "error": blame}
        if blame in self._told_bugs or len(self._told_bugs) >= TOLD_BUGS:
            self._log.debug("the handler failed", **facts)
            return
        self._told_bugs.add(blame)
        self._log.error("the handler failed", **facts, exc_info=error)

    def _ended(self, claimed: Claimed, ended: AttemptEnded, page: Page | None, began: float) -> Finished:
        outcome = next(found for kind, found in _CLASSES.items() if isinstance(ended, kind))
        verdict = judge(
            outcome,
            tries=claimed.tries,
            max_attempts=claimed.max_attempts,
            error=ended.message,
            retry_after=ended.retry_after,
            policy=self._retry,
            rng=self._rng,
        )
        return Finished(
            lease=claimed.lease, verdict=verdict, seconds=time.monotonic() - began, detail=_failure_detail(page)
        )

    def run_of_lane(self, claimed: Claimed) -> str | None:
        """The run that the item's lane belongs to; None for a lane that all runs share."""
        stage = self._scraper.stages.get(claimed.stage)
        return claimed.run_id if stage is not None and stage.policy.ordered else None

    def gate(self, claimed: Claimed, claimed_at: float) -> AttemptGate | None:
        if self._polite is None:
            return None
        if self._polite.robots is None and claimed.lane is None and claimed.url is not None:
            return None  # nothing to keep to, nothing to tell
        return AttemptGate(self._polite, claimed, claimed_at, run_of_lane=self.run_of_lane(claimed))


class _Running:
    """The state of one attempt while it runs. `page` is what was fetched, for the report of what went wrong."""

    __slots__ = ("_attempts", "_deadline", "_gate", "_stage", "began", "claimed", "page")

    def __init__(self, attempts: Attempts, stage: AnyStage, claimed: Claimed, claimed_at: float) -> None:
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

    def out_of_time(self) -> Transient:
        doing = "its page was fetched" if self._stage.fetches and self.page is None else "its handler ran"
        return Transient(f"timed out after {self._stage.policy.timeout:g} s while {doing}")

    async def through(self) -> Output:
        try:
            async with self._deadline:
                if self._gate is not None:
                    self._gate.limited_by(self._deadline)
                return await self._steps()
        except TimeoutError:
            if not self._deadline.expired():
                raise
            raise self.out_of_time() from None

    async def _steps(self) -> Output:
        stage, claimed, attempts = self._stage, self.claimed, self._attempts
        scraper = attempts._scraper
        output = Output(stage.name, scraper.stages, stage.record, in_lanes=attempts._in_lanes)
        item = Item.of(claimed)
        if stage.fetches:
            self.page = page = await self._fetched()
            if len(page.body) > PARSE_IN_THREAD_BYTES and stage.name in attempts._parsing_stages:
                await attempts._threads.run(page.parse)
        elif claimed.paced and self._gate is not None and not stage.signature.wants(Wish.HTTP):
            self._gate.sent(0)  # what it visits is its own business; this is when it starts
        await self._call(output, item)
        if self.page is not None:
            if self.page.parsed:
                attempts._parsing_stages.add(stage.name)
            if stage.follow is not None:
                for new in stage.follow.items(self.page, item, stage):
                    output.add(new)
        return output

    async def _fetched(self) -> Page:
        stage, claimed = self._stage, self.claimed
        if claimed.url is None:
            raise Permanent(f"the stage {stage.name} asks for a Page, but the item {claimed.name!r} has no URL")
        scraper = self._attempts._scraper
        headers = {**scraper.headers, **stage.headers} if scraper.headers or stage.headers else {}
        page = await self._attempts._fetcher.fetch(
            Request(url=claimed.url, headers=headers), gate=self._gate, jar=self._jar()
        )
        self.page = page
        if (ended := verdict_on(page)) is not None:
            raise ended
        if stage.blocked is not None and (sign := stage.blocked(page)):
            raise Blocked(f"soft block: {sign}" if isinstance(sign, str) else "soft block: the author's rule says so")
        return page

    async def _call(self, output: Output, item: Item) -> None:
        function = self._stage.function
        given = {name: self._provided(wish, item) for name, wish in self._stage.signature.wishes}
        match self._stage.signature.shape:
            case Shape.ASYNC_GENERATOR:
                values: AsyncGenerator[Any, None] = function(**given)
                try:
                    async for value in values:
                        output.add(value)
                except BaseException:
                    await values.aclose()
                    raise
            case Shape.COROUTINE:
                await _add_all(output, await function(**given))
            case Shape.PLAIN:
                await self._attempts._threads.run(lambda: _drain(output, function(**given)))

    def _provided(self, wish: Wish, item: Item) -> Any:
        attempts = self._attempts
        match wish:
            case Wish.PAGE:
                return self.page
            case Wish.ITEM:
                return item
            case Wish.LOG:
                return attempts._log.bind(stage=self._stage.name, item=item.key)
            case Wish.HTTP:
                headers = {**attempts._scraper.headers, **self._stage.headers}
                return Http(attempts._fetcher, gate=self._gate, jar=self._jar(), headers=headers)
            case _:
                return attempts._scraper.settings

    def _jar(self) -> str | None:
        return (self.claimed.lane or self._stage.name) if self._attempts._scraper.cookies else None


def _is_ordered(error: BaseException) -> bool:
    """Whether this is a cancellation that somebody wants of us, and not one that escaped from a handler's own task."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _add_all(output: Output, value: Any) -> None:
    if hasattr(value, "__aiter__"):
        async for each in value:
            output.add(each)
    else:
        _drain(output, value)


def _drain(output: Output, value: Any) -> None:
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


def _detail(page: Page | None, output: Output) -> dict[str, Any] | None:
    """What is worth keeping about a success: only what is out of the ordinary, because most are not."""
    detail: dict[str, Any] = {}
    if page is not None:
        if page.history:
            detail["url"] = page.url
        if page.not_modified:
            detail["not_modified"] = True
    if output.dropped:
        detail["dropped"] = len(output.dropped)
        detail["first_dropped"] = output.dropped[0][:500]
    return detail or None


def _failure_detail(page: Page | None) -> dict[str, Any] | None:
    if page is None:
        return None
    detail: dict[str, Any] = {"status": page.status, "bytes": len(page.body)}
    if page.history:
        detail["url"] = page.url
    return detail
