"""What a handler may ask for about its attempt: its item, and a client for HTTP requests of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlencode

import msgspec
from multidict import CIMultiDict

from shoal.errors import AttemptEnded, InvalidItem, Permanent, SecretMissing, Throttled
from shoal.fetch.classify import classify_page
from shoal.fetch.download import DEFAULT_NAME, Download, Downloads
from shoal.fetch.page import Fetcher, LinkSource, Page, Request, RequestGate
from shoal.model.item import ClaimedItem
from shoal.model.redaction import hide_everywhere, redacted
from shoal.model.request import ItemRequest, Pairs, SecretName, decode_request, make_request, revealed, with_query
from shoal.model.url_key import key_hash, url_key

if TYPE_CHECKING:
    from shoal.fetch.form import Form


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
        depth: int = 0,
        tries: int = 0,
    ) -> None:
        self._claimed = ClaimedItem(
            0, 1, 0, run_id, stage, partition, 0, url, key, None, None, tries, 0, 1, depth=depth
        )
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
    def request(self) -> ItemRequest | None:
        """What is sent besides a plain GET; secrets by name."""
        text = self._claimed.request_json
        return None if text is None else decode_request(text)

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
        """How many items led to it: 0 for those that the run started with."""
        return self._claimed.depth

    def __repr__(self) -> str:
        return f"Item({self.key!r}, stage={self.stage!r})"


FindFinished = Callable[[str, Sequence[bytes]], Awaitable[Collection[bytes]]]
FindFailed = Callable[[str], Awaitable[Sequence[Item]]]
ReadNote = Callable[[str], Awaitable[dict[str, Any] | None]]


class EarlierRuns:
    """What other runs of the scraper have finished; a handler asks for it with a parameter `earlier: EarlierRuns`.

    In a test, make one: `EarlierRuns({"article": ["https://paper.example/1"]})`.
    """

    __slots__ = ("_find", "_find_failed", "_find_in_finished_runs", "_find_permanent", "_find_unfinished")

    def __init__(
        self,
        finished: Mapping[str, Collection[str]] | FindFinished | None = None,
        failed: FindFailed | None = None,
        permanently_failed: Mapping[str, Collection[str]] | FindFinished | None = None,
        *,
        in_finished_runs: Mapping[str, Collection[str]] | FindFinished | None = None,
        unfinished: FindFailed | None = None,
    ) -> None:
        """`finished`, `permanently_failed`: keys and URLs by stage, or a function that finds hashes of keys.

        `in_finished_runs`: those of `finished` whose run has finished; all of them if it is left out.
        """
        self._find = _finder(finished)
        self._find_in_finished_runs = self._find if in_finished_runs is None else _finder(in_finished_runs)
        self._find_failed = failed
        self._find_permanent = _finder(permanently_failed)
        self._find_unfinished = unfinished

    async def finished(self, stage: str, keys: Iterable[str], *, in_finished_runs: bool = False) -> set[str]:
        """Those of the keys or URLs whose items of this stage are done or skipped in another run.

        Dead items are not among them. Runs that were removed are forgotten. `in_finished_runs`: what a run did that
        was interrupted or cancelled does not count.
        """
        return await _find_keys(self._find_in_finished_runs if in_finished_runs else self._find, stage, keys)

    async def permanently_failed(self, stage: str, keys: Iterable[str]) -> set[str]:
        """Those of the keys or URLs whose items of this stage died of a permanent error in another run.

        Only runs with the code and the files of this one count: what failed may succeed with a correction of them.
        """
        return await _find_keys(self._find_permanent, stage, keys)

    async def failed(self, stage: str) -> Sequence[Item]:
        """The items of this stage that died in the runs before this one, without those whose error is permanent.

        Of a key that several runs have, only the newest one counts; what a later run has finished is not among them.
        """
        return await self._find_failed(stage) if self._find_failed is not None else ()

    async def unfinished(self, stage: str) -> Sequence[Item]:
        """The same for those that the runs before left open, or that were cancelled. Active runs keep theirs."""
        return await self._find_unfinished(stage) if self._find_unfinished is not None else ()


def _finder(given: Mapping[str, Collection[str]] | FindFinished | None) -> FindFinished:
    return given if callable(given) else _find_among(given or {})


async def _find_keys(find: FindFinished, stage: str, keys: Iterable[str]) -> set[str]:
    hashes = {key: key_hash(_item_key(key)) for key in keys}
    found = set(await find(stage, list(dict.fromkeys(hashes.values())))) if hashes else set()
    return {key for key, hash_ in hashes.items() if hash_ in found}


def _find_among(finished: Mapping[str, Collection[str]]) -> FindFinished:
    known = {stage: {key_hash(_item_key(key)) for key in keys} for stage, keys in finished.items()}

    async def find(stage: str, hashes: Sequence[bytes]) -> Collection[bytes]:
        return known.get(stage, set()).intersection(hashes)

    return find


def _item_key(key: str) -> str:
    """The key of an item that has this URL or this key."""
    try:
        return url_key(key)
    except InvalidItem:
        return key


class Notes:
    """The values that `Fleet.put_note` stored with the run; a handler asks for them with a parameter `notes: Notes`.

    In a test, make some: `Notes({"limits": {"pages": 3}})`.
    """

    __slots__ = ("_read",)

    def __init__(self, values: Mapping[str, Mapping[str, Any]] | ReadNote | None = None) -> None:
        """`values`: by name, or a function that reads one from a ledger."""
        self._read = values if callable(values) else _read_among(values or {})

    async def get(self, name: str) -> dict[str, Any] | None:
        """The value as it is now; None when there is none of this name."""
        return await self._read(name)


def _read_among(values: Mapping[str, Mapping[str, Any]]) -> ReadNote:
    async def read(name: str) -> dict[str, Any] | None:
        return dict(values[name]) if name in values else None

    return read


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an item died; a stage's `on_error` function asks for it with a parameter `failure: Failure`.

    `outcome`: permanent, transient or blocked. `attempts`: how many were made. `page`: the last response, if there was
    one.
    """

    message: str
    outcome: str
    attempts: int = 1
    page: Page | None = None

    @property
    def status(self) -> int | None:
        """The status of the last response."""
        return None if self.page is None else self.page.status


