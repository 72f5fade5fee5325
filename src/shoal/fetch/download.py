"""Downloads: a body of any size goes to a file or an object without being in memory, complete or not at all.

The bytes are collected in a partial file under a key of the URL. When the connection breaks, or the process is killed,
the transfer continues there with a Range request, provided that the site confirms that the file is still the same one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import mimetypes
import os
import re
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from multidict import CIMultiDict

from shoal import storage
from shoal.errors import AttemptEnded, InvalidItem, Permanent, ShoalError, StoreFailed, Throttled, Transient
from shoal.fetch import urls
from shoal.fetch.body import inflater_of
from shoal.fetch.classify import classify_page
from shoal.fetch.page import Fetcher, Page, Request, RequestGate, ResponseStream, suspended
from shoal.model.redaction import without_sent_secrets
from shoal.model.url_key import key_hash, quoted, url_key
from shoal.threads import ThreadRunner

T = TypeVar("T")
DEFAULT_NAME = "{folder}/{sha256}{ext}"
NAME_FIELDS = ("sha256", "folder", "name", "stem", "ext", "host")
# Written and hashed at once, in a thread.
BLOCK_BYTES = 1 << 20
# A broken connection is continued within the attempt as long as it brought this much, and otherwise this many times.
MIN_PROGRESS = 256 << 10
MAX_BREAKS = 3
# A site that sends less than this in so many seconds keeps a slot for nothing.
SLOW_SECONDS = 60.0
SLOW_BYTES = 16 << 10
MAX_THREADS = 16
# Responses that are not the file are read up to this size, to tell what they mean.
MAX_ERROR_BYTES = 64 << 10
# Partial files that nobody continued are removed after this long.
STALE_SECONDS = 7 * 86_400.0
MAX_NAME_BYTES = 150

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_EXTENSION = re.compile(r"(\.tar)?\.[A-Za-z0-9]{1,10}$")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\<>:"|?*]+')
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_GZIP_TYPES = frozenset({"application/gzip", "application/x-gzip", "application/x-tgz", "application/x-compressed"})
_MIME_TYPES = mimetypes.MimeTypes()


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """A downloaded file: where it is, and what it is.

    `url`: as requested; `final_url`: after redirects; both without secrets given by name. `path`: the file, or the
    address of the object. `filename`: what the site calls it. `not_modified`: the site says that the file of an earlier
    download is still current.
    """

    url: str
    final_url: str
    path: str
    bytes: int
    sha256: str
    content_type: str
    filename: str
    status: int
    etag: str | None = None
    last_modified: str | None = None
    not_modified: bool = False


class _Finished(msgspec.Struct, frozen=True):
    """What is remembered of a complete download, to ask the site whether it is still current."""

    download: Download
    template: str


class _PartialState(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a partial file usable: which file of the site it is a part of."""

    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None

    def continues(self, other: _PartialState, total: int | None) -> bool:
        """Whether a part that the site sends belongs to this file."""
        return (
            (self.total is None or total is None or self.total == total)
            and (other.etag is None or other.etag == self.etag)
            and (other.last_modified is None or other.last_modified == self.last_modified)
        )

    @property
    def validator(self) -> str | None:
        """What If-Range accepts: a weak ETag does not promise equal bytes."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.last_modified


_decode_state = msgspec.json.Decoder(_PartialState).decode
_decode_finished = msgspec.json.Decoder(_Finished).decode


class _Broken(Exception):
    """The connection broke within the body."""

    def __init__(self, error: Transient) -> None:
        super().__init__(str(error))
        self.error = error


class Downloads:
    """Saves downloads below `place`: a folder, or `s3://bucket/prefix` (`gs://`, `az://`).

    `partial`: the folder of unfinished files. `offline`: only earlier downloads are given out, nothing is requested.
    """

    def __init__(self, place: str, *, partial: Path | None = None, offline: bool = False) -> None:
        is_object = storage.is_object_url(place)
        self.place = place.rstrip("/") if is_object else str(Path(place).expanduser())
        self._partial = partial or Path(".shoal/files" if is_object else self.place) / ".partial"
        self._offline = offline
        self._is_ready = False
        # Not the loop's own threads, which resolve host names.
        self._threads = ThreadRunner("shoal-download", max_threads=MAX_THREADS)

    async def save(
        self,
        fetcher: Fetcher,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        name: str = DEFAULT_NAME,
        max_bytes: int | None = None,
        sha256: str | None = None,
        deadline: asyncio.Timeout | None = None,
    ) -> Download:
        """Download a URL. Raises AttemptEnded as a page would, and StoreFailed when the file cannot be written.

        While the body arrives, `deadline` stands still: a large file needs its time, but it must keep arriving.
        """
        check_template(name)
        if request.method.upper() != "GET" or request.body is not None:
            raise Permanent(f"{request.method} {quoted(request.url)} cannot be saved: downloads are GET requests")
        try:
            key = key_hash(url_key(request.url)).hex()
        except InvalidItem as error:
            raise Permanent(error.message) from None
        transfer = _Transfer(self._threads, self.place, request, name, max_bytes, sha256, deadline)
        partial: _PartialFile = await transfer.in_thread(self._open, key)
        try:
            if self._offline:
                return await transfer.earlier(partial)
            return await transfer.run(partial, fetcher, gate, jar)
        finally:
            await asyncio.shield(self._threads.run(partial.close))

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    def _open(self, key: str) -> _PartialFile:
        with _write_errors(self._partial):
            if not self._is_ready:
                _remove_stale(self._partial)
                if storage.is_object_url(self.place) and not self._offline:
                    self._check_bucket()
                self._is_ready = True
            return _PartialFile(self._partial / key[:2], key)

    def _check_bucket(self) -> None:
        """A wrong bucket or login is reported before a large file has been fetched for nothing."""
        try:
            storage.check_writable(f"{self.place}/check")
        except ShoalError as error:
            raise StoreFailed(f"Downloads cannot be stored: {error.message}", remedy=error.remedy) from error


class _Transfer:
    """One download: the requests it takes until the file is complete."""

    def __init__(
        self,
        threads: ThreadRunner,
        place: str,
        request: Request,
        template: str,
        max_bytes: int | None,
        sha256: str | None,
        deadline: asyncio.Timeout | None,
    ) -> None:
        self._threads = threads
        self._place = place
        self._request = request
        self._template = template
        self._max_bytes = max_bytes
        self._sha256 = sha256.lower() if sha256 else None
        self._deadline = deadline
        self._window_began = 0.0
        self._window_bytes = 0

    async def run(self, partial: _PartialFile, fetcher: Fetcher, gate: RequestGate | None, jar: str | None) -> Download:
        finished = await self._usable_earlier(partial)
        await self.in_thread(partial.prepare)
        breaks = 0
        while True:
            before = partial.received
            offset = partial.offset
            request = self._conditional(partial, offset, finished)
            try:
                async with fetcher.stream(request, gate=gate, jar=jar) as response:
                    if response.status == 304 and finished is not None and not offset:
                        url = without_sent_secrets(self._request.url)
                        return msgspec.structs.replace(finished, url=url, not_modified=True)
                    if response.status == 416 and offset:
                        await self.in_thread(partial.reset)
                        continue
                    await self._check_status(response, gate)
                    await self._receive(response, partial, offset)
            except _Broken as broken:
                breaks = 0 if partial.received - before >= MIN_PROGRESS else breaks + 1
                if breaks > MAX_BREAKS or partial.state.validator is None:
                    raise broken.error from None
                await asyncio.sleep(0.2 * 2**breaks)
                continue
            except Permanent:
                await self.in_thread(partial.reset)
                raise
            return await self._finish(response, partial)

    async def earlier(self, partial: _PartialFile) -> Download:
        """The file of an earlier download. Raises Permanent when there is none."""
        finished = await self._usable_earlier(partial)
        if finished is None:
            raise Permanent(f"{self._request.url} has not been downloaded; run once without --from-store")
        return finished

    async def in_thread(self, function: Any, *arguments: Any) -> Any:
        """Run a function on a thread while the deadline stands still."""
        with suspended(self._deadline):
            return await self._threads.run(lambda: function(*arguments))

    async def _usable_earlier(self, partial: _PartialFile) -> Download | None:
        finished = partial.finished
        if finished is None or finished.template != self._template:
            return None
        download = finished.download
        if self._sha256 is not None and download.sha256 != self._sha256:
            return None
        if not download.path.startswith(self._place):
            return None  # the files go to another place now
        size = await self.in_thread(_stored_size, download.path)
        return download if size == download.bytes else None

    def _conditional(self, partial: _PartialFile, offset: int, finished: Download | None) -> Request:
        headers = CIMultiDict(self._request.headers)
        headers["Accept-Encoding"] = "identity"
        if offset:
            headers["Range"], headers["If-Range"] = f"bytes={offset}-", partial.state.validator or ""
        elif finished is not None:
            if finished.etag:
                headers["If-None-Match"] = finished.etag
            elif finished.last_modified:
                headers["If-Modified-Since"] = finished.last_modified
        return Request(url=self._request.url, headers=headers)

    async def _check_status(self, response: ResponseStream, gate: RequestGate | None) -> None:
        """Raises what a page with this status would end its attempt with."""
        if 200 <= response.status < 300:
            return
        body = b""
        while len(body) < MAX_ERROR_BYTES and (piece := await response.read()):
            body += piece
        ended = classify_page(_page(response, body)) or Permanent(f"{response.status} is not a file")
        if isinstance(ended, Throttled) and gate is not None:
            await gate.on_throttled(ended)
        raise ended

    async def _receive(self, response: ResponseStream, partial: _PartialFile, offset: int) -> None:
        """Write the body behind `offset`, or all of it if the site sends all."""
        headers = response.headers
        state = _PartialState(etag=headers.get("ETag"), last_modified=headers.get("Last-Modified"))
        continues = response.status == 206
        if continues:
            start, total = _content_range(headers.get("Content-Range", ""))
            if start != offset or not partial.state.continues(state, total):
                await self.in_thread(partial.reset)
                raise _Broken(Transient(f"{quoted(self._request.url)}: the site sent another part than asked for"))
        else:
            total = response.content_length
        encoding = headers.get("Content-Encoding", "").strip().lower()
        inflater = None
        if encoding not in ("", "identity") and not _is_gzip_file(response, encoding):
            if continues:
                await self.in_thread(partial.reset)
                raise _Broken(Transient(f"{quoted(self._request.url)}: a part of the file came compressed"))
            # Its position in the decompressed file is unknown to the site, so it cannot be continued.
            inflater, total, state = inflater_of(headers, response.url), None, _PartialState()
        self._check_size(total)
        if not continues:
            state = msgspec.structs.replace(state, total=total)
            await self.in_thread(partial.begin, state)
        with suspended(self._deadline):
            await self._write_body(response, partial, inflater, total)

    async def _write_body(
        self, response: ResponseStream, partial: _PartialFile, inflater: Any, total: int | None
    ) -> None:
        writer = _BlockWriter(self._threads, partial, self._check_size)
        self._window_began, self._window_bytes = time.monotonic(), 0
        try:
            while chunk := await self._read(response):
                for piece in inflater.feed(chunk) if inflater is not None else (chunk,):
                    await writer.add(piece)
            if inflater is not None and inflater.is_cut_short:
                raise Transient(f"{quoted(self._request.url)}: the compressed body ends too early")
        except zlib.error as error:
            raise Transient(f"{quoted(self._request.url)}: the compressed body is broken ({error})") from None
        finally:
            await writer.flush()
        if total is not None and partial.size != total:
            size = partial.size
            await self._threads.run(partial.reset)
            raise Transient(f"{quoted(self._request.url)} has {size} bytes, but {total} were announced")

    async def _read(self, response: ResponseStream) -> bytes:
        try:
            chunk = await response.read()
        except Transient as error:
            raise _Broken(error) from None
        now = time.monotonic()
        self._window_bytes += len(chunk)
        if now - self._window_began > SLOW_SECONDS:
            if chunk and self._window_bytes < SLOW_BYTES:
                raise Transient(
                    f"{quoted(self._request.url)} arrives too slowly: {self._window_bytes} bytes in {SLOW_SECONDS:g} s"
                )
            self._window_began, self._window_bytes = now, 0
        return chunk

    async def _finish(self, response: ResponseStream, partial: _PartialFile) -> Download:
        digest = partial.sha256
        headers = response.headers
        content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if self._sha256 is not None and digest != self._sha256:
            await self.in_thread(partial.reset)
            raise Transient(f"{quoted(self._request.url)} has the sha256 {digest}, not {self._sha256}")
        if content_type in _HTML and partial.size < MAX_ERROR_BYTES:
            body = await self.in_thread(partial.read)
            if (ended := classify_page(_page(response, body))) is not None:
                await self.in_thread(partial.reset)
                raise ended
        filename = _filename(headers.get("Content-Disposition"), response.url)
        download = Download(
            url=without_sent_secrets(self._request.url),
            final_url=without_sent_secrets(response.url),
            path=_place(self._place, self._template, filename, content_type, digest, response.url),
            bytes=partial.size,
            sha256=digest,
            content_type=content_type,
            filename=filename,
            status=200,
            etag=headers.get("ETag"),
            last_modified=headers.get("Last-Modified"),
        )
        with suspended(self._deadline):
            return await self._threads.run_cancellable(
                lambda is_cancelled: partial.store(download, self._template, is_cancelled)
            )

    def _check_size(self, size: int | None) -> None:
        if size is not None and self._max_bytes is not None and size > self._max_bytes:
            raise Permanent(f"{quoted(self._request.url)} is larger than {self._max_bytes} bytes")


class _BlockWriter:
    """Writes pieces in blocks on a thread, one behind the other, while the next block arrives."""

    def __init__(self, threads: ThreadRunner, partial: _PartialFile, check_size: Callable[[int], None]) -> None:
        self._threads = threads
        self._partial = partial
        self._check_size = check_size
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._size = partial.size
        self._writing: asyncio.Task[None] | None = None

    async def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting >= BLOCK_BYTES:
            await self._start()

    async def flush(self) -> None:
        """Write what is left, and wait until everything is written."""
        if self._pieces:
            await self._start()
        await self._finish()

    async def _start(self) -> None:
        await self._finish()
        block = b"".join(self._pieces)
        self._size += len(block)
        self._check_size(self._size)
        # Forgotten first: a cancelled attempt flushes again while the thread still writes.
        self._pieces, self._waiting = [], 0
        self._writing = asyncio.create_task(self._threads.run(lambda: self._partial.write(block)))

    async def _finish(self) -> None:
        if self._writing is not None:
            # A cancelled write would leave a gap before the next one.
            await asyncio.shield(self._writing)
            self._writing = None


class _PartialFile:
    """The unfinished file of one URL, locked; another process that wants the same URL gets a file of its own.

    Its methods block. `size`: bytes in the file; `received`: bytes written by this process.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._descriptor = -1
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._root = folder.parent
        self._data = folder / f"{key}.part"
        self._state_file = folder / f"{key}.json"
        self._finished_file = folder / f"{key}.done"
        self._descriptor = _open_locked(self._data)
        self._is_shared = self._descriptor >= 0
        if not self._is_shared:
            self._data = folder / f"{key}.{secrets.token_hex(4)}.part"
            self._descriptor = os.open(self._data, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self.state = _PartialState()
        self.size = 0
        self.received = 0
        self.finished = _read(self._finished_file, _decode_finished)
        self._hash = hashlib.sha256()
        self._is_prepared = False
        self._is_stored = False

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def offset(self) -> int:
        """Where the transfer continues; 0 for the beginning."""
        return 0 if self.state.validator is None else self.size

    def prepare(self) -> None:
        """Use what an earlier attempt has left, if it can be continued."""
        self._is_prepared = True
        state = _read(self._state_file, _decode_state) if self._is_shared else None
        if state is None or state.validator is None:
            self.reset()
            return
        self.state = state
        size = os.fstat(self._descriptor).st_size
        if state.total is not None:
            size = min(size, state.total - 1)  # the site confirms a complete file by sending its last byte again
        size = max(0, size)
        with _write_errors(self._root):
            os.ftruncate(self._descriptor, size)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            while block := os.read(self._descriptor, BLOCK_BYTES):
                self._hash.update(block)
        self.size = size

    def begin(self, state: _PartialState) -> None:
        """Begin at the first byte, with a file of the site that is known by `state`."""
        self.reset()
        self.state = state
        if state.validator is not None and self._is_shared:
            with _write_errors(self._root):
                _write_atomically(self._state_file, msgspec.json.encode(state))

    def reset(self) -> None:
        with self._lock, _write_errors(self._root):
            if self._is_shared:
                self._state_file.unlink(missing_ok=True)
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self.state, self.size, self._hash = _PartialState(), 0, hashlib.sha256()

    def write(self, block: bytes) -> None:
        with self._lock, _write_errors(self._root):
            if self._descriptor < 0:
                return  # the attempt was cancelled meanwhile
            rest = memoryview(block)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            self._hash.update(block)
            self.size += len(block)
            self.received += len(block)

    def read(self) -> bytes:
        return os.pread(self._descriptor, self.size, 0)

    def store(self, download: Download, template: str, is_cancelled: Callable[[], bool]) -> Download:
        """Give the complete file its name. A file that has the name already is kept, and never replaced.

        An upload ends early when `is_cancelled` says so; then nothing is stored.
        """
        with self._lock:
            try:
                is_object = storage.is_object_url(download.path)
                path = self._upload(download, is_cancelled) if is_object else self._link(download)
            except (StoreFailed, AttemptEnded):
                raise
            except OSError as error:
                if (why := storage.name_problem(error)) is not None:  # its folder exists: the partial files are there
                    raise Permanent(f"the file {quoted(download.path)} cannot be written: {why}") from error
                raise _store_failed(download.path, error) from error
            except ShoalError as error:  # of the object store
                raise StoreFailed(
                    f"{download.url} could not be stored: {error.message}", remedy=error.remedy
                ) from error
            stored = msgspec.structs.replace(download, path=path)
            with _write_errors(self._root):
                _write_atomically(self._finished_file, msgspec.json.encode(_Finished(stored, template)))
            self._is_stored = True
        return stored

    def close(self) -> None:
        """Leave the partial file for the next attempt, or remove it if nothing can use it."""
        with self._lock:
            if self._descriptor < 0:
                return
            with suppress(OSError):
                if not self._can_be_continued():
                    self._data.unlink(missing_ok=True)
                    if self._is_shared:
                        self._state_file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1

    def _can_be_continued(self) -> bool:
        if self._is_stored or not self._is_shared:
            return False
        if not self._is_prepared:
            return os.fstat(self._descriptor).st_size > 0  # as an earlier attempt has left it
        return self.state.validator is not None and self.size > 0

    def __del__(self) -> None:
        # An attempt that was cancelled while its file was opened.
        self.close()

    def _link(self, download: Download) -> str:
        os.fsync(self._descriptor)
        path = Path(download.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for candidate in _candidates(download):
            try:
                _link_or_rename(self._data, Path(candidate))
                _sync_folder(path.parent)
            except FileExistsError:
                if not _is_same(candidate, download):
                    continue
            return candidate
        raise Permanent(f"{path} exists with another content")

    def _upload(self, download: Download, is_cancelled: Callable[[], bool]) -> str:
        for candidate in _candidates(download):
            found = storage.stat(candidate)
            if found is not None and not _is_same(candidate, download):
                continue
            if found is None:
                target = storage.open_target(candidate, content_type=download.content_type or None)
                try:
                    os.lseek(self._descriptor, 0, os.SEEK_SET)
                    while block := os.read(self._descriptor, BLOCK_BYTES):
                        if is_cancelled():
                            raise Transient("the upload was cancelled")
                        target.write(block)
                    target.commit()
                except BaseException:
                    target.discard()
                    raise
            return candidate
        raise Permanent(f"{download.path} exists with another content")


def check_template(template: str) -> None:
    """Raises Permanent for a name that leads outside of the folder, or has an unknown field."""
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as problem:
        raise Permanent(f"the name {template!r} of a download is not valid: {problem}") from None
    if unknown := fields - set(NAME_FIELDS):
        raise Permanent(f"the name of a download has no field {min(unknown)!r}; there is {', '.join(NAME_FIELDS)}")
    parts = template.split("/")
    if not template or "\\" in template or any(part in ("", ".", "..") or part.startswith(".") for part in parts):
        raise Permanent(f"the name {template!r} of a download must be a relative path without hidden parts")


def _page(response: ResponseStream, body: bytes) -> Page:
    return Page(response.url, status=response.status, headers=response.headers, body=body)


def _content_range(text: str) -> tuple[int, int | None]:
    """The first byte and the total size; -1 for a header that cannot be read."""
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        return -1, None
    return int(found[1]), None if found[3] == "*" else int(found[3])


def _is_gzip_file(response: ResponseStream, encoding: str) -> bool:
    """Whether the compression belongs to the file: servers declare .gz files like this, and browsers keep them."""
    content_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    path = response.url.partition("?")[0].lower()
    return encoding in ("gzip", "x-gzip") and (content_type in _GZIP_TYPES or path.endswith((".gz", ".tgz")))


def _filename(disposition: str | None, url: str) -> str:
    """What the site calls the file, safe as the name of one."""
    name = ""
    if disposition:
        message = Message()
        message["Content-Disposition"] = disposition[:1000].replace("\r", " ").replace("\n", " ")
        with suppress(Exception):  # made of bytes that a site sends
            name = message.get_filename() or ""
    if not name:
        parsed = urls.parse_url(url)
        name = unquote(parsed.pathname if parsed is not None else "").rsplit("/", 1)[-1]
    name = re.split(r"[/\\]", name)[-1]
    name = _UNSAFE.sub("_", name).strip(". ")
    extension = _EXTENSION.search(name)
    ending = extension[0] if extension else ""
    stem = name[: len(name) - len(ending)].encode()[: MAX_NAME_BYTES - len(ending)].decode("utf-8", "ignore")
    return f"{stem}{ending}" if stem else "download" + ending


def _place(place: str, template: str, filename: str, content_type: str, digest: str, url: str) -> str:
    found = _EXTENSION.search(filename)
    extension = found[0].lower() if found else _MIME_TYPES.guess_extension(content_type) or ""
    parsed = urls.parse_url(url)
    name = template.format(
        sha256=digest,
        folder=digest[:2],
        name=filename,
        stem=filename[: len(filename) - len(found[0])] if found else filename,
        ext=extension,
        host=_UNSAFE.sub("_", parsed.hostname) if parsed is not None else "unknown",
    )
    return f"{place}/{name}" if storage.is_object_url(place) else str(Path(place) / name)


def _candidates(download: Download) -> Iterator[str]:
    """The name, and one with the checksum for when the name is taken by another file."""
    text, digest = download.path, download.sha256
    yield text
    if digest not in text:
        name = PurePosixPath(text).name
        found = _EXTENSION.search(name)
        ending = found[0] if found else ""
        yield f"{text[: len(text) - len(ending)]}-{digest[:12]}{ending}"


def _is_same(place: str, download: Download) -> bool:
    if _stored_size(place) != download.bytes:
        return False
    digest = hashlib.sha256()
    for block in storage.read(place):
        digest.update(block)
    return digest.hexdigest() == download.sha256


def _stored_size(place: str) -> int | None:
    try:
        found = storage.stat(place)
    except ShoalError:
        return None
    return None if found is None else found.size


def _open_locked(path: Path) -> int:
    """A descriptor of the file with an exclusive lock; -1 if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return -1
        # Whoever had the lock may have removed the file meanwhile.
        with suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)


def _link_or_rename(source: Path, target: Path) -> None:
    """Give a file another name. Raises FileExistsError if there is one."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK, errno.ENOSYS):
            raise
        if target.exists():
            raise FileExistsError(target) from None
        os.rename(source, target)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _read(path: Path, decode: Any) -> Any:
    try:
        return decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _remove_stale(folder: Path) -> None:
    """Remove partial files that were not continued for days; what is remembered of complete ones stays."""
    oldest = time.time() - STALE_SECONDS
    for path in folder.glob("??/*.part"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
                path.with_suffix(".json").unlink(missing_ok=True)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _store_failed(path, error) from error


def _store_failed(path: object, error: OSError) -> StoreFailed:
    reason = error.strerror or type(error).__name__
    return StoreFailed(
        f"A download could not be written to {path}: {reason}.",
        remedy="Free disk space, or choose another folder with `files`. Nothing is lost; unfinished items run again.",
    )
