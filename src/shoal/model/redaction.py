"""Redaction of secrets in everything that is printed, logged, or stored with an error.

Redacted are passwords in addresses, values of parameters, fields and headers with secret names, bearer tokens, the
secrets that the caller passes, where they appear as words, and those that this process has put into requests, anywhere.
A fetched URL is stored unchanged and redacted when shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

HIDDEN = "***"
# Shorter values are often names and numbers; redacting them would make texts unreadable.
MIN_SECRET_LENGTH = 8

_SECRET_WORDS = {
    *("apikey", "auth", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jsessionid"),
    *("jwt", "pass", "passphrase", "passwd", "password", "passwords", "phpsessid", "pwd", "secret", "secrets"),
    *("sessionid", "sig", "signature", "sslpassword", "token", "tokens"),
}
# Words that make a following `key` a secret.
_SECRET_KEYS = {"access", "account", "api", "auth", "client", "encryption", "private", "secret", "signing"}
# The location of a secret is not a secret: `password_variable`, `token_file`.
_PLACES = {"variable", "var", "env", "file", "path"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# In the URL of a site the login ends before the path, which may contain an @. In other addresses passwords are often
# not escaped: everything up to the last @ may belong to them. The slashes may be mistyped, the scheme missing.
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
_FIELD = re.compile(
    r"([\"'])([A-Za-z_][\w.-]{0,99})\1(\s*:\s*)"
    r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|secret\([^)]*\)|\[[^\]]*\]?|\{[^}]*\}?|[^\s,}\]\"'\[{]+)"
)
# How a request stores a secret by name.
_SECRET_MARK = re.compile(r"\{\s*[\"']\$secret[\"']")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-(?:[\w-]*-)?(?:key|token|auth|secret|signature))(\s*:\s*)"
    r"([^\r\n\"']+)",
    re.IGNORECASE,
)
# Secrets that were put into requests, and how they look in a URL; longest first. With many of them a text is searched
# for their beginnings instead of for each.
_sent: list[str] = []
_sent_by_beginning: dict[str, list[str]] = {}
_FEW = 50
_QUERY_SAFE = "/?:@!$'()*,;"
_BEARER = re.compile(r"\b(bearer|basic)(\s+)(?=[A-Za-z._~+/=-]*\d|[A-Za-z0-9._~+/=-]{20})[A-Za-z0-9._~+/=-]{8,}", re.I)


@lru_cache(maxsize=4096)
def is_secret_name(name: str, *, bare_key: bool = False) -> bool:
    """Whether a value with this name is probably a secret: `api_key`, `X-Auth-Token`, `clientSecret`.

    `bare_key`: the name `key` alone counts too, because many services use it as a parameter.
    """
    words = [word.lower() for word in _WORD.findall(name)]
    if words and words[-1] in _PLACES:
        return False
    if not _SECRET_WORDS.isdisjoint(words):
        return True
    if "key" not in words:
        return False
    return (bare_key and words == ["key"]) or any(word in _SECRET_KEYS for word in words[: words.index("key")])


def hide_everywhere(*secrets: str) -> None:
    """Redact secrets from now on, whoever prints or stores a text: they are about to be put into requests."""
    forms = set(_sent)
    for secret in secrets:
        if len(secret) >= MIN_SECRET_LENGTH and secret not in forms:
            # Libraries differ in what they escape in a query.
            forms |= {secret, *(quote(secret, safe=safe) for safe in ("", "/", _QUERY_SAFE)), quote_plus(secret)}
    if len(forms) > len(_sent):
        _sent[:] = sorted(forms, key=len, reverse=True)
        _sent_by_beginning.clear()
        for form in _sent:
            _sent_by_beginning.setdefault(form[:MIN_SECRET_LENGTH], []).append(form)


def without_sent_secrets(text: str) -> str:
    """A text, such as the URL of a request, without the secrets that were put into it by name; the rest as it is."""
    for secret in tuple(_sent) if len(_sent) <= _FEW else _secrets_in(text):
        text = text.replace(secret, HIDDEN)
    return text


def _secrets_in(text: str) -> list[str]:
    beginnings = {text[at : at + MIN_SECRET_LENGTH] for at in range(len(text) - MIN_SECRET_LENGTH + 1)}
    found = beginnings & _sent_by_beginning.keys()
    return sorted((form for each in found for form in _sent_by_beginning[each] if form in text), key=len, reverse=True)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with secrets redacted, including `secrets` where they appear as words."""
    text = without_sent_secrets(text)
    if "@" in text:
        text = _LOGIN.sub(_without_login, text)
    # Most texts contain no name of a secret; one cheap search tells.
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
    """A JSON-like value with redacted texts and hidden fields of secret names."""
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
    """Settings as a ledger stores them: values with secret names, or named in `secret`, are replaced by a marker."""
    marked = set(secret)
    return {
        name: HIDDEN if name in marked or is_secret_field(name, value, bare_key=True) else _nested(value)
        for name, value in settings.items()
    }


def secret_texts(settings: Mapping[str, Any], secret: Iterable[str] = ()) -> tuple[str, ...]:
    """The texts that `without_secret_settings` hides and that are long enough to be redacted anywhere."""
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
    """Whether a field is a secret; a boolean or an empty value never is."""
    return (
        value is not None
        and not isinstance(value, bool)
        and value not in ("", HIDDEN)
        and not (isinstance(value, Mapping) and "$secret" in value)
        and isinstance(name, str)
        and name != "$secret"
        and is_secret_name(name, bare_key=bare_key)
    )


def _without_login(found: re.Match[str]) -> str:
    if found["before"] is not None:
        return f"{found['before']}:{HIDDEN}@"
    if not found["login"]:
        return found[0]
    user, colon, _ = found["login"][:-1].partition(":")
    # A login without a password may be a token.
    shown = f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
    return found["site"] + shown + found[0][found.end("login") - found.start() :]


def _without_parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={HIDDEN}" if is_secret_name(found[1], bare_key=True) else found[0]


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{HIDDEN}" if is_secret_name(found[1]) else found[0]


def _without_field(found: re.Match[str]) -> str:
    if found[4].startswith("secret(") or _SECRET_MARK.match(found[4]) is not None:
        return found[0]  # a name, not a value
    if found[4][0] in "[{" and not is_secret_name(found[2]):
        return found[0][: found.start(4) - found.start()] + _FIELD.sub(_without_field, found[4])
    if not is_secret_name(found[2]) or found[4] in ("null", "None", "true", "false", "True", "False", '""', "''"):
        return found[0]
    quote = found[4][0] if found[4][0] in "\"'" else found[1]
    return f"{found[1]}{found[2]}{found[1]}{found[3]}{quote}{HIDDEN}{quote}"
