"""Settings about alerts: whom to tell, of what, from when on. Addresses hold tokens and passwords, so they hide."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.config.sources import RawValue
from shoal.errors import InvalidSetting
from shoal.model.run import DeadLimit

ALERT_KINDS = ("finish", "failure", "stall", "errors")
_SERVICE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://\S+")
# Shorter parts of an address are names and numbers; blotting them out would make every text unreadable.
MIN_SECRET_LENGTH = 8


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
        """One text for each, fit for printing."""
        return [f"{urlsplit(url).scheme}://***" for url in self.urls]

    def secrets(self) -> tuple[str, ...]:
        """All that must not be printed, as a message may spell it; the longest first, so that no rest remains."""
        found = {spelling for url in self.urls for part in _parts(url) for spelling in (part, unquote(part))}
        return tuple(sorted(found, key=len, reverse=True))


def _parts(url: str) -> list[str]:
    """An address and what in it may be a token: many services write theirs where others have a host or a path."""
    _, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    password = authority.rpartition("@")[0].partition(":")[2]
    words = [word for word in re.split(r"[/?&#=:@]", rest) if len(word) >= MIN_SECRET_LENGTH and "." not in word]
    return [url, *([password] if password else []), *words]


class AddressesSetting(NamedTuple):
    """Addresses with spaces between them, or as a list. Which services there are is known to who sends."""

    def read(self, name: str, given: RawValue) -> Addresses:
        value = given.value.split() if isinstance(given.value, str) else given.value
        if not isinstance(value, list):
            value = [None]
        for number, url in enumerate(value, 1):
            if not isinstance(url, str) or not _SERVICE.fullmatch(url):
                # What was written is not repeated: it may be most of a token.
                raise InvalidSetting(
                    f"Address {number} of {name} (from {given.origin}) is no address; it must be {self}.",
                    remedy=f"Correct {given.origin}.",
                )
        return Addresses(tuple(value))

    def __str__(self) -> str:
        return "a service and what it needs, like json://example.com/hook, without spaces in it"


class AlertKindsSetting(NamedTuple):
    """Some words of a few, in any order, or none."""

    options: tuple[str, ...]

    def read(self, name: str, given: RawValue) -> str:
        words = given.value.lower().split() if isinstance(given.value, str) else given.value
        if not isinstance(words, list) or any(word not in self.options for word in words):
            raise given.invalid(name, str(self))
        return " ".join(option for option in self.options if option in words)

    def __str__(self) -> str:
        return f"some of {', '.join(self.options)}, with spaces between them, or empty"


class ShareSetting(NamedTuple):
    def read(self, name: str, given: RawValue) -> DeadLimit:
        limit = DeadLimit.parse(given.value) if isinstance(given.value, str) else None
        if limit is None or not limit.is_share:
            raise given.invalid(name, str(self))
        return limit

    def __str__(self) -> str:
        return "a share from 0% to 100%"
