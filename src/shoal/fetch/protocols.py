"""What the rest of Shoal asks of a fetcher, and what a fetcher asks of its caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from shoal.errors import Throttled
    from shoal.fetch.page import Page


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One page to get. `truncate` keeps the beginning of a body above the size cap instead of refusing it."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    truncate: bool = False


class RequestGate(Protocol):
    """The caller's say in when a request may go out.

    `hop` counts the requests of one fetch on the wire: 0 first, one more for each redirect that is followed and for
    the second try after a kept connection turned out to be closed.
    """

    async def before_request(self, url: str, hop: int) -> None:
        """Called before each request goes on the wire. It may wait, and it may raise AttemptEnded to end the fetch."""

    async def before_send(self, hop: int) -> None:
        """Called when the connection stands, right before the request is written. It may wait for the very moment."""

    def after_send(self, hop: int) -> None:
        """Called once per hop, as soon as the request's headers left this machine; never if they did not."""

    def request_done(self, hop: int) -> None:
        """Called once per hop that was let through: its answer has been read, or there is none to come."""

    async def on_throttled(self, ended: Throttled) -> None:
        """Called by whoever reads the answer when it asks to wait."""


class Fetcher(Protocol):
    async def fetch(
        self, request: Request, *, gate: RequestGate | None = None, jar: str | None = None, max_body: int | None = None
    ) -> Page:
        """Get the page, whatever its status. Raises AttemptEnded when there is no answer to speak of.

        `jar` names the cookies to send and keep; None keeps none. `max_body` replaces the fetcher's own size cap.
        """

    async def close(self) -> None:
        """Give back connections. The fetcher cannot be used afterwards."""
