"""Sets up and tears down the values of providers: those of the worker once, those of an attempt for each attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from shoal.define.author_code import error_summary
from shoal.define.providers import Provider, SetUp, Signature
from shoal.define.scraper import Scraper
from shoal.errors import AttemptEnded, ClientMissing, LedgerError, SecretMissing, StoreFailed
from shoal.model.log import Log
from shoal.threads import ThreadRunner
from shoal.worker.lane_starts import ReleaseItem

# A tear-down that takes longer is abandoned, so that it keeps neither a slot nor the process.
TEAR_DOWN_SECONDS = 5.0

Arguments = Callable[[], Awaitable[dict[str, Any]]]


class ProviderFailed(Exception):
    """The set-up of a provider failed."""

    def __init__(self, provider: Provider, error: Exception) -> None:
        super().__init__(f"the set-up of {provider.name} failed: {error_summary(error)}")
        self.error = error


class WorkerValues(NamedTuple):
    """What built-in providers of the worker's scope read."""

    settings: Any
    log: Log


class WorkerProviders:
    """The values of worker-scoped providers. Each is set up when it is first asked for, and torn down by `close`.

    A set-up that fails is repeated when the value is asked for again.
    """

    def __init__(self, scraper: Scraper, threads: ThreadRunner, log: Log) -> None:
        self._scraper = scraper
        self._threads = threads
        self._log = log
        self._values: dict[Provider, _WorkerValue] = {}

    async def get(self, provider: Provider) -> Any:
        """The value of a worker-scoped provider. Raises ProviderFailed when its set-up fails."""
        value = self._values.get(provider)
        if value is None or value.failed:
            value = self._values[provider] = _WorkerValue(provider, self._open(provider), self._log)
        return await value.get()

    async def arguments(self, signature: Signature, values: object) -> dict[str, Any]:
        """The arguments of a function that asks for no attempt; built-in providers read from `values`."""
        return {
            name: await self.get(provider) if provider.read is None else provider.read(values)
            for name, provider in signature.parameters
        }

    async def close(self) -> None:
        """Tear down all values, the last one that was set up first. Errors are logged."""
        values, self._values = list(self._values.values()), {}
        for value in sorted(values, key=lambda value: value.ready_at, reverse=True):
            await value.close()

    def _open(self, provider: Provider) -> OpenedValue:
        async def arguments() -> dict[str, Any]:
            signature = self._scraper.providers.signature(provider)
            log = self._log.bind(provider=getattr(provider.function, "__name__", provider.name))
            return await self.arguments(signature, WorkerValues(self._scraper.settings, log))

        return OpenedValue(provider, arguments, self._threads)


class AttemptProviders:
    """The values of one attempt's own providers, each set up once and torn down by `close`.

    `attempt`: what built-in providers set their values up for.
    """

    def __init__(
        self, attempt: object, scraper: Scraper, worker: WorkerProviders, threads: ThreadRunner, log: Log
    ) -> None:
        self._attempt = attempt
        self._scraper = scraper
        self._worker = worker
        self._threads = threads
        self._log = log
        self._opened: dict[Provider, tuple[OpenedValue, Any]] = {}

    async def arguments(self, signature: Signature, values: object) -> dict[str, Any]:
        """The arguments of a function; built-in providers read from `values`. Raises ProviderFailed."""
        return {name: await self._value(provider, values) for name, provider in signature.parameters}

    async def _value(self, provider: Provider, values: object) -> Any:
        if provider.read is not None:
            return provider.read(values)
        if provider.scope == "worker":
            return await self._worker.get(provider)
        if provider in self._opened:
            return self._opened[provider][1]
        opened = OpenedValue(provider, lambda: self._set_up_arguments(provider, values), self._threads)
        value = await opened.set_up()
        self._opened[provider] = opened, value
        return value

    async def _set_up_arguments(self, provider: Provider, values: object) -> dict[str, Any]:
        if provider.open is not None:
            return {"attempt": self._attempt}
        return await self.arguments(self._scraper.providers.signature(provider), values)

    async def close(self) -> None:
        """Tear down the values, the last one first. Errors are logged.

        A cancellation ends the tear-down that is under way and is raised after the others.
        """
        cancelled: asyncio.CancelledError | None = None
        for opened, _ in reversed(self._opened.values()):
            try:
                await tear_down(opened, self._log)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


