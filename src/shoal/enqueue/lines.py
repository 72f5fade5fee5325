"""From blocks of bytes to lines of text, whatever the blocks cut apart."""

from __future__ import annotations

# Room for the largest payload and URL that the ledger takes, in JSON with every character escaped.
MAX_LINE = 8 << 20


class LineSplitter:
    """Fed with blocks, gives lists of lines without their ends.

    Lines end with LF, CRLF or CR, as editors count them. A line that is no text for an item is given as the reason:
    a `BadLine` instead of a str.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_size = 0
        self._held = b""

    def feed(self, block: bytes) -> list[str | BadLine]:
        block = self._held + block
        # A CR at the end may be the first half of a CRLF.
        self._held = b"\r" if block.endswith(b"\r") else b""
        if b"\r" in block:
            block = block[: len(block) - len(self._held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
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
        held, self._held = self._held, b""
        if held or self._rest_size:
            return self._take()
        return []

    def _keep(self, part: bytes) -> None:
        """Remember a part of an unfinished line, but never more of it than a line may have."""
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
    """A line that cannot be read, and why."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def _decoded(lines: bytes) -> list[str | BadLine]:
    """Nearly always the whole block is clean, so it is decoded at once."""
    try:
        text = lines.decode()
    except UnicodeDecodeError:
        return [_one(line) for line in lines.split(b"\n")]
    if "\0" in text:
        return [_one(line) for line in lines.split(b"\n")]
    return [*text.split("\n")]


def _one(line: bytes) -> str | BadLine:
    if b"\0" in line:
        return BadLine(f"{_shown(line)} contains a NUL byte.")
    try:
        return line.decode()
    except UnicodeDecodeError:
        return BadLine(f"{_shown(line)} is not valid UTF-8.")


def _shown(line: bytes) -> str:
    return f"{line[:60]!a}"[1:]
