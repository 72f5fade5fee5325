"""Calls the hooks of requests, responses and records for one attempt, in the order of their declaration.

`async def` hooks run in the event loop, others in a thread: once for a request or a response, once for all records of
an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDict, CIMultiDictProxy

from shoal.define.author_code import error_summary, is_programming_error
from shoal.define.context import Http, Item
from shoal.define.counters import Counters
from shoal.define.files import Files
from shoal.define.hooks import PreparedHook, StageHooks, type_text
from shoal.define.providers import FunctionKind
from shoal.define.records import Output, is_record
from shoal.errors import AttemptEnded, Dropped, InvalidRecord, LedgerError, SecretMissing, StoreFailed, Throttled
from shoal.fetch.page import Page, Request
from shoal.model.log import Log
from shoal.model.url_key import host_or_none
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.providers import ProviderFailed

if TYPE_CHECKING:
    from shoal.worker.attempt import Attempt
    from shoal.worker.attempt_resources import AttemptResources

# What a hook may raise on purpose, and what the requests and providers inside it raise.
_PASSED_ON = (AttemptEnded, InvalidRecord, ReleaseItem, StoreFailed, SecretMissing, LedgerError, ProviderFailed)


class HookFailed(Exception):
    """A hook failed with an error of the author's code."""

    def __init__(self, hook: PreparedHook, error: Exception) -> None:
        super().__init__(f"the {hook.event.value} hook {hook.name} failed: {error_summary(error)}")
        self.error = error
        # The code will not be different in the next attempt, so the page is not fetched again for it.
        self.is_permanent = isinstance(error, Dropped | WrongValue) or is_programming_error(error)


class WrongValue(TypeError):
    """A hook returned a value that it may not return."""


class CallValues:
    """What built-in providers read for one call of a hook.

    `http` of a request or response hook calls no hooks, so that the hook may send requests itself.
    """

    __slots__ = ("_attempt", "_hook", "page", "request")

    def __init__(self, attempt: Attempt, hook: PreparedHook, request: Request | None, page: Page | None) -> None:
        self._attempt = attempt
        self._hook = hook
        self.request = request
        self.page = page

    @property
    def item(self) -> Item:
        return self._attempt.item

    @property
    def counters(self) -> Counters:
        return self._attempt.counters

    @property
    def files(self) -> Files:
        return self._attempt.files

    @property
    def http(self) -> Http:
        return self._attempt.http if self.request is None else self._attempt.make_http(with_hooks=False)

    @property
    def log(self) -> Log:
        return self._attempt.log.bind(hook=getattr(self._hook.function, "__name__", self._hook.name))

    @property
    def settings(self) -> Any:
        return self._attempt.settings


class AttemptHooks:
    """The hooks of one attempt. The page of its item and the requests of its handler's Http pass the same calls."""

    __slots__ = ("_attempt", "_hooks", "_resources")

    def __init__(self, hooks: StageHooks, attempt: Attempt, resources: AttemptResources) -> None:
        self._hooks = hooks
        self._attempt = attempt
        self._resources = resources

    @property
    def of_requests(self) -> bool:
        return bool(self._hooks.before_request or self._hooks.after_response)

    @property
    def of_records(self) -> bool:
        return bool(self._hooks.on_record)

    async def before_request(self, request: Request) -> Request:
        """The request to send. Raises what a hook raises to end the attempt; HookFailed for its errors."""
        for hook in self._hooks.before_request:
            # Read-only, so that a hook that assigns to the headers fails instead of changing nothing.
            request = request.replace(headers=CIMultiDictProxy(CIMultiDict(request.headers)))
            answer = await self._call(hook, request, None)
            if answer is not None:
                request = _checked(hook, answer, Request)
        return request

    async def after_response(self, request: Request, page: Page) -> Page:
        """The page to go on with; its status has not been classified yet."""
        for hook in self._hooks.after_response:
            answer = await self._call(hook, request, page)
            if answer is not None:
                page = _checked(hook, answer, Page)
        return page

    async def on_records(self, output: Output) -> None:
        """Pass the records that the output holds through the hooks, each through all of them, and store the rest."""
        records = output.take_held()
        for hook in self._hooks.on_record:
            matching = sum(map(hook.is_for, records))
            self._resources.count_records(hook, matching, len(records))
            if matching:
                records = await self._apply(hook, records, output)
        for record in records:
            output.store(record)

    async def _apply(self, hook: PreparedHook, records: list[Any], output: Output) -> list[Any]:
        """The records after one hook. Their order is kept."""
        function, parameter = hook.function, hook.record_parameter
        values = CallValues(self._attempt, hook, None, self._attempt.page)
        kept: list[Any] = []

        def call_all(arguments: dict[str, Any]) -> None:
            for record in records:
                try:
                    kept.append(
                        _result(hook, record, function(**{parameter: record}, **arguments))
                        if hook.is_for(record)
                        else record
                    )
                except Dropped as dropped:
                    output.drop(hook.name, dropped.message)

        with self._calling(hook):
            arguments = await self._attempt.arguments(hook.signature, values)
            if hook.signature.kind is FunctionKind.PLAIN:
                await self._resources.threads.run(lambda: call_all(arguments))
                return kept
            for record in records:
                try:
                    kept.append(
                        _result(hook, record, await function(**{parameter: record}, **arguments))
                        if hook.is_for(record)
                        else record
                    )
                except Dropped as dropped:
                    output.drop(hook.name, dropped.message)
        return kept

    async def _call(self, hook: PreparedHook, request: Request, page: Page | None) -> Any:
        try:
            with self._calling(hook):
                values = CallValues(self._attempt, hook, request, page)
                arguments = await self._attempt.arguments(hook.signature, values)
                if hook.signature.kind is FunctionKind.PLAIN:
                    answer = await self._resources.threads.run(lambda: hook.function(**arguments))
                else:
                    answer = await hook.function(**arguments)
                _check_promise(hook, answer)
                return answer
        except Throttled as ended:
            # As for a 429: the host that this is about is closed for all workers.
            ended.host = ended.host or host_or_none(request.url if page is None else page.url)
            await self._attempt.on_throttled(ended)
            raise

    @contextmanager
    def _calling(self, hook: PreparedHook) -> Iterator[None]:
        before = self._attempt.step
        self._attempt.step = f"the {hook.event.value} hook {hook.name} ran"
        try:
            yield
        except _PASSED_ON:
            raise
        except Exception as error:
            raise HookFailed(hook, error) from error
        self._attempt.step = before


def _checked(hook: PreparedHook, answer: Any, kind: type) -> Any:
    if not isinstance(answer, kind):
        wrong = WrongValue(f"it returned {_shown(answer)} instead of a {kind.__name__} or None")
        raise HookFailed(hook, wrong)
    return answer


def _check_promise(hook: PreparedHook, answer: Any) -> None:
    if answer is None and hook.must_return:
        raise WrongValue("it returned None, though its annotation promises a value; is a `return` missing?")


def _result(hook: PreparedHook, record: Any, answer: Any) -> Any:
    """The record after a hook returned `answer`."""
    if answer is None:
        _check_promise(hook, answer)
        return record
    if not is_record(answer):
        raise WrongValue(f"it returned {_shown(answer)} instead of a record; return None to keep it as it is")
    return answer


def _shown(answer: Any) -> str:
    return f"{answer!r:.60}" if isinstance(answer, bool | int | float | str) else f"a {type_text(type(answer))}"
