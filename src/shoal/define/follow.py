"""Following links: turns links of a page into items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.define.context import Item
from shoal.fetch.link_filter import LinkFilter
from shoal.model.item import NewItem

if TYPE_CHECKING:
    from shoal.define.stage import AnyStage
    from shoal.fetch.page import Page


class Follow(LinkFilter, frozen=True, kw_only=True, dict=True):
    """Rules for following links: those of `LinkFilter`, and `to`, the stage of the new items (the page's own)."""

    to: str | None = None

    def items(self, page: Page, item: Item, stage: AnyStage) -> list[NewItem]:
        """The items for the links of a page."""
        target = stage if self.to is None else stage.scraper.stages[self.to]
        return [target.item(url) for url in self.select(page, item.url, item.depth)]


class StageLinks:
    """Where the links of a page lead that a handler follows with `page.follow_links`."""

    __slots__ = ("_item", "_stage")

    def __init__(self, stage: AnyStage, item: Item) -> None:
        self._stage = stage
        self._item = item

    @property
    def url(self) -> str | None:
        return self._item.url

    @property
    def depth(self) -> int:
        return self._item.depth

    def item(self, url: str, to: str | None) -> NewItem:
        """The item for a link to a stage, by default the page's own."""
        if to is None:
            return self._stage.item(url)
        target = self._stage.scraper.stages.get(to)
        # An unknown stage is reported where the item is stored.
        return NewItem(url=url, stage=to) if target is None else target.item(url)
