"""What an item sends besides a plain GET: method, headers, parameters and body, with secrets by name."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from shoal.errors import InvalidItem
from shoal.model.json_text import PAYLOAD_BYTES, json_text
from shoal.model.redaction import is_secret_name
from shoal.model.url_key import MAX_KEY_BYTES

_MARK = "$secret"
_METHOD = re.compile(r"[A-Z]{1,32}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
Pairs = Mapping[str, Any] | Iterable[tuple[str, Any]]


class SecretName(msgspec.Struct, frozen=True):
    """A secret by name. Its value is looked up when a request is sent, and never stored. `format` has `{}` for it."""

    name: str
    format: str = "{}"

    def __repr__(self) -> str:
        return f"secret({self.name!r})"


def secret(name: str, *, format: str = "{}") -> SecretName:
    """The value of the environment variable `name` at the time a request is sent; `.env` counts too.

    `format` puts text around it: `secret("API_KEY", format="Bearer {}")`.
    """
    if _NAME.fullmatch(str(name)) is None:
        raise InvalidItem(f"{name!r} is not the name of an environment variable.")
    if format.count("{}") != 1:
        raise InvalidItem(f"format is {format!r}; it must contain {{}} once, where the secret goes.")
    return SecretName(name, format)


class ItemRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request of an item, as it is stored. Secrets are marked by name.

    `params`: parameters to add to the URL when it is sent, because they contain secrets. At most one of `json`, `form`,
    `body` and `body_base64` is given.
    """

    method: str = "GET"
    headers: dict[str, Any] = {}
    params: list[tuple[str, Any]] = []
    json: Any = msgspec.UNSET
    form: list[tuple[str, Any]] | None = None
    body: str | None = None
    body_base64: str | None = None

    @property
    def has_body(self) -> bool:
        return self.json is not msgspec.UNSET or any(
            body is not None for body in (self.form, self.body, self.body_base64)
        )

    def key(self, url: str) -> str | None:
        """The default key: method, URL and a digest of the body. None when the URL alone is the key."""
        if self.method == "GET" and not self.has_body:
            return None
        parts = [self.params, self.form, self.body, self.body_base64]
        if self.json is not msgspec.UNSET:
            parts.append([self.json])
        try:
            digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:16]
        except (TypeError, ValueError, OverflowError, RecursionError) as problem:
            raise InvalidItem(f"The request cannot be stored as JSON: {problem}.") from None
        key = f"{self.method} {url} {digest}"
        if len(key.encode()) > MAX_KEY_BYTES:
            key = f"{self.method} {hashlib.sha256(url.encode()).hexdigest()} {digest}"
        return key

    def encode_body(self, reveal: Callable[[SecretName], str]) -> tuple[bytes | None, str | None]:
        """The body to send, and the Content-Type that goes with it unless the headers have one."""
        if self.json is not msgspec.UNSET:
            return msgspec.json.encode(revealed(self.json, reveal)), "application/json"
        if self.form is not None:
            pairs = [(name, str(revealed(value, reveal))) for name, value in self.form]
            return urlencode(pairs).encode(), "application/x-www-form-urlencoded"
        if self.body is not None:
            return self.body.encode(), None
        return (None if self.body_base64 is None else b64decode(self.body_base64)), None


decode_request = msgspec.json.Decoder(ItemRequest).decode


def make_request(
    *,
    method: str | None = None,
    headers: Mapping[str, Any] | None = None,
    params: Pairs | None = None,
    json: Any = None,
    form: Pairs | None = None,
    body: str | bytes | None = None,
    stored: bool = True,
) -> tuple[ItemRequest | None, str]:
    """A request, None for a plain GET; and the query to add to its URL. Raises InvalidItem.

    The method is POST when a body is given and no method. `stored`: it is an item's, so secrets must be given by name.
    """
    given = [name for name, value in (("json", json), ("form", form), ("body", body)) if value is not None]
    if len(given) > 1:
        raise InvalidItem(f"{given[0]} and {given[1]} are given; a request has one body.")
    method = _checked_method(method, has_body=bool(given))
    plain, hidden = _split_params(params)
    parts: dict[str, Any] = {"method": method, "headers": _checked_headers(headers, stored=stored), "params": hidden}
    if json is not None:
        parts["json"] = _marked(json)
    elif form is not None:
        parts["form"] = list(_pairs(form, "form"))
    elif isinstance(body, str):
        parts["body"] = body
    elif isinstance(body, bytes):
        parts |= _stored_bytes(body)
    elif body is not None:
        raise InvalidItem(f"body must be text or bytes, not {type(body).__name__}; give a value as json=.")
    request = ItemRequest(**parts)
    return (None if request == ItemRequest() else request), urlencode(plain)


