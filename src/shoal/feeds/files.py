"""Messages from standard input and from the files of a watched folder: one message a line.

A file is taken when it has not changed for two seconds; names that begin with a dot or end with `.part` or `.tmp` are
left alone. When all its lines are stored, it is moved to `done/`. If lines were refused, it is moved to `failed/`
instead, with the reasons beside it in `<name>.reason`; its other lines are stored. A file stays where it is until then,
so that after a crash it is read again, and duplicates are dropped. A lock on the file keeps two feeds apart.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import fcntl
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

from shoal.errors import FeedUnavailable, UsageError
from shoal.feeds.lines import BLOCK, BadLine, LineSplitter, Unpacker
from shoal.feeds.source import Message, Rejection
from shoal.feeds.url_file import wait_readable

SETTLE_SECONDS = 2.0
SCAN_SECONDS = 0.5
MAX_REASONS = 1_000
_PARTIAL = (".part", ".partial", ".tmp", ".swp", ".crdownload", "~")


class _Lines:
    """The messages of a text: its lines, without empty ones and comments. Those that cannot be decoded are refused."""

    def __init__(self, name: str) -> None:
        self._unpacker = Unpacker(name)
        self._splitter = LineSplitter()
        self._line = 0
        self.ready: deque[tuple[int, bytes | BadLine]] = deque()

    def feed(self, block: bytes) -> None:
        for part in self._unpacker.feed(block):
            self._add(self._splitter.feed(part))

    def finish(self) -> None:
        for part in self._unpacker.finish():
            self._add(self._splitter.feed(part))
        self._add(self._splitter.finish())

    def _add(self, lines: Sequence[str | BadLine]) -> None:
        for line in lines:
            self._line += 1
            if isinstance(line, BadLine):
                self.ready.append((self._line, line))
            elif (text := line.strip()) and text[0] != "#":
                self.ready.append((self._line, text.encode()))

    def take(self, limit: int, ref: object, prefix: str = "") -> list[Message]:
        """Up to `limit` messages; `ref` and `prefix` are the source's."""
        taken = [self.ready.popleft() for _ in range(min(limit, len(self.ready)))]
        return [
            Message(b"", ref, f"{prefix}line {line}", body.why)
            if isinstance(body, BadLine)
            else Message(body, ref, f"{prefix}line {line}")
            for line, body in taken
        ]


class StdinSource:
    """The lines of standard input. They cannot be returned: what was read and not stored is lost with the process."""

    name = "standard input"
    receives_ahead = False

    def __init__(self) -> None:
        self._file = FileIO(0, closefd=False)
        self._lines = _Lines(self.name)
        self._at_end = False

    @property
    def ended(self) -> bool:
        return self._at_end and not self._lines.ready

    async def open(self) -> None:
        """Nothing to connect."""

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        if not self._lines.ready and not self._at_end:
            if not stat.S_ISREG(os.fstat(0).st_mode):
                try:
                    await asyncio.wait_for(wait_readable(0), seconds)
                except TimeoutError:
                    return []
            try:
                block = self._file.read(BLOCK)
            except OSError as error:
                raise UsageError(f"Standard input cannot be read: {error.strerror}.") from error
            if block:
                self._lines.feed(block)
            else:
                self._at_end = True
                self._lines.finish()
        return self._lines.take(limit, None)

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        """Nobody waits for it."""

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        """There is nowhere to put them: the feed reports them."""

    async def pause(self) -> None:
        """What was read stays here."""

    async def is_empty(self) -> bool:
        return self.ended

    async def close(self) -> None:
        """Standard input stays open."""


class _File:
    """A file that is being read, locked. `unsettled`: its messages that are not yet stored."""

    def __init__(self, path: Path, file: FileIO) -> None:
        self.path = path
        self.file = file
        self.unsettled = 0
        self.refused = 0
        self.reasons: list[str] = []
        self.is_read = False
        self._lines = _Lines(path.name)

    def read(self, limit: int) -> list[Message]:
        """The next messages. A file that is damaged ends there, and is refused."""
        try:
            # One more than wanted: so the end is found with the last messages.
            while len(self._lines.ready) <= limit and not self.is_read:
                if block := self.file.read(BLOCK):
                    self._lines.feed(block)
                else:
                    self.is_read = True
                    self._lines.finish()
        except UsageError as error:
            self.is_read = True
            self.refuse(error.message)
        except OSError as error:
            self.is_read = True
            self.refuse(f"It cannot be read: {error.strerror}.")
        messages = self._lines.take(limit, self, f"{self.path.name} ")
        self.unsettled += len(messages)
        return messages

    @property
    def is_done(self) -> bool:
        return self.is_read and not self.unsettled and not self._lines.ready

    def refuse(self, reason: str) -> None:
        self.refused += 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)


