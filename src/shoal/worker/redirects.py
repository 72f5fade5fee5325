"""Redirects of a crawl: before the target is requested, the ledger decides whether another item is the same page."""

from __future__ import annotations

import time

from shoal.define.context import Item
from shoal.define.stage import AnyStage
from shoal.errors import InvalidItem, Skipped, Throttled
from shoal.fetch.page import Page, RequestGate
from shoal.model.item import ClaimedItem, NewItem, PreparedItem, prepare
from shoal.model.outcome import RedirectVisit, VisitDecision
from shoal.model.redaction import redacted, without_sent_secrets
from shoal.worker.lane_starts import ReleaseItem
from shoal.worker.registration import Registration

# Another item is on its way to the same target: this one is tried again after 1, 2, 4 ... seconds.
MAX_WAIT_SECONDS = 60.0


class RedirectGate:
    """The gate of the page of one item, which visits the target of a redirect only if no other item does.

    A page without redirects causes no call to the ledger. `inner` is the attempt's own gate.
    """

    __slots__ = ("_began", "_claimed", "_in_lanes", "_inner", "_item", "_registration", "_stage", "_via", "_visited")

    def __init__(
        self,
        inner: RequestGate | None,
        registration: Registration,
        stage: AnyStage,
        claimed: ClaimedItem,
        item: Item,
        *,
        in_lanes: bool,
    ) -> None:
        self._inner = inner
        self._registration = registration
        self._stage = stage
        self._claimed = claimed
        self._item = item
        self._in_lanes = in_lanes
        self._began = time.monotonic()
        self._via: bytes | None = None
        self._visited = False

    async def before_request(self, url: str, hop: int) -> None:
        if self._inner is not None:
            await self._inner.before_request(url, hop)

    async def before_send(self, hop: int) -> None:
        if self._inner is not None:
            await self._inner.before_send(hop)

    def after_send(self, hop: int) -> None:
        if self._inner is not None:
            self._inner.after_send(hop)

    def request_done(self, hop: int) -> None:
        if self._inner is not None:
            self._inner.request_done(hop)

    async def on_throttled(self, ended: Throttled) -> None:
        if self._inner is not None:
            await self._inner.on_throttled(ended)

    async def on_redirect(self, url: str, method: str) -> None:
        self._visited = True
        target = self._prepared(url, method)
        if target is None:
            self._via = None
            return
        if self._via is not None or not self._is_own(target):
            await self._visit(target, url)
        self._via = target.key_hash

    async def check(self, page: Page) -> None:
        """Decide about a page that no request was sent for, because it came from the store."""
        if page.history and not self._visited:
            await self.on_redirect(page.url, "GET")

    async def _visit(self, target: PreparedItem, url: str) -> None:
        shown = redacted(url, self._stage.scraper.secrets)
        reply = await self._registration.visit_redirect(
            RedirectVisit(
                lease=self._claimed.lease,
                target=target,
                via=self._via,
                shown=shown,
                seconds=time.monotonic() - self._began,
            )
        )
        match reply.decision:
            case VisitDecision.DUPLICATE:
                raise Skipped(f"redirects to {shown}, the same page as item {reply.same_as}")
            case VisitDecision.WAIT:
                # The host is no host: no lane is closed.
                wait = min(MAX_WAIT_SECONDS, 2.0 ** (self._claimed.epoch - 1))
                text = f"redirects to {shown}, which item {reply.same_as} is visiting now"
                raise Throttled(text, retry_after=wait, host="")
            case VisitDecision.LOST:
                raise ReleaseItem

    def _prepared(self, url: str, method: str) -> PreparedItem | None:
        """The item that a link to the target would be; None when its URL cannot or must not be stored."""
        if without_sent_secrets(url) != url or any(secret in url for secret in self._stage.scraper.secrets):
            return None
        request = self._item.request
        if request is not None and request.method != method:
            request = None  # a form that was sent leads to an ordinary page
        new = self._stage.item(url)
        lane = new.lane if self._in_lanes else None
        try:
            return prepare(
                NewItem(
                    url=url,
                    stage=self._stage.name,
                    partition=new.partition,
                    lane=lane,
                    request=request,
                    depth=self._claimed.depth,
                ),
                self._stage.name,
            )
        except InvalidItem:
            return None

    def _is_own(self, target: PreparedItem) -> bool:
        """Whether the target is the item itself, as for a site that sets a cookie and asks for the same URL again."""
        claimed = self._claimed
        own = prepare(NewItem(url=claimed.url, key=claimed.key), claimed.stage).key_hash
        if target.key_hash == own:
            return True
        # A key that the author chose says nothing about the URL.
        return (
            self._item.request is None and prepare(NewItem(url=claimed.url), claimed.stage).key_hash == target.key_hash
        )
