"""How far the listing has come, and whether to go on: the rules by which paging stops."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Paging(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the next page must know of those before it; it travels in the item's payload.

    `part` and `index` say which page comes next, `pages` and `articles` how much there was so far. Of the series:
    `listed` articles, and whether there were `ever` any; `missing` are the pages that did not exist since the last one
    that did. Of the batch: how many pages `batch` had, how many `failed`, whether an article was `fresh`, and `seen`,
    a digest of what was on each. `before` are those of the batch before. `again`: this page ended the series because it
    failed with all of its batch; should it be had after all, the series goes on from it.
    """

    newest: dt.date
    part: int = 0
    index: int = 0
    pages: int = 0
    articles: int = 0
    listed: int = 0
    ever: bool = False
    missing: tuple[str, ...] = ()
    batch: int = 0
    failed: int = 0
    fresh: bool = False
    seen: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    again: bool = False

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Paging | None:
        """How far it has come; None for a page that is by itself."""
        return msgspec.convert(payload, cls) if "newest" in payload else None

    def payload(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    def after(self, urls: Sequence[str], *, taken: int, fresh: bool) -> Paging:
        """After a page with these articles, of which so many were taken."""
        return msgspec.structs.replace(
            self._turned(),
            articles=self.articles + taken,
            listed=self.listed + len(urls),
            ever=self.ever or bool(urls),
            missing=() if urls else self.missing,
            fresh=self.fresh or fresh,
            seen=(*self.seen, _digest(urls)) if urls else self.seen,
        )

    def after_failure(self, missing: str | None) -> Paging:
        """After a page that could not be had; `missing` is its address if it does not exist."""
        pages = self.missing if missing is None else (*self.missing, missing)
        return msgspec.structs.replace(self._turned(), failed=self.failed + 1, missing=pages)

    def ending(self, batch_size: int) -> str | None:
        """Why the series ends here, None if it does not. Only a whole batch tells."""
        if self.batch < batch_size:
            return None
        if self.batch_failed(batch_size):
            return "every page of a batch failed"
        if not self.seen:
            return "a batch had no article"
        if set(self.seen) <= set(self.before):
            return "a batch was the same as the one before"
        return None if self.fresh else "all articles of a batch are known"

    def batch_failed(self, batch_size: int) -> bool:
        return self.batch >= batch_size and self.failed == self.batch

    def next_page(self, batch_size: int) -> Paging:
        if self.batch < batch_size:
            return self
        return msgspec.structs.replace(self, batch=0, failed=0, fresh=False, seen=(), before=self.seen or self.before)

    def next_part(self) -> Paging:
        return Paging(newest=self.newest, part=self.part + 1, pages=self.pages, articles=self.articles)

    def _turned(self) -> Paging:
        return msgspec.structs.replace(
            self, index=self.index + 1, pages=self.pages + 1, batch=self.batch + 1, again=False
        )


def _digest(urls: Sequence[str]) -> str:
    """What a page lists, whatever the order."""
    return hashlib.blake2b("\n".join(sorted(urls)).encode(), digest_size=9).hexdigest()
