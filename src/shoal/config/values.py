"""Checks values against the annotated types of their fields, with msgspec; what msgspec cannot express is read here."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Meta

from shoal.config.sources import RawValue
from shoal.errors import InvalidSetting
from shoal.model.lane import MAX_LANE_DELAY, parse_rate
from shoal.model.redaction import MIN_SECRET_LENGTH, redacted
from shoal.model.run import DeadLimit

_BOOL_WORDS = {"true": True, "yes": True, "1": True, "on": True, "false": False, "no": False, "0": False, "off": False}
_SERVICE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S+")


class AlertKind(StrEnum):
    """What alerts are about; `notify_on` chooses some of them."""

    FINISH = "finish"
    FAILURE = "failure"
    STALL = "stall"
    ERRORS = "errors"
    COVERAGE = "coverage"
    SINK = "sink"


ALERT_KINDS = tuple(AlertKind)
# For `Meta(extra=...)` of a number: its unit, for messages.
BYTES, MEGABYTES, PERCENT, SECONDS = ({"unit": unit} for unit in ("bytes", "megabytes", "percent", "seconds"))
# For `Meta(pattern=...)`: what the system takes as a path or an argument.
PLAIN_TEXT = r"[^\0\ud800-\udfff]"


class CustomType(NamedTuple):
    """Annotation of a type that msgspec cannot check: the function that reads a value, and which values it accepts."""

    read: Callable[[str, RawValue], Any]
    accepted: str


def names_type(example: str) -> CustomType:
    """The type of one name or a list of names, each once."""
    accepted = f"a name or a list of names, such as {example}"

    def read(name: str, given: RawValue) -> tuple[str, ...]:
        value = [given.value] if isinstance(given.value, str) else given.value
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            raise given.invalid(name, accepted)
        return tuple(dict.fromkeys(value))

    return CustomType(read, accepted)


def setting_types(struct: type[msgspec.Struct], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The types of a struct's fields by name, with their annotations; `| None` is dropped."""
    return {field.name: _not_none(field.type) for field in msgspec.structs.fields(struct) if field.name not in without}


def read_value(name: str, kind: Any, given: RawValue) -> Any:
    """The checked value of a setting of this type. Raises InvalidSetting."""
    base, custom, _ = _parts(kind)
    if custom is not None:
        return custom.read(name, given)
    value, is_text = given.value, isinstance(given.value, str)
    if base is bool and isinstance(value, str | int):
        value = _BOOL_WORDS.get(str(value).strip().lower())
    elif is_text:
        value = value.strip().lower() if get_origin(base) is Literal else value.strip()
    try:
        return msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError:
        raise given.invalid(name, accepted_values(kind)) from None


def accepted_values(kind: Any) -> str:
    """Which values a type accepts; it completes the sentence "it must be"."""
    base, custom, meta = _parts(kind)
    if custom is not None:
        return custom.accepted
    if base is bool:
        return "true or false"
    if get_origin(base) is Literal:
        *others, last = get_args(base)
        return f"{', '.join(others)} or {last}"
    if meta.description is not None:
        return meta.description
    unit = (meta.extra or {}).get("unit")
    what = "a whole number" if base is int else "a number"
    return f"{what}{f' of {unit}' if unit else ''} from {meta.ge:.10g} to {meta.le:.10g}"


def shown_value(value: Any) -> Any:
    """A checked value without secrets, for printing."""
    if isinstance(value, DeadLimit | Addresses):
        return str(value)
    return redacted(value) if isinstance(value, str) else value


def _not_none(kind: Any) -> Any:
    options = get_args(kind)
    return next(option for option in options if option is not NoneType) if NoneType in options else kind


def _parts(kind: Any) -> tuple[Any, CustomType | None, Meta]:
    base, *notes = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    custom = next((note for note in notes if isinstance(note, CustomType)), None)
    return base, custom, next((note for note in notes if isinstance(note, Meta)), Meta())


