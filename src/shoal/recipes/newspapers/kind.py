"""A newspaper declared in YAML, as a scraper: the stage `listing` reads listing pages, `article` yields the records.

Each page of the listing is an item whose payload has the progress of the pages before it, so an interrupted run
continues at its page.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from shoal.define.context import EarlierRuns, Http, Item
from shoal.define.counters import KNOWN, LEFT_OUT, NEW, Counters
from shoal.define.scraper import Scraper
from shoal.define.stage import AnyStage
from shoal.define.yaml_scraper import YamlHeader
from shoal.errors import AttemptEnded, PageMissing, Permanent, RequestRefused, Skipped, Throttled
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.recipes.newspapers.cleaning import FieldCleaner
from shoal.recipes.newspapers.client import NewspaperClient
from shoal.recipes.newspapers.files import NewspaperFiles
from shoal.recipes.newspapers.known import KnownArticles
from shoal.recipes.newspapers.paging import ListingUrls, Paging, end_key, is_in_period
from shoal.recipes.newspapers.reader import Entry, ListingPage, Reader
from shoal.recipes.newspapers.selectors import check_selectors
from shoal.recipes.newspapers.settings import Archive, as_tuple, read_newspaper

# The listing first: the number of articles is known early, and new articles shift the others between pages.
LISTING_PRIORITY = -1
# Pages may be slow; a site that sends nothing ends the attempt earlier.
LISTING_SECONDS = 300.0
# Articles without a title or a date that a process logs; the summary counts them all.
SHOWN_INCOMPLETE = 3
# An article that failed is tried again in so many further runs.
MAX_FAILED_RUNS = 5
WHY_LEFT_OUT = "check listing.exclude, cleaning.url and cleaning.record_filter"
NO_CONTAINER = "no element matches selectors.thumbnail.container: check selectors.thumbnail"


class NewspaperContext:
    """The checked settings of one newspaper, for both stages. Raises InvalidScraper."""

    def __init__(self, header: YamlHeader, scraper: Scraper | None = None) -> None:
        self.paper = read_newspaper(header)
        check_selectors(header, self.paper)
        self.cleaner = FieldCleaner(header, self.paper)
        self.client = NewspaperClient(header, self.paper)
        self.known = KnownArticles(
            header,
            self.paper,
            lambda: scraper.output_folder if scraper is not None else "",
            lambda: scraper.code_version if scraper is not None else None,
        )
        self.listing_urls = ListingUrls(self.paper)
        self.listing_urls.check(header)
        self.reader = Reader(self.paper, self.cleaner, source=header.name, country=header.country)

    def articles_left(self, paging: Paging) -> int | None:
        """How many articles remain up to `max_articles`; None without a limit."""
        limit = self.paper.max_articles
        return None if limit is None else max(0, limit - paging.articles)

    def end_reason(self, paging: Paging, found: ListingPage | None) -> str | None:
        """Why this series of pages ends here; None if it continues."""
        total = found.total if found is not None else None
        if total is not None and paging.listed >= total:
            return "the site says that these are all"
        if self.listing_urls.page(paging) is None:
            return "the first day of the archive is reached"
        return paging.end_reason(self.paper.listing.batch_size, by_days=isinstance(self.paper.listing, Archive))

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

    def by_entry_dates(self) -> bool:
        """Whether the dates of the listing decide about a period; pages of a daily archive belong to their day."""
        return not (isinstance(self.paper.listing, Archive) and self.paper.listing.date_format == "daily")

    async def split_known(self, found: ListingPage, paging: Paging, earlier: EarlierRuns) -> Sequence[Entry]:
        """The articles of a page that are neither known nor, by the listing's dates, outside of the period.

        One that failed permanently is known as well: an earlier run has reported it.
        """
        entries = found.entries
        if paging.has_period and self.by_entry_dates():
            entries = tuple(entry for entry in entries if paging.covers(entry.date))
        if paging.scratch:
            return entries
        await self.known.load()
        unknown = [entry for entry in entries if not self.known.has(entry.url)]
        keys = {entry.url: (entry.url, self.article_key(entry, paging) or entry.url) for entry in unknown}
        ended = await earlier.finished("article", {key for both in keys.values() for key in both})
        left = [entry for entry in unknown if ended.isdisjoint(keys[entry.url])]
        failed = await earlier.permanently_failed("article", {key for entry in left for key in keys[entry.url]})
        return [entry for entry in left if failed.isdisjoint(keys[entry.url])]

    def article_key(self, entry: Entry, paging: Paging) -> str | None:
        """The key of an article whose page decides whether it belongs to the period; None for others.

        Its URL is no key of it: what is outside of the period is not known to later runs.
        """
        if not paging.has_period or entry.date is not None or not self.by_entry_dates():
            return None
        by_page = self.reader.needs_page(entry.payload()) and self.reader.asks_for("date")
        return f"{paging.since or ''}..{paging.until or ''} {entry.url}" if by_page else None

    async def marked(self, found: ListingPage, paging: Paging, earlier: EarlierRuns) -> set[str]:
        """The articles of a page behind which an earlier run has read everything."""
        if paging.scratch or paging.has_period or self.is_start_page(paging):
            return set()
        template = self.listing_urls.templates[paging.part]
        keys = {url: end_key(template, url) for url in found.urls}
        await self.known.load()
        # A run that was interrupted may have left articles in front of its mark.
        marked = await earlier.finished("listing", keys.values(), in_finished_runs=True) | self.known.marks
        return {url for url, key in keys.items() if key in marked}

    def is_start_page(self, paging: Paging) -> bool:
        """Whether it is the start_url, which has articles in no order."""
        return self.listing_urls.start is not None and paging.part == 0 and paging.index == 0

    def is_complete(self, paging: Paging, found: ListingPage | None) -> bool:
        """Whether the series ends here with everything read that the listing has, or that earlier runs have not."""
        ended = self.limit_reason(paging) is None and self.end_reason(paging, found) is not None
        return ended and not paging.lost and not paging.has_period


def newspaper(header: YamlHeader) -> Scraper:
    """The scraper of a newspaper's YAML file. Raises InvalidScraper."""
    scraper = Scraper(header.scraper_name)
    context = NewspaperContext(header, scraper)
    paper = context.paper
    scraper.files += context.cleaner.files

    async def listing(
        item: Item, http: Http, earlier: EarlierRuns, counters: Counters, log: Log
    ) -> AsyncIterator[NewItem]:
        # An item without a URL marks an article, see `Paging.newest_article`: that it is done is what it says.
        if item.url is not None:
            for new in await _read_listing_page(context, scraper, item, http, earlier, counters, log):
                yield new

    incomplete = itertools.count(1)

    async def article(item: Item, http: Http, log: Log) -> AsyncIterator[dict[str, Any] | NewItem]:
        if "record" in item.payload:
            yield item.payload["record"]
            return
        needs_page = context.reader.needs_page(item.payload)
        page = await context.client.get(http, item.url) if needs_page else None
        record = context.reader.article(page, item.url or "", item.payload)
        empty = [name for name in ("title", "date") if not record[name]]
        if empty and next(incomplete) <= SHOWN_INCOMPLETE:
            _report_empty(context, empty, item, log)
        period = item.payload.get("period")
        if period is None:
            yield record
        elif is_in_period(record["date"], *msgspec.convert(period, tuple[dt.date | None, dt.date | None])):
            yield scraper.stages["article"].item(item.url, payload={"record": record}, lane=None)
        else:
            raise Skipped(f"its day, {record['date']}, is outside of the period")

    pace: Any = {"delay": paper.rate_limit, "concurrency": paper.concurrency, "retries": paper.retries}
    first = scraper.stage(**pace, timeout=LISTING_SECONDS)(listing)
    asks_for_tags = context.reader.asks_for("tags")
    scraper.stage(**pace, expect=("title", "date"), may_be_empty=() if asks_for_tags else ("tags",))(article)

    async def start() -> AsyncIterator[NewItem]:
        paging = context.listing_urls.first(
            dt.datetime.now(dt.UTC).date(), since=scraper.since, until=scraper.until, scratch=scraper.from_scratch
        )
        if context.listing_urls.page(paging) is not None:
            yield _page_item(first, context, paging)

    scraper.start(start)
    scraper.write_folder = NewspaperFiles(header, scraper).write
    return scraper


