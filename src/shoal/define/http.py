"""Requests that a handler makes itself. They keep to the same politeness as the page that Shoal fetches for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from shoal.errors import Throttled
from shoal.fetch.classify import verdict_on
from shoal.fetch.page import Page
from shoal.fetch.protocols import Fetcher, Gate, Request
from shoal.model.redaction import redacted


class Http:
    """Ask for it with a parameter `http: Http`.

    An answer that is no success ends the attempt as it would for a page: 404 is permanent, 429 makes everybody wait
    who would visit that host.
    With `check=False` the answer is handed out whatever it is. Requests of one handler go one after another: an item
    has one place in its lane.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        gate: Gate | None = None,
        jar: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._gate = gate
        self._jar = jar
        self._headers = headers or {}
        self._one_at_a_time = asyncio.Lock()

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Page:
        return await self.request("GET", url, params=params, headers=headers, check=check)

    async def post(
        self,
        url: str,
        *,
        json: Any = None,
        data: Mapping[str, Any] | bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Page:
        return await self.request("POST", url, json=json, data=data, params=params, headers=headers, check=check)

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        data: Mapping[str, Any] | bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Page:
        sent = {**self._headers, **(headers or {})}
        body: bytes | None = None
        if json is not None:
            body = msgspec.json.encode(json)
            sent.setdefault("Content-Type", "application/json")
        elif isinstance(data, bytes):
            body = data
        elif data is not None:
            body = urlencode(data, doseq=True).encode()
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        if params:
            url += ("&" if "?" in url else "?") + urlencode(params, doseq=True)
        request = Request(url=url, method=method, headers=sent, body=body)
        async with self._one_at_a_time:
            page = await self._fetcher.fetch(request, gate=self._gate, jar=self._jar)
        ended = verdict_on(page)
        if isinstance(ended, Throttled) and self._gate is not None:
            await self._gate.throttled(ended)
        if check and ended is not None:
            # An item may make many requests: the message says which one it was.
            ended.message = f"{method} {redacted(url)}: {ended.message}"
            raise ended
        return page
