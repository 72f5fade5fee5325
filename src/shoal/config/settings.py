"""The settings, their limits, and which place wins."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.config.parts import PART_VARIABLES, Parts, flag_of
from shoal.config.sources import Given, Kind, Origin, Variables, read_dotenv, read_toml
from shoal.errors import InvalidSetting
from shoal.model.redaction import redacted, secrets_of

ENV_PREFIX = "SHOAL_"
# Read by the test suite, not by Shoal itself.
FOREIGN_VARIABLES = re.compile(r"SHOAL_TEST_.*|SHOAL_CHAOS|SHOAL_CHROMIUM")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a Shoal process can be told.

    `ledger`: a path, a `sqlite:///` or a `postgresql://` URL. `pool_size`: connections to PostgreSQL.
    `patience`: seconds that a call to the ledger survives an outage. `command_timeout`: seconds one statement may take
    on PostgreSQL. `busy_timeout`: seconds to wait for other writers of a SQLite file. `origins`: where each came from.
    """

    ledger: str = ".shoal/ledger.db"
    pool_size: int = 4
    patience: float = 60.0
    command_timeout: float = 60.0
    busy_timeout: float = 30.0
    origins: Mapping[str, Origin] = {}

    def shown(self) -> dict[str, Any]:
        """The values by name, fit for printing: no password in them."""
        return {name: redacted(v) if isinstance(v := getattr(self, name), str) else v for name in NAMES}

    def secrets(self) -> tuple[str, ...]:
        """What must never be printed."""
        return secrets_of(self.ledger)


class Range(NamedTuple):
    kind: type[int] | type[float]
    low: float
    high: float

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number of seconds"
        return f"{what} from {self.low:g} to {self.high:g}"


NAMES = tuple(name for name in Settings.__struct_fields__ if name != "origins")
RANGES = {
    "pool_size": Range(int, 1, 100),
    "patience": Range(float, 0, 86_400),
    "command_timeout": Range(float, 0.1, 86_400),
    "busy_timeout": Range(float, 0, 3_600),
}


def load_settings(flags: Mapping[str, str | None], *, environ: Mapping[str, str], folder: Path) -> Settings:
    """The settings of one process. Raises InvalidSetting for the first thing that is wrong.

    `flags` holds what the command line gave: settings by name, and `db_host`, `db_port`, `db_name`, `db_user`; None
    means not given. `environ` and `folder` are the environment and the current folder; nothing else is read.
    """
    said = {name: value for name, value in flags.items() if value is not None}
    variables = Variables(environ, read_dotenv(folder / ".env"))
    given = {
        **_from_table(read_toml(folder / "pyproject.toml").get("tool", {}).get("shoal", {}), "pyproject.toml"),
        **_from_table(read_toml(folder / "shoal.toml"), "shoal.toml"),
        **_from_variables(variables),
        **_from_flags(said),
    }
    ledger = _ledger(given.get("ledger"), Parts(said, variables, folder))
    if ledger is not None:
        given["ledger"] = ledger
    values = {name: _checked(name, found) for name, found in given.items()}
    origins = {name: given[name].origin if name in given else Origin("default") for name in NAMES}
    return Settings(**values, origins=origins)


def _ledger(given: Given | None, parts: Parts) -> Given | None:
    if given is None:
        return parts.ledger()
    parts.refuse_flags_beside(given)
    return Given(parts.completed(given.text("ledger", "a path or a URL")), given.origin)


def _from_flags(flags: Mapping[str, str]) -> dict[str, Given]:
    return {
        _known(name, NAMES, f"{name!r}"): Given(value, Origin("flag", flag_of(name)))
        for name, value in flags.items()
        if name not in PART_VARIABLES
    }


def _from_variables(variables: Variables) -> dict[str, Given]:
    known = {ENV_PREFIX + name.upper(): name for name in NAMES}
    return {
        known[_known(name, known, str(given.origin))]: given
        for name, given in variables.starting(ENV_PREFIX).items()
        if not FOREIGN_VARIABLES.fullmatch(name)
    }


def _from_table(table: Any, file: Kind) -> dict[str, Given]:
    if not isinstance(table, dict):
        raise InvalidSetting(
            f"tool.shoal in {file} is not a table.", remedy="Write [tool.shoal] and one setting a line below it."
        )
    return {_known(name, NAMES, f"{name} in {file}"): Given(value, Origin(file, name)) for name, value in table.items()}


def _known(name: str, known: Iterable[str], shown: str) -> str:
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    raise InvalidSetting(
        f"{shown} is not a setting" + (f"; did you mean {close[0]}?" if close else "."),
        remedy="Correct or remove it; `shoal config show` lists every setting.",
    )


def _checked(name: str, given: Given) -> Any:
    if name not in RANGES:
        return given.text(name)
    wanted = RANGES[name]
    value = given.value
    try:
        # True is an int to Python, but nobody means a number by it.
        number = wanted.kind(value) if type(value) in (str, int, wanted.kind) else math.nan
    except ValueError:
        number = math.nan
    if not wanted.low <= number <= wanted.high:
        raise given.wrong(name, str(wanted))
    return number
