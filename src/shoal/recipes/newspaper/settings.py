"""The keys of a newspaper's YAML file, beside those of every declared scraper; and the client that sends its headers,
and its login to the newspaper's own hosts only.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shoal.define.context import Http
from shoal.define.yaml_scraper import YamlHeader, convert_settings, yaml_error
from shoal.errors import Blocked, InvalidItem, Permanent, Transient
from shoal.fetch.page import Page
from shoal.model.url_key import host_or_none, url_key

OneOrMore = str | tuple[str, ...]
BatchSize = Annotated[int, Meta(ge=1, le=1_000)]
Number = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Step = Annotated[int, Meta(ge=1, le=1_000_000)]
Cap = Annotated[int, Meta(ge=1, le=1_000_000_000)]


class _StrictStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; unknown keys are errors."""


class Pagination(_StrictStruct, frozen=True, tag_field="type", tag="pagination"):
    """Numbered pages: `{num}` in the template counts from `start_page` by `step`. `start_url` is visited before."""

    url_template: OneOrMore
    start_page: Number = 1
    step: Step = 1
    batch_size: BatchSize = 5
    start_url: str | None = None
    exclude: OneOrMore = ()


class Archive(_StrictStruct, frozen=True, tag_field="type", tag="archive"):
    """A page a day or a month, from `end_date` (today) back to `start_date`: `{year}`, `{month}`, `{day}`."""

    url_template: OneOrMore
    start_date: dt.date
    end_date: dt.date | None = None
    date_format: Literal["monthly", "daily"] = "daily"
    batch_size: BatchSize = 10
    exclude: OneOrMore = ()


class JsonPaths(_StrictStruct, frozen=True):
    """Paths in the response: names with dots between, `$` for the response itself.

    `collection` is the list of articles, `total` the number of all articles; the others are paths in each article.
    `fields` are further ones for a record_filter.
    """

    collection: str
    url: str
    title: str | None = None
    date: str | None = None
    total: str | None = None
    fields: dict[str, str] = {}


class ApiListing(_StrictStruct, frozen=True, tag_field="type", tag="api"):
    """JSON: `{offset}` and `{size}`, or `{page}`, count from their start by their step."""

    url_template: OneOrMore
    pagination_type: Literal["offset", "page"]
    json_paths: JsonPaths
    offset_start: Number = 0
    offset_step: Step = 100
    page_start: Number = 1
    page_step: Step = 1
    batch_size: BatchSize = 5
    exclude: OneOrMore = ()


Listing = Pagination | Archive | ApiListing


class Thumbnail(_StrictStruct, frozen=True):
    """An article on a listing page: `container` selects it, the others select inside of it."""

    container: OneOrMore
    url: OneOrMore
    title: OneOrMore = ()
    date: OneOrMore = ()


class ArticleSelectors(_StrictStruct, frozen=True):
    """The fields of an article's own page."""

    body: OneOrMore
    title: OneOrMore = ()
    date: OneOrMore = ()
    tags: OneOrMore = ()


class Selectors(_StrictStruct, frozen=True):
    article: ArticleSelectors
    thumbnail: Thumbnail | None = None


class HeaderAuth(_StrictStruct, frozen=True, tag_field="type", tag="header"):
    """A header whose value is in the environment variable `variable`."""

    variable: str
    header: str = "Authorization"


class BasicAuth(_StrictStruct, frozen=True, tag_field="type", tag="basic"):
    """A name and a password that are in these environment variables."""

    user_variable: str
    password_variable: str


class Cleaning(_StrictStruct, frozen=True):
    """Functions that change a field, by name or as module:function; `record_filter` decides which records are kept."""

    url: OneOrMore = ()
    title: OneOrMore = ()
    date: OneOrMore = ()
    body: OneOrMore = ()
    tags: OneOrMore = ()
    record_filter: OneOrMore = ()


class Newspaper(_StrictStruct, frozen=True):
    """A newspaper.

    `rate_limit`: seconds between two requests to a host. `concurrency`: concurrent requests to a host. `retries`,
    `retry_seconds`: how often a failed request is repeated, and after which time at least. `known`: files with articles
    that exist already. `max_pages`, `max_articles`: limits of a run.
    """

    base_url: str
    listing: Listing
    selectors: Selectors
    client: Literal["http", "browser"] = "http"
    concurrency: Annotated[int, Meta(ge=1, le=1_000)] = 10
    rate_limit: Annotated[float, Meta(ge=0, le=3_600)] = 0.1
    retries: Annotated[int, Meta(ge=0, le=100)] = 3
    retry_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 2.0
    headers: dict[str, str] = {}
    auth: HeaderAuth | BasicAuth | None = None
    cleaning: Cleaning = Cleaning()
    known: OneOrMore = ()
    max_pages: Cap | None = None
    max_articles: Cap | None = None


