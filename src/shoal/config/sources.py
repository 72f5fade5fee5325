"""Where settings come from: flags, variables, `.env` and TOML tables. Reads raw values with their origin; checks names,
not values.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.redaction import redacted

if TYPE_CHECKING:
    from dotenv.parser import Binding

OriginKind = Literal["flag", "environment", ".env", "shoal.toml", "pyproject.toml", "code", "request", "default"]
# Lines of `.env` that belong to Shoal or to the PostgreSQL it connects to.
_OWN_LINE = re.compile(r"\s*(?:export\s+)?(?:SHOAL_|DB_|PG[A-Z]{3,}\b|POSTGRES_)")
_AUTHOR_SETTINGS, _STAGES, _SCRAPERS, _SINKS = "settings", "stages", "scrapers", "sinks"
_EGRESS = "egress"
# `${NAME}` or `${NAME:-default}` in a value of a TOML file; `$$` before it keeps it as it is.
_REFERENCE = re.compile(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}")


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from: the kind of source, and the value's name there; `variable`: what it refers to there."""

    kind: OriginKind
    name: str = ""
    variable: Origin | None = None

    def __str__(self) -> str:
        if self.variable is not None:
            return f"{self.variable}, by {self.name} in {self.kind}"
        if self.kind == "default":
            return f"default for {self.name}" if self.name else "default"
        return self.name if self.kind in ("flag", "environment", "code", "request") else f"{self.name} in {self.kind}"

    @property
    def is_of_project(self) -> bool:
        """Whether relative paths are meant from the project's folder; otherwise from the current one."""
        return self.kind not in ("flag", "environment", "code")


class RawValue(NamedTuple):
    """A value as it was written, not yet checked."""

    value: Any
    origin: Origin

    @property
    def source(self) -> Origin:
        """Where the value is to be corrected."""
        return self.origin.variable or self.origin

    def text(self, name: str, accepted: str = "a text") -> str:
        """The value as a non-empty text. Raises InvalidSetting."""
        text = self.value.strip() if isinstance(self.value, str) else ""
        if not text or "\0" in text or text.encode(errors="replace").decode() != text:
            raise self.invalid(name, accepted)
        return text

    def invalid(self, name: str, accepted: str) -> InvalidSetting:
        return InvalidSetting(
            f"{name} is {redacted(repr(self.value))} (from {self.origin}); it must be {accepted}.",
            remedy=f"Correct {self.source}.",
        )


class Variables:
    """The environment and, with lower precedence, `.env`."""

    def __init__(self, environ: Mapping[str, str], dotenv: Mapping[str, str]) -> None:
        self._sources: tuple[tuple[OriginKind, Mapping[str, str]], ...] = ((".env", dotenv), ("environment", environ))

    def with_prefix(self, prefix: str) -> dict[str, RawValue]:
        """All variables with this prefix."""
        return {
            name: RawValue(value, Origin(kind, name))
            for kind, variables in self._sources
            for name, value in variables.items()
            if name.startswith(prefix)
        }

    def first(self, names: Iterable[str]) -> RawValue | None:
        """The first of these that has a value. An empty one counts as unset, as it does for PostgreSQL's own tools."""
        for kind, variables in reversed(self._sources):
            for name in names:
                if value := variables.get(name):
                    return RawValue(value, Origin(kind, name))
        return None


class VariableText(str):
    """A text of a file in which a variable was replaced; `variable` is the first one."""

    variable: Origin

    def __new__(cls, text: str, variable: Origin) -> Self:
        made = super().__new__(cls, text)
        made.variable = variable
        return made