def with_query(url: str, query: str) -> str:
    """The URL with this added to its query, before a fragment."""
    address, hash_sign, fragment = url.partition("#")
    separator = "" if address.endswith(("?", "&")) else "&" if "?" in address else "?"
    return f"{address}{separator}{query}{hash_sign}{fragment}"


def request_text(request: ItemRequest) -> str:
    """The request as the JSON text that a ledger stores. Raises InvalidItem when it cannot be stored."""
    return json_text(request, "request", PAYLOAD_BYTES, InvalidItem)


def secret_mark(value: Any) -> SecretName | None:
    """The secret that a stored value stands for; None for a plain value."""
    if type(value) is dict and _MARK in value and value.keys() <= {_MARK, "format"}:
        return SecretName(value[_MARK], value.get("format", "{}"))
    return None


def revealed(value: Any, reveal: Callable[[SecretName], str]) -> Any:
    """A stored value with its secrets in place of their marks."""
    if (found := secret_mark(value)) is not None:
        return found.format.replace("{}", reveal(found))
    if isinstance(value, dict):
        return {name: revealed(inner, reveal) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [revealed(inner, reveal) for inner in value]
    return value


def _marked(value: Any) -> Any:
    """A value with marks in place of its secrets."""
    if isinstance(value, SecretName):
        return {_MARK: value.name} if value.format == "{}" else {_MARK: value.name, "format": value.format}
    if isinstance(value, Mapping):
        return {name: _marked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(inner) for inner in value]
    return value


def _checked_method(method: str | None, *, has_body: bool) -> str:
    if method is None:
        return "POST" if has_body else "GET"
    upper = str(method).upper()
    if _METHOD.fullmatch(upper) is None:
        raise InvalidItem(f"method is {method!r}; it must be a name such as GET, POST or PUT.")
    if has_body and upper in ("GET", "HEAD"):
        raise InvalidItem(f"A {upper} request has no body: use params=, or another method.")
    return upper


def _checked_headers(headers: Mapping[str, Any] | None, *, stored: bool) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in (headers or {}).items():
        if _HEADER.fullmatch(str(name)) is None:
            raise InvalidItem(f"{name!r} is not the name of a header.")
        if isinstance(value, SecretName):
            checked[name] = _marked(value)
        elif not isinstance(value, str) or any(letter in value for letter in "\r\n\0"):
            raise InvalidItem(f"The header {name} must be one line of text, or secret(...).")
        elif stored and is_secret_name(name) and name.lower() != "cookie":
            raise InvalidItem(
                f"The header {name} of an item would be stored as it is.",
                remedy=f'Write headers={{"{name}": secret("NAME_OF_A_VARIABLE")}}, or give it to the stage: '
                f"@scraper.stage(headers=...).",
            )
        else:
            checked[name] = value
    return checked


def _split_params(params: Pairs | None) -> tuple[list[tuple[str, str]], list[tuple[str, Any]]]:
    """Parameters that belong to the URL, and those with secrets, which are added when it is sent."""
    plain: list[tuple[str, str]] = []
    hidden: list[tuple[str, Any]] = []
    for name, value in _pairs(params or (), "params"):
        if isinstance(value, str):
            plain.append((name, value))
        else:
            hidden.append((name, value))
    return plain, hidden


def _pairs(given: Pairs, what: str) -> Iterable[tuple[str, Any]]:
    """Names with texts or marks. A list as a value repeats its name; None leaves it out."""
    listed: Any = given.items() if isinstance(given, Mapping) else given
    if isinstance(listed, str | bytes) or not isinstance(listed, Iterable):
        raise InvalidItem(f"{what} must be a dict or a list of pairs, not {type(given).__name__}.")
    for pair in listed:
        try:
            name, value = pair
        except (TypeError, ValueError):
            raise InvalidItem(f"{what} must be a dict or a list of pairs; {pair!r:.60} is no pair.") from None
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, SecretName):
                yield str(name), _marked(each)
            elif isinstance(each, bool):
                yield str(name), "true" if each else "false"
            elif isinstance(each, str | int | float):
                yield str(name), str(each)
            elif each is not None:
                raise InvalidItem(f"The field {name} of {what} must be text or a number, not {type(each).__name__}.")


def _stored_bytes(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode()}
