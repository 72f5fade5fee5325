"""One event of the log as a line of text. Facts are made plain and blotted out first, then shown."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import MutableMapping
from typing import Any, TextIO

import msgspec

from shoal.model.redaction import HIDDEN, is_secret_field, redacted, redacted_value
from shoal.observe.words import printable

_RESET, _DIM, _BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[1;31m"}
# Facts of these names would hide the line's own.
_OURS = ("time", "level")
_PLAIN = (int, float, bool, type(None))
_encode = msgspec.json.Encoder().encode


class Cleaner:
    """Facts as plain values (text, numbers, lists, dicts) without secrets. Never raises, whatever it is given."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    def clean(self, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {
            f"{name}_" if name in _OURS else name: HIDDEN if is_secret_field(name, value) else self._value(value)
            for name, value in event.items()
        }

    def _value(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, str):
            return self._text(str(value))
        if isinstance(value, BaseException):
            return self._text(f"{type(value).__name__}: {value}")
        try:
            return redacted_value(
                self._writable(msgspec.to_builtins(value, enc_hook=str, str_keys=True)), self._secrets
            )
        except Exception:
            return self._text(_described(value))

    def _writable(self, value: Any) -> Any:
        """Lone surrogates cannot be written."""
        if isinstance(value, dict):
            return {self._writable(name): self._writable(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._writable(inner) for inner in value]
        if isinstance(value, str) and not value.isascii():
            return value.encode(errors="backslashreplace").decode()
        return value

    def _text(self, text: str) -> str:
        return redacted(self._writable(text), self._secrets)


def json_line(level: str, facts: dict[str, Any]) -> str:
    return _encode({"time": _now(), "level": level, "event": "", **facts}).decode() + "\n"


def console_line(level: str, facts: dict[str, Any], *, colour: bool) -> str:
    """`2026-01-31T12:00:00.123Z info    the event  name=value other="two words"`"""
    others = {name: value for name, value in facts.items() if name not in ("event", "exception")}
    event = printable(str(facts.get("event", "")))
    if colour:
        shown = "".join(f" {_DIM}{name}={_RESET}{_shown(value)}" for name, value in others.items())
        line = f"{_DIM}{_now()}{_RESET} {_COLOURS[level]}{level:<7}{_RESET} {_BOLD}{event}{_RESET}{shown}\n"
    else:
        line = f"{_now()} {level:<7} {event}{''.join(f' {n}={_shown(v)}' for n, v in others.items())}\n"
    return line + "".join(f"    {printable(text)}\n" for text in str(facts.get("exception", "")).splitlines())


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    """A word as it is, anything else as JSON."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(" \"'="):
        return value
    return printable(_encode(value).decode())


def _described(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
