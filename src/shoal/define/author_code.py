"""Imports an author's code by path or module name, and finds the author's line that raised an error."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import InvalidScraper, NotFound, ShoalError

_PACKAGE = Path(__file__).parents[1]
_LOADING: ContextVar[bool] = ContextVar("loading", default=False)


def load_object(target: str, folder: Path, *, fresh: bool = False) -> Any:
    """The object that `file.py:name` or `module:name` names. With `fresh`, a module imported before is executed again.

    Raises NotFound or InvalidScraper.
    """
    module_name, _, name = target.partition(":")
    module = import_module(module_name, folder, fresh=fresh)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, vars(module), 1)
        hint = f"Did you mean {near[0]}?" if near else "Check the name after the colon."
        raise NotFound(f"{module_name} has no {name!r}.", remedy=hint)
    return getattr(module, name)


def import_module(module_name: str, folder: Path, *, fresh: bool = False) -> ModuleType:
    """The module of `file.py`, a path from `folder`, or of `package.module`. Raises NotFound or InvalidScraper."""
    token = _LOADING.set(True)
    try:
        if is_file(module_name):
            return _file_module(folder / module_name)
        return _named_module(module_name, folder, fresh=fresh)
    finally:
        _LOADING.reset(token)


def is_loading() -> bool:
    """Whether Shoal is importing an author's code right now."""
    return _LOADING.get()


def is_file(target: str) -> bool:
    """Whether a target names a Python file."""
    return target.partition(":")[0].endswith(".py")


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"There is no file {path}.", remedy="Check the path.")
    if path.stem in sys.stdlib_module_names:
        raise InvalidScraper(
            f"{path.name} has the name of a module of the standard library.", remedy="Rename the file."
        )
    _import_from(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidScraper(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle find their module by name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise _import_error(str(path), path, error) from error
    return module


def _named_module(name: str, folder: Path, *, fresh: bool = False) -> ModuleType:
    _import_from(folder)
    try:
        if fresh and name in sys.modules and (spec := importlib.util.find_spec(name)) and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(
                f"There is no module {name!r}.", remedy="Check the name; run shoal in the folder that contains it."
            ) from None
        raise _import_error(name, None, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, None, error) from error


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_error(what: str, file: Path | None, error: BaseException) -> InvalidScraper:
    """An error in one sentence with the line of the author's code."""
    if isinstance(error, SyntaxError):
        return InvalidScraper(f"{what} is not valid Python: {error.msg} (line {error.lineno}).")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and Path(frame.filename) == file] or frames[-1:]
    line = f" (line {own[-1].lineno})" if own else ""
    if isinstance(error, ShoalError):
        return InvalidScraper(f"{what}{line}: {error.message}", remedy=error.remedy)
    return InvalidScraper(f"{what} fails when it is loaded{line}: {type(error).__name__}: {error}.")


def error_summary(error: BaseException) -> str:
    """`KeyError: 'price' (books.py:12)`: the innermost line of the author's own code."""
    text = error.message if isinstance(error, ShoalError) else str(error)
    location = author_line(traceback.extract_tb(error.__traceback__))
    name = type(error).__name__
    return f"{name}: {text}{location}" if text else f"{name}{location}"


def is_programming_error(error: BaseException) -> bool:
    """Whether a line of the author's own code used a name, a type or an attribute that is not there."""
    if not isinstance(error, NameError | TypeError | AttributeError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and not is_library_code(frames[-1].filename)


def author_line(frames: Iterable[traceback.FrameSummary]) -> str:
    """` (books.py:12)` for the innermost frame that is neither Python's, nor a library's, nor Shoal's; else nothing."""
    own = [frame for frame in frames if not is_library_code(frame.filename)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def is_library_code(filename: str) -> bool:
    path = Path(filename)
    return (
        filename.startswith("<")
        or path.is_relative_to(_PACKAGE)
        or "site-packages" in path.parts
        or any(part.startswith("python3") for part in path.parts)
    )