class Addresses(msgspec.Struct, frozen=True):
    """Where alerts go, as apprise writes it: `mailto://...`, `slack://...`. Printed, each shows only its service."""

    urls: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.urls)

    def __str__(self) -> str:
        return " ".join(self.shown())

    def __repr__(self) -> str:
        return f"Addresses({self})"

    def shown(self) -> list[str]:
        """One text for each, without secrets."""
        return [f"{urlsplit(url).scheme}://***" for url in self.urls]

    def secrets(self) -> tuple[str, ...]:
        """All that must not be printed, quoted and unquoted; the longest first, so that no part of one remains."""
        found = {spelling for url in self.urls for part in _secret_parts(url) for spelling in (part, unquote(part))}
        return tuple(sorted(found, key=len, reverse=True))


def _secret_parts(url: str) -> list[str]:
    """An address and its parts that may be tokens: many services have theirs in place of a host or a path."""
    _, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    password = authority.rpartition("@")[0].partition(":")[2]
    words = [word for word in re.split(r"[/?&#=:@]", rest) if len(word) >= MIN_SECRET_LENGTH and "." not in word]
    return [url, *([password] if password else []), *words]


def _read_addresses(name: str, given: RawValue) -> Addresses:
    value = given.value.split() if isinstance(given.value, str) else given.value
    if not isinstance(value, list):
        value = [None]
    for position, url in enumerate(value, 1):
        if not isinstance(url, str) or not _SERVICE.fullmatch(url):
            # The value is not repeated: it may be most of a token.
            raise InvalidSetting(
                f"Address {position} of {name} (from {given.origin}) is not an address; "
                f"it must be {ADDRESSES.accepted}.",
                remedy=f"Correct {given.source}.",
            )
    return Addresses(tuple(value))


def _read_alert_kinds(name: str, given: RawValue) -> str:
    words = given.value.lower().split() if isinstance(given.value, str) else given.value
    if not isinstance(words, list) or any(word not in ALERT_KINDS for word in words):
        raise given.invalid(name, ALERT_KIND_WORDS.accepted)
    return " ".join(kind for kind in ALERT_KINDS if kind in words)


def _read_dead_limit(name: str, given: RawValue) -> DeadLimit:
    value = str(given.value) if type(given.value) is int else given.value
    limit = DeadLimit.parse(value) if isinstance(value, str) else None
    if limit is None:
        raise given.invalid(name, DEAD_LIMIT.accepted)
    return limit


def _read_share(name: str, given: RawValue) -> DeadLimit:
    limit = DeadLimit.parse(given.value) if isinstance(given.value, str) else None
    if limit is None or not limit.is_share:
        raise given.invalid(name, SHARE.accepted)
    return limit


def _read_rate(name: str, given: RawValue) -> str:
    rate = given.text(name, RATE.accepted)
    try:
        parse_rate(rate)
    except InvalidSetting as error:
        raise InvalidSetting(f"{name} (from {given.origin}): {error.message}", remedy=error.remedy) from None
    return rate


def _read_delay(name: str, given: RawValue) -> tuple[float, float]:
    ends = given.value if isinstance(given.value, list) else [given.value, given.value]
    if len(ends) != 2:
        raise given.invalid(name, DELAY.accepted)
    try:
        low, high = (read_value(name, _DelaySeconds, RawValue(end, given.origin)) for end in ends)
    except InvalidSetting:
        raise given.invalid(name, DELAY.accepted) from None
    if low > high:
        raise given.invalid(name, f"{DELAY.accepted}, the smaller first")
    return low, high


_DelaySeconds = Annotated[float, Meta(ge=0, le=MAX_LANE_DELAY, extra=SECONDS)]
ADDRESSES = CustomType(
    _read_addresses, "a service and what it needs, like json://example.com/hook, without spaces in it"
)
ALERT_KIND_WORDS = CustomType(
    _read_alert_kinds, f"some of {', '.join(ALERT_KINDS)}, with spaces between them, or empty"
)
DEAD_LIMIT = CustomType(_read_dead_limit, "a share from 0% to 100%, or a count of items")
SHARE = CustomType(_read_share, "a share from 0% to 100%")
RATE = CustomType(_read_rate, "starts per time, such as 2/s, 30/min or 1/10s")
DELAY = CustomType(_read_delay, f"{accepted_values(_DelaySeconds)}, or [least, most]")
