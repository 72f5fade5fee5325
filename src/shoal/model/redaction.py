"""Keeping passwords out of everything that is printed."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

POSTGRES_SCHEMES = ("postgresql://", "postgres://")
_URL_PASSWORD = re.compile(r"(://[^:/?#\s]*):\S*@")
# With what follows it, so that what stands before it stays joined to the rest.
_QUERY_SECRET = re.compile(r"([?&])(?:ssl)?password=[^&\s]*&?")
_QUERY_PASSWORD = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")


def redacted(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A text without the passwords of the addresses in it, and without these secrets where they stand as words."""
    text = _QUERY_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", text))
    for secret in secrets:
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text


def without_password(address: str) -> str:
    """An address to be pasted: whoever pastes it has the password elsewhere."""
    return _QUERY_SECRET.sub(r"\1", _URL_PASSWORD.sub(r"\1@", address)).rstrip("?&")


def secrets_of(ledger: str) -> tuple[str, ...]:
    """The password of a ledger's address, in every spelling a message may hold."""
    if not ledger.startswith(POSTGRES_SCHEMES):
        return ()
    try:
        address = urlsplit(ledger)
    except ValueError:
        return ()
    password = address.password
    # A password that equals a visible part of the address cannot be hidden by hiding the word.
    if not password or unquote(password) in (address.username, address.hostname, address.path[1:]):
        return ()
    return tuple({password, unquote(password)})