def as_tuple(value: OneOrMore | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def read_newspaper(header: YamlHeader) -> Newspaper:
    """The checked settings of the file; no request is made. Raises InvalidScraper."""
    paper = convert_settings(header, Newspaper)
    if paper.client == "browser":
        message = "client is browser, but newspapers are fetched without one: over HTTP."
        raise yaml_error(header, ["client"], message, remedy="Write client: http.")
    _check_url(header, ["base_url"], paper.base_url)
    _check_listing(header, paper.listing)
    if paper.selectors.thumbnail is None and not isinstance(paper.listing, ApiListing):
        kind = type(paper.listing).__name__.lower()
        message = f"selectors.thumbnail is missing; a listing of type {kind} needs it."
        raise yaml_error(header, ["selectors"], message, remedy="Add container, title and url below it.")
    for name, value in paper.headers.items():
        if not (re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) and value.isascii() and value.isprintable()):
            raise yaml_error(header, ["headers", name], f"headers.{name} cannot be sent as a header.")
    return paper


def _check_listing(header: YamlHeader, listing: Listing) -> None:
    templates = as_tuple(listing.url_template)
    if not templates or len(set(templates)) < len(templates):
        raise yaml_error(header, ["listing", "url_template"], "listing.url_template is empty, or has one twice.")
    names = {Pagination: {"num"}, Archive: {"year", "month", "day"}}.get(type(listing), set())
    if isinstance(listing, ApiListing):
        names = {"offset", "num"} if listing.pagination_type == "offset" else {"page", "num"}
    for template in templates:
        if not names & set(re.findall(r"\{(\w+)(?::d)?\}", template)):
            placeholders = " or ".join(f"{{{name}}}" for name in sorted(names))
            message = f"listing.url_template is the same for every page: {template!r} has no {placeholders}."
            raise yaml_error(
                header, ["listing", "url_template"], message, remedy=f"Write {placeholders} where it changes."
            )
        if not template.startswith("/"):
            _check_url(header, ["listing", "url_template"], re.sub(r"\{[^}]*\}", "1", template))
    if isinstance(listing, Pagination) and listing.start_url is not None and not listing.start_url.startswith("/"):
        _check_url(header, ["listing", "start_url"], listing.start_url)
    if isinstance(listing, Archive) and listing.end_date is not None and listing.end_date < listing.start_date:
        message = f"listing.end_date is {listing.end_date}, which is before start_date."
        raise yaml_error(header, ["listing", "end_date"], message, remedy="Swap the two.")
    for pattern in as_tuple(listing.exclude):
        try:
            re.compile(pattern)
        except re.error as problem:
            message = f"listing.exclude has {pattern!r}, which is no regular expression: {problem}."
            raise yaml_error(header, ["listing", "exclude"], message) from None


def _check_url(header: YamlHeader, keys: list[str], url: str) -> None:
    try:
        url_key(url)
    except InvalidItem as problem:
        raise yaml_error(
            header, keys, f"{'.'.join(keys)}: {problem.message}", remedy="Write an absolute URL."
        ) from None


class NewspaperClient:
    """Fetches pages with the headers and the login of the file."""

    def __init__(self, header: YamlHeader, paper: Newspaper) -> None:
        self._headers = paper.headers
        self._retry_seconds = paper.retry_seconds
        self._login = _login(header, paper)
        self._hosts = {host_or_none(url) for url in (paper.base_url, *as_tuple(paper.listing.url_template))} - {None}

    async def get(self, http: Http, url: str | None) -> Page:
        """The page. A failed request is repeated after `retry_seconds` at the earliest."""
        if url is None:
            raise Permanent("the item has no URL")
        try:
            return await http.get(url, headers={**self._headers, **self._login_for(url)})
        except (Transient, Blocked) as ended:
            wait = max(ended.retry_after or 0.0, self._retry_seconds)
            raise type(ended)(ended.message, retry_after=wait) from None

    def _login_for(self, url: str) -> Mapping[str, str]:
        return self._login if self._login and host_or_none(url) in self._hosts else {}


def _login(header: YamlHeader, paper: Newspaper) -> dict[str, str]:
    if paper.auth is None:
        return {}
    if isinstance(paper.auth, HeaderAuth):
        return {paper.auth.header: _secret(header, "variable", paper.auth.variable)}
    user = _secret(header, "user_variable", paper.auth.user_variable)
    password = _secret(header, "password_variable", paper.auth.password_variable)
    return {"Authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


def _secret(header: YamlHeader, key: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        message = f"auth.{key} is {variable}, but there is no such environment variable, or it is empty."
        raise yaml_error(header, ["auth", key], message, remedy=f"Set it: export {variable}=...")
    if not value.isprintable():
        raise yaml_error(header, ["auth", key], f"the environment variable {variable} cannot be sent as a header.")
    return value
