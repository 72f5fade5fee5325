"""The pages of a listing, and the rules by which paging stops."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.fetch import urls
from shoal.model.url_key import url_key
from shoal.recipes.newspapers.settings import (
    PLACEHOLDER,
    ApiListing,
    Archive,
    Listing,
    Newspaper,
    Pagination,
    as_tuple,
)

# What a template needs, by date_format.
_PERIODS = {
    "daily": "write {year}, {month} and {day}; or date_format: monthly, if there is a page a month.",
    "monthly": "write {year} and {month}; or date_format: daily, if there is a page a day.",
}


class ListingUrls:
    """The URLs of a newspaper's listing pages."""

    def __init__(self, paper: Newspaper) -> None:
        self._base_url = paper.base_url
        self._listing = paper.listing
        self.templates = as_tuple(paper.listing.url_template)

    def check(self, header: YamlHeader) -> None:
        """Raises InvalidScraper when pages have the same URL: each page is an item, and items are unique."""
        pages = [
            self._fill_template(part, values) for part in range(len(self.templates)) for values in self._sample_values()
        ]
        if len({url_key(url) for url in pages}) < len(pages):
            message = f"listing.url_template leads to the same page twice: {', '.join(self.templates)}."
            remedy = "Write what differs between the pages into it."
            if isinstance(self._listing, Archive):
                remedy = f"With date_format {self._listing.date_format}, {_PERIODS[self._listing.date_format]}"
            raise yaml_error(header, ["listing", "url_template"], message, remedy=remedy)

    def first(self, today: dt.date, *, since: dt.date | None, until: dt.date | None, scratch: bool) -> Paging:
        """The progress of a listing that begins: of an archive with the last of its days that were asked for."""
        newest = today
        if isinstance(self._listing, Archive):
            newest = min(today, self._listing.end_date or today, until or today)
        return Paging(newest=newest, since=since, until=until, scratch=scratch)

    def page(self, paging: Paging) -> str | None:
        """The URL of the next page of a series; None behind its end."""
        part, index = paging.part, paging.index
        if part == 0 and self.start is not None:
            if index == 0:
                return self.start
            index -= 1
        values = _values(self._listing, index, paging.newest, paging.since)
        return None if values is None else self._fill_template(part, values)

    @cached_property
    def start(self) -> str | None:
        """The start_url, unless it is the first of the numbered pages."""
        if not isinstance(self._listing, Pagination) or self._listing.start_url is None:
            return None
        start = self._absolute(self._listing.start_url)
        first = self._fill_template(0, {"num": self._listing.start_page})
        return None if url_key(start) == url_key(first) else start

    def _sample_values(self) -> list[dict[str, int]]:
        """The values of two pages; of an archive also of pages a month and a year apart, if it is that long."""
        if isinstance(self._listing, Archive):
            return _sample_periods(self._listing)
        return [values for index in (0, 1) if (values := _values(self._listing, index, dt.date.min, None)) is not None]

    def _fill_template(self, part: int, values: dict[str, int]) -> str:
        def value(found: re.Match[str]) -> str:
            # Most archives write June as 06; `{month:d}` is for the others.
            return format(values[found[1]], found[2] or ("02d" if found[1] in ("month", "day") else "d"))

        return self._absolute(PLACEHOLDER.sub(value, self.templates[part]))

    def _absolute(self, url: str) -> str:
        if not url.startswith("/"):
            return url
        base = urls.parse_url(self._base_url)
        assert base is not None, "the settings were checked"
        return urls.resolve(base, url) or url


def _sample_periods(archive: Archive) -> list[dict[str, int]]:
    # A day that every month and the next year have.
    start = min(archive.start_date, dt.date(dt.MAXYEAR - 1, 1, 1))
    first = start.replace(day=min(start.day, 28))
    month_later = (first.replace(day=1) + dt.timedelta(days=31)).replace(day=first.day)
    days = [first, month_later, first.replace(year=first.year + 1)]
    if archive.date_format == "daily":
        days.append(first + dt.timedelta(days=1))
    last = archive.end_date or dt.date.max
    return [{"year": day.year, "month": day.month, "day": day.day} for day in days if day <= last]