def replace_variables(value: Any, variables: Variables, path: str, file: str) -> Any:
    """The value with its `${NAME}` and `${NAME:-default}` replaced, in lists and tables too.

    The result is a text that knows its variable; it is converted where a number is meant. An empty variable counts as
    unset. Raises InvalidSetting for a variable that is neither set nor has a default.
    """
    if isinstance(value, dict):
        prefix = path and f"{path}."
        return {key: replace_variables(each, variables, prefix + key, file) for key, each in value.items()}
    if isinstance(value, list):
        return [replace_variables(each, variables, path, file) for each in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    used: list[Origin] = []

    def replaced(found: re.Match[str]) -> str:
        escaped, name, default = found.groups()
        if escaped:
            return found[0][1:]
        given = variables.first([name])
        if given is None and default is None:
            raise InvalidSetting(
                f"{path} in {file} refers to the variable {name}, which is not set.",
                remedy=f"Set {name} in the environment or in .env, or write ${{{name}:-default}}.",
            )
        if given is None:
            return str(default)
        used.append(given.origin)
        return str(given.value)

    text = _REFERENCE.sub(replaced, value)
    return VariableText(text, used[0]) if used else text


def read_dotenv(path: Path) -> dict[str, str]:
    """The variables of a `.env` file; `$NAME` is not expanded.

    The file is often shared with other programs: raises InvalidSetting only for broken lines of Shoal's own variables.
    """
    variables: dict[str, str] = {}
    for binding in parse_dotenv(read_text(path)):
        spans_lines = "\n" in binding.original.string.strip()
        if binding.error or spans_lines or (binding.key is not None and binding.value is None):
            _reject_own_lines(binding, path)
        if binding.key is not None and binding.value is not None:
            variables[binding.key] = binding.value
    return variables


def parse_dotenv(text: str) -> Iterator[Binding]:
    """The assignments of a `.env` file as python-dotenv parses them; broken ones are marked."""
    if not text:
        return
    from dotenv.parser import parse_stream  # slow to import, and most folders have no `.env`

    yield from parse_stream(StringIO(text))


def _reject_own_lines(binding: Binding, path: Path) -> None:
    """A missing quote also hides the lines below it, so each line of the text is checked."""
    for number, line in enumerate(binding.original.string.splitlines(), binding.original.line):
        if _OWN_LINE.match(line):
            raise InvalidSetting(
                f"Line {number} of {path.name} cannot be parsed.",
                remedy="Write NAME=value on one line, in quotes if the value has spaces or a #.",
            )


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{path.name} is not valid TOML: {error}.", remedy="Correct the file.") from None


def read_text(path: Path) -> str:
    """The file's text, empty when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"{path.name} cannot be read: {os_error_text(error)}.", remedy="Correct the file or its permissions."
        ) from None


def os_error_text(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"


class ScraperTable(msgspec.Struct):
    """`[scrapers.NAME]` as written: settings of Shoal, the author's free settings, and settings of stages."""

    given: dict[str, RawValue] = {}
    settings: dict[str, RawValue] = {}
    stages: dict[str, dict[str, RawValue]] = {}

    def merged_over(self, lower: ScraperTable) -> ScraperTable:
        """This table, completed with values that only the lower one has."""
        stages = {
            name: _merge_stage(self.stages.get(name, {}), lower.stages.get(name, {}))
            for name in [*lower.stages, *self.stages]
        }
        return ScraperTable(lower.given | self.given, lower.settings | self.settings, stages)

    def origins(self) -> dict[str, Origin]:
        """The origin of every value, by its name in the table."""
        flat = dict(self.given)
        for stage, table in self.stages.items():
            flat.update({f"{_STAGES}.{stage}.{key}": given for key, given in table.items()})
        flat.update({f"{_AUTHOR_SETTINGS}.{key}": given for key, given in self.settings.items()})
        return {key: given.origin for key, given in flat.items()}


def _merge_stage(higher: dict[str, RawValue], lower: dict[str, RawValue]) -> dict[str, RawValue]:
    """A rate replaces a lower delay, and a delay a lower rate: both set the pause between two starts."""
    replaced = {"rate", "delay"} if {"rate", "delay"} & higher.keys() else set()
    return {**{key: given for key, given in lower.items() if key not in replaced}, **higher}


class FileTables(msgspec.Struct):
    """The contents of one file: settings of the process, and tables of scrapers, sinks and egress."""

    given: dict[str, RawValue]
    scrapers: dict[str, ScraperTable]
    sinks: dict[str, dict[str, RawValue]]
    egress: dict[str, dict[str, RawValue]]


class TableReader:
    """Reads TOML files. It knows the names that a process, and the tables in them, may have."""

    def __init__(
        self,
        *,
        process: Collection[str],
        scraper: Collection[str],
        stage: Collection[str],
        sink: Collection[str],
        egress: Collection[str],
        variables: Variables,
    ) -> None:
        self._variables = variables
        self._sink_names = sink
        self._egress_names = egress
        self._process_names = process
        self._scraper_names = (*scraper, _AUTHOR_SETTINGS, _STAGES)
        self._stage_names = stage

    def pyproject(self, folder: Path) -> FileTables:
        tool = read_toml(folder / "pyproject.toml").get("tool", {})
        table = tool.get("shoal", {}) if isinstance(tool, dict) else {}
        own = _as_table(table, "tool.shoal", "pyproject.toml")
        replaced = replace_variables(own, self._variables, "tool.shoal", "pyproject.toml")
        return self._tables(replaced, "pyproject.toml", "tool.shoal.")

    def shoal_toml(self, folder: Path) -> FileTables:
        """`shoal.toml`, where names are at the top or, as in `pyproject.toml`, below `tool.shoal`."""
        table = replace_variables(read_toml(folder / "shoal.toml"), self._variables, "", "shoal.toml")
        tool = _as_table(table.pop("tool", {}), "tool", "shoal.toml")
        for name in tool:
            check_known_name(name, ("shoal",), f"tool.{name} in shoal.toml")
        top = self._tables(table, "shoal.toml", "")
        below = self._tables(_as_table(tool.get("shoal", {}), "tool.shoal", "shoal.toml"), "shoal.toml", "tool.shoal.")
        twice = [
            *(top.given.keys() & below.given.keys()),
            *(f"scrapers.{name}" for name in top.scrapers.keys() & below.scrapers.keys()),
            *(f"sinks.{name}" for name in top.sinks.keys() & below.sinks.keys()),
            *(f"egress.{name}" for name in top.egress.keys() & below.egress.keys()),
        ]
        if twice:
            raise InvalidSetting(
                f"shoal.toml has both {min(twice)} and tool.shoal.{min(twice)}.", remedy="Keep one of the two."
            )
        return FileTables(
            top.given | below.given,
            top.scrapers | below.scrapers,
            top.sinks | below.sinks,
            top.egress | below.egress,
        )

    def _tables(self, table: Mapping[str, Any], file: OriginKind, prefix: str) -> FileTables:
        scrapers = _as_table(table.get(_SCRAPERS, {}), prefix + _SCRAPERS, file)
        sinks = _as_table(table.get(_SINKS, {}), prefix + _SINKS, file)
        egress = _as_table(table.get(_EGRESS, {}), prefix + _EGRESS, file)
        given = {name: value for name, value in table.items() if name not in (_SCRAPERS, _SINKS, _EGRESS)}
        for name in given:
            if name in self._scraper_names and name not in (*self._process_names, _AUTHOR_SETTINGS, _STAGES):
                raise InvalidSetting(
                    f"{name} in {file} is a setting of a scraper.", remedy=f"Write it below [{prefix}scrapers.NAME]."
                )
        return FileTables(
            _raw_values(given, self._process_names, file, ""),
            {name: self._scraper(body, file, f"{prefix}{_SCRAPERS}.{name}") for name, body in scrapers.items()},
            {name: self._sink(body, file, f"{prefix}{_SINKS}.{name}") for name, body in sinks.items()},
            {
                name: _raw_values(_as_table(body, path, file), self._egress_names, file, path + ".")
                for name, body in egress.items()
                for path in (f"{prefix}{_EGRESS}.{name}",)
            },
        )

    def _scraper(self, body: Any, file: OriginKind, path: str) -> ScraperTable:
        table = _as_table(body, path, file)
        for name in table:
            if name in self._process_names and name not in self._scraper_names:
                raise InvalidSetting(
                    f"{path}.{name} in {file} is a setting of the process, not of a scraper.",
                    remedy="Write it outside of the scrapers' tables.",
                )
        own = {name: value for name, value in table.items() if name not in (_AUTHOR_SETTINGS, _STAGES)}
        free = _as_table(table.get(_AUTHOR_SETTINGS, {}), f"{path}.{_AUTHOR_SETTINGS}", file)
        stages = _as_table(table.get(_STAGES, {}), f"{path}.{_STAGES}", file)
        return ScraperTable(
            _raw_values(own, self._scraper_names, file, path + "."),
            _raw_values(free, free, file, f"{path}.{_AUTHOR_SETTINGS}."),
            {name: self._stage(stage, file, f"{path}.{_STAGES}.{name}") for name, stage in stages.items()},
        )

    def _sink(self, body: Any, file: OriginKind, path: str) -> dict[str, RawValue]:
        return _raw_values(_as_table(body, path, file), self._sink_names, file, path + ".")

    def _stage(self, body: Any, file: OriginKind, path: str) -> dict[str, RawValue]:
        return _raw_values(_as_table(body, path, file), self._stage_names, file, path + ".")


def check_known_name(name: str, known: Collection[str], shown: str) -> str:
    """The name, if it is known; otherwise raises InvalidSetting with the closest known name."""
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    raise InvalidSetting(
        f"{shown} is not a setting" + (f"; did you mean {close[0]}?" if close else "."),
        remedy="Correct or remove it; `shoal config show` lists every setting.",
    )


def _raw_values(table: Mapping[str, Any], known: Collection[str], file: OriginKind, prefix: str) -> dict[str, RawValue]:
    return {
        check_known_name(name, known, f"{prefix}{name} in {file}"): RawValue(
            _plain(value), Origin(file, prefix + name, _variable_of(value))
        )
        for name, value in table.items()
    }


def _variable_of(value: Any) -> Origin | None:
    """The first variable that a value, or a part of it, was replaced by."""
    if isinstance(value, VariableText):
        return value.variable
    parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return next(filter(None, map(_variable_of, parts)), None)


def _plain(value: Any) -> Any:
    """The value with texts only, as parsers expect them."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, VariableText) else value


def _as_table(value: Any, path: str, file: OriginKind) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidSetting(
            f"{path} in {file} is not a table.", remedy=f"Write [{path}] and one setting a line below it."
        )
    return value
