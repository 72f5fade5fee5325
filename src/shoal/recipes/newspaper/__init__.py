"""A newspaper declared in YAML: listing pages that lead to articles.

The listing goes from page to page, each an item of its own that knows how far those before it came, so an interrupted
run goes on at its page. What the listing finds goes to the stage `article`, which makes the records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from shoal.define.context import Http, Item
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.define.yaml_scraper import Declared
from shoal.errors import AttemptEnded, Permanent, Throttled
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.recipes.newspaper.articles import ListingPage, Reader, check_selectors
from shoal.recipes.newspaper.cleaning import Cleaner
from shoal.recipes.newspaper.known import Known
from shoal.recipes.newspaper.paging import Paging, Places
from shoal.recipes.newspaper.settings import Access, read_newspaper

# The listing first: what there is to do is known early, and sites move their articles from page to page meanwhile.
FIRST = -1
# A page may be slow; what ends an attempt before is the silence of the site.
LISTING_SECONDS = 300.0


class Press:
    """What the two stages share: the settings of one newspaper, read and checked. Raises InvalidScraper."""

    def __init__(self, declared: Declared) -> None:
        self.paper = read_newspaper(declared)
        check_selectors(declared, self.paper)
        self.cleaner = Cleaner(declared, self.paper)
        self.access = Access(declared, self.paper)
        self.known = Known(declared, self.paper)
        self.places = Places(self.paper)
        self.places.check(declared)
        self.reader = Reader(self.paper, self.cleaner, source=declared.name, country=declared.country)

    def address(self, paging: Paging) -> str | None:
        return self.places.page(paging.part, paging.index, paging.newest)

    def room(self, paging: Paging) -> int | None:
        """How many more articles are wanted."""
        most = self.paper.max_articles
        return None if most is None else max(0, most - paging.articles)

    def ending(self, paging: Paging, found: ListingPage | None) -> str | None:
        """Why this series of pages ends here."""
        total = found.total if found is not None else None
        if total is not None and paging.listed >= total:
            return "the site says that these are all"
        if self.address(paging) is None:
            return "the first day of the archive is reached"
        return paging.ending(self.paper.listing.batch_size)

    def limit(self, paging: Paging) -> str | None:
        """Why nothing more is to be done at all."""
        if self.room(paging) == 0:
            return "max_articles is reached"
        return "max_pages is reached" if self.paper.max_pages and paging.pages >= self.paper.max_pages else None

    def next(self, paging: Paging, found: ListingPage | None, log: Log) -> Paging | None:
        """Which page comes after this one; None if none does."""
        why = self.limit(paging)
        if why is None:
            why = self.ending(paging, found)
            if why is None:
                return paging.next_page(self.paper.listing.batch_size)
            following = paging.next_part() if paging.part + 1 < len(self.places.templates) else None
        else:
            following = None
        template = self.places.templates[paging.part]
        log.info("the listing ends", why=why, template=template, pages=paging.pages, articles=paging.articles)
        return following


def newspaper(declared: Declared) -> Scraper:
    """The scraper of a newspaper's YAML file. Raises InvalidScraper."""
    press = Press(declared)
    paper = press.paper
    scraper = Scraper(declared.scraper_name)
    scraper.files += press.cleaner.files

    async def listing(item: Item, http: Http, log: Log) -> AsyncIterator[NewItem]:
        await press.known.ready()
        for new in await _turn(press, scraper, item, http, log):
            yield new

    async def article(item: Item, http: Http) -> dict[str, Any] | None:
        return press.reader.article(await press.access.get(http, item.url), item.payload)

    pace: Any = {"delay": paper.rate_limit, "concurrency": paper.concurrency, "retries": paper.retries}
    first = scraper.stage(**pace, timeout=LISTING_SECONDS)(listing)
    scraper.stage(**pace)(article)

    async def start() -> AsyncIterator[NewItem]:
        await press.known.ready()
        paging = Paging(newest=dt.datetime.now(dt.UTC).date())
        yield _page_item(first, press, paging)

    scraper.start(start)
    return scraper


def _page_item(listing: AnyStage, press: Press, paging: Paging) -> NewItem:
    url = press.address(paging)
    # It may be one of the numbered pages too, and as such it must not count as visited.
    key = "start" if url == press.places.start and paging.index == 0 else None
    return listing.item(url, key=key, payload=paging.payload(), priority=FIRST)


def _alone(listing: AnyStage, url: str, paging: Paging | None = None) -> NewItem:
    """A page that failed, by itself: it ends well, or dead where everybody sees it.

    With `paging` it is the one that ended its series. Whenever it is had after all, perhaps days later, it goes on.
    """
    payload = None if paging is None else msgspec.structs.replace(paging, again=True).payload()
    return listing.item(url, key=f"again {url}", payload=payload, priority=FIRST)


async def _turn(press: Press, scraper: Scraper, item: Item, http: Http, log: Log) -> list[NewItem]:
    """One page of the listing: its articles, and the page after it."""
    listing = scraper.stages["listing"]
    paging = Paging.of(item.payload)
    if paging is None:
        found = press.reader.listing(await press.access.get(http, item.url))
        return list(_articles(press, scraper, found, None))
    new: list[NewItem] = []
    listed: ListingPage | None = None
    try:
        listed = press.reader.listing(await press.access.get(http, item.url))
    except AttemptEnded as ended:
        gone = isinstance(ended, Permanent)
        if isinstance(ended, Throttled) or not (gone or item.tries >= listing.policy.retries):
            raise
        if paging.again and not gone:
            raise
        after = paging.after_failure(item.url if gone else None)
        if not gone:
            log.warning("a page of the listing failed", why=ended.message)
            ends = after.batch_failed(press.paper.listing.batch_size)
            new.append(_alone(listing, item.url or "", paging if ends else None))
    else:
        taken = list(_articles(press, scraper, listed, press.room(paging)))
        if listed.urls:
            new += [_alone(listing, url) for url in paging.missing]
        new += taken
        fresh = any(not press.known.has(url) for url in listed.urls)
        after = paging.after(listed.urls, taken=len(taken), fresh=fresh)
    following = press.next(after, listed, log)
    if not after.ever and (following is None or following.part != after.part):
        new += _nothing_found(listing, after)
    if following is not None and press.address(following) is not None:
        new.append(_page_item(listing, press, following))
    return new


def _nothing_found(listing: AnyStage, paging: Paging) -> Iterator[NewItem]:
    """A series that ends without one article is a mistake in the file, or a site that is down: both must be seen."""
    if not paging.missing and not paging.failed:
        raise Permanent("no page of the listing has an article: check selectors.thumbnail, or json_paths of an api")
    return (_alone(listing, url) for url in paging.missing)


def _articles(press: Press, scraper: Scraper, found: ListingPage, room: int | None) -> Iterator[NewItem]:
    fresh = [entry for entry in found.entries if not press.known.has(entry.url)]
    for entry in fresh[:room]:
        yield scraper.stages["article"].item(entry.url, payload=entry.payload())
