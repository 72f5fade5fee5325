"""Reads listing pages and articles with the selectors and paths of the YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Permanent, Skipped
from shoal.fetch import urls
from shoal.fetch.page import Page
from shoal.recipes.newspapers.cleaning import FieldCleaner
from shoal.recipes.newspapers.json_paths import json_at, scalar, scalars
from shoal.recipes.newspapers.selectors import elements, link, text, text_in, texts
from shoal.recipes.newspapers.settings import ApiListing, JsonPaths, Newspaper, OneOrMore, as_tuple

if TYPE_CHECKING:
    from parsel import Selector

ARTICLE_FIELDS = ("body", "title", "date", "tags")
# A part of url_construction_template.
_NAME = re.compile(r"\{(\w+)\}")
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>")


class Entry(msgspec.Struct, frozen=True):
    """An article of a listing. `fields` are those of an API for filters, `stored` those that go to its record.

    `excluding`: the values by which `exclude` decides. `failure`: why a cleaning function failed on it.
    """

    url: str
    title: str | None = None
    date: str | None = None
    body: str | None = None
    tags: tuple[str, ...] = ()
    fields: Mapping[str, Any] = {}
    stored: Mapping[str, Any] = {}
    excluding: Mapping[str, Any] = {}
    failure: str | None = None

    def payload(self) -> dict[str, Any]:
        given: dict[str, Any] = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value and name not in ("url", "excluding")}


class ListingPage(msgspec.Struct, frozen=True):
    """The articles of a page, each once, without excluded and filtered ones. `urls` are those of all articles.

    `total`: the number of all articles that the site reports. `boxes`: how many elements the container matched.
    `without_excluded`: the fields of `exclude` that none of the articles has. `without_url`: those parts of
    `url_construction_template`, when no article has a URL.
    """

    entries: tuple[Entry, ...]
    urls: tuple[str, ...]
    total: int | None = None
    boxes: int = 0
    without_excluded: tuple[str, ...] = ()
    without_url: tuple[str, ...] = ()

    @property
    def left_out(self) -> int:
        """How many were excluded or filtered."""
        return len(self.urls) - len(self.entries)

    def mostly_without(self, field: str) -> bool:
        """Whether most articles lack this field."""
        return bool(self.entries) and sum(not getattr(entry, field) for entry in self.entries) * 2 > len(self.entries)


class Reader:
    """Reads the pages of one newspaper."""

    def __init__(self, paper: Newspaper, cleaner: FieldCleaner, *, source: str, country: str) -> None:
        self._paper = paper
        self._cleaner = cleaner
        self._source = source
        self._country = country
        exclude = paper.listing.exclude
        self._excluded_values = exclude if isinstance(exclude, dict) else {}
        self._excluded_urls = [
            re.compile(pattern) for pattern in (() if isinstance(exclude, dict) else as_tuple(exclude))
        ]
        self._base_url = paper.base_url

    def listing(self, page: Page) -> ListingPage:
        """The articles of the page. Raises Permanent if it does not have the form that the file declares."""
        listing = self._paper.listing
        total, boxes = None, 0
        without_url: tuple[str, ...] = ()
        if isinstance(listing, ApiListing):
            answer = page.json()
            posts = self._posts(listing, answer)
            found = list(self._listed_in_json(listing, posts))
            if posts and not found:
                boxes, without_url = len(posts), self._missing_url_parts(listing, posts)
            count = scalar(json_at(answer, listing.json_paths.total))
            total = int(count) if count is not None and count.isdigit() else None
        else:
            selectors = self._paper.selectors.thumbnail
            assert selectors is not None, "the settings were checked"
            containers = elements(page.selector, selectors.container)
            boxes, found = len(containers), list(self._listed_in_html(page, containers))
        entries = {entry.url: entry for entry in reversed(found)}
        unique = [entries[url] for url in dict.fromkeys(entry.url for entry in found)]
        return ListingPage(
            tuple(entry for entry in unique if self._is_wanted(entry)),
            tuple(entry.url for entry in unique),
            total,
            boxes,
            tuple(
                name
                for name in self._excluded_values
                if unique and all(entry.excluding[name] is None for entry in unique)
            ),
            without_url,
        )

    def asks_for(self, field: str) -> bool:
        """Whether the file says where this field of an article is."""
        listing = self._paper.listing
        in_json = isinstance(listing, ApiListing) and getattr(listing.json_paths, field) is not None
        return in_json or bool(as_tuple(getattr(self._paper.selectors.article, field)))

    def needs_page(self, given: Mapping[str, Any]) -> bool:
        """Whether the article's page has a field that its listing does not have. `given` is the payload."""
        selectors = self._paper.selectors.article
        missing = any(as_tuple(getattr(selectors, field)) and not given.get(field) for field in ARTICLE_FIELDS)
        return missing and not given.get("failure")

    def article(self, page: Page | None, url: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The record of an article. `given` is the payload from the listing; without `page` it has everything.

        Raises Skipped if the filter drops it, Permanent if there is no text or a cleaning function failed.
        """
        if given.get("failure"):
            raise Permanent(given["failure"])
        selectors = self._paper.selectors.article
        scope = None if page is None else page.selector
        clean = self._cleaner.clean
        body = clean("body", given.get("body") or self._body(scope, selectors.body))
        if not body:
            where = "selectors.article.body finds no text on the page"
            raise Permanent(where if page is not None else "json_paths.body has no text")
        found_tags = list(dict.fromkeys(given.get("tags") or texts_in(scope, selectors.tags)))
        record = {
            "url": url,
            "title": given.get("title") or clean("title", None if scope is None else text(scope, selectors.title)),
            "date": (None if scope is None else self._day(scope, selectors.date)) or given.get("date"),
            "body": body,
            "tags": clean("tags", found_tags),
            "source": self._source,
            "country": self._country,
            **given.get("stored", {}),
        }
        if not self._cleaner.keeps({**given.get("fields", {}), **record}):
            raise Skipped("the record_filter drops it")
        return record

    def _body(self, scope: Selector | None, selectors: OneOrMore) -> str:
        return self._lines("\n".join(texts_in(scope, selectors)))

    def _lines(self, body: str) -> str:
        return body if self._paper.paragraphs else " ".join(body.split())

    def _listed_in_html(self, page: Page, containers: list[Selector]) -> Iterator[Entry]:
        selectors = self._paper.selectors.thumbnail
        assert selectors is not None, "the settings were checked"
        for box in containers:
            href = link(box, selectors.url)
            if href:
                url = page.join(href)
                try:
                    title = self._cleaner.clean("title", text(box, selectors.title))
                    entry = Entry(self._url(url), title, self._day(box, selectors.date))
                except Permanent as failed:
                    entry = Entry(url, failure=failed.message)
                yield entry

    def _posts(self, listing: ApiListing, answer: Any) -> list[Any]:
        """The articles of a response, as it has them."""
        path = listing.json_paths.collection
        found = json_at(answer, path)
        if not isinstance(found, list | None):
            raise Permanent(f"json_paths.collection {path!r} is not a list in the response")
        return found or []

    def _missing_url_parts(self, listing: ApiListing, posts: list[Any]) -> tuple[str, ...]:
        names = _NAME.findall(listing.url_construction_template or "")
        path_of = listing.json_paths.path_of
        return tuple(name for name in names if not any(scalar(json_at(each, path_of(name))) for each in posts))

    def _listed_in_json(self, listing: ApiListing, posts: list[Any]) -> Iterator[Entry]:
        paths = listing.json_paths
        for each in posts:
            href = self._article_address(listing, each)
            if href is not None:
                excluding = {name: json_at(each, paths.path_of(name)) for name in self._excluded_values}
                try:
                    entry = self._entry(self._url(href), paths, each, excluding)
                except Permanent as failed:
                    entry = Entry(href, excluding=excluding, failure=failed.message)
                yield entry

    def _article_address(self, listing: ApiListing, each: Any) -> str | None:
        """The URL of an article in a response; None when a part of it is missing."""
        paths, template = listing.json_paths, listing.url_construction_template
        if template is None:
            href = scalar(json_at(each, paths.url))
        else:
            parts = {name: scalar(json_at(each, paths.path_of(name))) for name in _NAME.findall(template)}
            if not all(parts.values()):
                return None
            href = _NAME.sub(lambda found: str(parts[found[1]]), template)
        # Parsed here and not kept: the parser's objects must not live until the interpreter ends.
        base = urls.parse_url(self._base_url)
        return (urls.resolve(base, href) or href) if href and base is not None else None

    def _entry(self, url: str, paths: JsonPaths, each: Any, excluding: Mapping[str, Any]) -> Entry:
        body = next(scalars(json_at(each, paths.body)), None)
        if body is not None and _MARKUP.search(body):
            from parsel import Selector

            body = text_in(Selector(text=f"<div>{body}</div>").root)
        return Entry(
            url=url,
            title=self._cleaner.clean("title", scalar(json_at(each, paths.title))),
            date=self._cleaner.day(scalar(json_at(each, paths.date))),
            body=None if body is None else self._lines(body),
            tags=tuple(scalars(json_at(each, paths.tags))),
            fields={name: json_at(each, path) for name, path in paths.fields.items()},
            stored={name: json_at(each, path) for name, path in paths.stored.items()},
            excluding=excluding,
        )

    def _url(self, url: str) -> str:
        return str(self._cleaner.clean("url", url))

    def _day(self, scope: Selector, selectors: OneOrMore) -> str | None:
        """The first day that any of the selectors finds; texts without a day are skipped."""
        found = (each for selector in as_tuple(selectors) for each in texts(scope, selector))
        return next((day for each in found if (day := self._cleaner.day(each))), None)

    def _is_wanted(self, entry: Entry) -> bool:
        """Whether it is neither excluded nor dropped by a filter that needs nothing of the article's page."""
        if not entry.url.startswith(("http://", "https://")):
            return False
        if any(pattern.search(entry.url) for pattern in self._excluded_urls):
            return False
        if any(_has_value(entry.excluding[name], unwanted) for name, unwanted in self._excluded_values.items()):
            return False
        try:
            return self._cleaner.may_keep(self._known_before(entry))
        except Permanent:  # a cleaning function failed; the article ends with its error
            return True

    def _known_before(self, entry: Entry) -> dict[str, Any]:
        """The fields of the record that its page cannot change."""
        selectors = self._paper.selectors.article
        known = {"url": entry.url, "source": self._source, "country": self._country, **entry.fields, **entry.stored}
        if entry.title or not as_tuple(selectors.title):
            known["title"] = entry.title
        if not as_tuple(selectors.date):
            known["date"] = entry.date
        if entry.body:
            known["body"] = self._cleaner.clean("body", entry.body)
        if entry.tags or not as_tuple(selectors.tags):
            known["tags"] = self._cleaner.clean("tags", list(dict.fromkeys(entry.tags)))
        return known


def texts_in(scope: Selector | None, selectors: OneOrMore) -> list[str]:
    return [] if scope is None else texts(scope, selectors)


def _has_value(value: Any, unwanted: Any) -> bool:
    """Whether a field of an API has one of the unwanted values: the field itself, or one of its list."""
    refused = {str(each).casefold() for each in (unwanted if isinstance(unwanted, list) else [unwanted])}
    return any(str(each).casefold() in refused for each in (value if isinstance(value, list) else [value]))
