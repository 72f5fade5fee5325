"""Loads a scraper that a YAML file declares: the keys of all such files, the settings, the code that it names."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from shoal.define.author_code import load_object
from shoal.define.policy import MAX_MEMBER_SECONDS
from shoal.define.scraper import Scraper
from shoal.errors import InvalidScraper, InvalidSetting, NotFound
from shoal.model.run import check_name

if TYPE_CHECKING:
    from shoal.define.yaml_file import YamlFile

SUFFIXES = (".yaml", ".yml")
# A name and not an import, because recipes import this package.
DEFAULT_SCRAPER = "shoal.recipes.newspapers.kind:newspaper"
# What `scraper:` may say instead of module:name.
BUILT_IN_KINDS = {"newspaper": DEFAULT_SCRAPER}
MAX_PRIORITY = 1_000_000
# The key that says which section of a collection a file belongs to, when that is not the folder it lies in.
SECTION_LABEL = "country"
T = TypeVar("T")
Keys = tuple[str | int, ...]
_ERROR_PATH = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values below it",
    "null": "empty",
    "date": "a day such as 2024-06-01",
}
_INVALID_DATE = "Invalid RFC3339 encoded date"


class YamlHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The common keys of a YAML file.

    `scraper`: the code that gets its settings, `file.py:name` or `module:name`. `group`: members of one group run one
    after another. `priority`: smaller goes first. `timeout`, `stale`: seconds that a run may take, and that it may be
    without progress. `memory`: MB that its process may use. `enabled`: whether it runs when all are run. `settings`:
    the keys that belong to its kind of scraper. `folder`: where the paths and modules that it names are searched.
    """

    path: Path
    folder: Path = Path()
    name: str
    country: str
    scraper: str = DEFAULT_SCRAPER
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
        return f"{self.section}.{slug(self.name)}"

    @property
    def section(self) -> str:
        """The section of a collection that it belongs to."""
        return slug(self.country)

    @property
    def labels(self) -> dict[str, str]:
        """What `--where` chooses by: the section, and every key of the file with a text value."""
        keys = {**self.settings, "name": self.name, "group": self.group, SECTION_LABEL: self.country}
        return {key: slug(value) for key, value in keys.items() if isinstance(value, str)}


class _Text(NamedTuple):
    what: str = "a text"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value.strip()) and value.isprintable()

    def __str__(self) -> str:
        return f"{self.what}; put it in quotes"


class _Number(NamedTuple):
    kind: type[int] | type[float]
    low: float
    high: float
    unit: str = ""

    def accepts(self, value: Any) -> bool:
        # True is an int to Python, but not a number in YAML.
        kinds = (int,) if self.kind is int else (int, float)
        return type(value) in kinds and math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        return f"{what}{self.unit} from {self.low:.10g} to {self.high:.10g}"


class _Boolean(NamedTuple):
    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


HEADER_KEYS: Mapping[str, _Text | _Number | _Boolean] = {
    "name": _Text(),
    "country": _Text(),
    "scraper": _Text("file.py:name or module:name"),
    "group": _Text(),
    "priority": _Number(int, -MAX_PRIORITY, MAX_PRIORITY),
    "timeout": _Number(float, 1, MAX_MEMBER_SECONDS, " of seconds"),
    "memory": _Number(int, 16, 1 << 20, " of MB"),
    "stale": _Number(float, 1, MAX_MEMBER_SECONDS, " of seconds"),
    "enabled": _Boolean(),
}


def is_yaml_file(target: str) -> bool:
    """Whether a target names a YAML file; `shoal try` passes `paper.yaml:`."""
    return target.removesuffix(":").lower().endswith(SUFFIXES)


def read_yaml_header(path: Path, folder: Path = Path(), *, ignore: Collection[str] = ()) -> YamlHeader:
    """Read a file and check its common keys, without those to `ignore`; nothing is imported.

    Raises NotFound, or InvalidScraper with the file, the line and what to write instead.
    """
    # Imported here, because most scrapers are written in Python and need no YAML.
    from shoal.define.yaml_file import read_yaml

    file = read_yaml(path)
    given: dict[str, Any] = {"name": path.stem, "country": path.absolute().parent.name}
    for key, kind in HEADER_KEYS.items():
        value = file.values.get(key)
        if value is None or key in ignore:  # a key without a value is as if it were not there
            continue
        if not kind.accepts(value):
            raise file.error([key], f"{key} is {value!r}; it must be {kind}.")
        given[key] = value.strip() if isinstance(value, str) else value
    given["scraper"] = BUILT_IN_KINDS.get(given.get("scraper", "newspaper"), given.get("scraper", ""))
    settings = {key: value for key, value in file.values.items() if key not in HEADER_KEYS}
    header = YamlHeader(path=path, folder=folder, settings=settings, **given)
    _check_names(file, header)
    return header


