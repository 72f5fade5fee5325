"""Reads of what was stored, in a file or an object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.storage.objects import (
    READ_BYTES,
    ObjectMissing,
    is_object_url,
    object_errors_explained,
    open_store,
    parse_object_url,
)


class StoredBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stored file or object. `etag` changes with the content; None for a file."""

    size: int
    etag: str | None = None


def stat(place: str) -> StoredBytes | None:
    """The size of a file or object; None if there is none."""
    if not is_object_url(place):
        path = Path(place)
        return StoredBytes(size=path.stat().st_size) if path.is_file() else None
    url = parse_object_url(place)
    try:
        with object_errors_explained(url):
            found = open_store(url).head(url.key)
    except ObjectMissing:
        return None
    return StoredBytes(size=found["size"], etag=found["e_tag"])


def read(place: str, *, offset: int = 0) -> Iterator[bytes]:
    """The bytes of a file or object from `offset`, in chunks. Raises UsageError if there is none."""
    if not is_object_url(place):
        yield from _read_file(Path(place), offset)
        return
    url = parse_object_url(place)
    with object_errors_explained(url):
        store = open_store(url)
        if offset >= store.head(url.key)["size"]:
            return
        options: dict[str, Any] = {"range": {"offset": offset}} if offset else {}
        yield from map(bytes, store.get(url.key, options=options).stream(min_chunk_size=READ_BYTES))


def delete(place: str) -> None:
    """Delete a file or object; nothing happens if there is none."""
    if not is_object_url(place):
        Path(place).unlink(missing_ok=True)
        return
    url = parse_object_url(place)
    try:
        with object_errors_explained(url):
            open_store(url).delete(url.key)
    except ObjectMissing:
        return


def _read_file(path: Path, offset: int) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", remedy="Check the path.") from error
    with file:
        file.seek(offset)
        while data := file.read(READ_BYTES):
            yield data
