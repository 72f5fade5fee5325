"""The places that settings come from: variables, `.env`, TOML files. No rule about any single setting is here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from shoal.errors import InvalidSetting
from shoal.model.redaction import redacted

OriginKind = Literal["flag", "environment", ".env", "shoal.toml", "pyproject.toml", "code", "default"]
_NAME = r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*"
_VALUE = r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)"|([^'"\s](?:[^#]|(?<!\s)#)*|))"""
_DOTENV_LINE = re.compile(_NAME + _VALUE + r"\s*(?:#.*)?")
_SHOAL_LINE = re.compile(r"\s*(?:export\s+)?(?:SHOAL_|PG|DB_)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from: the kind of place, and its name there."""

    kind: OriginKind
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "default":
            return f"default for {self.name}" if self.name else "default"
        return self.name if self.kind in ("flag", "environment", "code") else f"{self.name} in {self.kind}"


class RawValue(NamedTuple):
    """A value as somebody wrote it, not yet checked."""

    value: Any
    origin: Origin

    def text(self, name: str, meaning: str = "a text") -> str:
        text = self.value.strip() if isinstance(self.value, str) else ""
        if not text or "\0" in text or text.encode(errors="replace").decode() != text:
            raise self.invalid(name, meaning)
        return text

    def invalid(self, name: str, meaning: str) -> InvalidSetting:
        return InvalidSetting(
            f"{name} is {redacted(repr(self.value))} (from {self.origin}); it must be {meaning}.",
            remedy=f"Correct {self.origin}.",
        )


class Variables:
    """The environment and, behind it, `.env`."""

    def __init__(self, environ: Mapping[str, str], dotenv: Mapping[str, str]) -> None:
        self._sources: tuple[tuple[OriginKind, Mapping[str, str]], ...] = ((".env", dotenv), ("environment", environ))

    def with_prefix(self, prefix: str) -> dict[str, RawValue]:
        """All variables with this prefix."""
        return {
            name: RawValue(value, Origin(kind, name))
            for kind, variables in self._sources
            for name, value in variables.items()
            if name.startswith(prefix)
        }

    def first(self, names: Iterable[str]) -> RawValue | None:
        """The first of these that has a value. An empty one counts as unset, as it does for PostgreSQL's own tools."""
        for kind, variables in reversed(self._sources):
            for name in names:
                if value := variables.get(name):
                    return RawValue(value, Origin(kind, name))
        return None


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{path.name} is not valid TOML: {error}.", remedy="Correct the file.") from None


def read_dotenv(path: Path) -> dict[str, str]:
    """KEY=VALUE lines, quoted or not, with comments and `export`. Nothing is expanded.

    The file is often shared with other programs: a line that cannot be understood is an error only if it is ours.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        match = _DOTENV_LINE.fullmatch(line)
        if match is not None:
            name, single, double, plain = match.groups()
            if double is not None:
                variables[name] = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), double)
            else:
                variables[name] = single if single is not None else plain.strip()
        elif _SHOAL_LINE.match(line):
            raise InvalidSetting(
                f"Line {number} of {path.name} cannot be understood.",
                remedy="Write NAME=value, in quotes if the value has spaces or a #.",
            )
    return variables


def read_text(path: Path) -> str:
    """The file's text, empty when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(
            f"{path.name} cannot be read: {os_error_text(error)}.", remedy="Correct the file or its permissions."
        ) from None


def os_error_text(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8 text"
