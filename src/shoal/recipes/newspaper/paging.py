"""The pages of a listing, the rules by which paging stops, and the articles that are known already."""

from __future__ import annotations

import asyncio
import csv
import datetime as dt
import glob
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import msgspec

from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.errors import InvalidItem, InvalidScraper
from shoal.fetch import urls
from shoal.model.url_key import key_hash, url_key
from shoal.recipes.newspaper.settings import ApiListing, Archive, Listing, Newspaper, Pagination, as_tuple

SUFFIXES = (".csv", ".jsonl", ".txt")
MAX_FIELD_BYTES = 16 << 20


class ListingUrls:
    """The URLs of a newspaper's listing pages. `newest` is the first day of an archive without an end_date."""

    def __init__(self, paper: Newspaper) -> None:
        self._base_url = paper.base_url
        self._listing = paper.listing
        self.templates = as_tuple(paper.listing.url_template)

    def check(self, header: YamlHeader) -> None:
        """Raises InvalidScraper when pages have the same URL: each page is an item, and items are unique."""
        pages = [
            self._fill_template(part, values) for part in range(len(self.templates)) for values in self._first_two()
        ]
        if len({url_key(url) for url in pages}) < len(pages):
            message = f"listing.url_template leads to the same page twice: {', '.join(self.templates)}."
            raise yaml_error(header, ["listing", "url_template"], message)

    def page(self, part: int, index: int, newest: dt.date) -> str | None:
        """The URL of a page of a template's series, counted from 0; None behind the end of the series."""
        if part == 0 and self.start is not None:
            if index == 0:
                return self.start
            index -= 1
        values = _values(self._listing, index, newest)
        return None if values is None else self._fill_template(part, values)

    @cached_property
    def start(self) -> str | None:
        """The start_url, unless it is the first of the numbered pages."""
        if not isinstance(self._listing, Pagination) or self._listing.start_url is None:
            return None
        start = self._absolute(self._listing.start_url)
        first = self._fill_template(0, {"num": self._listing.start_page})
        return None if url_key(start) == url_key(first) else start

    def _first_two(self) -> list[dict[str, int]]:
        if isinstance(self._listing, Archive):
            return [{"year": 2001, "month": 1, "day": 1}, {"year": 2002, "month": 2, "day": 2}]
        return [values for index in (0, 1) if (values := _values(self._listing, index, dt.date.min)) is not None]

    def _fill_template(self, part: int, values: dict[str, int]) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in values:
                return found[0]
            # Most archives write June as 06; `{month:d}` is for the others.
            width = 2 if found[1] in ("month", "day") and not found[2] else 1
            return f"{values[found[1]]:0{width}d}"

        return self._absolute(re.sub(r"\{(\w+)(:d)?\}", value, self.templates[part]))

    def _absolute(self, url: str) -> str:
        if not url.startswith("/"):
            return url
        base = urls.parse_url(self._base_url)
        assert base is not None, "the settings were checked"
        return urls.resolve(base, url) or url


def _values(listing: Listing, index: int, newest: dt.date) -> dict[str, int] | None:
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
            return _period(listing, index, listing.end_date or newest)


def _period(listing: Archive, index: int, newest: dt.date) -> dict[str, int] | None:
    """The day or the month `index` steps before the newest; None before start_date."""
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


class Paging(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of the listing, stored in the payload of the next page's item.

    `part` and `index` identify the next page; `pages` and `articles` count those so far. Of the series: `listed`
    articles, whether it `ever` had any, and `missing`: the pages that did not exist since the last one that did. Of the
    batch: the number of pages (`batch`), how many `failed`, whether an article was `fresh`, and `seen`, a digest of the
    articles of each page; `before` are the digests of the previous batch. `again`: the page failed with all of its
    batch and ended the series; if a retry succeeds, the series continues from it.
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
        """The progress in a payload; None for a page that is not part of a series."""
        return msgspec.convert(payload, cls) if "newest" in payload else None

    def payload(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built

    def after_page(self, urls: Sequence[str], *, taken: int, fresh: bool) -> Paging:
        """The progress after a page with these articles, of which `taken` were enqueued."""
        return msgspec.structs.replace(
            self._advance(),
            articles=self.articles + taken,
            listed=self.listed + len(urls),
            ever=self.ever or bool(urls),
            missing=() if urls else self.missing,
            fresh=self.fresh or fresh,
            seen=(*self.seen, _digest(urls)) if urls else self.seen,
        )

    def after_failure(self, missing: str | None) -> Paging:
        """The progress after a page that failed; `missing` is its URL if it does not exist."""
        pages = self.missing if missing is None else (*self.missing, missing)
        return msgspec.structs.replace(self._advance(), failed=self.failed + 1, missing=pages)

    def end_reason(self, batch_size: int) -> str | None:
        """Why the series ends here, None if it does not. Decided only at the end of a batch."""
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

    def _advance(self) -> Paging:
        return msgspec.structs.replace(
            self, index=self.index + 1, pages=self.pages + 1, batch=self.batch + 1, again=False
        )


def _digest(urls: Sequence[str]) -> str:
    """A digest of the articles of a page, independent of their order."""
    return hashlib.blake2b("\n".join(sorted(urls)).encode(), digest_size=9).hexdigest()


class _Line(msgspec.Struct):
    url: str | None = None


class KnownArticles:
    """The keys of the known articles, loaded once in every process that reads the listing."""

    def __init__(self, header: YamlHeader, paper: Newspaper) -> None:
        self._patterns = as_tuple(paper.known)
        self._folder = header.folder
        self._keys: frozenset[bytes] | None = None
        self._reading = asyncio.Lock()
        for pattern in self._patterns:
            if not pattern.endswith(SUFFIXES):
                message = f"known is {pattern!r}; it must end in {', '.join(SUFFIXES)}."
                raise yaml_error(header, ["known"], message, remedy="Name an export, such as news/*.jsonl.")

    async def load(self) -> None:
        """Read the files, once. Raises InvalidScraper when one cannot be parsed."""
        async with self._reading:
            if self._keys is None:
                self._keys = await asyncio.to_thread(self._read) if self._patterns else frozenset()

    def has(self, url: str) -> bool:
        assert self._keys is not None, "load() comes first"
        return bool(self._keys) and _key(url) in self._keys

    def _read(self) -> frozenset[bytes]:
        found = (glob.glob(pattern, root_dir=self._folder, recursive=True) for pattern in self._patterns)
        urls = (url for names in found for name in names for url in _urls(self._folder / name))
        return frozenset(key for url in urls if (key := _key(url)) is not None)


def _urls(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            if file.suffix == ".csv":
                yield from _column(file, lines)
            elif file.suffix == ".jsonl":
                decode = msgspec.json.Decoder(_Line).decode
                yield from (url for line in lines if not line.isspace() and (url := decode(line).url))
            else:
                yield from (line.strip() for line in lines)
    except (OSError, ValueError, csv.Error) as problem:
        raise InvalidScraper(
            f"{file} cannot be read as a list of known articles: {' '.join(str(problem).split())}.",
            remedy="Correct the file, or remove it from known.",
        ) from None


def _column(file: Path, lines: TextIO) -> Iterator[str]:
    csv.field_size_limit(MAX_FIELD_BYTES)
    rows = csv.DictReader(lines)
    if "url" not in (rows.fieldnames or ()):
        raise InvalidScraper(f"{file} has no column url.", remedy="Take it out of known.")
    yield from (row["url"] for row in rows if row["url"])


def _key(url: str) -> bytes | None:
    try:
        return key_hash(url_key(url))[:16]
    except InvalidItem:
        return None