def _page_item(listing: AnyStage, context: NewspaperContext, paging: Paging) -> NewItem:
    url = context.listing_urls.page(paging)
    # The start page may also be one of the numbered pages, which needs a key of its own.
    key = "start" if url == context.listing_urls.start and paging.index == 0 else None
    return listing.item(url, key=key, payload=paging.payload(), priority=LISTING_PRIORITY)


def _retry_page_item(listing: AnyStage, url: str, paging: Paging, *, ends: bool = False) -> NewItem:
    """A failed page as an item of its own, which ends as done or as dead.

    `ends`: its failure ended the series; when it succeeds, perhaps days later, the series continues.
    """
    payload = msgspec.structs.replace(paging, again=True).payload() if ends else paging.extent_payload()
    return listing.item(url, key=f"again {url}", payload=payload, priority=LISTING_PRIORITY)


async def _read_listing_page(
    context: NewspaperContext,
    scraper: Scraper,
    item: Item,
    http: Http,
    earlier: EarlierRuns,
    counters: Counters,
    log: Log,
) -> list[NewItem]:
    """The items of one listing page: its articles, and the page after it."""
    listing = scraper.stages["listing"]
    paging = Paging.of(item.payload)
    if paging is None:
        alone = Paging.alone(item.payload, scratch=scraper.from_scratch)
        found = await _fetch_listing_page(context, item, http)
        fresh = await context.split_known(found, alone, earlier)
        _report_page(context, found, fresh, log, warn=True)
        if not alone.has_period:
            _count_articles(found, fresh, counters)
        return list(_articles(scraper, context, fresh, alone))
    is_first = paging.pages == 0 and not (paging.scratch or paging.has_period)
    new = [article async for article in _left_before(context, scraper, earlier)] if is_first else []
    listed: ListingPage | None = None
    try:
        listed = await _fetch_listing_page(context, item, http)
    except AttemptEnded as ended:
        # Some APIs refuse the number of a page behind their last one.
        behind_the_last = paging.had_articles and isinstance(ended, RequestRefused)
        is_missing = isinstance(ended, PageMissing) or behind_the_last
        is_last_attempt = isinstance(ended, Permanent) or item.tries >= listing.policy.retries
        if isinstance(ended, Throttled) or not is_last_attempt or (paging.again and not is_missing):
            raise
        if is_missing and isinstance(context.paper.listing, Archive):
            # Many archives have no page for a day without articles.
            after = paging.after_day_without_page()
        else:
            after = paging.after_failure(item.url if is_missing else None)
        if not is_missing:
            log.warning("listing page failed", why=ended.message)
            ends = after.batch_failed(context.paper.listing.batch_size)
            new.append(_retry_page_item(listing, item.url or "", paging, ends=ends))
    else:
        fresh = await context.split_known(listed, paging, earlier)
        _report_page(context, listed, fresh, log, warn=False)
        if not paging.has_period:  # what lies outside of it is none of the three
            _count_articles(listed, fresh, counters)
        taken = list(_articles(scraper, context, fresh[: context.articles_left(paging)], paging))
        if listed.urls:
            new += [_retry_page_item(listing, url, paging) for url in paging.missing]
        new += taken
        after = paging.after_page(
            listed.urls,
            taken=len(taken),
            fresh=bool(fresh),
            known=len(fresh) < len(listed.entries),
            wanted=bool(listed.entries),
            not_older=not listed.entries or any(paging.is_not_older(entry.date) for entry in listed.entries),
            marked=await context.marked(listed, paging, earlier),
        )
    following = context.next_page(after, listed, log)
    if following is None or following.part != after.part:
        new += _end_of_series(context, listing, after, listed, log)
    if following is not None and context.listing_urls.page(following) is not None:
        new.append(_page_item(listing, context, following))
    return new


