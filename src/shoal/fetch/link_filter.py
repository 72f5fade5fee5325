"""Which links of a page are followed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import msgspec

from shoal.errors import InvalidScraper
from shoal.model.url_key import host_or_none

if TYPE_CHECKING:
    from shoal.fetch.page import Page

# Endings of files that are rarely pages. skip=() follows them too.
# fmt: off
NON_PAGE_SUFFIXES = (
    ".7z", ".avi", ".bmp", ".bz2", ".css", ".csv", ".doc", ".docx", ".eot", ".epub", ".exe", ".gif", ".gz", ".ico",
    ".iso", ".jpeg", ".jpg", ".js", ".json", ".m4a", ".mov", ".mp3", ".mp4", ".mpeg", ".odt", ".ogg", ".pdf", ".png",
    ".ppt", ".pptx", ".rar", ".rss", ".svg", ".tar", ".tgz", ".tif", ".tiff", ".ttf", ".wav", ".webm", ".webp", ".woff",
    ".woff2", ".xls", ".xlsx", ".xml", ".zip",
)
# fmt: on


class LinkFilter(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Rules for links.

    `same_host`: only links to the host of the page's item. `prefix`: only URLs that begin with one of these. `allow`,
    `deny`: regular expressions searched in the URL. `css`: only links inside elements that it selects. `skip`: endings
    of paths that are not pages. `depth`: at most so many links away from the start.
    """

    same_host: bool = True
    prefix: tuple[str, ...] = ()
    allow: str | None = None
    deny: str | None = None
    depth: int | None = None
    css: str | None = None
    skip: tuple[str, ...] = NON_PAGE_SUFFIXES

    def checked(self, what: str = "follow=") -> Self:
        """Raises InvalidScraper for rules that cannot work; `what` comes before the name of a rule."""
        for name in ("allow", "deny"):
            pattern = getattr(self, name)
            try:
                re.compile(pattern or "")
            except (re.error, TypeError) as problem:
                raise InvalidScraper(f"{what}{name} is not a regular expression: {pattern!r} ({problem}).") from None
        if self.depth is not None and (type(self.depth) is not int or self.depth < 0):
            raise InvalidScraper(f"{what}depth is {self.depth!r}; it must be a whole number from 0.")
        if not isinstance(self.prefix, tuple):
            raise InvalidScraper(f"{what}prefix must be a tuple of URLs: write ({self.prefix!r},).")
        return self

    def select(self, page: Page, item_url: str | None, item_depth: int) -> list[str]:
        """The links of the page of such an item that are followed: absolute, each once."""
        if self.depth is not None and item_depth >= self.depth:
            return []
        host = host_or_none(item_url or page.url) if self.same_host else None
        return [url for url in self._links(page) if self._follows(url, host)]

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
        return (re.compile(self.allow) if self.allow else None, re.compile(self.deny) if self.deny else None)

    def _links(self, page: Page) -> list[str]:
        if self.css is None:
            return page.links()
        chosen = _outermost([found.root for found in page.css(self.css)])
        hrefs = (href for element in chosen for href in element.xpath("descendant-or-self::*/@href"))
        return list(dict.fromkeys(page.join(href) for href in hrefs))

    def _follows(self, url: str, host: str | None) -> bool:
        if host is not None and host_or_none(url) != host:
            return False
        if self.prefix and not url.startswith(self.prefix):
            return False
        path = url.partition("?")[0].partition("#")[0].lower()
        if path.endswith(self.skip):
            return False
        allow, deny = self._patterns
        return (allow is None or allow.search(url) is not None) and (deny is None or deny.search(url) is None)


def _outermost(elements: Sequence[Any]) -> list[Any]:
    """The elements that are inside no other one, so that links of nested elements are read once."""
    chosen = {element for element in elements if not isinstance(element, str)}
    inside: dict[Any, bool] = {}
    outermost = []
    for element in dict.fromkeys(element for element in elements if element in chosen):
        path: list[Any] = []
        above = element.getparent()
        while above is not None and above not in chosen and above not in inside:
            path.append(above)
            above = above.getparent()
        is_inside = above is not None and (above in chosen or inside[above])
        inside.update(dict.fromkeys(path, is_inside))
        if not is_inside:
            outermost.append(element)
    return outermost
