"""Files that a handler writes itself, in the place of the setting `files`."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from shoal import storage
from shoal.errors import Permanent, ShoalError, StoreFailed

# An object's key is not longer: S3, Google Cloud Storage and Azure alike.
MAX_KEY_BYTES = 1024


class Files:
    """Writes files of a handler, which asks for it with a parameter `files: Files`.

    The place is the setting `files`: a folder, or `s3://bucket/prefix` (`gs://`, `az://`). A file that exists is
    replaced, because an attempt may be repeated. In a test give it a folder: `Files(tmp_path)`.
    """

    def __init__(self, place: str | Path | None) -> None:
        self._place = None if place is None else str(place).rstrip("/")

    async def write(self, name: str, content: str | bytes) -> str:
        """Write a whole file, or nothing, and return its path or address.

        `name`: a relative path without hidden parts. Raises Permanent for another name, for one that is too long or
        needs a folder where there is a file, and without the setting `files`; and StoreFailed when it cannot be
        written: then the item runs again later.
        """
        if self._place is None:
            raise Permanent("there is no folder for files: set `files`")
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or any(part.startswith(".") or not part for part in parts):
            raise Permanent(f"the name {name!r} of a file must be a relative path without hidden parts")
        data = content.encode() if isinstance(content, str) else content
        return await asyncio.to_thread(_write, self._place, name, data)


def _write(place: str, name: str, content: bytes) -> str:
    path = f"{place}/{name}"
    is_object = storage.is_object_url(path)
    if is_object and len(path.split("/", 3)[3].encode()) > MAX_KEY_BYTES:
        raise _wrong_name(name, f"with its prefix it has more than {MAX_KEY_BYTES} bytes; shorten it")
    place_exists = False
    try:
        if not is_object:
            Path(place).mkdir(parents=True, exist_ok=True)
            place_exists = True
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            if os.path.isdir(path):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        target = storage.open_target(path)
        try:
            target.write(content)
            target.commit()
        except BaseException:
            target.discard()
            raise
    except (OSError, ShoalError) as error:
        why = storage.name_problem(error if isinstance(error, OSError) else error.__cause__)
        if place_exists and why is not None:
            raise _wrong_name(name, why) from error
        raise StoreFailed(
            f"{path} could not be written: {error}", remedy="Free disk space, or choose another folder with `files`."
        ) from error
    return path


def _wrong_name(name: str, why: str) -> Permanent:
    shown = f"{name[:100]}..." if len(name) > 100 else name
    return Permanent(f"the file {shown!r} cannot be written: {why}")
