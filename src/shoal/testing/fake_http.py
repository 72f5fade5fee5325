"""A fake Http for tests of handlers: it answers from what the test gives it and sends nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from multidict import CIMultiDict

from shoal.define.context import Http
from shoal.fetch.download import Downloads
from shoal.fetch.page import Identity, Page, Request, RequestGate, ResponseStream

# A page; text (HTML), bytes, a dict or list (JSON), a status; an error to raise; a function of the request that returns
# one of these; an iterator of them, one for each request.
Answer = Any
Answers = Mapping[str, Answer] | Callable[[Request], Answer]


class UnexpectedRequest(AssertionError):
    """A handler sent a request that the test has no answer for."""


class FakeHttp(Http):
    """An Http that answers by URL: `FakeHttp({"https://api.example/rivers?page=2": {"rivers": []}})`.

    A key may begin with a method: `"POST https://api.example/login"`. Instead of a dict it takes a function of the
    request. A URL without an answer raises UnexpectedRequest. Statuses are judged as in a run: 404 raises Permanent,
    unless `check=False`. `files`: the folder of downloads. `requests`: what was sent, in order.
    """

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        files: Path | str | None = None,
    ) -> None:
        fetcher = _FakeFetcher(answers or {})
        downloads = None if files is None else Downloads(str(files))
        super().__init__(fetcher, headers=headers, downloads=downloads)
        self.requests: list[Request] = fetcher.requests

    @property
    def urls(self) -> list[str]:
        """The URLs of the requests, in order."""
        return [request.url for request in self.requests]


class _FakeFetcher:
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.requests: list[Request] = []

    async def fetch(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        max_body: int | None = None,
        identity: Identity | None = None,
    ) -> Page:
        self.requests.append(request)
        return page_of(self._find(request), request)

    @asynccontextmanager
    async def stream(
        self,
        request: Request,
        *,
        gate: RequestGate | None = None,
        jar: str | None = None,
        identity: Identity | None = None,
    ) -> AsyncIterator[ResponseStream]:
        yield _FakeStream(await self.fetch(request))

    async def close(self) -> None:
        return None

    def _find(self, request: Request) -> Answer:
        if not isinstance(self._answers, Mapping):
            return self._answers(request)
        for key in (f"{request.method} {request.url}", request.url):
            if key in self._answers:
                return self._answers[key]
        known = "".join(f"\n  {key}" for key in self._answers) or " none"
        raise UnexpectedRequest(f"No answer for {request.method} {request.url}. There are:{known}")


class _FakeStream:
    """The body of an answer, read in one piece."""

    def __init__(self, page: Page) -> None:
        self.url, self.status, self.headers = page.url, page.status, page.headers
        self._body = page.body
        self.content_length: int | None = len(page.body)

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body


def page_of(answer: Answer, request: Request) -> Page:
    """The answer to a request as a page. Raises it when it is an error."""
    while True:
        if isinstance(answer, Iterator):
            answer = next(answer, None)
            if answer is None:
                raise UnexpectedRequest(f"No further answer for {request.method} {request.url}.")
        elif callable(answer) and not isinstance(answer, type):
            answer = answer(request)
        else:
            break
    if isinstance(answer, BaseException) or (isinstance(answer, type) and issubclass(answer, BaseException)):
        raise answer
    if isinstance(answer, Page):
        return answer
    status, content_type, body = 200, "text/html; charset=utf-8", b""
    match answer:
        case bool():
            content_type, body = "application/json", msgspec.json.encode(answer)
        case int():
            status = answer
        case str():
            body = answer.encode()
        case bytes():
            content_type, body = "application/octet-stream", answer
        case _:
            content_type, body = "application/json", msgspec.json.encode(answer)
    return Page(
        request.url,
        status=status,
        headers=CIMultiDict({"Content-Type": content_type}),
        body=body,
        method=request.method,
    )
