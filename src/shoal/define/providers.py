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


class Shape(Enum):
    """How a function hands over what it makes."""

    ASYNC_GENERATOR = "async generator"
    COROUTINE = "coroutine"
    PLAIN = "plain"  # a sync function or generator: it runs in a thread


class Wish(Enum):
    PAGE = "Page"
    HTTP = "Http"
    ITEM = "Item"
    LOG = "Log"
    RUN = "Run"
    COUNTS = "Counts"
    SETTINGS = "settings"


_TYPES: Mapping[Any, Wish] = {
    Page: Wish.PAGE,
    Http: Wish.HTTP,
    Item: Wish.ITEM,
    Log: Wish.LOG,
    Run: Wish.RUN,
    Counts: Wish.COUNTS,
}
STAGE_WISHES = (Wish.PAGE, Wish.HTTP, Wish.ITEM, Wish.LOG)
HOOK_WISHES = (Wish.RUN, Wish.COUNTS, Wish.LOG)


class Signature(msgspec.Struct, frozen=True):
    """What a function takes and how it answers."""

    shape: Shape
    wishes: tuple[tuple[str, Wish], ...]

    def wants(self, wish: Wish) -> bool:
        return any(found is wish for _, found in self.wishes)


def read_signature(function: Callable[..., Any], allowed: tuple[Wish, ...], settings: type | None) -> Signature:
    """Raises InvalidScraper when the function asks for what nobody can give it."""
    try:
        hints = typing.get_type_hints(function)
    except NameError as problem:
        raise InvalidScraper(
            f"{where(function)} has a type that is not known at module level: {problem}.",
            remedy="Import it at the top of the file, not inside a function or under TYPE_CHECKING.",
        ) from None
    wishes = []
    for name, parameter in inspect.signature(function).parameters.items():
        wish = Wish.SETTINGS if settings is not None and hints.get(name) is settings else _TYPES.get(hints.get(name))
        if wish in allowed or wish is Wish.SETTINGS:
            wishes.append((name, wish))
        elif parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            offered = [wish.value for wish in allowed] + ([settings.__name__] if settings else [])
            raise InvalidScraper(
                f"{where(function)} asks for {name!r}, which Shoal cannot give it.",
                remedy=f"Annotate its parameters with one of {', '.join(offered)}, or give {name!r} a default.",
            )
    signature = Signature(shape_of(function), tuple(wishes))
    if signature.shape is Shape.PLAIN and signature.wants(Wish.HTTP):
        raise InvalidScraper(
            f"{where(function)} asks for Http, which only `async def` functions can use.",
            remedy="Make it `async def`, or ask for a Page.",
        )
    return signature


def shape_of(function: Callable[..., Any]) -> Shape:
    if inspect.isasyncgenfunction(function):
        return Shape.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(function):
        return Shape.COROUTINE
    return Shape.PLAIN


def where(function: Callable[..., Any]) -> str:
    """`listing() (books.py:12)`: a function as a message names it."""
    name = getattr(function, "__name__", type(function).__name__)
    code = getattr(function, "__code__", None)
    return f"{name}()" if code is None else f"{name}() ({Path(code.co_filename).name}:{code.co_firstlineno})"
