"""The steps of one attempt: fetch, call the handler, follow links, all within its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shoal.define.follow import Follow
from shoal.define.http import Http
from shoal.define.inject import Shape, Wish
from shoal.define.item import Item
from shoal.define.records import Output
from shoal.define.stage import AnyStage
from shoal.errors import Blocked, Permanent, Throttled, Transient
from shoal.fetch.classify import verdict_on
from shoal.fetch.page import Page
from shoal.fetch.protocols import Request
from shoal.model.item import Claimed, NewItem

if TYPE_CHECKING:
    from shoal.worker.attempts import Attempts

# From this size on, building the tree takes long enough to be noticed by the other items; a thread does it.
PARSE_IN_THREAD_BYTES = 256 << 10


class Attempt:
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
        share = self._attempts.memory.open_share(self._deadline)
        try:
            async with self._deadline:
                if self._gate is not None:
                    self._gate.limited_by(self._deadline)
                return await self._steps()
        except TimeoutError:
            if not self._deadline.expired():
                raise
            raise self.out_of_time() from None
        finally:
            share.close()

    async def _steps(self) -> Output:
        stage, claimed, attempts = self._stage, self.claimed, self._attempts
        scraper = attempts.scraper
        output = Output(stage.name, scraper.stages, stage.record, in_lanes=attempts.in_lanes)
        item = Item.of(claimed)
        if stage.fetches:
            self.page = page = await self._fetched()
            if len(page.body) > PARSE_IN_THREAD_BYTES and stage.name in attempts.parsing_stages:
                await attempts.threads.run(page.parse)
        elif claimed.paced and self._gate is not None and not stage.signature.wants(Wish.HTTP):
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

    async def _fetched(self) -> Page:
        stage, claimed = self._stage, self.claimed
        if claimed.url is None:
            raise Permanent(f"the stage {stage.name} asks for a Page, but the item {claimed.name!r} has no URL")
        scraper = self._attempts.scraper
        headers = {**scraper.headers, **stage.headers} if scraper.headers or stage.headers else {}
        page = await self._attempts.fetcher.fetch(
            Request(url=claimed.url, headers=headers), gate=self._gate, jar=self._jar()
        )
        self.page = page
        if (ended := verdict_on(page)) is not None:
            if isinstance(ended, Throttled) and self._gate is not None:
                await self._gate.throttled(ended)
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
                await self._attempts.threads.run(lambda: _drain(output, function(**given)))

    def _provided(self, wish: Wish, item: Item) -> Any:
        attempts = self._attempts
        match wish:
            case Wish.PAGE:
                return self.page
            case Wish.ITEM:
                return item
            case Wish.LOG:
                return attempts.log.bind(stage=self._stage.name, item=item.key)
            case Wish.HTTP:
                headers = {**attempts.scraper.headers, **self._stage.headers}
                return Http(attempts.fetcher, gate=self._gate, jar=self._jar(), headers=headers)
            case _:
                return attempts.scraper.settings

    def _jar(self) -> str | None:
        return (self.claimed.lane or self._stage.name) if self._attempts.scraper.cookies else None


def is_ordered(error: BaseException) -> bool:
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
