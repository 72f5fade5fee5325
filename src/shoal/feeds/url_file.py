"""Items from a file of URLs or from standard input.

One URL a line. Empty lines and lines that start with `#` are skipped, spaces around a URL are dropped. A line that
starts with `{` is a JSON object with `url`, `key`, `payload`, `partition`, `priority`, `lane`, `stage`, `delay`, and
the request: `method`, `params`, `headers`, `json`, `form`, `body`. Of these `url` or `key` is required. The text is
UTF-8; it may be gzipped. An invalid line does not affect others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.feeds.lines import BLOCK, BadLine, LineSplitter, Unpacker
from shoal.model.item import NewItem

STDIN = "-"
MAX_REASONS = 100
# After so many items other tasks of the event loop get a turn, such as the transfer to the ledger.
_ITEMS_PER_TURN = 500
# The ledger's intake counts an entry without URL and key as invalid.
_INVALID_ITEM = NewItem()


class _ItemLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str | None = None
    key: str | None = None
    payload: dict[str, Any] | None = None
    partition: str | None = None
    priority: int | None = None
    lane: str | None = None
    stage: str | None = None
    delay: float | None = None
    method: str | None = None
    params: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    json: Any = None
    form: dict[str, Any] | None = None
    body: str | None = None


_decode_item_line = msgspec.json.Decoder(_ItemLine).decode
_FIELDS = tuple(name for name in _ItemLine.__struct_fields__ if name != "url")


def item_from_json(text: str, make: Callable[..., NewItem], what: str = "line") -> NewItem:
    """The item that a JSON object describes; `make` as for `UrlFile`. Raises UsageError, which calls it `what`."""
    try:
        found = _decode_item_line(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"The {what} is not a JSON object that describes an item: {error}.") from None
    fields = {name: value for name in _FIELDS if (value := getattr(found, name)) is not None}
    return make(found.url, **fields)


class UrlFile:
    """The items of a file or of standard input (`-`), read in constant memory.

    `make(url, **fields)` turns a line into an item; `fields` are those of a JSON line that are given and not null, and
    url is None when a JSON line has only a key. A line that it refuses with a UsageError becomes an entry that the
    intake counts as invalid, like every other invalid line. Iterate it with `for`, or with `async for`, which does not
    block the event loop while a pipe is empty. Raises UsageError for a file that cannot be read.
    """

    def __init__(self, path: str | Path, make: Callable[..., NewItem]) -> None:
        self.name = "standard input" if str(path) == STDIN else str(path)
        self._path = path
        self._make = make
        self._numbers = _LineNumbers()
        self._reasons: dict[int, str] = {}
        if str(path) != STDIN:
            _check_readable(self.name, path)

    def line_of(self, position: int) -> int:
        """The line (from 1) of the entry at this position (from 0) of the last iteration."""
        return self._numbers.line_at(position)

    def describe_error(self, position: int, message: str) -> str:
        """An error of the intake for users: with the line, and with the reader's reason if there is one."""
        return f"line {self.line_of(position)}: {self._reasons.get(position, message)}"

    def __iter__(self) -> Iterator[NewItem]:
        unpacker, splitter = self._begin()
        with self._opened() as file:
            while block := self._read(file):
                for part in unpacker.feed(block):
                    yield from self._items(splitter.feed(part))
        for part in unpacker.finish():
            yield from self._items(splitter.feed(part))
        yield from self._items(splitter.finish())

    async def __aiter__(self) -> AsyncIterator[NewItem]:
        count = 0
        async for lines in self._lines_when_ready():
            for item in self._items(lines):
                yield item
                count += 1
                if count % _ITEMS_PER_TURN == 0:
                    await asyncio.sleep(0)

    async def _lines_when_ready(self) -> AsyncIterator[Sequence[str | BadLine]]:
        unpacker, splitter = self._begin()
        with self._opened() as file:
            while block := await self._read_when_ready(file):
                for part in unpacker.feed(block):
                    yield splitter.feed(part)
        for part in unpacker.finish():
            yield splitter.feed(part)
        yield splitter.finish()

    def _begin(self) -> tuple[Unpacker, LineSplitter]:
        self._numbers, self._reasons = _LineNumbers(), {}
        return Unpacker(self.name), LineSplitter()

    def _items(self, lines: Sequence[str | BadLine]) -> Iterator[NewItem]:
        make, numbers = self._make, self._numbers
        for line in lines:
            if isinstance(line, str):
                text = line.strip()
                if not text or text[0] == "#":
                    numbers.skip()
                    continue
                try:
                    item = make(text) if text[0] != "{" else item_from_json(text, make)
                except UsageError as error:
                    item = self._invalid_item(error.message)
            else:
                item = self._invalid_item(line.why)
            numbers.count += 1
            yield item

    def _invalid_item(self, why: str) -> NewItem:
        # The intake also reports only its first errors.
        if len(self._reasons) < MAX_REASONS:
            self._reasons[self._numbers.count] = why
        return _INVALID_ITEM

    def _opened(self) -> FileIO:
        try:
            return FileIO(0, closefd=False) if str(self._path) == STDIN else FileIO(self._path)
        except OSError as error:
            raise _unreadable(self.name, error) from None

    def _read(self, file: FileIO) -> bytes:
        try:
            return file.read(BLOCK) or b""
        except OSError as error:
            raise _unreadable(self.name, error) from None

    async def _read_when_ready(self, file: FileIO) -> bytes:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            await wait_readable(file.fileno())
        return self._read(file)


class _LineNumbers:
    """Maps positions of entries to line numbers. Stores only runs of skipped lines, 16 bytes each."""

    def __init__(self) -> None:
        self.count = 0
        self._skipped = 0
        self._positions = array("q")
        self._skipped_before = array("q")

    def skip(self) -> None:
        self._skipped += 1
        if self._positions and self._positions[-1] == self.count:
            self._skipped_before[-1] = self._skipped
        else:
            self._positions.append(self.count)
            self._skipped_before.append(self._skipped)

    def line_at(self, position: int) -> int:
        run = bisect_right(self._positions, position)
        return position + 1 + (self._skipped_before[run - 1] if run else 0)


async def wait_readable(fd: int) -> None:
    """Wait until a pipe, a terminal or a socket has input, or has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:
        return  # files that cannot be polled, such as /dev/null, never block
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


def _check_readable(name: str, path: str | Path) -> None:
    """Fail before a run is created. The file is not opened, because a pipe must not be opened twice."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    if stat.S_ISDIR(mode):
        raise _unreadable(name, IsADirectoryError(errno.EISDIR, "it is a folder"))
    if not os.access(path, os.R_OK):
        raise _unreadable(name, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unreadable(name: str, error: OSError | ValueError) -> UsageError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return UsageError(
        f"The URLs cannot be read from {name}: {why[:1].lower()}{why[1:]}.",
        remedy="Name a file with one URL per line, or - for standard input.",
    )
