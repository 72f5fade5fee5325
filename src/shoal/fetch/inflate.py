"""Inflater: bounded streaming decompression, for response bodies, sitemaps and URL files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

GZIP_MAGIC = b"\x1f\x8b"
STEP = 256 << 10
_GZIP_HEADER = 16 + zlib.MAX_WBITS
_GZIP_OR_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_NO_HEADER = -zlib.MAX_WBITS


class Inflater:
    """Decompresses gzip block by block, several members in a row too; no input makes it hold more than a step at once.

    `deflate` accepts zlib streams and bare deflate streams as well. Data behind the last member is ignored, as browsers
    do. The caller counts the bytes and stops iterating at its own limit.
    """

    def __init__(self, *, deflate: bool = False) -> None:
        self._deflate = deflate
        self._header = _GZIP_OR_ZLIB_HEADER if deflate else _GZIP_HEADER
        self._stream: Any = zlib.decompressobj(self._header)
        self._started = False
        self._between_members = b""
        self._ignores_rest = False

    @property
    def is_cut_short(self) -> bool:
        """Whether the input so far ends inside a member. No input at all is complete."""
        return self._started and not self._stream.eof

    def feed(self, block: bytes, step: int = STEP) -> Iterator[bytes]:
        """The decompressed bytes in pieces of at most `step`. Raises zlib.error for broken data."""
        has_output = False
        while (block or has_output) and not self._ignores_rest:
            if self._stream.eof:
                block = self._next_member(block)
                continue
            piece = self._decompress(block, step)
            # zlib may have taken in the whole block and still hold output that did not fit into the step.
            has_output = len(piece) == step and not self._stream.eof
            block = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                yield piece

    def _decompress(self, block: bytes, step: int) -> bytes:
        try:
            piece: bytes = self._stream.decompress(block, step)
        except zlib.error as error:
            if self._started or not self._deflate:
                raise
            # Some servers send a bare deflate stream, without the zlib header that HTTP requires.
            self._stream = zlib.decompressobj(_NO_HEADER)
            try:
                piece = self._stream.decompress(block, step)
            except zlib.error:
                raise error from None
        self._started = True
        return piece

    def _next_member(self, block: bytes) -> bytes:
        block = self._between_members + block
        self._between_members = b""
        if len(block) < len(GZIP_MAGIC):
            self._between_members = block
            return b""
        if block.startswith(GZIP_MAGIC):
            self._stream = zlib.decompressobj(self._header)
        else:
            self._ignores_rest = True
        return block
