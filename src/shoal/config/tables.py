"""From the tables of `shoal.toml` and `pyproject.toml` to values that know where they were written."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from shoal.config.scrapers import OWN_VALUES, STAGE_VALUES, ScraperTable
from shoal.config.sources import Given, Kind, Origin, read_toml
from shoal.errors import InvalidSetting

_FREE, _STAGES, _SCRAPERS = "settings", "stages", "scrapers"


class FileTables(msgspec.Struct):
    """What one file says: settings of the process, and scrapers."""

    given: dict[str, Given]
    scrapers: dict[str, ScraperTable]


class TableReader:
    """Knows the names. `per_scraper` are the settings of `names` that a scraper's table may have too."""

    def __init__(self, names: Collection[str], per_scraper: Collection[str]) -> None:
        self._names = names
        self._scraper_names = (*per_scraper, *OWN_VALUES, _FREE, _STAGES)

    def pyproject(self, folder: Path) -> FileTables:
        tool = read_toml(folder / "pyproject.toml").get("tool", {})
        table = tool.get("shoal", {}) if isinstance(tool, dict) else {}
        return self._tables(_as_table(table, "tool.shoal", "pyproject.toml"), "pyproject.toml", "tool.shoal.")

    def own_file(self, folder: Path) -> FileTables:
        """`shoal.toml`, where names stand at the top or, as in `pyproject.toml`, below `tool.shoal`."""
        table = dict(read_toml(folder / "shoal.toml"))
        tool = _as_table(table.pop("tool", {}), "tool", "shoal.toml")
        for name in tool:
            known_name(name, ("shoal",), f"tool.{name} in shoal.toml")
        top = self._tables(table, "shoal.toml", "")
        below = self._tables(_as_table(tool.get("shoal", {}), "tool.shoal", "shoal.toml"), "shoal.toml", "tool.shoal.")
        twice = [
            *(top.given.keys() & below.given.keys()),
            *(f"scrapers.{name}" for name in top.scrapers.keys() & below.scrapers.keys()),
        ]
        if twice:
            raise InvalidSetting(
                f"shoal.toml has both {min(twice)} and tool.shoal.{min(twice)}.", remedy="Keep one of the two."
            )
        return FileTables(top.given | below.given, top.scrapers | below.scrapers)

    def _tables(self, table: Mapping[str, Any], file: Kind, prefix: str) -> FileTables:
        scrapers = _as_table(table.get(_SCRAPERS, {}), prefix + _SCRAPERS, file)
        given = {name: value for name, value in table.items() if name != _SCRAPERS}
        for name in given:
            if name in OWN_VALUES:
                raise InvalidSetting(
                    f"{name} in {file} is a setting of a scraper.", remedy=f"Write it below [{prefix}scrapers.NAME]."
                )
        return FileTables(
            _given(given, self._names, file, ""),
            {name: self._scraper(body, file, f"{prefix}{_SCRAPERS}.{name}") for name, body in scrapers.items()},
        )

    def _scraper(self, body: Any, file: Kind, path: str) -> ScraperTable:
        table = _as_table(body, path, file)
        for name in table:
            if name in self._names and name not in self._scraper_names:
                raise InvalidSetting(
                    f"{path}.{name} in {file} is a setting of the whole process.",
                    remedy="Write it outside of the scrapers' tables.",
                )
        own = {name: value for name, value in table.items() if name not in (_FREE, _STAGES)}
        free = _as_table(table.get(_FREE, {}), f"{path}.{_FREE}", file)
        stages = _as_table(table.get(_STAGES, {}), f"{path}.{_STAGES}", file)
        return ScraperTable(
            _given(own, self._scraper_names, file, path + "."),
            _given(free, free, file, f"{path}.{_FREE}."),
            {name: _stage(stage, file, f"{path}.{_STAGES}.{name}") for name, stage in stages.items()},
        )


def _stage(body: Any, file: Kind, path: str) -> dict[str, Given]:
    return _given(_as_table(body, path, file), STAGE_VALUES, file, path + ".")


def known_name(name: str, known: Collection[str], shown: str) -> str:
    """The name, if it is known; otherwise an error that says what was meant."""
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    raise InvalidSetting(
        f"{shown} is not a setting" + (f"; did you mean {close[0]}?" if close else "."),
        remedy="Correct or remove it; `shoal config show` lists every setting.",
    )


def _given(table: Mapping[str, Any], known: Collection[str], file: Kind, prefix: str) -> dict[str, Given]:
    return {
        known_name(name, known, f"{prefix}{name} in {file}"): Given(value, Origin(file, prefix + name))
        for name, value in table.items()
    }


def _as_table(value: Any, path: str, file: Kind) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSetting(
            f"{path} in {file} is not a table.", remedy=f"Write [{path}] and one setting a line below it."
        )
    return value