async def _left_before(context: NewspaperContext, scraper: Scraper, earlier: EarlierRuns) -> AsyncIterator[NewItem]:
    """The articles that earlier runs left: failed, or not begun. Their listing pages may not be read again."""
    await context.known.load()
    left = [(item.url, item.payload, 1) for item in await earlier.failed("article")]
    left += [(item.url, item.payload, 0) for item in await earlier.unfinished("article")]
    in_files = context.known.failed.keys() - {url for url, _, _ in left}
    in_files -= await earlier.finished("article", in_files) | await earlier.permanently_failed("article", in_files)
    left += [(url, context.known.failed[url], 1) for url in sorted(in_files)]
    for url, given, failed in left:
        times = given.get("failed_before", 0) + failed
        if url is None or context.known.has(url) or "period" in given or times > MAX_FAILED_RUNS:
            continue
        payload = {**given, "failed_before": times} if times else given
        new = scraper.stages["article"].item(url, payload=payload)
        sends_request = "record" not in payload and context.reader.needs_page(payload)
        yield new if sends_request else msgspec.structs.replace(new, lane=None)


async def _fetch_listing_page(context: NewspaperContext, item: Item, http: Http) -> ListingPage:
    """The articles of a page. Raises Permanent also for one that robots.txt forbids: the listing is incomplete then."""
    try:
        return context.reader.listing(await context.client.get(http, item.url))
    except Skipped as ended:
        raise Permanent(f"the listing cannot be read: {ended.message}") from ended


