"""Standard input, output and error as a command finds them: some may be closed, full, or not UTF-8.

Notes that cannot be written are dropped, for they are only notes; data that cannot be written is an error.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from shoal.errors import OutputFailed

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

STDIN, STDOUT, STDERR = 0, 1, 2


def prepare_streams() -> None:
    """Called once in a process, before it opens anything.

    A closed descriptor is filled: otherwise the ledger or a socket would get its number, and what others write to
    standard output or error would go there. Writing to a standard output that was closed fails, as it should.
    """
    for number, access in ((STDIN, os.O_RDONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            _fill(number, access)
    if sys.stdin is None:
        sys.stdin = open(STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = _text(_Data(STDOUT, "wb", closefd=False), sys.stdout)
    sys.stderr = _text(_Notes(STDERR, "wb", closefd=False), sys.stderr)


def flush_output() -> BrokenPipeError | OutputFailed | None:
    """Hand the last data out. Returns why that failed: a BrokenPipeError when the reader has left, as `head` does."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputFailed) as error:
        # Python flushes once more when it ends, and would complain then.
        _fill(sys.stdout.fileno(), os.O_WRONLY)
        return error
    return None


def takes_unicode() -> bool:
    """Whether standard output can spell every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


class _Data(io.FileIO):
    """Standard output. Whoever writes to it learns in Shoal's words that it cannot be written."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OutputFailed(f"Standard output cannot be written: {reason}.") from None


class _Notes(io.FileIO):
    """Standard error. Nobody can be told that it is full or closed."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data))


def _text(file: io.FileIO, before: TextIO | None) -> TextIO:
    """The file as Python would open it. What the encoding lacks is spelled out rather than being the end of it all."""
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding="utf-8" if before is None else before.encoding,
        errors="backslashreplace",
        line_buffering=file.fileno() == STDERR or file.isatty(),
        write_through=bool(os.environ.get("PYTHONUNBUFFERED")),
    )


def _fill(number: int, access: int) -> None:
    opened = os.open(os.devnull, access)
    if opened != number:
        os.dup2(opened, number, inheritable=True)
        os.close(opened)
    else:
        os.set_inheritable(number, True)
