"""Standard streams that may be closed, full, or not UTF-8.

Messages that cannot be written to stderr are dropped; data that cannot be written to stdout is an error.
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
    """Replace sys.stdout and sys.stderr; call it once, before the process opens a file.

    A closed descriptor is opened on /dev/null: otherwise the ledger or a socket would get its number and receive what
    is written to stdout or stderr. A closed stdout is opened read-only, so that writing to it fails.
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
    """Flush stdout. Returns the error that prevented it: BrokenPipeError when the reader has closed the pipe."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, OutputFailed) as error:
        # Python flushes again at exit and would report the error a second time.
        _fill(sys.stdout.fileno(), os.O_WRONLY)
        return error
    return None


def takes_unicode() -> bool:
    """Whether stdout can encode every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


class _Data(io.FileIO):
    """Standard output; a failed write raises OutputFailed."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror
            raise OutputFailed(f"Standard output cannot be written: {reason}.") from None


class _Notes(io.FileIO):
    """Standard error; a failed write is ignored, since there is nowhere to report it."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(memoryview(data))


def _text(file: io.FileIO, before: TextIO | None) -> TextIO:
    """Wrap the file as Python does; characters that the encoding lacks are written as escapes."""
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
