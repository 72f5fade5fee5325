"""The contracts of a fetcher and of the gate that its caller passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from shoal.errors import Throttled
    from shoal.fetch.page import Page


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `truncate` cuts a body above the size cap instead of refusing it."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    truncate: bool = False


class RequestGate(Protocol):
    """Callbacks with which the caller controls when a request is sent.

    `hop` counts the requests of one fetch: 0 first, one more for each redirect and for the repetition after a pooled
    connection turned out to be closed.
    """

    async def before_request(self, url: str, hop: int) -> None:
        """Called before each request. It may wait, and it may raise AttemptEnded to end the fetch."""

    async def before_send(self, hop: int) -> None:
        """Called with an open connection, right before the request is written. It may wait for the exact start time."""

    def after_send(self, hop: int) -> None:
        """Called once per hop, as soon as the request's headers are sent; never if they are not."""

    def request_done(self, hop: int) -> None:
        """Called once per hop that `before_request` admitted: its response has been read, or there will be none."""

    async def on_throttled(self, ended: Throttled) -> None:
        """Called by the reader of a response that requests a wait."""


class Fetcher(Protocol):
    async def fetch(
        self, request: Request, *, gate: RequestGate | None = None, jar: str | None = None, max_body: int | None = None
    ) -> Page:
        """Get the page, whatever its status. Raises AttemptEnded when there is no complete response.

        `jar` names the cookies to send and keep; None keeps none. `max_body` replaces the fetcher's own size cap.
        """

    async def close(self) -> None:
        """Close the connections. The fetcher cannot be used afterwards."""
