"""What a handler may ask for about its attempt: its item, and a client for HTTP requests of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import msgspec

from shoal.errors import Throttled
from shoal.fetch.classify import classify_page
from shoal.fetch.page import Fetcher, Page, Request, RequestGate
from shoal.model.item import ClaimedItem
from shoal.model.redaction import redacted

if TYPE_CHECKING:
    from shoal.fetch.form import Form

DEPTH = "depth"


class Item:
    """The item of an attempt; a handler asks for it with a parameter `item: Item`.

    In a test, make one: `Item(key="octocat", payload={"page": 2})`.
    """

    __slots__ = ("_claimed", "_payload")

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        payload: Mapping[str, Any] | None = None,
        partition: str = "",
        stage: str = "",
        run_id: str = "",
    ) -> None:
        self._claimed = ClaimedItem(0, 1, 0, run_id, stage, partition, 0, url, key, None, None, 0, 0, 1)
        self._payload: Mapping[str, Any] | None = payload or {}

    @classmethod
    def from_claimed(cls, claimed: ClaimedItem) -> Item:
        """The item of a claim."""
        item = cls.__new__(cls)
        item._claimed = claimed
        item._payload = None
        return item

    @property
    def id(self) -> int:
        """Its number in the ledger."""
        return self._claimed.item

    @property
    def run_id(self) -> str:
        return self._claimed.run_id

    @property
    def stage(self) -> str:
        return self._claimed.stage

    @property
    def url(self) -> str | None:
        return self._claimed.url

    @property
    def key(self) -> str:
        """What makes it unique within run and stage: the key it was given, else its URL."""
        return self._claimed.name

    @property
    def own_key(self) -> str | None:
        """The key it was given, None when its URL is its key."""
        return self._claimed.key

    @property
    def payload(self) -> Mapping[str, Any]:
        if self._payload is None:
            self._payload = self._claimed.payload
        return self._payload

    @property
    def partition(self) -> str:
        return self._claimed.partition

    @property
    def priority(self) -> int:
        return self._claimed.priority

    @property
    def tries(self) -> int:
        """How many attempts were made before this one."""
        return self._claimed.tries

    @property
    def depth(self) -> int:
        """How many links away from where the run started, when links are followed."""
        depth = self.payload.get(DEPTH, 0)
        return depth if isinstance(depth, int) else 0

    def __repr__(self) -> str:
        return f"Item({self.key!r}, stage={self.stage!r})"


class Http:
    """A client for requests of a handler, which asks for it with a parameter `http: Http`.

    Its requests obey robots.txt and lanes as Shoal's own do. A failed response ends the attempt as it would for a page:
    404 is permanent, 429 blocks the host for all workers. `check=False` returns every response instead. Requests of one
    attempt are sent one after another, because an item has one slot in its lane.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        gate: RequestGate | None = None,
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

    async def submit(
        self,
        form: Form,
        fields: Mapping[str, Any] | None = None,
        *,
        submit: str | Literal[False] | None = None,
        extra: Any = None,
        headers: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> Page:
        """Submit a form of a page; the arguments are those of `Form.request`."""
        made = form.request(fields, submit=submit, extra=extra)
        return await self.request(
            made.method, made.url, data=made.body, headers={**made.headers, **(headers or {})}, check=check
        )

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
        ended = classify_page(page)
        if isinstance(ended, Throttled) and self._gate is not None:
            await self._gate.on_throttled(ended)
        if check and ended is not None:
            # A handler may make many requests: the message names the one that failed.
            ended.message = f"{method} {redacted(url)}: {ended.message}"
            raise ended
        return page
