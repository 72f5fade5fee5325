"""The formats of an export, and which of them a file name means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePath

import msgspec

from shoal.errors import UsageError
from shoal.storage import STDOUT
from shoal.storage.compression import Compression


class Format(StrEnum):
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    XML = "xml"
    PARQUET = "parquet"


FORMATS = ", ".join(Format)
_BY_SUFFIX = {**{f".{format}": format for format in Format}, ".ndjson": Format.JSONL}
_COMPRESSIONS = {f".{compression}": compression for compression in Compression}
_CONTENT_TYPES = {
    Format.JSONL: "application/x-ndjson",
    Format.JSON: "application/json",
    Format.CSV: "text/csv; charset=utf-8",
    Format.XML: "application/xml",
    Format.PARQUET: "application/vnd.apache.parquet",
}
_COMPRESSED_TYPES = {Compression.GZIP: "application/gzip", Compression.ZSTD: "application/zstd"}


class FileType(msgspec.Struct, frozen=True):
    """A format and how it is compressed."""

    format: Format
    compression: Compression | None = None

    @property
    def content_type(self) -> str:
        return _CONTENT_TYPES[self.format] if self.compression is None else _COMPRESSED_TYPES[self.compression]

    @property
    def is_binary(self) -> bool:
        return self.format is Format.PARQUET or self.compression is not None


def file_type(path: str, requested: str | None = None) -> FileType:
    """The requested format (`csv`, `csv.gz`), else that of the path's suffixes; JSON Lines for standard output.

    A suffix .gz or .zst of the path compresses a requested format too.
    """
    name = "stdout.jsonl" if path == STDOUT else PurePath(path).name.lower()
    base, compression = _split_compression(name)
    if requested is None:
        suffix = PurePath(base).suffix
        if suffix not in _BY_SUFFIX:
            raise UsageError(
                f"The name {path!r} does not say which format to write.",
                remedy=f"End it in {', '.join(_BY_SUFFIX)}, with .gz or .zst behind it if you like, or use --format.",
            )
        format = _BY_SUFFIX[suffix]
    else:
        wanted, requested_compression = _split_compression(requested.lower())
        if wanted not in list(Format):
            raise UsageError(
                f"{requested!r} is not a format that Shoal writes.",
                remedy=f"Use one of {FORMATS}, with .gz or .zst behind it if you like.",
            )
        format, compression = Format(wanted), requested_compression or compression
    if format is Format.PARQUET and compression is not None:
        raise UsageError("Parquet is compressed by itself.", remedy="Write .parquet without .gz or .zst.")
    return FileType(format, compression)


def _split_compression(name: str) -> tuple[str, Compression | None]:
    for suffix, compression in _COMPRESSIONS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), compression
    return name, None