class OpenedValue:
    """One value of a provider: its set-up and its tear-down. `arguments` makes the arguments of its function."""

    def __init__(self, provider: Provider, arguments: Arguments, threads: ThreadRunner) -> None:
        self.provider = provider
        self._arguments = arguments
        self._threads = threads
        self._context: Any = None
        self._kind = provider.set_up if provider.open is None else SetUp.ASYNC_CONTEXT

    async def set_up(self) -> Any:
        """Raises ProviderFailed for any other error than those that end an attempt or the work."""
        function: Callable[..., Any] | None = self.provider.open or self.provider.function
        assert function is not None
        arguments = await self._arguments()
        try:
            match self._kind:
                case SetUp.ASYNC_CONTEXT:
                    context = function(**arguments)
                    value = await context.__aenter__()
                    self._context = context
                    return value
                case SetUp.CONTEXT:
                    self._context, value = await self._threads.run_cancellable(
                        lambda cancelled: _enter(function(**arguments), cancelled)
                    )
                    return value
                case SetUp.COROUTINE:
                    return await function(**arguments)
                case SetUp.PLAIN:
                    return await self._threads.run(lambda: function(**arguments))
        except (AttemptEnded, ReleaseItem, StoreFailed, SecretMissing, ClientMissing, LedgerError):
            raise
        except Exception as error:
            raise ProviderFailed(self.provider, error) from error

    async def tear_down(self) -> None:
        """Run what comes after the `yield`, however the attempt ended."""
        context, self._context = self._context, None
        if context is None:
            return
        if self._kind is SetUp.ASYNC_CONTEXT:
            await context.__aexit__(None, None, None)
        else:
            await self._threads.run(lambda: context.__exit__(None, None, None))


def _enter(context: AbstractContextManager[Any], cancelled: Callable[[], bool]) -> tuple[Any, Any]:
    """Enter in a thread. When the caller has timed out meanwhile, nothing else would leave it."""
    value = context.__enter__()
    if cancelled():
        context.__exit__(None, None, None)
    return context, value


async def tear_down(opened: OpenedValue, log: Log) -> None:
    """Tear down within `TEAR_DOWN_SECONDS`; an error is logged."""
    try:
        async with asyncio.timeout(TEAR_DOWN_SECONDS):
            await opened.tear_down()
    except Exception as error:
        log.error("provider teardown failed", provider=opened.provider.name, error=error_summary(error))


class _WorkerValue:
    """A value that attempts share. Its own task sets it up and tears it down.

    So an attempt that is cancelled does not cancel the set-up that others wait for, and a context manager is left in
    the task that entered it.
    """

    def __init__(self, provider: Provider, opened: OpenedValue, log: Log) -> None:
        self._opened = opened
        self._log = log
        self._waiting = 0
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name=f"provider {provider.name}")
        self.ready_at = 0.0

    @property
    def failed(self) -> bool:
        """Whether there is no value and will be none."""
        ready = self._ready
        return self._closing.is_set() or (ready.done() and (ready.cancelled() or ready.exception() is not None))

    async def get(self) -> Any:
        if self._ready.done():
            return self._ready.result()
        self._waiting += 1
        try:
            return await asyncio.shield(self._ready)
        finally:
            self._waiting -= 1
            if not self._waiting and not self._ready.done():
                self._end()  # every attempt that waited has timed out

    def _end(self) -> None:
        self._closing.set()
        if not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        self._end()
        await asyncio.wait((self._task,), timeout=TEAR_DOWN_SECONDS + 1)

    async def _live(self) -> None:
        try:
            value = await self._opened.set_up()
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                self._ready.cancel()
                raise
            self._ready.set_exception(error)
            self._ready.exception()  # every waiter may have left
            return
        self.ready_at = time.monotonic()
        self._ready.set_result(value)
        await self._closing.wait()
        await tear_down(self._opened, self._log)
