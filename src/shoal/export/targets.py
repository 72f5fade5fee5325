"""Where an export goes: a file that is replaced in one step, or a stream; and in which format.

Which format a file is written in: what was asked for, else what its name says.

Where an export goes: a file that is replaced in one step, or a stream such as standard output.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Protocol

from shoal.errors import UsageError
from shoal.model.redaction import redacted

STDOUT = "-"
# The flag for files without a name, where the system has them.
O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)
_TMPFILE_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


_BY_SUFFIX = {".jsonl": Format.JSONL, ".ndjson": Format.JSONL, ".csv": Format.CSV, ".parquet": Format.PARQUET}


def format_of(path: str, wanted: str | None = None) -> Format:
    """`wanted` if given, else by the suffix of the path; standard output gets JSON Lines."""
    if wanted is not None:
        if wanted not in list(Format):
            raise UsageError(
                f"{wanted!r} is no format that Shoal writes.", remedy=f"Use one of {', '.join(Format)}."
            ) from None
        return Format(wanted)
    if path == STDOUT:
        return Format.JSONL
    suffix = PurePath(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise UsageError(
            f"The name {path!r} does not say which format to write.",
            remedy=f"End it in {', '.join(_BY_SUFFIX)}, or use `shoal export` with --format {'|'.join(Format)}.",
        )
    return _BY_SUFFIX[suffix]


class ExportTarget(Protocol):
    """Takes bytes; `commit` makes them final, `discard` forgets them as far as that is possible."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path | None:
        """Where spare files may lie; None where there is no such place."""

    def write(self, data: bytes) -> int: ...

    def tell(self) -> int:
        """How many bytes were written."""

    def commit(self) -> None: ...

    def discard(self) -> None: ...


def open_target(path: str) -> ExportTarget:
    """`-` is standard output. Pipes and devices are written to directly, files are replaced."""
    if path == STDOUT:
        return StreamTarget(1, "standard output")
    if "://" in path:
        raise UsageError(
            f"{redacted(path)} is an address; an export is a file on this machine.",
            remedy="Name a file, or use - and pipe the records to a program that sends them there.",
        )
    with write_errors_explained(path):
        real = Path(os.path.realpath(path))
        if real.is_dir():
            raise UsageError(f"{path} is a folder.", remedy="Name a file in it, such as out.jsonl.")
        if real.exists() and not real.is_file():
            return StreamTarget(os.open(real, os.O_WRONLY), path)
        return AtomicFile(real)


def check_writable(path: str) -> None:
    """Refuse what `open_target` would refuse. A pipe is not opened: its reader would take that for the whole export."""
    if path == STDOUT:
        return
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file() and not real.is_dir():
        with write_errors_explained(path):
            if not os.access(real, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    open_target(path).discard()


class _DescriptorTarget:
    """A descriptor that bytes go to, and how many have gone there."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name = name
        self._descriptor = descriptor
        self._written = 0

    def write(self, data: bytes) -> int:
        with write_errors_explained(self.name):
            _write_all(self._descriptor, data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written


class StreamTarget(_DescriptorTarget):
    """What has been written cannot be taken back; it has no folder to put spare files into."""

    folder: Path | None = None

    def commit(self) -> None:
        self.discard()

    def discard(self) -> None:
        if self._descriptor > 2:
            os.close(self._descriptor)


class AtomicFile(_DescriptorTarget):
    """A file that appears at `path` whole or not at all.

    Until `commit` its bytes have no name where the system allows that, so that even a killed process leaves nothing
    behind; elsewhere they stand in a hidden file beside it. A file that is replaced hands on its permissions.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder: Path | None = path.parent
        self._temp_path = path.parent / f".{path.name[:200]}.{secrets.token_hex(4)}.part"
        descriptor, self._has_temp_name = self._open(path.parent)
        super().__init__(descriptor, str(path))

    def commit(self) -> None:
        with write_errors_explained(self.path):
            if self.path.exists():
                os.fchmod(self._descriptor, stat.S_IMODE(self.path.stat().st_mode))
            os.fsync(self._descriptor)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                if not self._has_temp_name:
                    # Only with a folder's descriptor does Python ask the kernel to follow this link to the open file.
                    os.link(f"/proc/self/fd/{self._descriptor}", self._temp_path.name, dst_dir_fd=folder)
                    self._has_temp_name = True
                os.replace(self._temp_path, self.path)
                self._has_temp_name = False
                os.fsync(folder)
            finally:
                os.close(folder)
        os.close(self._descriptor)

    def discard(self) -> None:
        os.close(self._descriptor)
        if self._has_temp_name:
            self._temp_path.unlink(missing_ok=True)

    def _open(self, folder: Path) -> tuple[int, bool]:
        if O_TMPFILE is not None and Path("/proc/self/fd").exists():
            try:
                return os.open(folder, O_TMPFILE | os.O_WRONLY, 0o666), False
            except OSError as error:
                if error.errno not in _TMPFILE_UNSUPPORTED:
                    raise
        return os.open(self._temp_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), True


@contextmanager
def write_errors_explained(path: object) -> Iterator[None]:
    """The system's complaints about writing to `path` as one sentence with its remedy."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                folder = Path(str(path)).parent
                raise UsageError(
                    f"There is no folder {folder}.", remedy="Make it first, or write elsewhere."
                ) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise UsageError(
                    f"{path} cannot be written: {error.strerror}.",
                    remedy="Get the right to write in its folder, or write elsewhere.",
                ) from error
            case _:
                raise UsageError(
                    f"Writing {path} failed: {error.strerror}.",
                    remedy="Free some space or write elsewhere; a file that was there before is as it was.",
                ) from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
