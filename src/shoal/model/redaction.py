"""One rule for what must not be printed, logged, or stored with an error.

Hidden are passwords of addresses, the values of parameters, fields and headers whose names sound secret, and bearer
tokens; besides these, the secrets that the caller knows, wherever they stand as words. A URL that is fetched is stored
as it is, but shown by this rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"
# Shorter ones are names and numbers; hiding them would make every text unreadable.
MIN_SECRET_LENGTH = 8

_SECRET_WORDS = {
    *("apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jsessionid"),
    *("jwt", "pass", "passphrase", "passwd", "password", "passwords", "phpsessid", "pwd", "secret", "secrets"),
    *("sessionid", "sig", "signature", "sslpassword", "token", "tokens"),
}
# What makes a secret of the `key` that follows.
_SECRET_KEYS = {"access", "account", "api", "auth", "client", "encryption", "private", "secret", "signing"}
# Where a secret is to be found is none: `password_variable`, `token_file`.
_PLACES = {"variable", "var", "env", "file", "path"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# In an address of a site a login ends before the path, which may hold an @ of its own. In other addresses people
# forget to escape what a password holds: all up to the last @ may belong to it. The slashes may be mistyped, the scheme
# missing.
_LOGIN = re.compile(
    r"(?P<site>(?:https?|wss?|ftps?|socks[45]h?)://)(?P<login>[^/?#\s\"'<>]*@)?[^\s\"'<>]*"
    r"|mailto:(?!/)[^\s\"'<>]*"
    r"|(?<![\w/])(?P<before>(?:[a-z][a-z0-9+.-]*(?::/{1,3}|//|:(?=[^\s@:]*:)))?[^:/?#\s@\"'(]*):(?!//)[^\s\"]{1,2000}@",
    re.IGNORECASE,
)
_HINT = re.compile("key|token|pass|pwd|secret|auth|cookie|credential|sess|sig|jwt|bearer|basic")
_QUERY = re.compile(r"(?<=[?&;])([A-Za-z_][\w.\-\[\]]{0,99})=([^&;\s\"'<>#]+)")
_PAIR = re.compile(
    r"(?<![\w.%-])([A-Za-z_][\w.-]{0,99})(\s?=\s?)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\"']?[^\s&;,\"'<>)\]}]+)"
)
_FIELD = re.compile(r"([\"'])([A-Za-z_][\w.-]{0,99})\1(\s*:\s*)(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,}\]\"']+)")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-(?:[\w-]*-)?(?:key|token|auth|secret|signature))(\s*:\s*)"
    r"([^\r\n\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|basic)(\s+)(?=[A-Za-z._~+/=-]*\d|[A-Za-z0-9._~+/=-]{20})[A-Za-z0-9._~+/=-]{8,}", re.I)


@lru_cache(maxsize=4096)
def is_secret_name(name: str, *, bare_key: bool = False) -> bool:
    """Whether what has this name is probably a secret: `api_key`, `X-Auth-Token`, `clientSecret`.

    `bare_key`: also what is called `key` and nothing else, as the parameter of many services is.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if words and words[-1] in _PLACES:
        return False
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    if "key" not in words:
        return False
    return (bare_key and words == ["key"]) or any(word in _SECRET_KEYS for word in words[: words.index("key")])


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without secrets, and without these where they stand as words."""
    if "@" in text:
        text = _LOGIN.sub(_without_login, text)
    # Most texts hold no word that could name a secret, and are left alone at the price of looking for one.
    if _HINT.search(text.lower()) is not None:
        if "=" in text:
            text = _PAIR.sub(_without_value, _QUERY.sub(_without_parameter, text))
        if ":" in text:
            text = _HEADER.sub(rf"\1\2{HIDDEN}", _FIELD.sub(_without_field, text))
        text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    for secret in secrets:
        if secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", HIDDEN, text)
    return text


def redacted_value(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A JSON-like value without secrets: texts are redacted, and fields whose names sound secret are hidden."""
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if is_secret_field(name, inner) else redacted_value(inner, secrets)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redacted_value(inner, secrets) for inner in value]
    return value


def without_secret_settings(settings: Mapping[str, Any], secret: Iterable[str] = ()) -> dict[str, Any]:
    """Settings as a ledger keeps them: what sounds secret, or is named in `secret`, is replaced by a marker."""
    marked = set(secret)
    return {
        name: HIDDEN if name in marked or is_secret_field(name, value, bare_key=True) else _nested(value)
        for name, value in settings.items()
    }


def secret_texts(settings: Mapping[str, Any], secret: Iterable[str] = ()) -> tuple[str, ...]:
    """The texts that `without_secret_settings` leaves out and that are long enough to be hidden wherever they stand."""
    found: set[str] = set()
    marked = set(secret)

    def collect(value: Any, *, hidden: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                collect(inner, hidden=hidden or is_secret_field(name, inner, bare_key=True))
        elif isinstance(value, list | tuple):
            for inner in value:
                collect(inner, hidden=hidden)
        elif hidden and isinstance(value, str) and len(value) >= MIN_SECRET_LENGTH:
            found.add(value)

    for name, value in settings.items():
        collect(value, hidden=name in marked or is_secret_field(name, value, bare_key=True))
    return tuple(sorted(found, key=len, reverse=True))


def _nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secret_settings(value)
    return [_nested(inner) for inner in value] if isinstance(value, list | tuple) else _text_or_value(value)


def _text_or_value(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value


def is_secret_field(name: object, value: Any, *, bare_key: bool = False) -> bool:
    """A switch or an empty value is no secret, whatever it is called."""
    return (
        value is not None
        and not isinstance(value, bool)
        and value not in ("", HIDDEN)
        and isinstance(name, str)
        and is_secret_name(name, bare_key=bare_key)
    )


def _without_login(found: re.Match[str]) -> str:
    if found["before"] is not None:
        return f"{found['before']}:{HIDDEN}@"
    if not found["login"]:
        return found[0]
    user, colon, _ = found["login"][:-1].partition(":")
    # A login without a password is a token as often as a name.
    shown = f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
    return found["site"] + shown + found[0][found.end("login") - found.start() :]


def _without_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={HIDDEN}" if is_secret_name(found[1], bare_key=True) else found[0]


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{HIDDEN}" if is_secret_name(found[1]) else found[0]


def _without_field(found: re.Match[str]) -> str:
    if not is_secret_name(found[2]) or found[4] in ("null", "None", "true", "false", "True", "False", '""', "''"):
        return found[0]
    quote = found[4][0] if found[4][0] in "\"'" else found[1]
    return f"{found[1]}{found[2]}{found[1]}{found[3]}{quote}{HIDDEN}{quote}"
