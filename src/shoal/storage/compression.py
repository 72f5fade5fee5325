"""Compression of what is written to a target: gzip and Zstandard, in constant memory."""

from __future__ import annotations

import importlib
import zlib
from enum import StrEnum
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.storage.targets import Target

# Deflate with the header and trailer of gzip. zlib writes no name and no time: the same data give the same bytes.
_GZIP_BITS = 31
GZIP_LEVEL = 6
ZSTD_LEVEL = 3


class Compression(StrEnum):
    """The value is the ending of a file name."""

    GZIP = "gz"
    ZSTD = "zst"


class CompressedTarget:
    """Compresses what is written to another target. `tell` counts compressed bytes."""

    def __init__(self, target: Target, compression: Compression) -> None:
        self._target = target
        self._compressor = _compressor(compression)

    @property
    def name(self) -> str:
        return self._target.name

    @property
    def folder(self) -> Path | None:
        return self._target.folder

    def write(self, data: bytes) -> int:
        if compressed := self._compressor.compress(data):
            self._target.write(compressed)
        return len(data)

    def tell(self) -> int:
        return self._target.tell()

    def commit(self) -> None:
        self._target.write(self._compressor.flush())
        self._target.commit()

    def discard(self) -> None:
        self._target.discard()


def require_compression(compression: Compression) -> None:
    """Raise UsageError when the package of a compression is not installed."""
    _compressor(compression)


def _compressor(compression: Compression) -> Any:
    if compression is Compression.GZIP:
        return zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise UsageError(
            "Zstandard needs the package zstandard, which is not installed.",
            remedy="Install it with `pip install 'shoal[zstd]'`, or end the name in .gz.",
        ) from None
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compressobj()
