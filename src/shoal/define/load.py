"""Finds and loads the scraper that a target names: a file, a module or a registered name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shoal.define.author_code import import_module, is_file
from shoal.define.scraper import Scraper
from shoal.define.yaml_scraper import is_yaml_file, load_yaml_scraper
from shoal.errors import InvalidScraper, NotFound


def load_scraper(target: str, registered: Mapping[str, str], folder: Path) -> Scraper:
    """The scraper that `target` names.

    The target is a file (`books.py`, `books.py:books`), a module (`package.module:books`), a YAML file that declares
    one, or a registered name. `registered` maps names to targets. A Python file's own folder is put first on the import
    path, as `python file.py` does.
    """
    if target in registered:
        return _load(registered[target], folder, scraper_name=target)
    if is_file(target) or is_yaml_file(target) or ":" in target:
        return _load(target, folder, scraper_name=None)
    known = f" The configuration knows {', '.join(sorted(registered))}." if registered else ""
    raise NotFound(
        f"There is no scraper {target!r}.{known}",
        remedy="Name a file (books.py, paper.yaml), module:scraper (shop.books:books), or a scraper of shoal.toml.",
    )


def _load(target: str, folder: Path, scraper_name: str | None) -> Scraper:
    if is_yaml_file(target):
        return load_yaml_scraper(folder / target.removesuffix(":"), folder)
    module_name, _, name = target.partition(":")
    module = import_module(module_name, folder)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Scraper)}
    if name:
        if name not in found:
            raise NotFound(f"{module_name} has no scraper {name!r}; it has {', '.join(found) or 'none'}.")
        return found[name].check()
    unique = list({id(scraper): scraper for scraper in found.values()}.values())
    if len(unique) > 1:
        unique = [scraper for scraper in unique if scraper.name == scraper_name] or unique
    if len(unique) != 1:
        names = ", ".join(f"{module_name}:{key}" for key in found)
        raise InvalidScraper(
            f"{module_name} defines {len(unique) or 'no'} scrapers.",
            remedy=f"Say which one you mean: {names}." if found else "Write one: books = Scraper('books').",
        )
    return unique[0].check()
