"""Files that a handler writes itself, in the place of the setting `files`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from shoal import storage
from shoal.errors import Permanent, ShoalError, StoreFailed


class Files:
    """Writes files of a handler, which asks for it with a parameter `files: Files`.

    The place is the setting `files`: a folder, or `s3://bucket/prefix` (`gs://`, `az://`). A file that exists is
    replaced, because an attempt may be repeated. In a test give it a folder: `Files(tmp_path)`.
    """

    def __init__(self, place: str | Path | None) -> None:
        self._place = None if place is None else str(place).rstrip("/")

    async def write(self, name: str, content: str | bytes) -> str:
        """Write a whole file, or nothing, and return its path or address.

        `name`: a relative path without hidden parts. Raises Permanent for another name and without the setting `files`,
        and StoreFailed when it cannot be written: then the item runs again later.
        """
        if self._place is None:
            raise Permanent("there is no folder for files: set `files`")
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or any(part.startswith(".") or not part for part in parts):
            raise Permanent(f"the name {name!r} of a file must be a relative path without hidden parts")
        path = f"{self._place}/{name}"
        await asyncio.to_thread(_write, path, content.encode() if isinstance(content, str) else content)
        return path


def _write(path: str, content: bytes) -> None:
    try:
        if not storage.is_object_url(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        target = storage.open_target(path)
        try:
            target.write(content)
            target.commit()
        except BaseException:
            target.discard()
            raise
    except (OSError, ShoalError) as error:
        raise StoreFailed(
            f"{path} could not be written: {error}", remedy="Free disk space, or choose another folder with `files`."
        ) from error
