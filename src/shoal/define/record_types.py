"""The fields of a record type and their types, for those who make tables of records."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

_FIELD_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    Decimal: "decimal",
    dt.datetime: "datetime",
    dt.date: "date",
    UUID: "uuid",
}


def record_field_types(record_type: Any) -> dict[str, str]:
    """The JSON fields of a record type and their types: `integer`, `datetime`, ...; `json` for what has parts."""
    try:
        hints = get_type_hints(record_type)
    except (NameError, TypeError):
        return {}
    names = dict.fromkeys(hints)
    if isinstance(record_type, type) and issubclass(record_type, msgspec.Struct):
        return {field.encode_name: _field_type(field.type) for field in msgspec.structs.fields(record_type)}
    if (model_fields := getattr(record_type, "model_fields", None)) is not None:
        names = dict.fromkeys(model_fields)
    return {name: _field_type(hints[name]) for name in names if name in hints and not _is_class_var(hints[name])}


def _field_type(hint: Any) -> str:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    found = {_plain_type(option) for option in options if option is not NoneType}
    return found.pop() if len(found) == 1 else "json"


def _plain_type(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _field_type(get_args(hint)[0])
    if get_origin(hint) is Literal:
        kinds = {_FIELD_TYPES.get(type(value), "json") for value in get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else "json"
    if isinstance(hint, type) and issubclass(hint, Enum):
        kinds = {_FIELD_TYPES.get(type(member.value), "json") for member in hint}
        return kinds.pop() if len(kinds) == 1 else "json"
    return _FIELD_TYPES.get(hint, "json")


def _is_class_var(hint: Any) -> bool:
    return get_origin(hint) is ClassVar
