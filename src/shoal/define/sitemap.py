"""Sitemaps as items: each is fetched politely, retried and stored like any other item."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

import msgspec

from shoal.define.context import Item
from shoal.define.stage import AnyStage, Stage
from shoal.errors import InvalidScraper, Permanent
from shoal.fetch.page import Page
from shoal.fetch.sitemap import read_sitemap, robots_sitemaps
from shoal.model.item import NewItem
from shoal.model.log import Log

# An index should list sitemaps only, but some list indexes, and a hostile site lists endless ones.
MAX_DEPTH = 5
MAX_SITEMAPS = 1_000_000
SITEMAPS_LEFT = "sitemaps_left"


def sitemap_item(target: AnyStage, url: str, *, match: str | None, since: str | None) -> NewItem:
    """An item for the stage that reads sitemaps for `target`. The stage is added when it is first needed."""
    try:
        re.compile(match or "")
        _parse_day(since)
    except (re.error, ValueError) as problem:
        raise InvalidScraper(f"sitemap() cannot use match={match!r}, since={since!r}: {problem}.") from None
    stage = target.scraper.stages.get(_name(target)) or _add_sitemap_stage(target)
    given = {"match": match, "since": since}
    return stage.item(url, payload={name: value for name, value in given.items() if value is not None} or None)


def _name(target: AnyStage) -> str:
    return f"{target.name}.sitemap"


def _add_sitemap_stage(target: AnyStage) -> AnyStage:
    def read(page: Page, item: Item, log: Log) -> Iterator[NewItem]:
        if page.url.endswith("/robots.txt"):
            yield from _sitemaps(stage, item, robots_sitemaps(page.text), log)
            return
        sitemap = read_sitemap(page.body)
        listed: list[str] = []
        pattern, since = re.compile(item.payload.get("match", "")), _parse_day(item.payload.get("since"))
        count = 0
        for entry in sitemap.entries:
            count += 1
            if since is not None and entry.lastmod is not None and entry.lastmod < since:
                continue
            if sitemap.kind == "index":
                listed.append(entry.loc)
            elif pattern.search(entry.loc):
                # What a sitemap lists is where a crawl starts.
                yield msgspec.structs.replace(target.item(entry.loc), depth=0)
        yield from _sitemaps(stage, item, listed, log)
        if sitemap.problem:
            if not count:
                raise Permanent(f"{page.url} is not a sitemap: {sitemap.problem}")
            log.warning("sitemap broken; readable part used", why=sitemap.problem, read=count)

    stage: Stage[..., Iterator[NewItem]] = Stage(target.scraper, read, {"name": _name(target)})
    target.scraper.add_stage(stage)
    return stage


def _sitemaps(stage: AnyStage, item: Item, urls: list[str], log: Log) -> Iterator[NewItem]:
    """Items for the sitemaps that an index lists, within the limits.

    No process knows how many sitemaps a run has, so each index gets a share of what its parent had left.
    """
    if not urls:
        return
    left = item.payload.get(SITEMAPS_LEFT, MAX_SITEMAPS)
    if item.depth >= MAX_DEPTH:
        log.warning("sitemaps nested too deeply; skipped", listed=len(urls), deepest=MAX_DEPTH)
        return
    taken = urls[:left]
    if len(taken) < len(urls):
        log.warning("too many sitemaps; rest skipped", listed=len(urls), read=len(taken))
    if taken:
        payload = {**item.payload, SITEMAPS_LEFT: (left - len(taken)) // len(taken)}
        for url in taken:
            yield stage.item(url, payload=payload)


def _parse_day(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    day = dt.datetime.fromisoformat(text)
    return day if day.tzinfo else day.replace(tzinfo=dt.UTC)
