"""Loads the settings of a process: reads every source once, applies precedence, checks every value."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from shoal.config.egress import EGRESS_TYPES, EgressConfig, read_egress
from shoal.config.postgres import PART_VARIABLES, PostgresParts, flag_of
from shoal.config.settings import (
    ASSIGN_NONE,
    ENV_PREFIX,
    NAMES,
    PATHS,
    SCRAPER_OWN_TYPES,
    SCRAPER_TYPES,
    SETTING_TYPES,
    STAGE_TYPES,
    ScraperConfig,
    Settings,
    StageConfig,
)
from shoal.config.sinks import SINK_TYPES, SinkConfig, read_sink
from shoal.config.sources import (
    Origin,
    RawValue,
    ScraperTable,
    TableReader,
    Variables,
    check_known_name,
    parse_dotenv,
    read_dotenv,
    read_toml,
)
from shoal.config.values import accepted_values, read_value
from shoal.errors import InvalidSetting, SecretMissing
from shoal.model.ledger_url import ledger_address
from shoal.model.run import check_name
from shoal.project import find_ledger_above, find_project

LOG_FORMAT = "log_format"
# Read by the test suite, not by Shoal itself.
IGNORED_VARIABLES = re.compile(r"SHOAL_TEST_.*|SHOAL_CHAOS|SHOAL_SESSION_KEY")


def load_settings(
    flags: Mapping[str, str | None],
    *,
    environ: Mapping[str, str],
    folder: Path,
    own_options: Container[str] = (),
) -> Settings:
    """The settings of one process. Raises InvalidSetting for the first error.

    `flags` has settings by name, and `db_host`, `db_port`, `db_name`, `db_user`; None means not given. `own_options`
    are the settings that the command has an option for. `environ` and `folder` are the environment and the current
    folder. The files are those of the project that the folder lies in; relative paths in them are meant from there.
    """
    given_flags = {name: value for name, value in flags.items() if value is not None}
    current, folder = folder, find_project(folder, environ)
    project = "" if folder == current.absolute() else str(folder)
    variables = Variables(environ, read_dotenv(folder / ".env"))
    reader = TableReader(
        process=NAMES,
        scraper=(*SCRAPER_TYPES, *SCRAPER_OWN_TYPES),
        stage=tuple(STAGE_TYPES),
        sink=tuple(SINK_TYPES),
        egress=tuple(EGRESS_TYPES),
        variables=variables,
    )
    low, high = reader.pyproject(folder), reader.shoal_toml(folder)
    given = {**low.given, **high.given, **_from_variables(variables), **_from_flags(given_flags, own_options)}
    parts = PostgresParts(given_flags, variables, current=current, project=folder)
    ledger = _ledger(given.get("ledger"), parts)
    if ledger is not None:
        given["ledger"] = ledger
    tables = {
        name: high.scrapers.get(name, ScraperTable()).merged_over(low.scrapers.get(name, ScraperTable()))
        for name in [*low.scrapers, *high.scrapers]
    }
    scrapers = {name: _scraper(name, table, parts, project) for name, table in tables.items()}
    egress = {
        name: _egress_from_project(read_egress(name, table, variables), project)
        for name, table in {**low.egress, **high.egress}.items()
    }
    sinks = {
        name: _sink_from_project(read_sink(name, table, variables), project)
        for name, table in {**low.sinks, **high.sinks}.items()
    }
    values = {name: read_value(name, SETTING_TYPES[name], found) for name, found in given.items()}
    origins = {name: given[name].origin if name in given else Origin("default") for name in NAMES}
    above = find_ledger_above(folder, environ) if origins["ledger"].kind == "default" else None
    settings = Settings(
        **values,
        scrapers=scrapers,
        sinks=sinks,
        egress=egress,
        origins=origins,
        project=project,
        ledger_above=str(above or ""),
    )
    paths = {name: getattr(settings, name) for name in ("ledger", *PATHS)}
    return msgspec.structs.replace(settings, **_from_project(paths, origins, project)) if project else settings


def _from_project(values: Mapping[str, Any], origins: Mapping[str, Origin], project: str) -> dict[str, Any]:
    """The values with relative paths of the project's files, and of defaults, made absolute."""
    moved = dict(values)
    for name in ("ledger", *PATHS):
        value = values.get(name)
        if not value or not origins[name].is_of_project or (name == "assign" and value == ASSIGN_NONE):
            continue
        if name == "ledger":
            address = ledger_address(value)
            if not isinstance(address, Path):
                continue
            value = str(address)
        moved[name] = _path_from(project, value)
    return moved


def _egress_from_project(egress: EgressConfig, project: str) -> EgressConfig:
    paths = {name: _path_from(project, path) for name in ("file", "torrc") if (path := getattr(egress, name))}
    return msgspec.structs.replace(egress, **paths) if project and paths else egress


