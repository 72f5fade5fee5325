"""Loads settings: reads every source once and decides which one wins.

From the tables of `shoal.toml` and `pyproject.toml` to values that know where they were written.

Reading every place once, and which of them wins.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Container, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from shoal.config.postgres import PART_VARIABLES, PostgresParts, flag_of
from shoal.config.scrapers import OWN_VALUES, STAGE_VALUES, ScraperConfig, ScraperTable
from shoal.config.settings import ENV_PREFIX, NAMES, SCRAPER_VALUES, VALUES, Settings
from shoal.config.sources import Origin, OriginKind, RawValue, Variables, read_dotenv, read_toml
from shoal.errors import InvalidSetting

_AUTHOR_SETTINGS, _STAGES, _SCRAPERS = "settings", "stages", "scrapers"
LOG_FORMAT = "log_format"
# Read by the test suite, not by Shoal itself.
IGNORED_VARIABLES = re.compile(r"SHOAL_TEST_.*|SHOAL_CHAOS|SHOAL_CHROMIUM")


class FileTables(msgspec.Struct):
    """What one file says: settings of the process, and scrapers."""

    given: dict[str, RawValue]
    scrapers: dict[str, ScraperTable]


class TableReader:
    """Knows the names. `per_scraper` are the settings of `names` that a scraper's table may have too."""

    def __init__(self, names: Collection[str], per_scraper: Collection[str]) -> None:
        self._names = names
        self._scraper_names = (*per_scraper, *OWN_VALUES, _AUTHOR_SETTINGS, _STAGES)

    def pyproject(self, folder: Path) -> FileTables:
        tool = read_toml(folder / "pyproject.toml").get("tool", {})
        table = tool.get("shoal", {}) if isinstance(tool, dict) else {}
        return self._tables(_as_table(table, "tool.shoal", "pyproject.toml"), "pyproject.toml", "tool.shoal.")

    def shoal_toml(self, folder: Path) -> FileTables:
        """`shoal.toml`, where names stand at the top or, as in `pyproject.toml`, below `tool.shoal`."""
        table = dict(read_toml(folder / "shoal.toml"))
        tool = _as_table(table.pop("tool", {}), "tool", "shoal.toml")
        for name in tool:
            check_known_name(name, ("shoal",), f"tool.{name} in shoal.toml")
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

    def _tables(self, table: Mapping[str, Any], file: OriginKind, prefix: str) -> FileTables:
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

    def _scraper(self, body: Any, file: OriginKind, path: str) -> ScraperTable:
        table = _as_table(body, path, file)
        for name in table:
            if name in self._names and name not in self._scraper_names:
                raise InvalidSetting(
                    f"{path}.{name} in {file} is a setting of the whole process.",
                    remedy="Write it outside of the scrapers' tables.",
                )
        own = {name: value for name, value in table.items() if name not in (_AUTHOR_SETTINGS, _STAGES)}
        free = _as_table(table.get(_AUTHOR_SETTINGS, {}), f"{path}.{_AUTHOR_SETTINGS}", file)
        stages = _as_table(table.get(_STAGES, {}), f"{path}.{_STAGES}", file)
        return ScraperTable(
            _given(own, self._scraper_names, file, path + "."),
            _given(free, free, file, f"{path}.{_AUTHOR_SETTINGS}."),
            {name: _stage(stage, file, f"{path}.{_STAGES}.{name}") for name, stage in stages.items()},
        )


def _stage(body: Any, file: OriginKind, path: str) -> dict[str, RawValue]:
    return _given(_as_table(body, path, file), STAGE_VALUES, file, path + ".")


def check_known_name(name: str, known: Collection[str], shown: str) -> str:
    """The name, if it is known; otherwise an error that says what was meant."""
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    raise InvalidSetting(
        f"{shown} is not a setting" + (f"; did you mean {close[0]}?" if close else "."),
        remedy="Correct or remove it; `shoal config show` lists every setting.",
    )


def _given(table: Mapping[str, Any], known: Collection[str], file: OriginKind, prefix: str) -> dict[str, RawValue]:
    return {
        check_known_name(name, known, f"{prefix}{name} in {file}"): RawValue(value, Origin(file, prefix + name))
        for name, value in table.items()
    }


def _as_table(value: Any, path: str, file: OriginKind) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSetting(
            f"{path} in {file} is not a table.", remedy=f"Write [{path}] and one setting a line below it."
        )
    return value


