"""Where the pages of a listing are: for each template a series, page after page."""

from __future__ import annotations

import datetime as dt
import re
from functools import cached_property

from shoal.define.declared import Declared
from shoal.define.typed import wrong
from shoal.fetch import address
from shoal.model.urlkey import url_key
from shoal.recipes.newspaper.settings import Api, Archive, Listing, Newspaper, Pagination, many


class Places:
    """The addresses of a newspaper's listing pages. `newest` is the day on which an archive without an end begins."""

    def __init__(self, paper: Newspaper) -> None:
        self._base_url = paper.base_url
        self._listing = paper.listing
        self.templates = many(paper.listing.url_template)

    def check(self, declared: Declared) -> None:
        """A page is an item, and one that is there already is not taken again: all of them must differ."""
        pages = [self._filled(part, values) for part in range(len(self.templates)) for values in self._first_two()]
        if len({url_key(url) for url in pages}) < len(pages):
            message = f"listing.url_template leads to the same page twice: {', '.join(self.templates)}."
            raise wrong(declared, ["listing", "url_template"], message)

    def page(self, part: int, index: int, newest: dt.date) -> str | None:
        """The address of a page of a template's series, counted from 0; None when the series has ended."""
        if part == 0 and self.start is not None:
            if index == 0:
                return self.start
            index -= 1
        values = _values(self._listing, index, newest)
        return None if values is None else self._filled(part, values)

    @cached_property
    def start(self) -> str | None:
        """The page before the numbered ones, unless it is the first of them."""
        if not isinstance(self._listing, Pagination) or self._listing.start_url is None:
            return None
        start = self._absolute(self._listing.start_url)
        first = self._filled(0, {"num": self._listing.start_page})
        return None if url_key(start) == url_key(first) else start

    def _first_two(self) -> list[dict[str, int]]:
        if isinstance(self._listing, Archive):
            return [{"year": 2001, "month": 1, "day": 1}, {"year": 2002, "month": 2, "day": 2}]
        return [values for index in (0, 1) if (values := _values(self._listing, index, dt.date.min)) is not None]

    def _filled(self, part: int, values: dict[str, int]) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                return found[0]
            # Archives write June as 06; `{month:d}` is for those that do not.
            width = 2 if found[1] in ("month", "day") and not found[2] else 1
            return f"{values[found[1]]:0{width}d}"

        return self._absolute(re.sub(r"\{(\w+)(:d)?\}", value, self.templates[part]))

    def _absolute(self, url: str) -> str:
        if not url.startswith("/"):
            return url
        base = address.parsed(self._base_url)
        assert base is not None, "the settings were checked"
        return address.resolve(base, url) or url


def _values(listing: Listing, index: int, newest: dt.date) -> dict[str, int] | None:
    match listing:
        case Pagination():
            return {"num": listing.start_page + index * listing.step}
        case Api(pagination_type="offset"):
            offset = listing.offset_start + index * listing.offset_step
            return {"offset": offset, "num": offset, "size": listing.offset_step}
        case Api():
            page = listing.page_start + index * listing.page_step
            return {"page": page, "num": page}
        case Archive():
            return _period(listing, index, listing.end_date or newest)


def _period(listing: Archive, index: int, newest: dt.date) -> dict[str, int] | None:
    """The day or the month so many back."""
    if listing.date_format == "daily":
        if index > (newest - listing.start_date).days:
            return None
        day = newest - dt.timedelta(days=index)
    else:
        months = newest.year * 12 + newest.month - 1 - index
        if months < listing.start_date.year * 12 + listing.start_date.month - 1:
            return None
        day = dt.date(months // 12, months % 12 + 1, 1)
    return {"year": day.year, "month": day.month, "day": day.day}