def _sink_from_project(sink: SinkConfig, project: str) -> SinkConfig:
    if not project or not sink.path:
        return sink
    return msgspec.structs.replace(sink, path=_path_from(project, sink.path))


def _path_from(folder: str, path: str) -> str:
    """A path that is relative to the folder; the address of an object store as it is."""
    return path if "://" in path else str(Path(folder) / Path(path).expanduser())


def _scraper(name: str, table: ScraperTable, parts: PostgresParts, project: str) -> ScraperConfig:
    """A scraper's table with every value checked. Raises InvalidSetting."""
    check_name("scraper", name)
    given, types = dict(table.given), {**SCRAPER_TYPES, **SCRAPER_OWN_TYPES}
    if "ledger" in given:
        given["ledger"] = _complete_ledger(given["ledger"], parts)
    values = {key: read_value(key, types[key], found) for key, found in given.items()}
    if "schedule" in values and "target" not in values:
        raise InvalidSetting(
            f"{given['schedule'].origin} needs a target: the table does not say where the code is.",
            remedy=f'Add target = "{name}.py", or module:scraper.',
        )
    if project:
        values = _from_project(values, table.origins(), project)
    return ScraperConfig(
        name=name,
        **{own: values.pop(own) for own in SCRAPER_OWN_TYPES if own in values},
        values=values,
        settings={key: found.value for key, found in table.settings.items()},
        stages={stage: _stage(stage, found) for stage, found in table.stages.items()},
        origins=table.origins(),
    )


def _stage(name: str, table: Mapping[str, RawValue]) -> StageConfig:
    check_name("stage", name)
    if "rate" in table and "delay" in table:
        raise InvalidSetting(
            f"{table['rate'].origin} and {table['delay'].origin} are both set; they mean the same.",
            remedy="Give one of the two.",
        )
    return StageConfig(**{key: read_value(key, STAGE_TYPES[key], given) for key, given in table.items()})


def _ledger(given: RawValue | None, parts: PostgresParts) -> RawValue | None:
    if given is None:
        return parts.ledger()
    parts.reject_flags_with(given)
    return _complete_ledger(given, parts)


def _complete_ledger(given: RawValue, parts: PostgresParts) -> RawValue:
    """The ledger's address with the parts and the password that other variables give."""
    address = given.text("ledger", accepted_values(SETTING_TYPES["ledger"]))
    return RawValue(parts.complete_url(address), given.origin)


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


def secret_finder(*, environ: Mapping[str, str], folder: Path) -> Callable[[str], str]:
    """A function that finds a secret by its name, in the environment or in `.env`; it raises SecretMissing.

    Both are read when a secret is needed, so a value that is set later is found.
    """

    def find(name: str) -> str:
        found = Variables(environ, read_dotenv(folder / ".env")).first([name])
        if found is None:
            raise SecretMissing(f"A request needs the secret {name}, which is not set.")
        return str(found.value)

    return find


def find_log_format(arguments: Sequence[str], *, environ: Mapping[str, str], folder: Path) -> str:
    """The log format before anything is checked, so that errors of the configuration are logged in it too.

    Raises nothing, whatever the arguments and the files contain; empty when nothing names a format.
    """
    folder = find_project(folder, environ)
    flags = [text.removeprefix("--set=") for text in arguments if text.startswith("--set=")]
    flags += [value for option, value in pairwise(arguments) if option == "--set"]
    by_flag = [value for name, _, value in (flag.partition("=") for flag in flags) if _normalize(name) == LOG_FORMAT]
    variable = ENV_PREFIX + LOG_FORMAT.upper()
    dotenv = parse_dotenv(_text_or_nothing(folder / ".env"))
    given = [
        *by_flag[-1:],
        environ.get(variable, ""),
        *[binding.value for binding in dotenv if binding.key == variable and binding.value][-1:],
        *_toml_log_formats(folder / "shoal.toml", (), ("tool", "shoal")),
        *_toml_log_formats(folder / "pyproject.toml", ("tool", "shoal")),
    ]
    return next((value.strip().lower() for value in given if value), "")


def _normalize(name: str) -> str:
    return name.strip().replace("-", "_")


def _text_or_nothing(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _toml_log_formats(path: Path, *tables: tuple[str, ...]) -> list[str]:
    """The log format of these tables; of a file that is not valid TOML, the first assignment of it."""
    text = _text_or_nothing(path)
    assigned = re.findall(rf"^[ \t]*{LOG_FORMAT}[ \t]*=[ \t]*[\"']?([\w-]+)", text, re.MULTILINE)
    if not assigned:
        return []  # most files do not set it and need not be parsed
    try:
        root = read_toml(path)
    except InvalidSetting:
        return assigned[:1]
    found = []
    for names in tables:
        table: Any = root
        for name in names:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        found.append(table.get(LOG_FORMAT) if isinstance(table, dict) else None)
    return [value for value in found if isinstance(value, str)]