def _report_page(
    context: NewspaperContext, found: ListingPage, fresh: Sequence[Entry], log: Log, *, warn: bool
) -> None:
    """Log what a page has. `warn`: it was read alone, so that it should have articles."""
    known = len(found.entries) - len(fresh)
    log.info("listing page", articles=len(found.urls), new=len(fresh), known=known, left_out=found.left_out)
    if not found.urls and (warn or found.without_url):
        log.warning("no articles on the page", why=_why_no_articles(context, found))
    if warn and found.urls and not found.entries:
        log.warning("every article of the page is left out", why=WHY_LEFT_OUT)
    article = context.paper.selectors.article
    for field in ("title", "date"):
        if not as_tuple(getattr(article, field)) and found.mostly_without(field):
            where = "json_paths" if context.paper.selectors.thumbnail is None else "selectors.thumbnail"
            log.warning(f"most articles of the page have no {field}", why=f"check {where}.{field}")
    for name in found.without_excluded:
        log.warning(f"no article of the page has {name}, which exclude names", why=f"check listing.exclude.{name}")


def _why_no_articles(context: NewspaperContext, found: ListingPage) -> str:
    if context.paper.selectors.thumbnail is not None:
        return f"selectors.thumbnail.url finds no link in {found.boxes} containers" if found.boxes else NO_CONTAINER
    if found.without_url:
        parts = " and ".join(f"{{{name}}}" for name in found.without_url)
        return f"no article has {parts} of url_construction_template: check json_paths"
    what = (
        f"json_paths.url finds nothing in {found.boxes} articles" if found.boxes else "json_paths.collection is empty"
    )
    return f"{what}: check json_paths"


def _report_empty(context: NewspaperContext, empty: Sequence[str], item: Item, log: Log) -> None:
    """Log which fields a record lacks. Those of the listing cannot be there when `shoal try` is given no payload."""
    selectors = context.paper.selectors.article
    of_listing = [name for name in empty if not as_tuple(getattr(selectors, name))]
    if of_listing and not item.payload:
        come = f"{' and '.join(of_listing)} of an article {'comes' if len(of_listing) == 1 else 'come'}"
        log.info(f"{come} from the listing", hint="""shoal try --payload '{"title": "..."}'""")
        empty = [name for name in empty if name not in of_listing]
    if empty:
        where = "json_paths" if context.paper.selectors.thumbnail is None else "selectors.thumbnail"
        places = [f"{where if name in of_listing else 'selectors.article'}.{name}" for name in empty]
        log.warning("article without " + " and ".join(empty), why=f"check {' and '.join(places)}")


def _count_articles(found: ListingPage, fresh: Sequence[Entry], counters: Counters) -> None:
    numbers = {NEW: len(fresh), KNOWN: len(found.entries) - len(fresh), LEFT_OUT: found.left_out}
    for name, number in numbers.items():
        if number:
            counters.add(name, number)


def _end_of_series(
    context: NewspaperContext, listing: AnyStage, paging: Paging, found: ListingPage | None, log: Log
) -> Iterator[NewItem]:
    if not paging.had_articles:
        yield from _nothing_found(context, listing, paging, log)
        return
    if not paging.had_wanted:
        log.warning("every article of the listing was left out", why=WHY_LEFT_OUT)
    if paging.newest_article and context.is_complete(paging, found):
        key = end_key(context.listing_urls.templates[paging.part], paging.newest_article)
        marked = {"all_read_behind": paging.newest_article}
        yield listing.item(key=key, payload=marked, priority=LISTING_PRIORITY, lane=None)


def _nothing_found(context: NewspaperContext, listing: AnyStage, paging: Paging, log: Log) -> Iterator[NewItem]:
    """A series without any article is an error. Raises Permanent if it is one of the file.

    A page that was read shows that the URLs are right. Those that are missing are then behind the last page. That an
    archive has no article of a period may be right.
    """
    if paging.has_period and isinstance(context.paper.listing, Archive):
        if paging.read and not context.known.has_any:
            log.warning("the archive has no article of the period", why="it was quiet, or check selectors.thumbnail")
        elif not paging.lost:
            log.info("the archive has no article of the period")
        return iter(())
    if paging.read:
        where = "json_paths" if context.paper.selectors.thumbnail is None else "selectors.thumbnail"
        more = f"; others do not exist, such as {paging.missing[0]}" if paging.missing else ""
        raise Permanent(f"no page of the listing has an article: check {where}{more}")
    if not paging.missing and not paging.failed:
        raise Permanent("no page of the listing exists: check listing.url_template")
    return (_retry_page_item(listing, url, paging) for url in paging.missing)


def _articles(
    scraper: Scraper, context: NewspaperContext, entries: Sequence[Entry], paging: Paging
) -> Iterator[NewItem]:
    stage = scraper.stages["article"]
    for entry in entries:
        payload = entry.payload()
        if not context.reader.needs_page(payload):
            yield stage.item(entry.url, payload=payload, lane=None)  # no request is sent
            continue
        key = context.article_key(entry, paging)
        if key is not None:
            payload["period"] = msgspec.to_builtins([paging.since, paging.until])
        yield stage.item(entry.url, key=key, payload=payload)