def _values(listing: Listing, index: int, newest: dt.date, since: dt.date | None) -> dict[str, int] | None:
    match listing:
        case Pagination():
            return {"num": listing.start_page + index * listing.step}
        case ApiListing(pagination_type="offset"):
            offset = listing.offset_start + index * listing.offset_step
            return {"offset": offset, "num": offset, "size": listing.offset_step}
        case ApiListing():
            page = listing.page_start + index * listing.page_step
            return {"page": page, "num": page}
        case Archive():
            return _period(listing, index, newest, max(listing.start_date, since or listing.start_date))


def _period(listing: Archive, index: int, newest: dt.date, oldest: dt.date) -> dict[str, int] | None:
    """The day or the month `index` steps before the newest; None before the oldest."""
    if listing.date_format == "daily":
        if index > (newest - oldest).days:
            return None
        day = newest - dt.timedelta(days=index)
    else:
        months = newest.year * 12 + newest.month - 1 - index
        if months < oldest.year * 12 + oldest.month - 1:
            return None
        day = dt.date(months // 12, months % 12 + 1, 1)
    return {"year": day.year, "month": day.month, "day": day.day}


class Paging(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of the listing, stored in the payload of the next page's item.

    `newest`: the day that an archive begins with. `since`, `until`: the period that was asked for. `scratch`: known
    articles are read again. `part` and `index` identify the next page; `pages` and `articles` count those so far. Of
    the series: `listed` articles, whether it `had_articles` at all, `had_wanted` ones, whether a page was `read`, or
    `lost` by an error, and `missing`: the pages that did not exist since the last one that did. `newest_article` is
    the one behind which everything was read if the series ends well, empty if an earlier run has marked it;
    `reached_read`: an article appeared that an earlier run has marked so. Of the batch: the number of pages (`batch`),
    how many `failed`, whether an article was `fresh` (new and wanted), `known`, or not older than the period
    (`not_older`), and `seen`, a digest of the articles of each page; `before` are the digests of the previous batch.
    `again`: the page failed with all of its batch and ended the series; if a retry succeeds, the series continues.
    """

    newest: dt.date
    since: dt.date | None = None
    until: dt.date | None = None
    scratch: bool = False
    part: int = 0
    index: int = 0
    pages: int = 0
    articles: int = 0
    listed: int = 0
    had_articles: bool = False
    had_wanted: bool = False
    read: bool = False
    lost: bool = False
    newest_article: str | None = None
    reached_read: bool = False
    missing: tuple[str, ...] = ()
    batch: int = 0
    failed: int = 0
    fresh: bool = False
    known: bool = False
    not_older: bool = False
    seen: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    again: bool = False

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Paging | None:
        """The progress in a payload; None for a page that is not part of a series."""
        return msgspec.convert(payload, cls) if "newest" in payload else None

    @classmethod
    def alone(cls, payload: Mapping[str, Any], *, scratch: bool) -> Paging:
        """Of a page that is read alone, with the period that its payload has, see `extent_payload`."""
        paging = msgspec.convert({"newest": dt.date.min, **payload}, cls)
        return msgspec.structs.replace(paging, scratch=paging.scratch or scratch)

    def extent_payload(self) -> dict[str, Any]:
        """The payload of one of its pages that is read again, alone."""
        extent = {"since": self.since, "until": self.until, "scratch": self.scratch}
        return {name: msgspec.to_builtins(value) for name, value in extent.items() if value}

    def payload(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    @property
    def has_period(self) -> bool:
        return self.since is not None or self.until is not None

    def covers(self, day: str | None) -> bool:
        """Whether an article of this day belongs to the period; one without a day does."""
        return is_in_period(day, self.since, self.until)

    def is_not_older(self, day: str | None) -> bool:
        """Whether an article of this day is not older than the period."""
        return day is None or self.since is None or day >= self.since.isoformat()

    def after_page(
        self,
        urls: Sequence[str],
        *,
        taken: int,
        fresh: bool,
        known: bool = False,
        wanted: bool = True,
        not_older: bool = True,
        marked: Collection[str] = (),
    ) -> Paging:
        """The progress after a page with these articles, of which `taken` were enqueued.

        `marked`: those behind which an earlier run has read everything.
        """
        newest = self.newest_article
        if newest is None and urls:
            newest = "" if urls[-1] in marked else urls[-1]  # the last one: sites pin articles to the top
        return msgspec.structs.replace(
            self._advance(),
            articles=self.articles + taken,
            listed=self.listed + len(urls),
            had_articles=self.had_articles or bool(urls),
            had_wanted=self.had_wanted or wanted,
            read=True,
            newest_article=newest,
            reached_read=self.reached_read or bool(marked),
            missing=() if urls else self.missing,
            fresh=self.fresh or fresh,
            known=self.known or known,
            not_older=self.not_older or not_older,
            seen=(*self.seen, _digest(urls)) if urls else self.seen,
        )

    def after_day_without_page(self) -> Paging:
        """The progress of an archive after a day or a month that has no page."""
        return self._advance()

    def after_failure(self, missing: str | None) -> Paging:
        """The progress after a page that failed; `missing` is its URL if it does not exist."""
        pages = self.missing if missing is None else (*self.missing, missing)
        return msgspec.structs.replace(
            self._advance(), failed=self.failed + 1, missing=pages, lost=self.lost or missing is None
        )

    def end_reason(self, batch_size: int, *, by_days: bool) -> str | None:
        """Why the series ends here, None if it does not. Decided only at the end of a batch.

        `by_days`: an archive, which has days without articles and ends with its first day. Excluded and filtered
        articles are neither new nor known. Known articles end it only behind one that an earlier run has marked: a run
        that ended early may have left out what follows.
        """
        if self.batch < batch_size:
            return None
        if self.batch_failed(batch_size):
            return "every page of a batch failed"
        if not self.seen:
            return None if by_days else "a batch had no article"
        if not by_days and set(self.seen) <= set(self.before):
            return "a batch was the same as the one before"
        if not self.not_older and not by_days:
            return f"all articles of a batch are older than {self.since}"
        only_known = self.known and not self.fresh and not self.has_period
        return "all articles of a batch are known" if only_known and self.reached_read else None

    def batch_failed(self, batch_size: int) -> bool:
        return self.batch >= batch_size and self.failed == self.batch

    def next_page(self, batch_size: int) -> Paging:
        if self.batch < batch_size:
            return self
        return msgspec.structs.replace(
            self, batch=0, failed=0, fresh=False, known=False, not_older=False, seen=(), before=self.seen or self.before
        )

    def next_part(self) -> Paging:
        return Paging(
            newest=self.newest,
            since=self.since,
            until=self.until,
            scratch=self.scratch,
            part=self.part + 1,
            pages=self.pages,
            articles=self.articles,
        )

    def _advance(self) -> Paging:
        return msgspec.structs.replace(
            self, index=self.index + 1, pages=self.pages + 1, batch=self.batch + 1, again=False
        )


def is_in_period(day: str | None, since: dt.date | None, until: dt.date | None) -> bool:
    """Whether a day, as YYYY-MM-DD, belongs to a period; an unknown one does."""
    first, last = since or dt.date.min, until or dt.date.max
    return day is None or first.isoformat() <= day <= last.isoformat()


def end_key(template: str, url: str) -> str:
    """The key of the item that marks an article behind which everything was read."""
    return f"end {_digest([template, url])}"


def _digest(urls: Sequence[str]) -> str:
    """A digest of the articles of a page, independent of their order."""
    return hashlib.blake2b("\n".join(sorted(urls)).encode(), digest_size=9).hexdigest()