def _check_names(file: YamlFile, header: YamlHeader) -> None:
    for key in ("country", "name", "group"):
        if (text := getattr(header, key)) is not None and not slug(text):
            raise file.error(
                [key],
                f"{key} is {text!r}, which has no letter from a to z and no digit.",
                remedy=f"Write {key}: and a name in plain letters.",
            )
    for key, kind, name in (
        ("name", "scraper", header.scraper_name),
        ("group", "group", slug(header.group or "x")),
    ):
        try:
            check_name(kind, name)
        except InvalidSetting as problem:
            raise file.error([key], problem.message, remedy=f"Write a shorter {key}.") from None
    if ":" not in header.scraper and not header.scraper.endswith(".py"):
        raise file.error(["scraper"], f"scraper is {header.scraper!r}; it must be {HEADER_KEYS['scraper']}.")


def slug(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9-]+", "_", plain).strip("_-")


def convert_settings(header: YamlHeader, kind: type[T]) -> T:
    """The settings of a file as a Struct, a dataclass or a pydantic model.

    A type with fields `name` or `country` gets these too. Raises InvalidScraper, also for a key that the type does not
    have, even if the type itself would ignore it.
    """
    values = settings_for(header, kind)
    fields = _fields(kind)
    if fields is not None and (unknown := [key for key in values if key not in fields]):
        raise _unknown_key_error(header, (), unknown[0], kind)
    try:
        if (validate := getattr(kind, "model_validate", None)) is not None:
            return validate(values)  # type: ignore[no-any-return]
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as problem:
        raise _translate_error(header, str(problem), kind) from None
    except (ValueError, TypeError) as problem:
        details = getattr(problem, "errors", None)
        first = details()[0] if callable(details) else {"loc": (), "msg": str(problem)}
        keys = tuple(first["loc"])
        raise yaml_error(header, keys, f"{_dotted(keys) or 'what it says'} is not right: {first['msg']}.") from None


def settings_for(header: YamlHeader, kind: type) -> dict[str, Any]:
    """The values of the file for this type."""
    fields = _fields(kind) or ()
    own = {name: getattr(header, name) for name in ("name", "country") if name in fields}
    return {**own, **header.settings}


def yaml_error(
    header: YamlHeader, keys: Sequence[str | int], message: str, *, remedy: str | None = None
) -> InvalidScraper:
    """An error that names the file and the line of these keys."""
    from shoal.define.yaml_file import read_yaml

    return read_yaml(header.path).error(keys, message, remedy=remedy)


def _fields(kind: type) -> set[str] | None:
    """The names of a type's fields; None when it accepts any."""
    if issubclass(kind, msgspec.Struct):
        return set(kind.__struct_encode_fields__)
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    model: Mapping[str, Any] | None = getattr(kind, "model_fields", None)
    if model is None or getattr(kind, "model_config", {}).get("extra") == "allow":
        return None
    return {alias for name, field in model.items() for alias in (name, field.alias) if alias}


def _translate_error(header: YamlHeader, message: str, kind: type) -> InvalidScraper:
    """An error of msgspec in terms of the YAML file."""
    match = _ERROR_PATH.fullmatch(message)
    what, keys = (match[1], _keys(match[2] or "")) if match else (message, ())
    if found := _UNKNOWN.fullmatch(what):
        return _unknown_key_error(header, keys, found[1], kind)
    if found := _MISSING.fullmatch(what):
        return yaml_error(header, keys, f"{_dotted((*keys, found[1]))} is missing.", remedy="Add it.")
    if what == _INVALID_DATE:
        what = "Expected `date`"
    elif what.startswith("Invalid") and (choices := _choices(kind, keys)):
        close = difflib.get_close_matches(str(_value_at(header.settings, keys)), choices, n=1)
        hint = f"; did you mean {close[0]}?" if close else "."
        return yaml_error(header, keys, f"{_dotted(keys)} must be {' or '.join(choices)}{hint}")
    what = re.sub(r"`([^`]*)`", lambda found: _type_names(found[1]), what)
    what = what.replace("Expected", "it must be").replace(", got", ", not").replace("Invalid", "it is no valid")
    return yaml_error(header, keys, f"{_dotted(keys)} is not right: {what}.")


def _type_names(types: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in types.split(" | "))


def _unknown_key_error(header: YamlHeader, keys: Keys, name: str, kind: type) -> InvalidScraper:
    """An error that suggests a key with a similar name, or with this name elsewhere."""
    info = inspect.type_info(kind)
    tables = list(_structs_at(info, keys))
    own = [table for table in tables if _is_chosen(table, _value_at(header.settings, keys))]
    if chosen := _tag_of_other(tables, own, name):
        message = f"there is no key {_dotted((*keys, name))} with {chosen}"
        return yaml_error(header, (*keys, name), message, remedy="Remove it, or correct the other.")
    beside_it = {(*keys, field.encode_name) for table in own for field in table.fields}
    paths = {
        _dotted(path): path[-1]
        for path, _ in _all_paths(info, ())
        if path and (not own or path[:-1] != keys or path in beside_it)
    }
    paths |= {key: key for key in HEADER_KEYS}
    close = difflib.get_close_matches(name, [str(last) for last in paths.values()], n=1, cutoff=0.6)
    full = [path for path, last in paths.items() if close and last == close[0]]
    beside = [path for path in full if path.rpartition(".")[0] == _dotted(keys)]
    hint = f"; did you mean {(beside or full)[0]}?" if full else "."
    return yaml_error(
        header, (*keys, name), f"there is no key {_dotted((*keys, name))}{hint}", remedy="Correct or remove it."
    )


