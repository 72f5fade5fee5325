"""A newspaper declared in YAML: listing pages that link to articles.

Each page of the listing is an item whose payload has the progress of the pages before it, so an interrupted run
continues at its page. The articles of the listing go to the stage `article`, which yields the records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from shoal.define.context import Http, Item
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.define.yaml_scraper import YamlHeader
from shoal.errors import AttemptEnded, Permanent, Throttled
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.recipes.newspaper.articles import ListingPage, Reader, check_selectors
from shoal.recipes.newspaper.cleaning import FieldCleaner
from shoal.recipes.newspaper.paging import KnownArticles, ListingUrls, Paging
from shoal.recipes.newspaper.settings import NewspaperClient, read_newspaper

# The listing first: the number of articles is known early, and new articles shift the others between pages.
LISTING_PRIORITY = -1
# Pages may be slow; a site that sends nothing ends the attempt earlier.
LISTING_SECONDS = 300.0


class NewspaperContext:
    """The checked settings of one newspaper, for both stages. Raises InvalidScraper."""

    def __init__(self, header: YamlHeader) -> None:
        self.paper = read_newspaper(header)
        check_selectors(header, self.paper)
        self.cleaner = FieldCleaner(header, self.paper)
        self.client = NewspaperClient(header, self.paper)
        self.known = KnownArticles(header, self.paper)
        self.listing_urls = ListingUrls(self.paper)
        self.listing_urls.check(header)
        self.reader = Reader(self.paper, self.cleaner, source=header.name, country=header.country)

    def page_url(self, paging: Paging) -> str | None:
        return self.listing_urls.page(paging.part, paging.index, paging.newest)

    def articles_left(self, paging: Paging) -> int | None:
        """How many articles remain up to `max_articles`; None without a limit."""
        limit = self.paper.max_articles
        return None if limit is None else max(0, limit - paging.articles)

    def end_reason(self, paging: Paging, found: ListingPage | None) -> str | None:
        """Why this series of pages ends here; None if it continues."""
        total = found.total if found is not None else None
        if total is not None and paging.listed >= total:
            return "the site says that these are all"
        if self.page_url(paging) is None:
            return "the first day of the archive is reached"
        return paging.end_reason(self.paper.listing.batch_size)

    def limit_reason(self, paging: Paging) -> str | None:
        """Which limit of the whole listing is reached; None if none is."""
        if self.articles_left(paging) == 0:
            return "max_articles is reached"
        return "max_pages is reached" if self.paper.max_pages and paging.pages >= self.paper.max_pages else None

    def next_page(self, paging: Paging, found: ListingPage | None, log: Log) -> Paging | None:
        """The page after this one; None at the end of the listing."""
        reason = self.limit_reason(paging)
        if reason is None:
            reason = self.end_reason(paging, found)
            if reason is None:
                return paging.next_page(self.paper.listing.batch_size)
            following = paging.next_part() if paging.part + 1 < len(self.listing_urls.templates) else None
        else:
            following = None
        template = self.listing_urls.templates[paging.part]
        log.info("listing ended", why=reason, template=template, pages=paging.pages, articles=paging.articles)
        return following


def newspaper(header: YamlHeader) -> Scraper:
    """The scraper of a newspaper's YAML file. Raises InvalidScraper."""
    context = NewspaperContext(header)
    paper = context.paper
    scraper = Scraper(header.scraper_name)
    scraper.files += context.cleaner.files

    async def listing(item: Item, http: Http, log: Log) -> AsyncIterator[NewItem]:
        await context.known.load()
        for new in await _read_listing_page(context, scraper, item, http, log):
            yield new

    async def article(item: Item, http: Http) -> dict[str, Any] | None:
        return context.reader.article(await context.client.get(http, item.url), item.payload)

    pace: Any = {"delay": paper.rate_limit, "concurrency": paper.concurrency, "retries": paper.retries}
    first = scraper.stage(**pace, timeout=LISTING_SECONDS)(listing)
    scraper.stage(**pace)(article)

    async def start() -> AsyncIterator[NewItem]:
        await context.known.load()
        paging = Paging(newest=dt.datetime.now(dt.UTC).date())
        yield _page_item(first, context, paging)

    scraper.start(start)
    return scraper


def _page_item(listing: AnyStage, context: NewspaperContext, paging: Paging) -> NewItem:
    url = context.page_url(paging)
    # The start page may also be one of the numbered pages, which needs a key of its own.
    key = "start" if url == context.listing_urls.start and paging.index == 0 else None
    return listing.item(url, key=key, payload=paging.payload(), priority=LISTING_PRIORITY)


def _retry_page_item(listing: AnyStage, url: str, paging: Paging | None = None) -> NewItem:
    """A failed page as an item of its own, which ends as done or as dead.

    With `paging` its failure ended the series; when it succeeds, perhaps days later, the series continues.
    """
    payload = None if paging is None else msgspec.structs.replace(paging, again=True).payload()
    return listing.item(url, key=f"again {url}", payload=payload, priority=LISTING_PRIORITY)


async def _read_listing_page(
    context: NewspaperContext, scraper: Scraper, item: Item, http: Http, log: Log
) -> list[NewItem]:
    """The items of one listing page: its articles, and the page after it."""
    listing = scraper.stages["listing"]
    paging = Paging.of(item.payload)
    if paging is None:
        found = context.reader.listing(await context.client.get(http, item.url))
        return list(_articles(context, scraper, found, None))
    new: list[NewItem] = []
    listed: ListingPage | None = None
    try:
        listed = context.reader.listing(await context.client.get(http, item.url))
    except AttemptEnded as ended:
        is_permanent = isinstance(ended, Permanent)
        if isinstance(ended, Throttled) or not (is_permanent or item.tries >= listing.policy.retries):
            raise
        if paging.again and not is_permanent:
            raise
        after = paging.after_failure(item.url if is_permanent else None)
        if not is_permanent:
            log.warning("listing page failed", why=ended.message)
            ends = after.batch_failed(context.paper.listing.batch_size)
            new.append(_retry_page_item(listing, item.url or "", paging if ends else None))
    else:
        taken = list(_articles(context, scraper, listed, context.articles_left(paging)))
        if listed.urls:
            new += [_retry_page_item(listing, url) for url in paging.missing]
        new += taken
        fresh = any(not context.known.has(url) for url in listed.urls)
        after = paging.after_page(listed.urls, taken=len(taken), fresh=fresh)
    following = context.next_page(after, listed, log)
    if not after.ever and (following is None or following.part != after.part):
        new += _nothing_found(listing, after)
    if following is not None and context.page_url(following) is not None:
        new.append(_page_item(listing, context, following))
    return new


def _nothing_found(listing: AnyStage, paging: Paging) -> Iterator[NewItem]:
    """A series without any article is an error: of the file, or of the site. Raises Permanent for the former."""
    if not paging.missing and not paging.failed:
        raise Permanent("no page of the listing has an article: check selectors.thumbnail, or json_paths of an api")
    return (_retry_page_item(listing, url) for url in paging.missing)


def _articles(
    context: NewspaperContext, scraper: Scraper, found: ListingPage, articles_left: int | None
) -> Iterator[NewItem]:
    fresh = [entry for entry in found.entries if not context.known.has(entry.url)]
    for entry in fresh[:articles_left]:
        yield scraper.stages["article"].item(entry.url, payload=entry.payload())
