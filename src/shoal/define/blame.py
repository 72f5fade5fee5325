"""Whose line it was: an error of the author's code, told in one sentence."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

from shoal.errors import ShoalError

_PACKAGE = Path(__file__).parents[1]


def sentence(error: BaseException) -> str:
    """`KeyError: 'price' (books.py:12)`: the innermost line of the author's own code."""
    text = error.message if isinstance(error, ShoalError) else str(error)
    place = own_line(traceback.extract_tb(error.__traceback__))
    name = type(error).__name__
    return f"{name}: {text}{place}" if text else f"{name}{place}"


def own_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """` (books.py:12)` for the innermost frame that is neither Python's, nor a library's, nor Shoal's; else nothing."""
    own = [frame for frame in frames if not is_machinery(frame.filename)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def is_machinery(filename: str) -> bool:
    path = Path(filename)
    return (
        filename.startswith("<")
        or path.is_relative_to(_PACKAGE)
        or "site-packages" in path.parts
        or any(part.startswith("python3") for part in path.parts)
    )
