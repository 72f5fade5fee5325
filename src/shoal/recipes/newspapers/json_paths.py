"""Values at paths in JSON, such as `data.posts`, `items.0.url` or `categories.name`, which goes through a list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_STEP = re.compile(r"[^.\[\]]+")


def json_at(value: Any, path: str | None) -> Any:
    """The value at a path; None if there is none.

    Names have dots between them; a number is a position in a list, also as `[0]`. A name on a list takes that name of
    each entry, also of lists in it, `[]` and `[*]` all entries: the result is then a list. `$` is the whole response.
    """
    if path is None:
        return None
    for name in _STEP.findall(path.strip().removeprefix("$")):
        value = _step(value, name)
        if value is None:
            return None
    return value


def _step(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if not isinstance(value, list) or name == "*":
        return value if name == "*" and isinstance(value, list) else None
    if name.isdigit():
        return value[int(name)] if int(name) < len(value) else None
    found = [each.get(name) for each in _entries(value) if isinstance(each, dict)]
    return [part for part in _entries(found) if part is not None] or None


def _entries(value: list[Any]) -> Iterator[Any]:
    """The entries of a list, and those of the lists in it."""
    for each in value:
        if isinstance(each, list):
            yield from _entries(each)
        else:
            yield each


def scalar(value: Any) -> str | None:
    """A text or a number as text in one line; the first one of a list."""
    first = next(scalars(value), None)
    return None if first is None else " ".join(first.split())


def scalars(value: Any) -> Iterator[str]:
    """The texts and numbers of a value or of a list, and of lists in it."""
    for each in _entries([value]):
        if isinstance(each, str | int | float) and not isinstance(each, bool):
            text = str(each).strip()
            if text:
                yield text
