"""The body store: one file per URL key, readable by every process that shares the folder; and fetchers that revalidate
stored pages or answer from the store alone.
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
from shoal.fetch.session import jars_of
from shoal.model.redaction import without_sent_secrets
from shoal.model.url_key import key_hash, url_key

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from shoal.fetch.page import Fetcher, Identity, Request, RequestGate, ResponseStream
    from shoal.fetch.redirects import CookieJars

_FORMAT = 1
# Twice as fast as the default, for bodies a tenth larger.
_COMPRESSION = 3
_OWN_CONDITIONS = ("If-None-Match", "If-Modified-Since", "Range")


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a file. `headers` is a list, because a header may be repeated."""

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
    """The last good copy of each page. Files are written atomically, so a crash leaves no partial file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def get(self, url: str, variant: str = "") -> Page | None:
        """The stored page of this URL; None if there is none, or if its file is not valid."""
        return await asyncio.to_thread(_load, self._path(url, variant), url)

    async def put(self, page: Page, variant: str = "") -> None:
        """Store the page under its requested URL. Raises StoreFailed when it cannot be written."""
        try:
            await asyncio.to_thread(_save, self._path(page.requested_url, variant), page)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StoreFailed(f"{page.requested_url} could not be written to the store: {reason}.") from error

    @staticmethod
    def validators(page: Page) -> dict[str, str]:
        """The request headers that revalidate this copy."""
        headers = {}
        if etag := page.headers.get("ETag"):
            headers["If-None-Match"] = etag
        if changed := page.headers.get("Last-Modified"):
            headers["If-Modified-Since"] = changed
        return headers

    def _path(self, url: str, variant: str) -> Path:
        key = url_key(url)
        name = key_hash(f"{key} {variant}" if variant else key).hex()
        return self.folder / name[:2] / name[2:4] / name


def _load(path: Path, url: str) -> Page | None:
    stored_url = without_sent_secrets(url)
    try:
        first_line, _, packed = path.read_bytes().partition(b"\n")
        head = _decode_header(first_line)
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(packed)
        if head.shoal_page != _FORMAT or not unpacker.eof or url_key(head.requested_url) != url_key(stored_url):
            return None
    except (OSError, msgspec.MsgspecError, zlib.error):
        return None
    # Without a redirect it is the page of this URL; its secrets are not stored.
    page = Page(
        url if stored_url != url and head.url == head.requested_url else head.url,
        requested_url=head.requested_url if stored_url == url else url,
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
        url=without_sent_secrets(page.url),
        requested_url=without_sent_secrets(page.requested_url),
        status=page.status,
        headers=[(str(name), _storable(value)) for name, value in page.headers.items()],
        history=tuple(map(without_sent_secrets, page.history)),
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
    """A header whose bytes are not UTF-8 has surrogates, which JSON cannot represent."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class StoringFetcher:
    """Stores every usable response to a GET, and sends the validators of a stored copy.

    A response of 304 becomes the stored page with `not_modified` set. A request with its own conditions or a body is
    passed through.
    """

    def __init__(self, fetcher: Fetcher, store: FileStore) -> None:
        self._fetcher = fetcher
        self._store = store

    @property
    def jars(self) -> CookieJars | None:
        return jars_of(self._fetcher)

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        if not _is_plain_get(request):
            return await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body, identity=identity)
        try:
            copy = await self._store.get(request.url, request.variant)
        except InvalidItem as error:
            raise Permanent(error.message) from None
        validators = {} if copy is None else self._store.validators(copy)
        conditional = request
        if validators:
            conditional = msgspec.structs.replace(request, headers={**request.headers, **validators})
        page = await self._fetcher.fetch(conditional, gate=gate, jar=jar, max_body=max_body, identity=identity)
        if page.status == 304 and validators and copy is not None:
            if page.url == copy.url or without_sent_secrets(page.url) == copy.url:
                if max_body is not None and len(copy.body) > max_body:
                    raise too_large_error(request.url, max_body)
                copy.not_modified = True
                copy.seconds = page.seconds
                return await reserve_page_memory(copy)
            # The redirect has another target now, and that page uses the same validator.
            page = await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body, identity=identity)
        # A block with a good status must not replace the page.
        if page.status == 200 and classify_page(page) is None:
            await self._store.put(page, request.variant)
        return page

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        return self._fetcher.stream(request, gate=gate, jar=jar, identity=identity)

    async def close(self) -> None:
        await self._fetcher.close()


class StoreOnlyFetcher:
    """Answers from the store alone: no request is sent, so the gate is not called."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        page = None
        if _is_plain_get(request):
            try:
                page = await self._store.get(request.url, request.variant)
            except InvalidItem as error:
                raise Permanent(error.message) from None
        if page is None:
            what = request.url if request.method.upper() == "GET" else f"{request.method} {request.url}"
            raise Permanent(f"{what} is not in the store {self._store.folder}: fetch it once with --store")
        if max_body is not None and len(page.body) > max_body:
            raise too_large_error(request.url, max_body)
        return await reserve_page_memory(page)

    def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AbstractAsyncContextManager[ResponseStream]:
        raise Permanent(f"{request.url} is not in the store {self._store.folder}: fetch it once with --store")

    async def close(self) -> None:
        return None


def _is_plain_get(request: Request) -> bool:
    if request.method.upper() != "GET" or request.body is not None or request.truncate or request.private:
        return False
    headers = CIMultiDict(request.headers) if request.headers else {}
    return not any(name in headers for name in _OWN_CONDITIONS)