class FolderSource:
    """The files that appear in a folder, one after another, the oldest first."""

    ended = False
    receives_ahead = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current: _File | None = None
        self._seen: dict[str, tuple[tuple[int, int, int], float]] = {}
        self.name = f"folder {folder}"

    async def open(self) -> None:
        try:
            for name in ("done", "failed"):
                (self._folder / name).mkdir(exist_ok=True)
                if not os.access(self._folder / name, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise UsageError(
                f"Files cannot be moved to {self._folder}/done and failed: {error.strerror}.",
                remedy="Create these folders, and give this user the right to write there.",
            ) from error

    async def receive(self, limit: int, seconds: float) -> list[Message]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            if self._current is None:
                self._current = await asyncio.to_thread(self._next_file, loop.time())
            if self._current is not None:
                if messages := await asyncio.to_thread(self._current.read, limit):
                    return messages
                if not await self._finish_if_done():
                    return []  # some of its messages are still to be stored
                continue
            if loop.time() >= deadline:
                return []
            await asyncio.sleep(min(SCAN_SECONDS, max(0.0, deadline - loop.time())))

    async def acknowledge(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.ref.unsettled -= 1
        await self._finish_if_done()

    async def reject(self, rejections: Sequence[Rejection]) -> None:
        for rejection in rejections:
            file: _File = rejection.message.ref
            file.unsettled -= 1
            file.refuse(f"{rejection.message.place.removeprefix(file.path.name).strip()}: {rejection.reason}")
        await self._finish_if_done()

    async def pause(self) -> None:
        """The rest of a file stays on disk."""

    async def is_empty(self) -> bool:
        return self._current is None and not await asyncio.to_thread(lambda: list(self._candidates()))

    async def close(self) -> None:
        if self._current is not None:
            self._current.file.close()
            self._current = None

    async def _finish_if_done(self) -> bool:
        """Move the current file away if all of it is stored; whether it was."""
        file = self._current
        if file is None or not file.is_done:
            return False
        self._current = None
        try:
            await asyncio.to_thread(self._move, file)
        except OSError as error:
            raise FeedUnavailable(
                f"{file.path} cannot be moved: {error.strerror}.", remedy="Free disk space, or correct the rights."
            ) from error
        finally:
            file.file.close()
        return True

    def _candidates(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._folder) as entries:
                yield from (
                    entry for entry in entries if _is_whole(entry.name) and entry.is_file(follow_symlinks=False)
                )
        except OSError as error:
            raise FeedUnavailable(f"The {self.name} cannot be read: {error.strerror}.") from error

    def _next_file(self, now: float) -> _File | None:
        """The oldest file that has not changed for a while, locked; None when there is none."""
        settled: list[tuple[int, str]] = []
        seen: dict[str, tuple[tuple[int, int, int], float]] = {}
        for entry in self._candidates():
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                state = (found.st_ino, found.st_size, found.st_mtime_ns)
                before = self._seen.get(entry.name)
                seen[entry.name] = before if before is not None and before[0] == state else (state, now)
                if now - seen[entry.name][1] >= SETTLE_SECONDS:
                    settled.append((found.st_mtime_ns, entry.name))
        self._seen = seen
        for _, name in sorted(settled):
            if (file := self._lock(self._folder / name)) is not None:
                return file
        return None

    def _lock(self, path: Path) -> _File | None:
        try:
            file = FileIO(path)
        except FileNotFoundError:
            return None
        except PermissionError:
            self._place(path, ["It cannot be read: permission denied."])
            return None
        except OSError as error:
            raise FeedUnavailable(f"{path} cannot be read: {error.strerror}.") from error
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another feed may have moved it away between the two calls.
            if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
                return _File(path, file)
        except OSError:  # another feed reads it, or has moved it
            pass
        file.close()
        return None

    def _move(self, file: _File) -> None:
        reasons = list(file.reasons)
        if file.refused > len(reasons):
            reasons.append(f"... and {file.refused - len(reasons)} more")
        self._place(file.path, reasons)

    def _place(self, path: Path, reasons: Sequence[str]) -> None:
        target = _free_name(self._folder / ("failed" if reasons else "done") / path.name)
        if reasons:
            # The reasons come first: a file in failed/ always has them.
            target.with_name(f"{target.name}.reason").write_text("\n".join(reasons) + "\n")
        os.rename(path, target)


def _is_whole(name: str) -> bool:
    return not name.startswith(".") and not name.lower().endswith(_PARTIAL)


def _free_name(path: Path) -> Path:
    """The path, with the time added when there is such a file already."""
    if not path.exists():
        return path
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%f")
    return path.with_name(f"{path.stem}-{stamp}{path.suffix}")