def load_settings(
    flags: Mapping[str, str | None],
    *,
    environ: Mapping[str, str],
    folder: Path,
    own_options: Container[str] = (),
) -> Settings:
    """The settings of one process. Raises InvalidSetting for the first thing that is wrong.

    `flags` holds what the command line gave: settings by name, and `db_host`, `db_port`, `db_name`, `db_user`; None
    means not given. `own_options` names those that the command has an option of its own for. `environ` and `folder` are
    the environment and the current folder; nothing else is read.
    """
    given_flags = {name: value for name, value in flags.items() if value is not None}
    variables = Variables(environ, read_dotenv(folder / ".env"))
    reader = TableReader(NAMES, SCRAPER_VALUES)
    low, high = reader.pyproject(folder), reader.shoal_toml(folder)
    given = {**low.given, **high.given, **_from_variables(variables), **_from_flags(given_flags, own_options)}
    parts = PostgresParts(given_flags, variables, folder)
    ledger = _ledger(given.get("ledger"), parts)
    if ledger is not None:
        given["ledger"] = ledger
    empty_table = ScraperTable({}, {}, {})
    scrapers = {
        name: _scraper(
            name, high.scrapers.get(name, empty_table).merged_over(low.scrapers.get(name, empty_table)), parts
        )
        for name in [*low.scrapers, *high.scrapers]
    }
    values = {name: VALUES[name].read(name, found) for name, found in given.items()}
    origins = {name: given[name].origin if name in given else Origin("default") for name in NAMES}
    return Settings(**values, scrapers=scrapers, origins=origins)


def find_log_format(arguments: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> str:
    """How to log, as far as that can be told before anything is checked: errors of the rest are told that way too.

    Whatever else is wrong with the arguments and the files, this raises nothing.
    """
    flags = [text.removeprefix("--set=") for text in arguments if text.startswith("--set=")]
    flags += [value for option, value in pairwise(arguments) if option == "--set"]
    by_flag = [value for name, _, value in (flag.partition("=") for flag in flags) if _normalize(name) == LOG_FORMAT]
    variable = ENV_PREFIX + LOG_FORMAT.upper()
    given = [
        *by_flag[-1:],
        environ.get(variable, ""),
        *_find_assignments(folder / ".env", variable)[-1:],
        *_toml_value(folder / "shoal.toml", (), ("tool", "shoal")),
        *_toml_value(folder / "pyproject.toml", ("tool", "shoal")),
    ]
    return next((value.strip().lower() for value in given if value), "")


def _normalize(name: str) -> str:
    return name.strip().replace("-", "_")


def _find_assignments(path: Path, name: str) -> list[str]:
    """What stands behind `NAME =` in a file, in lines of their own."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return re.findall(rf"^[ \t]*(?:export[ \t]+)?{name}[ \t]*=[ \t]*[\"']?([\w-]+)", text, re.MULTILINE)


def _toml_value(path: Path, *tables: tuple[str, ...]) -> list[str]:
    """The log format in one of these tables of a file; of a file that cannot be read as TOML, whatever it says."""
    if not (said := _find_assignments(path, LOG_FORMAT)):
        return []  # most files do not speak of it, and need not be parsed
    try:
        root = read_toml(path)
    except InvalidSetting:
        return said[:1]
    found = []
    for names in tables:
        table: Any = root
        for name in names:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        found.append(table.get(LOG_FORMAT) if isinstance(table, dict) else None)
    return [value for value in found if isinstance(value, str)]


def _scraper(name: str, table: ScraperTable, parts: PostgresParts) -> ScraperConfig:
    if "ledger" in table.given:
        table.given["ledger"] = _complete_ledger(table.given["ledger"], parts)
    return table.validated(name, SCRAPER_VALUES)


def _ledger(given: RawValue | None, parts: PostgresParts) -> RawValue | None:
    if given is None:
        return parts.ledger()
    parts.reject_flags_with(given)
    return _complete_ledger(given, parts)


def _complete_ledger(given: RawValue, parts: PostgresParts) -> RawValue:
    """The ledger with the password that is kept apart from it."""
    return RawValue(parts.complete_url(given.text("ledger", str(VALUES["ledger"]))), given.origin)


def _from_flags(flags: Mapping[str, str], own_options: Container[str]) -> dict[str, RawValue]:
    return {
        check_known_name(name, NAMES, f"{name!r}"): RawValue(value, Origin("flag", flag_of(name, own_options)))
        for name, value in flags.items()
        if name not in PART_VARIABLES
    }


def _from_variables(variables: Variables) -> dict[str, RawValue]:
    known = {ENV_PREFIX + name.upper(): name for name in NAMES}
    return {
        known[check_known_name(name, known, str(given.origin))]: given
        for name, given in variables.with_prefix(ENV_PREFIX).items()
        if not IGNORED_VARIABLES.fullmatch(name)
    }
