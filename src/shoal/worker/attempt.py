"""One attempt: fetch the page, call the handler, follow links, all within the stage's timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from typing import Any

from shoal.define.context import Http, Item
from shoal.define.follow import Follow
from shoal.define.providers import FunctionKind
from shoal.define.records import Output
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.errors import Blocked, Permanent, Throttled, Transient
from shoal.fetch.classify import classify_page
from shoal.fetch.memory import MemoryBudget
from shoal.fetch.page import Fetcher, Page, Request
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.log import Log
from shoal.threads import ThreadRunner
from shoal.worker.politeness import Politeness
from shoal.worker.providers import AttemptProviders, WorkerProviders

# From this size on, building the tree would delay the other items noticeably, so a thread does it.
PARSE_IN_THREAD_BYTES = 256 << 10


class AttemptResources:
    """What all attempts of a process share.

    `in_lanes=False` takes follow-up items out of their lanes, for a run that visits no site. `parsing_stages`: stages
    whose handlers have parsed a page.
    """

    __slots__ = (
        "fetcher",
        "in_lanes",
        "log",
        "memory",
        "parsing_stages",
        "politeness",
        "providers",
        "scraper",
        "threads",
    )

    def __init__(
        self,
        scraper: Scraper,
        fetcher: Fetcher,
        politeness: Politeness,
        *,
        log: Log,
        in_lanes: bool = True,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.scraper = scraper
        self.fetcher = fetcher
        self.politeness = politeness
        self.log = log
        self.in_lanes = in_lanes
        self.memory = memory or MemoryBudget()
        self.threads = ThreadRunner("shoal-handler")
        self.providers = WorkerProviders(scraper, self.threads, log)
        self.parsing_stages: set[str] = set()

    async def close(self) -> None:
        await self.providers.close()
        self.threads.close()
        await self.politeness.close()


class Attempt:
    """The state of one attempt while it runs.

    Built-in providers read its public attributes. `page`: the fetched page, which the report of a failure describes.
    """

    __slots__ = (
        "_closing",
        "_deadline",
        "_gate",
        "_http",
        "_providers",
        "_resources",
        "_stage",
        "_step",
        "began",
        "claimed",
        "item",
        "page",
    )

    def __init__(self, resources: AttemptResources, stage: AnyStage, claimed: ClaimedItem, claimed_at: float) -> None:
        self._resources = resources
        self._stage = stage
        self._deadline = asyncio.timeout(stage.policy.timeout)
        self._gate = resources.politeness.gate(
            claimed, claimed_at, lane_run_id=lane_run_id(stage, claimed), deadline=self._deadline
        )
        self._http: Http | None = None
        self._providers: AttemptProviders | None = None
        self._step = "its page was fetched"
        self._closing = False
        self.claimed = claimed
        self.item = Item.from_claimed(claimed)
        self.began = time.monotonic()
        self.page: Page | None = None

    @property
    def http(self) -> Http:
        """One for the attempt, so that its requests go one after another."""
        if self._http is None:
            headers = {**self._resources.scraper.headers, **self._stage.headers}
            self._http = Http(self._resources.fetcher, gate=self._gate, jar=self._jar(), headers=headers)
        return self._http

    @property
    def log(self) -> Log:
        return self._resources.log.bind(stage=self._stage.name, item=self.item.key)

    @property
    def settings(self) -> Any:
        return self._resources.scraper.settings

    def ends_at(self) -> float | None:
        """When its timeout expires, on the loop's clock; None once only its providers are torn down."""
        return None if self._closing else self._deadline.when()

    def lift_timeout(self) -> None:
        """Let it take as long as it likes: a person is looking at it in a debugger. On the loop's thread only."""
        with suppress(RuntimeError):  # it has not begun, or is over
            self._deadline.reschedule(None)

    def timeout_error(self) -> Transient:
        return Transient(f"timed out after {self._stage.policy.timeout:g} s while {self._step}")

    async def run(self) -> Output:
        share = self._resources.memory.open_share(self._deadline)
        try:
            async with self._deadline:
                return await self._run_steps()
        except TimeoutError:
            if not self._deadline.expired():
                raise
            raise self.timeout_error() from None
        finally:
            share.close()
            if self._providers is not None:
                self._closing = True
                await self._providers.close()

    async def _run_steps(self) -> Output:
        stage, claimed, resources = self._stage, self.claimed, self._resources
        output = Output(stage.name, resources.scraper.stages, stage.record, in_lanes=resources.in_lanes)
        if stage.fetches:
            self.page = page = await self._fetch_page()
            if len(page.body) > PARSE_IN_THREAD_BYTES and stage.name in resources.parsing_stages:
                await resources.threads.run(page.parse)
        elif claimed.paced and self._gate is not None and Http not in stage.signature.types:
            await self._gate.start()  # Shoal sends no request for it, so the attempt itself is the start
        arguments = await self._arguments()
        self._step = "its handler ran"
        await self._call(output, arguments)
        if self.page is not None:
            if self.page.parsed:
                resources.parsing_stages.add(stage.name)
            if stage.follow is not None:
                await self._follow(self.page, stage.follow, output)
        return output

    async def _arguments(self) -> dict[str, Any]:
        signature, resources = self._stage.signature, self._resources
        if signature.readers is not None:
            return {name: read(self) for name, read in signature.readers}
        self._step = "its providers were set up"
        self._providers = AttemptProviders(resources.scraper, resources.providers, resources.threads, resources.log)
        return await self._providers.arguments(signature, self)

    async def _follow(self, page: Page, follow: Follow, output: Output) -> None:
        def find() -> list[NewItem]:
            return follow.items(page, self.item, self._stage)

        large = len(page.body) > PARSE_IN_THREAD_BYTES
        for new in await self._resources.threads.run(find) if large else find():
            output.add(new)

    async def _fetch_page(self) -> Page:
        stage, claimed = self._stage, self.claimed
        if claimed.url is None:
            raise Permanent(f"the stage {stage.name} asks for a Page, but the item {claimed.name!r} has no URL")
        scraper = self._resources.scraper
        headers = {**scraper.headers, **stage.headers} if scraper.headers or stage.headers else {}
        page = await self._resources.fetcher.fetch(
            Request(url=claimed.url, headers=headers), gate=self._gate, jar=self._jar()
        )
        self.page = page
        if (ended := classify_page(page)) is not None:
            if isinstance(ended, Throttled) and self._gate is not None:
                await self._gate.on_throttled(ended)
            raise ended
        if stage.blocked is not None and (reason := stage.blocked(page)):
            raise Blocked(
                f"soft block: {reason}" if isinstance(reason, str) else "soft block: by the stage's `blocked` function"
            )
        return page

    async def _call(self, output: Output, arguments: dict[str, Any]) -> None:
        function = self._stage.function
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
                await self._resources.threads.run(lambda: _add_returned(output, function(**arguments)))

    def _jar(self) -> str | None:
        return (self.claimed.lane or self._stage.name) if self._resources.scraper.cookies else None


def lane_run_id(stage: AnyStage | None, claimed: ClaimedItem) -> str | None:
    """The run that the item's lane belongs to; None for a lane that all runs share."""
    return claimed.run_id if stage is not None and stage.policy.ordered else None


def is_cancellation(error: BaseException) -> bool:
    """Whether the attempt's own task was cancelled, or is being closed by the interpreter.

    A handler may also raise GeneratorExit itself, or let the CancelledError of another task escape.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
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
    """Add a returned value: a record, an item, or an iterable of them."""
    if (
        isinstance(value, Iterable)
        and not isinstance(value, Mapping | str | bytes)
        and not hasattr(value, "model_dump")
    ):
        for each in value:
            output.add(each)
    else:
        output.add(value)
