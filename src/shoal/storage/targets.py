"""Targets of a write: files that are replaced atomically, streams, objects."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from shoal.errors import UsageError
from shoal.model.redaction import redacted
from shoal.storage.objects import SCHEMES, ObjectTarget, check_bucket, is_object_url, parse_object_url

STDOUT = "-"
# Opens a file without a name; None where the system cannot.
O_TMPFILE: int | None = getattr(os, "O_TMPFILE", None)
_TMPFILE_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}


class Target(Protocol):
    """Takes bytes. `commit` makes them final; `discard` drops them, as far as the target can. One of both is the last
    call, and `discard` is called after a failed `commit` too."""

    @property
    def name(self) -> str: ...

    @property
    def folder(self) -> Path | None:
        """The folder for temporary files; None if the target has none."""

    def write(self, data: bytes) -> int: ...

    def tell(self) -> int:
        """The number of bytes written."""

    def commit(self) -> None: ...

    def discard(self) -> None: ...


def open_target(path: str, *, content_type: str | None = None) -> Target:
    """Open a target; `-` is standard output. Pipes and devices are written directly, files are replaced on commit.

    `s3://`, `gs://` and `az://` are objects; `content_type` is stored with them.
    """
    if path == STDOUT:
        return StreamTarget(1, "standard output")
    if is_object_url(path):
        return ObjectTarget(parse_object_url(path), content_type=content_type)
    if "://" in path:
        raise UsageError(
            f"{redacted(path)} is a URL that Shoal cannot write to.",
            remedy=f"Name a file, or a URL that begins with {', '.join(f'{scheme}://' for scheme in SCHEMES)}.",
        )
    with write_errors_explained(path):
        real = Path(os.path.realpath(path))
        if real.is_dir():
            raise UsageError(f"{path} is a folder.", remedy="Name a file in it, such as out.jsonl.")
        if real.exists() and not real.is_file():
            return StreamTarget(os.open(real, os.O_WRONLY), path)
        return AtomicFile(real)


def check_writable(path: str) -> None:
    """Raise what `open_target` would raise. A pipe is not opened: its reader would see an empty file."""
    if path == STDOUT:
        return
    if is_object_url(path):
        check_bucket(parse_object_url(path))
        return
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file() and not real.is_dir():
        with write_errors_explained(path):
            if not os.access(real, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    open_target(path).discard()


class _DescriptorTarget:
    """Writes to a file descriptor and counts the bytes."""

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
    """A pipe, device or standard output; `discard` cannot take back what was written."""

    folder: Path | None = None

    def commit(self) -> None:
        self.discard()

    def discard(self) -> None:
        if self._descriptor > 2:
            os.close(self._descriptor)


class AtomicFile(_DescriptorTarget):
    """A file that appears at `path` complete or not at all; it keeps the permissions of the file that it replaces.

    Until `commit` it is a file without a name where the system supports that, so that a killed process leaves nothing
    behind; elsewhere it is a hidden file in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder: Path | None = path.parent
        start = os.fsencode(path.name)[:200].decode("utf-8", "ignore")  # a name has 255 bytes at most
        self._temp_path = path.parent / f".{start}.{secrets.token_hex(4)}.part"
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
                    # With dst_dir_fd Python calls linkat with AT_SYMLINK_FOLLOW, which links the open file.
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


def name_problem(error: BaseException | None) -> str | None:
    """Why a file below a folder that exists cannot have its name, if the error says so; None for any other error."""
    match error:
        case OSError(errno=errno.ENAMETOOLONG):
            return "it is too long; shorten it: a part may have 255 bytes"
        case OSError(errno=errno.ENOTDIR | errno.EISDIR | errno.EEXIST):  # mkdir says EEXIST where a file is
            return "a file and a folder would have the same name; choose another"
        case _:
            return None


@contextmanager
def write_errors_explained(path: object) -> Iterator[None]:
    """Turn OSErrors of writing to `path` into a UsageError with a remedy."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        match error.errno:
            case errno.ENOENT | errno.ENOTDIR:
                folder = Path(str(path)).parent
                raise UsageError(
                    f"There is no folder {folder}.", remedy="Create it first, or choose another path."
                ) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise UsageError(
                    f"{path} cannot be written: {error.strerror}.",
                    remedy="Get write permission for its folder, or choose another path.",
                ) from error
            case _:
                raise UsageError(
                    f"Writing {path} failed: {error.strerror}.",
                    remedy="Free disk space or choose another path; an existing file was not changed.",
                ) from error


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
