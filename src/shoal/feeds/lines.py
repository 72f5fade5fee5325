"""Lines of text from blocks of bytes: decompressed, without byte order mark, decoded, split. The boundaries of the
blocks make no difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from shoal.errors import UsageError
from shoal.fetch.body import GZIP_MAGIC, Inflater

BLOCK = 256 << 10
_BOM = b"\xef\xbb\xbf"
_HEAD = 4
# Enough for the largest payload and URL that the ledger accepts, in JSON with every character escaped.
MAX_LINE = 8 << 20


class Unpacker:
    """Decompresses blocks of bytes into blocks of limited size. `name` is the source's, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._head: bytes | None = b""
        self._gzip: Inflater | None = None
        self._at_start = b""
        self._started = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        if self._head is not None:
            # The first blocks of a pipe may be single bytes.
            self._head += block
            if len(self._head) < _HEAD:
                return
            block = self._begin()
        yield from self._unpacked(block)

    def finish(self) -> Iterator[bytes]:
        """The rest. Raises UsageError when compressed data ends too early."""
        if self._head is not None:
            yield from self._unpacked(self._begin())
        if self._gzip is not None and self._gzip.is_cut_short:
            raise self._damaged("its compressed data ends too early")
        if not self._started and self._at_start:
            yield self._at_start

    def _begin(self) -> bytes:
        head, self._head = self._head or b"", None
        if head.startswith(GZIP_MAGIC):
            self._gzip = Inflater()
        elif len(head) >= _HEAD and head[:2] in (b"\xff\xfe", b"\xfe\xff") and 0 in head[2:4]:
            raise UsageError(f"{self._name} is UTF-16 text.", remedy="Save it as UTF-8, one URL a line.")
        return head

    def _unpacked(self, block: bytes) -> Iterator[bytes]:
        if self._gzip is None:
            yield from self._strip_bom(block)
            return
        try:
            for part in self._gzip.feed(block, BLOCK):
                yield from self._strip_bom(part)
        except zlib.error:
            raise self._damaged("its compressed data is broken") from None

    def _strip_bom(self, block: bytes) -> Iterator[bytes]:
        if not self._started:
            block = self._at_start + block
            if len(block) < len(_BOM) and _BOM.startswith(block):
                self._at_start = block
                return
            self._started = True
            block = block.removeprefix(_BOM)
        if block:
            yield block

    def _damaged(self, why: str) -> UsageError:
        return UsageError(
            f"{self._name} is damaged: {why}.",
            remedy="Get the file again. A part may be stored already; duplicates are dropped.",
        )


class LineSplitter:
    """Splits blocks into lists of lines, without line ends.

    Lines end with LF, CRLF or CR, as editors count them. A line that cannot be decoded is a `BadLine` instead of a str.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._pending_cr = b""

    def feed(self, block: bytes) -> list[str | BadLine]:
        block = self._pending_cr + block
        # A CR at the end may be the first half of a CRLF.
        self._pending_cr = b"\r" if block.endswith(b"\r") else b""
        if b"\r" in block:
            block = block[: len(block) - len(self._pending_cr)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, end, rest = block.rpartition(b"\n")
        if not end:
            self._keep(rest)
            return []
        first, more, others = whole.partition(b"\n")
        self._keep(first)
        lines = self._take()
        if more:
            lines += _decoded(others)
        self._keep(rest)
        return lines

    def finish(self) -> list[str | BadLine]:
        """The last line, if it had no end."""
        held, self._pending_cr = self._pending_cr, b""
        if held or self._rest_size:
            return self._take()
        return []

    def _keep(self, part: bytes) -> None:
        """Keep a part of an unfinished line, up to the maximum length of a line."""
        if part and self._rest_size <= MAX_LINE:
            self._rest.append(part)
        self._rest_size += len(part)

    def _take(self) -> list[str | BadLine]:
        parts, size = self._rest, self._rest_size
        self._rest, self._rest_size = [], 0
        if size > MAX_LINE:
            return [BadLine(f"The line is longer than {MAX_LINE >> 20} MiB.")]
        return _decoded(b"".join(parts))


class BadLine:
    """A line that cannot be decoded, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def _decoded(lines: bytes) -> list[str | BadLine]:
    """Nearly all blocks are valid, so a block is decoded as a whole first."""
    try:
        text = lines.decode()
    except UnicodeDecodeError:
        return [_decode_line(line) for line in lines.split(b"\n")]
    if "\0" in text:
        return [_decode_line(line) for line in lines.split(b"\n")]
    return [*text.split("\n")]


def _decode_line(line: bytes) -> str | BadLine:
    if b"\0" in line:
        return BadLine(f"{_shown(line)} contains a NUL byte.")
    try:
        return line.decode()
    except UnicodeDecodeError:
        return BadLine(f"{_shown(line)} is not valid UTF-8.")


def _shown(line: bytes) -> str:
    return f"{line[:60]!a}"[1:]
