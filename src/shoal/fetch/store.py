"""The body store, and the fetchers in front of it.

Fetched pages as files: one per URL key, readable by every process that shares the folder.

Fetchers in front of the body store: ask only whether a page changed, or do not ask at all.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from multidict import CIMultiDict

from shoal.errors import InvalidItem, Permanent, StoreFailed
from shoal.fetch.body import too_large_error
from shoal.fetch.classify import classify_page
from shoal.fetch.memory import reserve_page_memory
from shoal.fetch.page import Page
from shoal.model.url_key import key_hash, url_key

if TYPE_CHECKING:
    from shoal.fetch.protocols import Fetcher, Request, RequestGate

_FORMAT = 1
# Twice as fast as the default, for bodies a tenth larger.
_COMPRESSION = 3
_OWN_CONDITIONS = ("If-None-Match", "If-Modified-Since", "Range")


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file. `headers` is a list, because a header may come several times."""

    shoal_page: int
    url: str
    requested_url: str
    status: int
    headers: list[tuple[str, str]]
    history: tuple[str, ...]
    stored_at: float


_decode_header = msgspec.json.Decoder(_Header).decode
_encode_header = msgspec.json.Encoder().encode


class FileStore:
    """The last good copy of each page. A file appears whole or not at all, so a crash leaves nothing half written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def get(self, url: str) -> Page | None:
        """The stored answer to this URL; None if there is none, or if its file is not one of ours."""
        return await asyncio.to_thread(_load, self._path(url), url_key(url))

    async def put(self, page: Page) -> None:
        """Keep the page as the answer to what was asked for. Raises StoreFailed if the disk refuses."""
        try:
            await asyncio.to_thread(_save, self._path(page.requested_url), page)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreFailed(f"{page.requested_url} could not be kept in the store: {reason}.") from error

    @staticmethod
    def validators(page: Page) -> dict[str, str]:
        """The request headers that ask whether this copy is still good."""
        asked = {}
        if etag := page.headers.get("ETag"):
            asked["If-None-Match"] = etag
        if changed := page.headers.get("Last-Modified"):
            asked["If-Modified-Since"] = changed
        return asked

    def _path(self, url: str) -> Path:
        name = key_hash(url_key(url)).hex()
        return self._folder / name[:2] / name[2:4] / name


def _load(path: Path, key: str) -> Page | None:
    try:
        first_line, _, packed = path.read_bytes().partition(b"\n")
        head = _decode_header(first_line)
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(packed)
        if head.shoal_page != _FORMAT or not unpacker.eof or url_key(head.requested_url) != key:
            return None
    except (OSError, msgspec.MsgspecError, zlib.error):
        return None
    page = Page(
        head.url,
        requested_url=head.requested_url,
        status=head.status,
        headers=CIMultiDict(head.headers),
        body=body,
        history=head.history,
    )
    page.from_store = True
    return page


def _save(path: Path, page: Page) -> None:
    head = _Header(
        shoal_page=_FORMAT,
        url=page.url,
        requested_url=page.requested_url,
        status=page.status,
        headers=[(str(name), _storable(value)) for name, value in page.headers.items()],
        history=page.history,
        stored_at=time.time(),
    )
    content = _encode_header(head) + b"\n" + zlib.compress(page.body, _COMPRESSION)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _storable(value: str) -> str:
    """A header whose bytes are no UTF-8 comes with surrogates, which JSON cannot hold."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class StoringFetcher:
    """Keeps every good answer to a GET, and sends the validators of the copy it has.

    An answer of 304 becomes the stored page with `not_modified` set. A request that brings its own conditions, or a
    body, is passed through.
    """

    def __init__(self, fetcher: Fetcher, store: FileStore) -> None:
        self._fetcher = fetcher
        self._store = store

    async def fetch(
        self, request: Request, *, gate: RequestGate | None = None, jar: str | None = None, max_body: int | None = None
    ) -> Page:
        if not _is_plain_get(request):
            return await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body)
        try:
            copy = await self._store.get(request.url)
        except InvalidItem as error:
            raise Permanent(error.message) from None
        validators = {} if copy is None else self._store.validators(copy)
        asked = request
        if validators:
            asked = msgspec.structs.replace(request, headers={**request.headers, **validators})
        page = await self._fetcher.fetch(asked, gate=gate, jar=jar, max_body=max_body)
        if page.status == 304 and validators and copy is not None:
            if page.url == copy.url:
                copy.not_modified = True
                copy.seconds = page.seconds
                return await reserve_page_memory(copy)
            # The redirect leads elsewhere now, and that page happens to use the same validator.
            page = await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body)
        # A block with a good status must not take the place of the page.
        if page.status == 200 and classify_page(page) is None:
            await self._store.put(page)
        return page

    async def close(self) -> None:
        await self._fetcher.close()


class StoreOnlyFetcher:
    """Answers from the store alone: no request leaves, so no gate is asked."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def fetch(
        self, request: Request, *, gate: RequestGate | None = None, jar: str | None = None, max_body: int | None = None
    ) -> Page:
        page = None
        if _is_plain_get(request):
            try:
                page = await self._store.get(request.url)
            except InvalidItem as error:
                raise Permanent(error.message) from None
        if page is None:
            what = request.url if request.method.upper() == "GET" else f"{request.method} {request.url}"
            raise Permanent(f"{what} is not in the store; fetch it once without --from-store")
        if max_body is not None and len(page.body) > max_body:
            raise too_large_error(request.url, max_body)
        return await reserve_page_memory(page)

    async def close(self) -> None:
        return None


def _is_plain_get(request: Request) -> bool:
    if request.method.upper() != "GET" or request.body is not None or request.truncate:
        return False
    headers = CIMultiDict(request.headers) if request.headers else {}
    return not any(name in headers for name in _OWN_CONDITIONS)
