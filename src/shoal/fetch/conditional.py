"""Fetchers in front of the body store: ask only whether a page changed, or do not ask at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from multidict import CIMultiDict

from shoal.errors import InvalidItem, Permanent
from shoal.fetch.body import too_large
from shoal.fetch.classify import verdict_on
from shoal.fetch.memory import charge

if TYPE_CHECKING:
    from shoal.fetch.page import Page
    from shoal.fetch.protocols import Fetcher, Gate, Request
    from shoal.fetch.store import FileStore

_OWN_CONDITIONS = ("If-None-Match", "If-Modified-Since", "Range")


class StoringFetcher:
    """Keeps every good answer to a GET, and sends the validators of the copy it has.

    An answer of 304 becomes the stored page with `not_modified` set. A request that brings its own conditions, or a
    body, is passed through.
    """

    def __init__(self, fetcher: Fetcher, store: FileStore) -> None:
        self._fetcher = fetcher
        self._store = store

    async def fetch(
        self, request: Request, *, gate: Gate | None = None, jar: str | None = None, max_body: int | None = None
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
                return await charge(copy)
            # The redirect leads elsewhere now, and that page happens to use the same validator.
            page = await self._fetcher.fetch(request, gate=gate, jar=jar, max_body=max_body)
        # A block with a good status must not take the place of the page.
        if page.status == 200 and verdict_on(page) is None:
            await self._store.put(page)
        return page

    async def close(self) -> None:
        await self._fetcher.close()


class StoreOnlyFetcher:
    """Answers from the store alone: no request leaves, so no gate is asked."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def fetch(
        self, request: Request, *, gate: Gate | None = None, jar: str | None = None, max_body: int | None = None
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
            raise too_large(request.url, max_body)
        return await charge(page)

    async def close(self) -> None:
        return None


def _is_plain_get(request: Request) -> bool:
    if request.method.upper() != "GET" or request.body is not None or request.truncate:
        return False
    headers = CIMultiDict(request.headers) if request.headers else {}
    return not any(name in headers for name in _OWN_CONDITIONS)
