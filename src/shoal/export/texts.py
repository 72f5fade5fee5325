"""Formats that are written record by record: JSON Lines, JSON, XML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from xml.sax.saxutils import escape, quoteattr

from shoal.errors import InvalidRecord
from shoal.export.formats import Format
from shoal.export.records import LineMaker, StoredRecord, decode_record
from shoal.export.tables import cell_text

# Names that every XML parser takes: ASCII and Latin-1 letters, no colon, not beginning with "xml".
_XML_NAME = re.compile(r"(?![xX][mM][lL])[A-Za-z_À-ÖØ-öø-ÿ][A-Za-z0-9_.À-ÖØ-öø-ÿ-]*")
# What XML 1.0 cannot contain, not even escaped.
_XML_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# A parser turns a bare carriage return into a line feed.
_XML_ESCAPES = {"\r": "&#13;"}


class TextWriter(Protocol):
    """Renders pages of results. `end` gives what is left, for a file without records too."""

    def __init__(self, lines: LineMaker) -> None: ...

    def page(self, rows: Sequence[StoredRecord]) -> bytes: ...

    def end(self) -> bytes: ...


class JsonLines:
    """Each record on a line, as it is stored."""

    def __init__(self, lines: LineMaker) -> None:
        self._line = lines.line

    def page(self, rows: Sequence[StoredRecord]) -> bytes:
        return "".join(f"{self._line(row)}\n" for row in rows).encode()

    def end(self) -> bytes:
        return b""


class JsonArray:
    """One array, each record on a line of its own."""

    def __init__(self, lines: LineMaker) -> None:
        self._line = lines.line
        self._before = "[\n"

    def page(self, rows: Sequence[StoredRecord]) -> bytes:
        if not rows:
            return b""
        text = self._before + ",\n".join(map(self._line, rows))
        self._before = ",\n"
        return text.encode()

    def end(self) -> bytes:
        return b"[]\n" if self._before == "[\n" else b"\n]\n"


class XmlDocument:
    """`<records>` with a `<record>` each: an element per field, a `<value>` per element of a list.

    Null is an empty element with `null="true"`. A field whose name is no XML name is `<field name="...">`.
    Characters that XML cannot contain become U+FFFD.
    """

    def __init__(self, lines: LineMaker) -> None:
        self._line = lines.line
        self._before = '<?xml version="1.0" encoding="UTF-8"?>\n<records>\n'

    def page(self, rows: Sequence[StoredRecord]) -> bytes:
        text = self._before + "".join(f"<record>{self._record(row)}</record>\n" for row in rows)
        self._before = ""
        return text.encode()

    def end(self) -> bytes:
        return f"{self._before}</records>\n".encode()

    def _record(self, row: StoredRecord) -> str:
        try:
            return "".join(_fields(decode_record(row, self._line(row))))
        except RecursionError:
            raise InvalidRecord(
                f"Record {row.n} of item {row.item} ({row.stage}) is nested too deeply for XML.",
                remedy="Export as JSONL.",
            ) from None


def _fields(record: Mapping[str, Any]) -> Iterator[str]:
    for name, value in record.items():
        if _XML_NAME.fullmatch(name):
            yield _element(name, "", value)
        else:
            yield _element("field", f" name={quoteattr(_text(name))}", value)


def _element(tag: str, attributes: str, value: Any) -> str:
    if value is None:
        return f'<{tag}{attributes} null="true"/>'
    if isinstance(value, dict):
        content = "".join(_fields(value))
    elif isinstance(value, list):
        content = "".join(_element("value", "", inner) for inner in value)
    else:
        content = escape(_text(cell_text(value)), _XML_ESCAPES)
    return f"<{tag}{attributes}>{content}</{tag}>"


def _text(text: str) -> str:
    return _XML_FORBIDDEN.sub("\ufffd", text)


TEXT_WRITERS: dict[Format, type[TextWriter]] = {
    Format.JSONL: JsonLines,
    Format.JSON: JsonArray,
    Format.XML: XmlDocument,
}
