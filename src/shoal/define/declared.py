"""A scraper declared in a YAML file: the keys that every such file may have. The rest is for its kind of scraper."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shoal.define.policy import LONGEST_MEMBER
from shoal.errors import InvalidSetting
from shoal.model.run import check_name

if TYPE_CHECKING:
    from shoal.define.yamlfile import YamlFile

SUFFIXES = (".yaml", ".yml")
# A name and not an import: recipes are written with what this package offers.
DEFAULT_KIND = "shoal.recipes.newspaper:newspaper"
PRIORITIES = 1_000_000


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says to all who read it.

    `scraper`: whose code it feeds, `file.py:name` or `module:name`. `group`: members of one run one after another.
    `priority`: smaller goes first. `timeout`, `stale`: seconds that a run may take, and that it may be without
    progress. `memory`: MB that its process may use. `enabled`: whether it takes part when all are run. `settings`: the
    keys that belong to its kind of scraper. `folder`: where paths and modules that it names are looked for.
    """

    path: Path
    folder: Path = Path()
    name: str
    country: str
    scraper: str = DEFAULT_KIND
    group: str | None = None
    priority: int = 0
    timeout: float | None = None
    memory: int | None = None
    stale: float | None = None
    enabled: bool = True
    settings: Mapping[str, Any] = {}

    @property
    def scraper_name(self) -> str:
        """`fiji.fijitimes`: the name its runs have in the ledger."""
        return f"{slug(self.country)}.{slug(self.name)}"


class _Text(NamedTuple):
    what: str = "a text"

    def takes(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip()) and value.isprintable()

    def __str__(self) -> str:
        return f"{self.what}; put it in quotes"


class _Number(NamedTuple):
    kind: type[int] | type[float]
    low: float
    high: float
    unit: str = ""

    def takes(self, value: Any) -> bool:
        # True is an int to Python, but nobody means a number by it.
        kinds = (int,) if self.kind is int else (int, float)
        return type(value) in kinds and math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        return f"{what}{self.unit} from {self.low:.10g} to {self.high:.10g}"


class _YesNo(NamedTuple):
    def takes(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


COMMON: Mapping[str, _Text | _Number | _YesNo] = {
    "name": _Text(),
    "country": _Text(),
    "scraper": _Text("file.py:name or module:name"),
    "group": _Text(),
    "priority": _Number(int, -PRIORITIES, PRIORITIES),
    "timeout": _Number(float, 1, LONGEST_MEMBER, " of seconds"),
    "memory": _Number(int, 16, 1 << 20, " of MB"),
    "stale": _Number(float, 1, LONGEST_MEMBER, " of seconds"),
    "enabled": _YesNo(),
}


def is_declared(target: str) -> bool:
    """Whether this names a YAML file."""
    # `shoal try` asks for the file of `paper.yaml:article` like this.
    return target.removesuffix(":").lower().endswith(SUFFIXES)


def read_declared(path: Path, folder: Path = Path()) -> Declared:
    """What the file says, its common keys checked; nothing is imported.

    Raises NotFound, or InvalidScraper with the file, the line and what to write instead.
    """
    # Imported late: most scrapers are written in Python and need no YAML.
    from shoal.define.yamlfile import read_yaml

    file = read_yaml(path)
    given: dict[str, Any] = {"name": path.stem, "country": path.absolute().parent.name}
    for key, kind in COMMON.items():
        if key not in file.values:
            continue
        value = file.values[key]
        if not kind.takes(value):
            raise file.wrong([key], f"{key} is {value!r}; it must be {kind}.")
        given[key] = value.strip() if isinstance(value, str) else value
    settings = {key: value for key, value in file.values.items() if key not in COMMON}
    declared = Declared(path=path, folder=folder, settings=settings, **given)
    _check_names(file, declared)
    return declared


def _check_names(file: YamlFile, declared: Declared) -> None:
    for key in ("country", "name", "group"):
        if (text := getattr(declared, key)) is not None and not slug(text):
            raise file.wrong(
                [key],
                f"{key} is {text!r}, which has no letter from a to z and no digit.",
                remedy=f"Write {key}: and a name in plain letters.",
            )
    for key, kind, name in (
        ("name", "scraper", declared.scraper_name),
        ("group", "group", slug(declared.group or "x")),
    ):
        try:
            check_name(kind, name)
        except InvalidSetting as problem:
            raise file.wrong([key], problem.message, remedy=f"Write a shorter {key}.") from None
    if ":" not in declared.scraper and not declared.scraper.endswith(".py"):
        raise file.wrong(["scraper"], f"scraper is {declared.scraper!r}; it must be {COMMON['scraper']}.")


def slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9-]+", "_", plain).strip("_-")
