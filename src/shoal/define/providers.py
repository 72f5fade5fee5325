"""Injection by type: a function gets values for its parameters from the providers of their annotated types.

Built-in providers (Page, Item, Http, Log, Run, Counts, the settings) and those of the author (`Scraper.provide`) are in
one registry. Signatures are read and checked once, before anything starts.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from shoal.define.context import EarlierRuns, Failure, Http, Item, Notes
from shoal.define.counters import Counters
from shoal.define.files import Files
from shoal.errors import InvalidScraper
from shoal.fetch.download import Download
from shoal.fetch.page import Page, Request
from shoal.model.log import Log
from shoal.model.run import Run
from shoal.model.views import Counts

ProviderScope = Literal["attempt", "worker"]
# "client" is the scope of values that send requests: attempts and logins get them, by `async def` functions. "awaited"
# is that of other values of attempts for `async def` functions. "run" is that of values that only start and finish
# hooks get, "request" of those that request hooks get, "failure" of those that `on_error` functions get.
ValueScope = Literal["attempt", "client", "awaited", "worker", "run", "request", "failure"]
OF_ATTEMPTS: tuple[ValueScope, ...] = ("attempt", "client", "awaited", "worker")


class FunctionKind(Enum):
    """How a function returns its results."""

    ASYNC_GENERATOR = "async generator"
    COROUTINE = "coroutine"
    PLAIN = "plain"  # a sync function or generator: it runs in a thread


class SetUp(Enum):
    """How a provider sets up its value, and how it is torn down."""

    ASYNC_CONTEXT = "async context manager"
    CONTEXT = "context manager"  # its steps run in threads
    COROUTINE = "coroutine"
    PLAIN = "plain"  # runs in a thread


class Provider(msgspec.Struct, frozen=True, eq=False):
    """Provides the value of every parameter that is annotated with `type`.

    `name`: how messages call it. `scope`: how long a value lives. A built-in provider reads its value with `read` from
    the attempt, the hook or the worker that asks. Or it sets one up for each attempt: `open(attempt=...)` makes an
    async context manager, which may wait, may raise AttemptEnded, and is left when the attempt ends, however that is.
    A type of an optional part is given as text, `module.Class`, and imported by the author who asks for it.

    A provider of an author calls `function`, which may have parameters that other providers fill.
    """

    type: Any
    name: str
    scope: ValueScope
    read: Callable[[Any], Any] | None = None
    function: Callable[..., Any] | None = None
    set_up: SetUp = SetUp.PLAIN
    open: Callable[..., contextlib.AbstractAsyncContextManager[Any]] | None = None


BUILT_IN_PROVIDERS = (
    Provider(Page, "Page", "attempt", attrgetter("page")),
    Provider(Download, "Download", "attempt", attrgetter("download")),
    Provider(Http, "Http", "client", attrgetter("http")),
    Provider(Files, "Files", "awaited", attrgetter("files")),
    Provider("shoal.fetch.tab.Tab", "Tab", "client", open=lambda attempt: attempt.live_tab()),
    Provider("shoal.egress.tokens.Token", "Token", "client", open=lambda attempt: attempt.open_token()),
    Provider(EarlierRuns, "EarlierRuns", "awaited", open=lambda attempt: attempt.open_earlier_runs()),
    Provider(Notes, "Notes", "awaited", open=lambda attempt: attempt.open_notes()),
    Provider(Item, "Item", "attempt", attrgetter("item")),
    Provider(Counters, "Counters", "attempt", attrgetter("counters")),
    Provider(Failure, "Failure", "failure", attrgetter("failure")),
    Provider(Log, "Log", "worker", attrgetter("log")),
    Provider(Run, "Run", "run", attrgetter("run")),
    Provider(Counts, "Counts", "run", attrgetter("counts")),
    Provider(Request, "Request", "request", attrgetter("request")),
)


class Signature(msgspec.Struct, frozen=True):
    """The parameters of a function with their providers.

    `types`: what it asks for, also by way of its providers; `provided`: what each of its own types takes by way of
    them. `readers`: how to read each value if all come from built-in providers, else None.
    """

    kind: FunctionKind
    parameters: tuple[tuple[str, Provider], ...]
    types: frozenset[Any]
    readers: tuple[tuple[str, Callable[[Any], Any]], ...] | None
    provided: Mapping[Any, frozenset[Any]]


class ProviderRegistry:
    """The providers of one scraper, by type."""

    def __init__(self, scraper: str, settings: type | None) -> None:
        self._scraper = scraper
        self._by_type: dict[Any, Provider] = {provider.type: provider for provider in BUILT_IN_PROVIDERS}
        self._signatures: dict[Provider, Signature] = {}
        if settings is not None:
            self._by_type[settings] = Provider(settings, settings.__name__, "worker", attrgetter("settings"))

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The functions of the author's providers."""
        return [provider.function for provider in self._by_type.values() if provider.function is not None]

    def add(self, function: Callable[..., Any], scope: ProviderScope) -> None:
        """Register an author's provider. Raises InvalidScraper when its type is missing or already provided."""
        where = function_location(function)
        if scope not in typing.get_args(ProviderScope):
            raise InvalidScraper(f"scope of {where} is {scope!r}; it must be one of attempt, worker.")
        provided, set_up = _provided_type(function)
        known = self._by_type.get(provided)
        if known is not None:
            by = "Shoal" if known.function is None else function_location(known.function)
            raise InvalidScraper(
                f"{where} provides {_type_name(provided)}, which {by} provides already.",
                remedy="Remove one of them, or annotate it with a class of its own.",
            )
        self._by_type[provided] = Provider(
            provided, where, scope, function=_as_context(function, set_up), set_up=set_up
        )

    def check(self) -> None:
        """Raises InvalidScraper when a provider asks for what it cannot get."""
        for provider in list(self._by_type.values()):
            if provider.function is not None:
                self.signature(provider)

    def stage_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a stage's function: it may ask for values of the attempt and of the worker."""
        return self._read(function, OF_ATTEMPTS, ())

    def hook_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a hook: it may ask for values of the run and of the worker."""
        return self._read(function, ("run", "worker"), ())

    def preflight_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a preflight function: there is no run yet."""
        return self._read(function, ("worker",), ())

    def error_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a stage's `on_error` function: no request is sent for an item that died."""
        signature = self._read(function, ("failure", *OF_ATTEMPTS), ())
        sent = [kind.__name__ for kind in signature.types if kind is Page or self._by_type[kind].scope == "client"]
        if sent:
            raise InvalidScraper(
                f"{function_location(function)} asks for {min(sent)}, but an item that died sends no more requests.",
                remedy="Ask for `failure: Failure`; failure.page is the last response.",
            )
        return signature

    def login_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a login: it may send requests, but there is no item."""
        return self._read(function, ("client", "worker"), ())

    def request_hook_signature(self, function: Callable[..., Any]) -> Signature:
        """The signature of a hook of requests or responses: it may ask for the request too."""
        return self._read(function, ("request", *OF_ATTEMPTS), ())

    def record_hook_signature(self, function: Callable[..., Any], record: str) -> Signature:
        """The signature of a hook of records, without the parameter that gets the record."""
        return self._read(function, OF_ATTEMPTS, (), given=record)

    def signature(self, provider: Provider, path: tuple[Provider, ...] = ()) -> Signature:
        """The signature of an author's provider. A worker's value cannot depend on one attempt."""
        assert provider.function is not None
        known = self._signatures.get(provider)
        if known is None:
            scopes: tuple[ValueScope, ...] = ("worker",) if provider.scope == "worker" else OF_ATTEMPTS
            known = self._signatures[provider] = self._read(provider.function, scopes, (*path, provider))
        return known

    def _read(
        self,
        function: Callable[..., Any],
        scopes: tuple[ValueScope, ...],
        path: tuple[Provider, ...],
        *,
        given: str | None = None,
    ) -> Signature:
        """The signature of a function; the caller itself gives the parameter `given`."""
        hints = type_hints(function)
        parameters: list[tuple[str, Provider]] = []
        types: set[Any] = set()
        provided: dict[Any, frozenset[Any]] = {}
        for name, parameter in inspect.signature(function).parameters.items():
            if name == given:
                continue
            provider = self._find(hints.get(name))
            if provider is not None and provider.scope in scopes:
                parameters.append((name, provider))
                types.add(provider.type)
                if provider.function is not None:
                    self._refuse_cycle(function, name, provider, path)
                    provided[provider.type] = self.signature(provider, path).types
                    types |= provided[provider.type]
            elif parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                raise self._refusal(function, name, provider, scopes)
        kind = function_kind(function)
        is_async = function_kind(inspect.unwrap(function)) is not FunctionKind.PLAIN or kind is not FunctionKind.PLAIN
        clients = [provider.name for _, provider in parameters if provider.scope in ("client", "awaited")]
        if clients and not is_async:
            raise InvalidScraper(
                f"{function_location(function)} has a parameter of type {clients[0]}, which needs an `async def` "
                "function.",
                remedy="Make it `async def`, or ask for a Page.",
            )
        readers = tuple((name, provider.read) for name, provider in parameters if provider.read is not None)
        return Signature(
            kind,
            tuple(parameters),
            frozenset(types),
            readers if len(readers) == len(parameters) else None,
            provided,
        )

    def _find(self, hint: Any) -> Provider | None:
        try:
            found = self._by_type.get(hint)
        except TypeError:  # an annotation that cannot be hashed
            return None
        if found is None and isinstance(hint, type):
            named = self._by_type.get(f"{hint.__module__}.{hint.__qualname__}")
            if named is not None:
                found = self._by_type[hint] = msgspec.structs.replace(named, type=hint)
        return found

    def _refuse_cycle(
        self, function: Callable[..., Any], name: str, provider: Provider, path: tuple[Provider, ...]
    ) -> None:
        if provider in path:
            circle = " -> ".join(each.name for each in (*path[path.index(provider) :], provider))
            raise InvalidScraper(
                f"{function_location(function)} asks for {name!r}, which closes a cycle of providers: {circle}.",
                remedy=f"Remove the parameter {name!r} from {function_location(function)}, or merge these providers.",
            )

    def _refusal(
        self, function: Callable[..., Any], name: str, provider: Provider | None, scopes: tuple[ValueScope, ...]
    ) -> InvalidScraper:
        where = function_location(function)
        if provider is not None and provider.scope in ("attempt", "client", "awaited") and scopes == ("worker",):
            return InvalidScraper(
                f"{where} asks for {name!r}, which {provider.name} gives to one attempt, "
                "but this provider is set up once per worker.",
                remedy=f'Declare it with @{self._scraper}.provide(scope="attempt"), or remove {name!r}.',
            )
        if provider is not None and provider.function is not None:
            return InvalidScraper(
                f"{where} asks for {name!r}, which {provider.name} gives to one attempt; there is none here.",
                remedy=f'Remove {name!r}, or declare the provider with scope="worker".',
            )
        offered = ", ".join(
            dict.fromkeys(
                known.name if known.function is None else _type_name(known.type)
                for known in self._by_type.values()
                if known.scope in scopes
            )
        )
        return InvalidScraper(
            f"{where} has the parameter {name!r}, which Shoal cannot inject.",
            remedy=f"Annotate its parameters with one of {offered}, give {name!r} a default, "
            f"or provide its type with @{self._scraper}.provide.",
        )


_ASYNC_CONTEXTS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    contextlib.AbstractAsyncContextManager,
)
_CONTEXTS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Iterable,
    contextlib.AbstractContextManager,
)


def _provided_type(function: Callable[..., Any]) -> tuple[Any, SetUp]:
    """The type that a function provides, from its return annotation, and how it does so."""
    where = function_location(function)
    provided = type_hints(function).get("return")
    origin, arguments = typing.get_origin(provided), typing.get_args(provided)
    set_up = SetUp.COROUTINE if inspect.iscoroutinefunction(function) else SetUp.PLAIN
    if set_up is SetUp.PLAIN and origin in _ASYNC_CONTEXTS and arguments:
        set_up, provided = SetUp.ASYNC_CONTEXT, arguments[0]
    elif set_up is SetUp.PLAIN and origin in _CONTEXTS and arguments:
        set_up, provided = SetUp.CONTEXT, arguments[0]
    elif inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        kind = "AsyncIterator" if inspect.isasyncgenfunction(function) else "Iterator"
        raise InvalidScraper(f"{where} yields its value: annotate it as `-> {kind}[TheType]`.")
    if provided in (None, type(None), Any):
        raise InvalidScraper(
            f"{where} is a provider without a return annotation that names a type.",
            remedy="Annotate what it returns or yields: `-> Database`, `-> AsyncIterator[Database]`.",
        )
    return provided, set_up


def _as_context(function: Callable[..., Any], set_up: SetUp) -> Callable[..., Any]:
    """A generator function as one that returns a context manager; every other function as it is."""
    if inspect.isasyncgenfunction(function):
        return contextlib.asynccontextmanager(function)
    if set_up is SetUp.CONTEXT and inspect.isgeneratorfunction(function):
        return contextlib.contextmanager(function)
    return function


def type_hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a function. Raises InvalidScraper for one that cannot be resolved."""
    try:
        return typing.get_type_hints(function)
    except NameError as problem:
        raise InvalidScraper(
            f"{function_location(function)} has a type annotation that cannot be resolved: {problem}.",
            remedy="Import it at the top of the file, not inside a function or under TYPE_CHECKING.",
        ) from None


def _type_name(provided: Any) -> str:
    return getattr(provided, "__name__", None) or str(provided)


def function_kind(function: Callable[..., Any]) -> FunctionKind:
    if inspect.isasyncgenfunction(function):
        return FunctionKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return FunctionKind.COROUTINE
    return FunctionKind.PLAIN


def function_location(function: Callable[..., Any]) -> str:
    """`listing() (books.py:12)`: a function as a message names it."""
    function = inspect.unwrap(function)
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name}()" if code is None else f"{name}() ({Path(code.co_filename).name}:{code.co_firstlineno})"
