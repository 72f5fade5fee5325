"""Injection by type: what a function asks for in its signature is what it gets."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from shoal.define.context import Http, Item
from shoal.errors import InvalidScraper
from shoal.fetch.page import Page
from shoal.model.log import Log
from shoal.model.run import Run
from shoal.model.views import Counts


class FunctionKind(Enum):
    """How a function hands over what it makes."""

    ASYNC_GENERATOR = "async generator"
    COROUTINE = "coroutine"
    PLAIN = "plain"  # a sync function or generator: it runs in a thread


class Inject(Enum):
    PAGE = "Page"
    HTTP = "Http"
    ITEM = "Item"
    LOG = "Log"
    RUN = "Run"
    COUNTS = "Counts"
    SETTINGS = "settings"


_TYPES: Mapping[Any, Inject] = {
    Page: Inject.PAGE,
    Http: Inject.HTTP,
    Item: Inject.ITEM,
    Log: Inject.LOG,
    Run: Inject.RUN,
    Counts: Inject.COUNTS,
}
STAGE_INJECTS = (Inject.PAGE, Inject.HTTP, Inject.ITEM, Inject.LOG)
HOOK_INJECTS = (Inject.RUN, Inject.COUNTS, Inject.LOG)


class Signature(msgspec.Struct, frozen=True):
    """What a function takes and how it answers."""

    kind: FunctionKind
    injected: tuple[tuple[str, Inject], ...]

    def injects(self, inject: Inject) -> bool:
        return any(found is inject for _, found in self.injected)


def read_signature(function: Callable[..., Any], allowed: tuple[Inject, ...], settings: type | None) -> Signature:
    """Raises InvalidScraper when the function asks for what nobody can give it."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as problem:
        raise InvalidScraper(
            f"{function_location(function)} has a type that is not known at module level: {problem}.",
            remedy="Import it at the top of the file, not inside a function or under TYPE_CHECKING.",
        ) from None
    injected = []
    for name, parameter in inspect.signature(function).parameters.items():
        inject = (
            Inject.SETTINGS if settings is not None and hints.get(name) is settings else _TYPES.get(hints.get(name))
        )
        if inject in allowed or inject is Inject.SETTINGS:
            injected.append((name, inject))
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            offered = [inject.value for inject in allowed] + ([settings.__name__] if settings else [])
            raise InvalidScraper(
                f"{function_location(function)} asks for {name!r}, which Shoal cannot give it.",
                remedy=f"Annotate its parameters with one of {', '.join(offered)}, or give {name!r} a default.",
            )
    signature = Signature(function_kind(function), tuple(injected))
    if signature.kind is FunctionKind.PLAIN and signature.injects(Inject.HTTP):
        raise InvalidScraper(
            f"{function_location(function)} asks for Http, which only `async def` functions can use.",
            remedy="Make it `async def`, or ask for a Page.",
        )
    return signature


def function_kind(function: Callable[..., Any]) -> FunctionKind:
    if inspect.isasyncgenfunction(function):
        return FunctionKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return FunctionKind.COROUTINE
    return FunctionKind.PLAIN


def function_location(function: Callable[..., Any]) -> str:
    """`listing() (books.py:12)`: a function as a message names it."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name}()" if code is None else f"{name}() ({Path(code.co_filename).name}:{code.co_firstlineno})"
