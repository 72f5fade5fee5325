"""Log events as lines of text: values are stringified and secrets redacted, then rendered as JSON or for a console."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from io import TextIOBase
from typing import Any, TextIO

import msgspec

from shoal.model.redaction import HIDDEN, is_secret_field, redacted, redacted_value
from shoal.observe.formatting import printable

_RESET, _DIM, _BOLD = "\x1b[0m", "\x1b[2m", "\x1b[1m"
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[1;31m"}
# Every line has these fields; a value of the same name gets a trailing underscore.
_RESERVED = ("time", "level")
# In JSON the level says this.
_ERROR_PREFIX = "Error:"
_SCALARS = (int, float, bool, type(None))
_encode = msgspec.json.Encoder().encode


class Redactor:
    """Turns the values of an event into JSON types and redacts secrets. Never raises."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    def redact(self, event: MutableMapping[str, Any]) -> dict[str, Any]:
        return {
            f"{name}_" if name in _RESERVED else name: HIDDEN if is_secret_field(name, value) else self._value(value)
            for name, value in event.items()
        }

    def _value(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if isinstance(value, str):
            return self._text(str(value))
        if isinstance(value, BaseException):
            return self._text(f"{type(value).__name__}: {value}")
        try:
            return redacted_value(
                self._escape_surrogates(msgspec.to_builtins(value, enc_hook=str, str_keys=True)), self._secrets
            )
        except Exception:
            return self._text(_safe_repr(value))

    def _escape_surrogates(self, value: Any) -> Any:
        """Lone surrogates cannot be encoded as UTF-8."""
        if isinstance(value, dict):
            return {self._escape_surrogates(name): self._escape_surrogates(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._escape_surrogates(inner) for inner in value]
        if isinstance(value, str) and not value.isascii():
            return value.encode(errors="backslashreplace").decode()
        return value

    def _text(self, text: str) -> str:
        return redacted(self._escape_surrogates(text), self._secrets)


def json_line(level: str, fields: dict[str, Any]) -> str:
    return _encode({"time": _now(), "level": level, "event": "", **fields}).decode() + "\n"


class JsonStream(TextIOBase):
    """A text stream that writes only JSON objects, one per line; any other line becomes the event of one.

    It replaces stderr when logs are JSON, so that a library's warning or an author's `print` has the format of the log.
    Each thread has its own partial line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._redactor = Redactor(())
        self._partial = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Never: JSON lines have no colours and no progress bars."""
        return False

    def write(self, text: str) -> int:
        *lines, self._partial.line = (getattr(self._partial, "line", "") + text).split("\n")
        if output := "".join(self._as_json(line) for line in lines if line.strip()):
            self._stream.write(output)
        return len(text)

    def event(self, level: str, text: str) -> None:
        """Write the text as one event, even if it has several lines."""
        self._stream.write(self._line(level, text))
        self._stream.flush()

    def flush(self) -> None:
        if getattr(self._partial, "line", ""):
            self.write("\n")
        self._stream.flush()

    def _as_json(self, line: str) -> str:
        if line.startswith("{"):
            with suppress(msgspec.DecodeError):
                msgspec.json.decode(line, type=dict)
                return line + "\n"
        return self._line("error" if line.startswith(_ERROR_PREFIX) else "warning", line)

    def _line(self, level: str, text: str) -> str:
        return json_line(level, self._redactor.redact({"event": text.removeprefix(_ERROR_PREFIX).strip()}))


def console_line(level: str, fields: dict[str, Any], *, colour: bool) -> str:
    """`2026-01-31T12:00:00.123Z info    the event  name=value other="two words"`"""
    others = {name: value for name, value in fields.items() if name not in ("event", "exception")}
    event = printable(str(fields.get("event", "")))
    if colour:
        shown = "".join(f" {_DIM}{name}={_RESET}{_format_value(value)}" for name, value in others.items())
        line = f"{_DIM}{_now()}{_RESET} {_COLOURS[level]}{level:<7}{_RESET} {_BOLD}{event}{_RESET}{shown}\n"
    else:
        line = f"{_now()} {level:<7} {event}{''.join(f' {n}={_format_value(v)}' for n, v in others.items())}\n"
    return line + "".join(f"    {printable(text)}\n" for text in str(fields.get("exception", "")).splitlines())


def has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_value(value: Any) -> str:
    """A word without quotes, anything else as JSON."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(" \"'="):
        return value
    return printable(_encode(value).decode())


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
