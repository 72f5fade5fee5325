"""A scraper declared in a YAML file: its header, its typed settings, and the code that it names.

A scraper declared in a YAML file: the keys that every such file may have. The rest is for its kind of scraper.

The settings of a declared scraper as the type that its code asks for, or one sentence with the file and the line.

From a declared file to its scraper: the code it names, fed with what it says.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from shoal.define.author_code import load_object
from shoal.define.policy import MAX_MEMBER_SECONDS
from shoal.define.scraper import Scraper
from shoal.define.yaml_file import read_yaml
from shoal.errors import InvalidScraper, InvalidSetting, NotFound
from shoal.model.run import check_name

if TYPE_CHECKING:
    from shoal.define.yaml_file import YamlFile

SUFFIXES = (".yaml", ".yml")
# A name and not an import: recipes are written with what this package offers.
DEFAULT_SCRAPER = "shoal.recipes.newspaper:newspaper"
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
    "date": "a day such as 2024-01-31",
}


class YamlHeader(msgspec.Struct, frozen=True, kw_only=True):
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
        # True is an int to Python, but nobody means a number by it.
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
    """Whether this names a YAML file."""
    # `shoal try` asks for the file of `paper.yaml:article` like this.
    return target.removesuffix(":").lower().endswith(SUFFIXES)


def read_yaml_header(path: Path, folder: Path = Path()) -> YamlHeader:
    """What the file says, its common keys checked; nothing is imported.

    Raises NotFound, or InvalidScraper with the file, the line and what to write instead.
    """
    # Imported late: most scrapers are written in Python and need no YAML.
    from shoal.define.yaml_file import read_yaml

    file = read_yaml(path)
    given: dict[str, Any] = {"name": path.stem, "country": path.absolute().parent.name}
    for key, kind in HEADER_KEYS.items():
        if key not in file.values:
            continue
        value = file.values[key]
        if not kind.accepts(value):
            raise file.error([key], f"{key} is {value!r}; it must be {kind}.")
        given[key] = value.strip() if isinstance(value, str) else value
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
    """What the file gives to its kind of scraper, as a Struct, a dataclass or a pydantic model.

    A type with fields `name` or `country` gets these too. Raises InvalidScraper; a key that the type does not have is
    an error, whatever the type itself thinks of such.
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
    """The keys of the file that are for this type."""
    fields = _fields(kind) or ()
    own = {name: getattr(header, name) for name in ("name", "country") if name in fields}
    return {**own, **header.settings}


def yaml_error(
    header: YamlHeader, keys: Sequence[str | int], message: str, *, remedy: str | None = None
) -> InvalidScraper:
    """The error that names the file and the line where these keys stand."""
    return read_yaml(header.path).error(keys, message, remedy=remedy)


def _fields(kind: type) -> set[str] | None:
    """The names that a type has; None when it takes any."""
    if issubclass(kind, msgspec.Struct):
        return set(kind.__struct_encode_fields__)
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    model: Mapping[str, Any] | None = getattr(kind, "model_fields", None)
    if model is None or getattr(kind, "model_config", {}).get("extra") == "allow":
        return None
    return {alias for name, field in model.items() for alias in (name, field.alias) if alias}


def _translate_error(header: YamlHeader, message: str, kind: type) -> InvalidScraper:
    """msgspec's complaint in the words of somebody who writes YAML."""
    match = _ERROR_PATH.fullmatch(message)
    what, keys = (match[1], _keys(match[2] or "")) if match else (message, ())
    if found := _UNKNOWN.fullmatch(what):
        return _unknown_key_error(header, keys, found[1], kind)
    if found := _MISSING.fullmatch(what):
        return yaml_error(header, keys, f"{_dotted((*keys, found[1]))} is missing.", remedy="Add it.")
    choices = _choices(kind, keys) if what.startswith("Invalid") else ""
    if choices:
        return yaml_error(header, keys, f"{_dotted(keys)} must be {choices}.")
    what = re.sub(r"`([^`]*)`", lambda found: _type_names(found[1]), what)
    what = what.replace("Expected", "it must be").replace(", got", ", not").replace("Invalid", "it is no valid")
    return yaml_error(header, keys, f"{_dotted(keys)} is not right: {what}.")


def _type_names(types: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in types.split(" | "))


def _unknown_key_error(header: YamlHeader, keys: Keys, name: str, kind: type) -> InvalidScraper:
    """What is near in name, or what has this name elsewhere."""
    paths = {_dotted(path): path[-1] for path, _ in _all_paths(inspect.type_info(kind), ()) if path}
    paths |= {key: key for key in HEADER_KEYS}
    close = difflib.get_close_matches(name, [str(last) for last in paths.values()], n=1, cutoff=0.6)
    full = [path for path, last in paths.items() if close and last == close[0]]
    beside = [path for path in full if path.rpartition(".")[0] == _dotted(keys)]
    hint = f"; did you mean {(beside or full)[0]}?" if full else "."
    return yaml_error(
        header, (*keys, name), f"there is no key {_dotted((*keys, name))}{hint}", remedy="Correct or remove it."
    )


def _choices(kind: type, keys: Keys) -> str:
    """The texts that may stand at this path."""
    texts = [text for path, given in _all_paths(inspect.type_info(kind), ()) if path == keys for text in given]
    return " or ".join(dict.fromkeys(texts))


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
    """The scraper of a YAML file, checked. What it names is looked for in `folder`.

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
        # A scraper belongs to one file: the next file of this kind gets one of its own.
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