class RequestHooks(Protocol):
    """The author's hooks around one request."""

    async def before_request(self, request: Request) -> Request:
        """The request to send."""

    async def after_response(self, request: Request, page: Page) -> Page:
        """The page to go on with; its status has not been classified yet."""


class Http:
    """A client for requests of a handler, which asks for it with a parameter `http: Http`.

    Its requests obey robots.txt and lanes as Shoal's own do. A failed response ends the attempt as it would for a page:
    404 is permanent, 429 blocks the host for all workers. `check=False` returns every response instead. Requests of one
    attempt are sent one after another, because an item has one slot in its lane.
    """

    _link_source: LinkSource | None = None  # the item of the attempt, for `page.follow_links`

    def __init__(  # noqa: PLR0913 - all but the first by keyword
        self,
        fetcher: Fetcher,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        headers: Mapping[str, str] | None = None,
        hooks: RequestHooks | None = None,
        reveal: Callable[[str], str] | None = None,
        downloads: Downloads | None = None,
        deadline: asyncio.Timeout | None = None,
        private: bool = False,
        opener: Callable[[Request], Awaitable[Page]] | None = None,
    ) -> None:
        self._private = private
        self._opener = opener
        self._downloads = downloads
        self._deadline = deadline
        self._reveal = reveal or secret_variable
        self._fetcher = fetcher
        self._gate = gate
        self._jar = jar
        self._headers = headers or {}
        self._hooks = hooks
        self._one_at_a_time = asyncio.Lock()

    async def get(
        self,
        url: str,
        *,
        params: Pairs | None = None,
        headers: Mapping[str, str | SecretName] | None = None,
        check: bool = True,
    ) -> Page:
        return await self.request("GET", url, params=params, headers=headers, check=check)

    async def post(
        self,
        url: str,
        *,
        json: Any = None,
        form: Pairs | None = None,
        body: str | bytes | None = None,
        params: Pairs | None = None,
        headers: Mapping[str, str | SecretName] | None = None,
        check: bool = True,
    ) -> Page:
        return await self.request(
            "POST", url, json=json, form=form, body=body, params=params, headers=headers, check=check
        )

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
        url, request = form.arguments(fields, submit=submit, extra=extra)
        request["headers"] = {**request.get("headers", {}), **(headers or {})}
        return await self.request(request.pop("method", "GET"), url, **request, check=check)

    async def open(self, url: str, *, headers: Mapping[str, str | SecretName] | None = None) -> Page:
        """A further page of the item, fetched as its own page is: by the client of the stage, a browser too.

        The stage's `accept` and `blocked` hold for it. A browser shows it in the tab of the item, which leaves the page
        that it showed before.
        """
        if self._opener is None:
            return await self.get(url, headers=headers)
        made, _ = make_request(headers=headers, stored=False)
        request = outgoing_request(url, made, self._headers, self._reveal)
        async with self._one_at_a_time:
            try:
                return await self._opener(request)
            except AttemptEnded as ended:
                if (shown := redacted(request.url)) not in ended.message:
                    ended.message = f"GET {shown}: {ended.message}"
                raise

    async def download(
        self,
        url: str,
        *,
        name: str = DEFAULT_NAME,
        max_bytes: int | None = None,
        sha256: str | None = None,
        params: Pairs | None = None,
        headers: Mapping[str, str | SecretName] | None = None,
    ) -> Download:
        """Stream a file of any size to the folder or object store of the setting `files`, and return where it is.

        `name`: its path there, with `{sha256}`, `{folder}` (two letters of it), `{name}`, `{stem}`, `{ext}`, `{host}`.
        `max_bytes`: refuse a larger file. `sha256`: refuse another content. A broken transfer is continued. While the
        body arrives the timeout of the stage stands still; a site that sends nothing for 30 s ends the attempt.
        """
        if self._downloads is None:
            raise Permanent("there is no folder for downloads: set `files`; in a test, FakeHttp(answers, files=folder)")
        made, query = make_request(headers=headers, params=params, stored=False)
        request = outgoing_request(with_query(url, query) if query else url, made, self._headers, self._reveal)
        async with self._one_at_a_time:
            if self._hooks is not None:
                request = await self._hooks.before_request(request)
            try:
                return await self._downloads.save(
                    self._fetcher,
                    request,
                    gate=self._gate,
                    jar=self._jar,
                    name=name,
                    max_bytes=max_bytes,
                    sha256=sha256,
                    deadline=self._deadline,
                )
            except AttemptEnded as ended:
                if (shown := redacted(request.url)) not in ended.message:
                    ended.message = f"GET {shown}: {ended.message}"
                raise

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        form: Pairs | None = None,
        body: str | bytes | None = None,
        params: Pairs | None = None,
        headers: Mapping[str, str | SecretName] | None = None,
        check: bool = True,
    ) -> Page:
        made, query = make_request(
            method=method, headers=headers, params=params, json=json, form=form, body=body, stored=False
        )
        request = outgoing_request(with_query(url, query) if query else url, made, self._headers, self._reveal)
        if self._private:
            request = request.replace(private=True)
        async with self._one_at_a_time:
            if self._hooks is not None:
                request = await self._hooks.before_request(request)
            page = await self._fetcher.fetch(request, gate=self._gate, jar=self._jar)
            if self._hooks is not None:
                page = await self._hooks.after_response(request, page)
        page._link_source = self._link_source
        ended = classify_page(page)
        if isinstance(ended, Throttled) and self._gate is not None:
            await self._gate.on_throttled(ended)
        if check and ended is not None:
            # A handler may make many requests: the message names the one that failed.
            ended.message = f"{method} {redacted(request.url)}: {ended.message}"
            raise ended
        return page


def secret_variable(name: str) -> str:
    """The value of an environment variable. Raises SecretMissing."""
    if not (value := os.environ.get(name)):
        raise SecretMissing(f"A request needs the secret {name}, which is not set.")
    hide_everywhere(value)
    return value


def outgoing_request(
    url: str, request: ItemRequest | None, headers: Mapping[str, str], reveal: Callable[[str], str]
) -> Request:
    """The request as it is sent, with its secrets. `headers` are those of the stage, which the request's outrank."""
    if request is None:
        return Request(url=url, headers=headers)

    def value_of(found: SecretName) -> str:
        return reveal(found.name)

    body, content_type = request.encode_body(value_of)
    sent = CIMultiDict(headers)
    for name, value in request.headers.items():
        sent[name] = revealed(value, value_of)
    if content_type is not None:
        sent.setdefault("Content-Type", content_type)
    if request.params:
        pairs = [(name, revealed(value, value_of)) for name, value in request.params]
        url = with_query(url, urlencode(pairs))
    variant = msgspec.json.encode(request.headers, order="sorted").decode() if request.headers else ""
    return Request(url=url, method=request.method, headers=sent, body=body, variant=variant)
