"""Finds out from the code of a test whether it starts processes, so that no list of such tests has to be kept."""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import pytest

_STARTERS = {"create_subprocess_exec", "create_subprocess_shell", "fork"}


def uses(item: pytest.Item, *parts: str) -> bool:
    """Whether a test has a fixture or a parameter with one of these names."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    fixtures = getattr(item, "fixturenames", ())
    return not set(parts).isdisjoint({*fixtures, *(value for value in parameters if isinstance(value, str))})


def starts_process(item: pytest.Item) -> bool:
    """Whether the code of a test, of its fixtures, or of helpers outside `src` that they name, can start a process."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
    return any(_reaches_process(function) for function in (item.function, *fixtures))


@cache
def _reaches_process(function: Callable[..., Any]) -> bool:
    seen: set[int] = set()
    queue: list[object] = [inspect.unwrap(function)]
    while queue:
        found = queue.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, type):
            queue += [getattr(value, "__func__", getattr(value, "fget", value)) for value in vars(found).values()]
            queue += [base for base in found.__bases__ if _is_ours(base)]
        elif isinstance(found, FunctionType):
            names = set(_names(found.__code__))
            used = [found.__globals__[name] for name in names if name in found.__globals__]
            if not _STARTERS.isdisjoint(names) or any(value is subprocess for value in used):
                return True
            used += [
                getattr(value, name) for value in used if inspect.ismodule(value) for name in names & set(vars(value))
            ]
            queue += [value for value in used if _is_ours(value)]
    return False


def _is_ours(value: object) -> bool:
    return isinstance(value, type | FunctionType) and value.__module__.startswith(("tests.", "bench."))


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, that of functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
