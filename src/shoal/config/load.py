"""Reading every place once, and which of them wins."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from pathlib import Path

from shoal.config.parts import PART_VARIABLES, Parts, flag_of
from shoal.config.scrapers import ScraperConfig, ScraperTable
from shoal.config.settings import ENV_PREFIX, NAMES, SCRAPER_VALUES, VALUES, Settings
from shoal.config.sources import Given, Origin, Variables, read_dotenv
from shoal.config.tables import TableReader, known_name

# Read by the test suite, not by Shoal itself.
FOREIGN_VARIABLES = re.compile(r"SHOAL_TEST_.*|SHOAL_CHAOS|SHOAL_CHROMIUM")


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
    said = {name: value for name, value in flags.items() if value is not None}
    variables = Variables(environ, read_dotenv(folder / ".env"))
    reader = TableReader(NAMES, SCRAPER_VALUES)
    low, high = reader.pyproject(folder), reader.own_file(folder)
    given = {**low.given, **high.given, **_from_variables(variables), **_from_flags(said, own_options)}
    parts = Parts(said, variables, folder)
    ledger = _ledger(given.get("ledger"), parts)
    if ledger is not None:
        given["ledger"] = ledger
    nothing = ScraperTable({}, {}, {})
    scrapers = {
        name: _scraper(name, high.scrapers.get(name, nothing).over(low.scrapers.get(name, nothing)), parts)
        for name in [*low.scrapers, *high.scrapers]
    }
    values = {name: VALUES[name].read(name, found) for name, found in given.items()}
    origins = {name: given[name].origin if name in given else Origin("default") for name in NAMES}
    return Settings(**values, scrapers=scrapers, origins=origins)


def _scraper(name: str, table: ScraperTable, parts: Parts) -> ScraperConfig:
    if "ledger" in table.given:
        table.given["ledger"] = _completed(table.given["ledger"], parts)
    return table.checked(name, SCRAPER_VALUES)


def _ledger(given: Given | None, parts: Parts) -> Given | None:
    if given is None:
        return parts.ledger()
    parts.refuse_flags_beside(given)
    return _completed(given, parts)


def _completed(given: Given, parts: Parts) -> Given:
    """The ledger with the password that is kept apart from it."""
    return Given(parts.completed(given.text("ledger", str(VALUES["ledger"]))), given.origin)


def _from_flags(flags: Mapping[str, str], own_options: Container[str]) -> dict[str, Given]:
    return {
        known_name(name, NAMES, f"{name!r}"): Given(value, Origin("flag", flag_of(name, own_options)))
        for name, value in flags.items()
        if name not in PART_VARIABLES
    }


def _from_variables(variables: Variables) -> dict[str, Given]:
    known = {ENV_PREFIX + name.upper(): name for name in NAMES}
    return {
        known[known_name(name, known, str(given.origin))]: given
        for name, given in variables.starting(ENV_PREFIX).items()
        if not FOREIGN_VARIABLES.fullmatch(name)
    }
