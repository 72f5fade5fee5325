"""The settings of a declared scraper as the type that its code asks for, or one sentence with the file and the line."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from shoal.define.declared import COMMON, Declared
from shoal.define.yamlfile import read_yaml
from shoal.errors import InvalidScraper

T = TypeVar("T")
Keys = tuple[str | int, ...]
_PLACE = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
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


def typed_settings(declared: Declared, kind: type[T]) -> T:
    """What the file gives to its kind of scraper, as a Struct, a dataclass or a pydantic model.

    A type with fields `name` or `country` gets these too. Raises InvalidScraper; a key that the type does not have is
    an error, whatever the type itself thinks of such.
    """
    values = settings_for(declared, kind)
    fields = _fields(kind)
    if fields is not None and (unknown := [key for key in values if key not in fields]):
        raise _unknown(declared, (), unknown[0], kind)
    try:
        if (validate := getattr(kind, "model_validate", None)) is not None:
            return validate(values)  # type: ignore[no-any-return]
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as problem:
        raise _told(declared, str(problem), kind) from None
    except (ValueError, TypeError) as problem:
        details = getattr(problem, "errors", None)
        first = details()[0] if callable(details) else {"loc": (), "msg": str(problem)}
        keys = tuple(first["loc"])
        raise wrong(declared, keys, f"{_dotted(keys) or 'what it says'} is not right: {first['msg']}.") from None


def settings_for(declared: Declared, kind: type) -> dict[str, Any]:
    """The keys of the file that are for this type."""
    fields = _fields(kind) or ()
    own = {name: getattr(declared, name) for name in ("name", "country") if name in fields}
    return {**own, **declared.settings}


def wrong(declared: Declared, keys: Sequence[str | int], message: str, *, remedy: str | None = None) -> InvalidScraper:
    """The error that names the file and the line where these keys stand."""
    return read_yaml(declared.path).wrong(keys, message, remedy=remedy)


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


def _told(declared: Declared, message: str, kind: type) -> InvalidScraper:
    """msgspec's complaint in the words of somebody who writes YAML."""
    match = _PLACE.fullmatch(message)
    what, keys = (match[1], _keys(match[2] or "")) if match else (message, ())
    if found := _UNKNOWN.fullmatch(what):
        return _unknown(declared, keys, found[1], kind)
    if found := _MISSING.fullmatch(what):
        return wrong(declared, keys, f"{_dotted((*keys, found[1]))} is missing.", remedy="Add it.")
    choices = _choices(kind, keys) if what.startswith("Invalid") else ""
    if choices:
        return wrong(declared, keys, f"{_dotted(keys)} must be {choices}.")
    what = re.sub(r"`([^`]*)`", lambda found: _in_words(found[1]), what)
    what = what.replace("Expected", "it must be").replace(", got", ", not").replace("Invalid", "it is no valid")
    return wrong(declared, keys, f"{_dotted(keys)} is not right: {what}.")


def _in_words(types: str) -> str:
    return " or ".join(_TYPES.get(name, name) for name in types.split(" | "))


def _unknown(declared: Declared, keys: Keys, name: str, kind: type) -> InvalidScraper:
    """What is near in name, or what has this name elsewhere."""
    places = {_dotted(place): place[-1] for place, _ in _reachable(inspect.type_info(kind), ()) if place}
    places |= {key: key for key in COMMON}
    close = difflib.get_close_matches(name, [str(last) for last in places.values()], n=1, cutoff=0.6)
    full = [place for place, last in places.items() if close and last == close[0]]
    beside = [place for place in full if place.rpartition(".")[0] == _dotted(keys)]
    hint = f"; did you mean {(beside or full)[0]}?" if full else "."
    return wrong(
        declared, (*keys, name), f"there is no key {_dotted((*keys, name))}{hint}", remedy="Correct or remove it."
    )


def _choices(kind: type, keys: Keys) -> str:
    """The texts that may stand at this place."""
    texts = [text for place, given in _reachable(inspect.type_info(kind), ()) if place == keys for text in given]
    return " or ".join(dict.fromkeys(texts))


def _reachable(kind: inspect.Type, place: Keys) -> Iterator[tuple[Keys, tuple[str, ...]]]:
    """Every place below a type, with the texts that it is limited to."""
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _reachable(each, place)
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            if tag_field is not None:
                yield (*place, tag_field), (str(tag),)
            for field in fields:
                yield (*place, field.encode_name), ()
                yield from _reachable(field.type, (*place, field.encode_name))
        case inspect.DataclassType(fields=fields):
            for field in fields:
                yield (*place, field.encode_name), ()
                yield from _reachable(field.type, (*place, field.encode_name))
        case inspect.LiteralType(values=values):
            yield place, tuple(str(value) for value in values)


def _keys(path: str) -> Keys:
    """`.listing.json_paths[0]` as keys."""
    parts = re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", path)
    return tuple(name or (int(number) if number.isdigit() else number) for name, number in parts)


def _dotted(keys: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