def _tag_of_other(tables: Sequence[inspect.StructType], own: Sequence[inspect.StructType], name: str) -> str | None:
    """`type pagination; type archive has it.` if another kind of this table has the key."""
    others = [table for table in tables if any(field.encode_name == name for field in table.fields)]
    if not own or not others:
        return None
    having = " and ".join(f"{table.tag_field} {table.tag}" for table in others)
    return f"{own[0].tag_field} {own[0].tag}; {having} has it."


def _structs_at(kind: inspect.Type, keys: Keys) -> Iterator[inspect.StructType]:
    """The kinds of table that may be at this path."""
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _structs_at(each, keys)
        case inspect.StructType() if not keys:
            yield kind
        case inspect.StructType(fields=fields):
            for field in fields:
                if field.encode_name == keys[0]:
                    yield from _structs_at(field.type, keys[1:])


def _is_chosen(table: inspect.StructType, values: Any) -> bool:
    """Whether the file chooses this kind of table, such as with `type: archive`."""
    return table.tag_field is not None and isinstance(values, dict) and values.get(table.tag_field) == table.tag


def _value_at(values: Any, keys: Keys) -> Any:
    for key in keys:
        if isinstance(values, Mapping):
            values = values.get(key)
        else:
            values = values[key] if isinstance(values, list) and isinstance(key, int) and key < len(values) else None
    return values


def _choices(kind: type, keys: Keys) -> list[str]:
    """The texts that are allowed at this path."""
    texts = [text for path, given in _all_paths(inspect.type_info(kind), ()) if path == keys for text in given]
    return list(dict.fromkeys(texts))


def _all_paths(kind: inspect.Type, path: Keys) -> Iterator[tuple[Keys, tuple[str, ...]]]:
    """Every path below a type, with the texts that it is limited to."""
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _all_paths(each, path)
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            if tag_field is not None:
                yield (*path, tag_field), (str(tag),)
            for field in fields:
                yield (*path, field.encode_name), ()
                yield from _all_paths(field.type, (*path, field.encode_name))
        case inspect.DataclassType(fields=fields):
            for field in fields:
                yield (*path, field.encode_name), ()
                yield from _all_paths(field.type, (*path, field.encode_name))
        case inspect.LiteralType(values=values):
            yield path, tuple(str(value) for value in values)


def _keys(path: str) -> Keys:
    """`.listing.json_paths[0]` as keys."""
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path)
    return tuple(name or (int(number) if number.isdigit() else number) for name, number in parts)


def _dotted(keys: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def load_yaml_scraper(path: Path, folder: Path) -> Scraper:
    """The scraper of a YAML file, checked. The code that it names is searched in `folder`.

    Its kind is a Scraper, which gets the file's keys as its settings, or a function that takes a YamlHeader and returns
    one. Raises NotFound or InvalidScraper.
    """
    header = read_yaml_header(path, folder)
    scraper = _build(header)
    scraper.name = header.scraper_name
    scraper.files.append(path)
    return scraper.check()


def _build(header: YamlHeader) -> Scraper:
    try:
        # A scraper belongs to one file, so the module is executed again for the next file of this kind.
        kind = load_object(header.scraper, header.folder, fresh=True)
    except (NotFound, InvalidScraper) as problem:
        raise yaml_error(header, ["scraper"], problem.message, remedy=problem.remedy) from problem
    if isinstance(kind, Scraper):
        return _with_settings(header, kind)
    scraper = kind(header) if callable(kind) else kind
    if not isinstance(scraper, Scraper):
        what = "makes no Scraper" if callable(kind) else "is neither a Scraper nor a function that makes one"
        raise yaml_error(header, ["scraper"], f"{header.scraper} {what}.", remedy="Name one that does.")
    scraper.file_settings = header.settings
    return scraper


def _with_settings(header: YamlHeader, scraper: Scraper) -> Scraper:
    kind = scraper.settings_type
    if kind is None:
        if header.settings:
            key = next(iter(header.settings))
            raise yaml_error(
                header,
                [key],
                f"{key} is for {header.scraper}, which takes no settings.",
                remedy=f"Write Scraper({scraper.name!r}, settings=YourClass) there, or remove the key.",
            )
        return scraper
    convert_settings(header, kind)
    scraper.file_settings = settings_for(header, kind)
    return scraper
