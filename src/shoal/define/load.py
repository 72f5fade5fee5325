"""From what a person types to the scraper they mean: a file, a module, a registered name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from shoal.define.scraper import Scraper
from shoal.errors import InvalidScraper, NotFound, ShoalError


def load_scraper(target: str, registered: Mapping[str, str], folder: Path) -> Scraper:
    """The scraper that `target` names: `books.py`, `books.py:books`, `package.module:books`, or a registered name.

    `registered` maps names to targets. The file's own folder is put first on the import path, as `python file.py` does.
    """
    if target in registered:
        return _loaded(registered[target], folder, wanted=target)
    if _is_file(target) or ":" in target:
        return _loaded(target, folder, wanted=None)
    known = f" The configuration knows {', '.join(sorted(registered))}." if registered else ""
    raise NotFound(
        f"There is no scraper {target!r}.{known}",
        remedy="Name a file (books.py), a module and its scraper (shop.books:books), or a scraper of shoal.toml.",
    )


def _is_file(target: str) -> bool:
    return target.partition(":")[0].endswith(".py")


def _loaded(target: str, folder: Path, wanted: str | None) -> Scraper:
    place, _, name = target.partition(":")
    module = _file_module(folder / place) if _is_file(target) else _named_module(place, folder)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Scraper)}
    if name:
        if name not in found:
            raise NotFound(f"{place} has no scraper {name!r}; it has {', '.join(found) or 'none'}.")
        return found[name].check()
    unique = list({id(scraper): scraper for scraper in found.values()}.values())
    if len(unique) > 1:
        unique = [scraper for scraper in unique if scraper.name == wanted] or unique
    if len(unique) != 1:
        names = ", ".join(f"{place}:{key}" for key in found)
        raise InvalidScraper(
            f"{place} defines {len(unique) or 'no'} scrapers.",
            remedy=f"Say which one you mean: {names}." if found else "Write one: books = Scraper('books').",
        )
    return unique[0].check()


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"There is no file {path}.", remedy="Check the path.")
    if path.stem in sys.stdlib_module_names:
        raise InvalidScraper(f"{path.name} has the name of a module of Python's own.", remedy="Rename the file.")
    _import_from(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidScraper(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[path.stem]
        raise _broken(str(path), path, error) from error
    return module


def _named_module(name: str, folder: Path) -> ModuleType:
    _import_from(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NotFound(f"There is no module {name!r}.", remedy="Check the name; start Shoal beside it.") from None
        raise _broken(name, None, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, None, error) from error


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _broken(what: str, file: Path | None, error: BaseException) -> InvalidScraper:
    """One sentence with the place in the author's own code, not a page of import machinery."""
    if isinstance(error, SyntaxError):
        return InvalidScraper(f"{what} is not valid Python: {error.msg} (line {error.lineno}).")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and Path(frame.filename) == file] or frames[-1:]
    line = f" (line {own[-1].lineno})" if own else ""
    if isinstance(error, ShoalError):
        return InvalidScraper(f"{what}{line}: {error.message}", remedy=error.remedy)
    return InvalidScraper(f"{what} fails when it is loaded{line}: {type(error).__name__}: {error}.")
