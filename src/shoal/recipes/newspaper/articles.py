"""Reads listing pages and articles with the selectors of the YAML file; of several selectors the first match counts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.errors import Permanent
from shoal.fetch import urls
from shoal.fetch.page import Page
from shoal.recipes.newspaper.cleaning import FieldCleaner
from shoal.recipes.newspaper.settings import ApiListing, Newspaper, OneOrMore, as_tuple

if TYPE_CHECKING:
    from parsel import Selector

_PSEUDO = re.compile(r"::(text|attr\([^)]*\))\s*$")
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "footer", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
})
# fmt: on
_SKIPPED = frozenset({"script", "style", "noscript", "template"})


def check_selectors(header: YamlHeader, paper: Newspaper) -> None:
    """Raises InvalidScraper for an invalid selector."""
    from parsel import Selector

    empty = Selector(text="<html></html>")
    for table in ("thumbnail", "article"):
        given = getattr(paper.selectors, table)
        for field in given.__struct_fields__ if given is not None else ():
            for selector in as_tuple(getattr(given, field)):
                try:
                    empty.css(selector)
                except Exception as problem:  # parsel raises errors of several unrelated classes
                    where = f"selectors.{table}.{field}"
                    message = f"{where} is {selector!r}, which is no CSS selector: {' '.join(str(problem).split())}."
                    raise yaml_error(header, ["selectors", table, field], message) from None


def elements(scope: Selector, selectors: OneOrMore) -> list[Selector]:
    """The elements of the first selector that matches."""
    return next((found for selector in as_tuple(selectors) if (found := scope.css(selector))), [])


def texts(scope: Selector, selectors: OneOrMore) -> list[str]:
    """The texts of the first selector that finds any. Without ::text or ::attr: the whole text of each element."""
    for selector in as_tuple(selectors):
        matches = scope.css(selector)
        values = matches.getall() if _PSEUDO.search(selector) else [text_in(match.root) for match in matches]
        if found := [stripped for value in values if (stripped := value.strip())]:
            return found
    return []


def text(scope: Selector, selectors: OneOrMore) -> str | None:
    """The first of the texts, in one line."""
    found = texts(scope, selectors)
    return " ".join(found[0].split()) if found else None


def link(scope: Selector, selectors: OneOrMore) -> str | None:
    """The first URL; of an element without ::text or ::attr its href."""
    return text(scope, tuple(each if _PSEUDO.search(each) else f"{each}::attr(href)" for each in as_tuple(selectors)))


def text_in(root: Any) -> str:
    """The visible text of an element: one line for each block, without scripts."""
    lines = "".join(_pieces(root)).split("\n")
    return "\n".join(line for each in lines if (line := " ".join(each.split())))


def _pieces(root: Any) -> Iterator[str]:
    """The texts below an element, with line breaks around blocks. Iterative: pages nest deeper than the call stack."""
    stack = [(root, False)]
    while stack:
        node, closing = stack.pop()
        shown = isinstance(node.tag, str) and node.tag not in _SKIPPED  # comments have no name
        if shown and node.tag in _BLOCKS:
            yield "\n"
        if not closing and shown:
            yield _collapse_spaces(node.text)
            stack.append((node, True))
            stack += [(child, False) for child in reversed(node)]
        elif node is not root:
            yield _collapse_spaces(node.tail)


def _collapse_spaces(text: str | None) -> str:
    """A line break in the source is displayed as a space."""
    return re.sub(r"\s+", " ", text or "")


class Entry(msgspec.Struct, frozen=True):
    """An article of a listing. `fields` are the further ones of an API."""

    url: str
    title: str | None = None
    date: str | None = None
    fields: Mapping[str, Any] = {}

    def payload(self) -> dict[str, Any]:
        given = {"title": self.title, "date": self.date, "fields": self.fields}
        return {name: value for name, value in given.items() if value}


class ListingPage(msgspec.Struct, frozen=True):
    """The articles of a page, each once, without excluded ones. `urls` are those of all articles.

    `total`: the number of all articles that the site reports.
    """

    entries: tuple[Entry, ...]
    urls: tuple[str, ...]
    total: int | None = None


class Reader:
    """Reads the pages of one newspaper."""

    def __init__(self, paper: Newspaper, cleaner: FieldCleaner, *, source: str, country: str) -> None:
        self._paper = paper
        self._cleaner = cleaner
        self._source = source
        self._country = country
        self._excluded = [re.compile(pattern) for pattern in as_tuple(paper.listing.exclude)]

    def listing(self, page: Page) -> ListingPage:
        """The articles of the page. Raises Permanent if it does not have the form that the file declares."""
        listing = self._paper.listing
        total = None
        if isinstance(listing, ApiListing):
            answer = page.json()
            found = self._listed_in_json(listing, answer)
            count = json_at(answer, listing.json_paths.total) if listing.json_paths.total else None
            total = int(count) if isinstance(count, int | str) and str(count).isdigit() else None
        else:
            found = self._listed_in_html(page)
        entries = {entry.url: entry for entry in found}
        articles = tuple(entry for url, entry in entries.items() if self._is_article(url))
        return ListingPage(articles, tuple(entries), total)

    def article(self, page: Page, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of an article; None if the filter drops it. `given` is the payload from the listing."""
        selectors = self._paper.selectors.article
        clean = self._cleaner.clean
        body = clean("body", "\n".join(texts(page.selector, selectors.body)))
        if not body:
            raise Permanent("selectors.article.body finds no text on the page")
        title = given.get("title") or clean("title", text(page.selector, selectors.title))
        record = {
            "url": page.requested_url,
            "title": title,
            "date": self._day(page.selector, selectors.date) or given.get("date"),
            "body": body,
            "tags": clean("tags", list(dict.fromkeys(texts(page.selector, selectors.tags)))),
            "source": self._source,
            "country": self._country,
        }
        return record if self._cleaner.keeps({**given.get("fields", {}), **record}) else None

    def _listed_in_html(self, page: Page) -> Iterator[Entry]:
        selectors = self._paper.selectors.thumbnail
        assert selectors is not None, "the settings were checked"
        for box in elements(page.selector, selectors.container):
            href = link(box, selectors.url)
            if href:
                title = self._cleaner.clean("title", text(box, selectors.title))
                yield Entry(self._url(page.join(href)), title, self._day(box, selectors.date))

    def _listed_in_json(self, listing: ApiListing, answer: Any) -> Iterator[Entry]:
        paths = listing.json_paths
        found = json_at(answer, paths.collection)
        if not isinstance(found, list | None):
            raise Permanent(f"json_paths.collection {paths.collection!r} is not a list in the response")
        base = urls.parse_url(self._paper.base_url)
        for each in found or ():
            href = json_at(each, paths.url)
            if base is not None and isinstance(href, str) and href.strip():
                title = self._cleaner.clean("title", _scalar(json_at(each, paths.title)))
                day = self._cleaner.day(_scalar(json_at(each, paths.date)))
                fields = {name: json_at(each, path) for name, path in paths.fields.items()}
                yield Entry(self._url(urls.resolve(base, href.strip()) or href), title, day, fields)

    def _url(self, url: str) -> str:
        return str(self._cleaner.clean("url", url))

    def _day(self, scope: Selector, selectors: OneOrMore) -> str | None:
        """The first day that any of the selectors finds; texts without a day are skipped."""
        found = (each for selector in as_tuple(selectors) for each in texts(scope, selector))
        return next((day for each in found if (day := self._cleaner.day(each))), None)

    def _is_article(self, url: str) -> bool:
        if not url.startswith(("http://", "https://")):
            return False
        return not any(pattern.search(url) for pattern in self._excluded)


def json_at(value: Any, path: str | None) -> Any:
    """The value at a path such as `data.items.0.url`; None if there is none."""
    if path is None:
        return None
    for name in path.removeprefix("$").strip(".").split(".") if path.strip("$.") else ():
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _scalar(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return " ".join(str(value).split()) or None
