"""The keys of a newspaper's YAML file, beside those of every declared scraper."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from shoal.define.yaml_scraper import YamlHeader, convert_settings, yaml_error
from shoal.errors import InvalidItem
from shoal.model.url_key import url_key
from shoal.recipes.newspapers.dates import known_language

# Fields of every record that no key of `json_paths` can replace, and what they are.
OWN_FIELDS = {"source": "the newspaper's name", "country": "the newspaper's country"}
OneOrMore = str | tuple[str, ...]
BatchSize = Annotated[int, Meta(ge=1, le=1_000)]
Number = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Step = Annotated[int, Meta(ge=1, le=1_000_000)]
# Regular expressions for URLs, or values that exclude an article by field.
Exclude = OneOrMore | dict[str, Any]
Cap = Annotated[int, Meta(ge=1, le=1_000_000_000)]
# A name in braces, with a format as in Python: {num}, {month:d}, {day:02d}.
PLACEHOLDER = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
NUMBER_FORMAT = re.compile(r"0?\d?d")


class _StrictStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; unknown keys are errors."""


class Pagination(_StrictStruct, frozen=True, tag_field="type", tag="pagination"):
    """Numbered pages: `{num}` in the template counts from `start_page` by `step`. `start_url` is visited before."""

    url_template: OneOrMore
    start_page: Number = 1
    step: Step = 1
    batch_size: BatchSize = 5
    start_url: str | None = None
    exclude: Exclude = ()


class Archive(_StrictStruct, frozen=True, tag_field="type", tag="archive"):
    """A page a day or a month, from `end_date` (today) back to `start_date`: `{year}`, `{month}`, `{day}`."""

    url_template: OneOrMore
    start_date: dt.date
    end_date: dt.date | None = None
    date_format: Literal["monthly", "daily"] = "daily"
    batch_size: BatchSize = 10
    exclude: Exclude = ()


class JsonPaths(_StrictStruct, frozen=True):
    """Paths in the response: names with dots between, `$` for the response itself.

    `collection` is the list of articles, `total` the number of all articles; the others are paths in each article.
    `fields` are for filters and for the URL; `stored` are all further keys of the file, which become fields of records.
    """

    collection: str
    url: str | None = None
    title: str | None = None
    date: str | None = None
    body: str | None = None
    tags: str | None = None
    total: str | None = None
    fields: dict[str, str] = {}
    stored: dict[str, str] = {}

    def path_of(self, name: str) -> str:
        """The path of a field in an article; a name that is not declared is a path itself."""
        own = {"url": self.url, "title": self.title, "date": self.date, "body": self.body, "tags": self.tags}
        return self.fields.get(name) or self.stored.get(name) or own.get(name) or name


class ApiListing(_StrictStruct, frozen=True, tag_field="type", tag="api"):
    """JSON: `{offset}` and `{size}`, or `{page}`, count from their start by their step.

    `url_construction_template`: the URL of an article, with the names of `json_paths` in braces.
    """

    url_template: OneOrMore
    pagination_type: Literal["offset", "page"]
    json_paths: JsonPaths
    offset_start: Number = 0
    offset_step: Step = 100
    page_start: Number = 1
    page_step: Step = 1
    batch_size: BatchSize = 5
    exclude: Exclude = ()
    url_construction_template: str | None = None


Listing = Pagination | Archive | ApiListing


class Thumbnail(_StrictStruct, frozen=True):
    """An article on a listing page: `container` selects it, the others select inside of it."""

    container: OneOrMore
    url: OneOrMore
    title: OneOrMore = ()
    date: OneOrMore = ()


class ArticleSelectors(_StrictStruct, frozen=True):
    """The fields of an article's own page."""

    body: OneOrMore = ()
    title: OneOrMore = ()
    date: OneOrMore = ()
    tags: OneOrMore = ()


class Selectors(_StrictStruct, frozen=True):
    article: ArticleSelectors = ArticleSelectors()
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
    """Functions that change a field, by name or as module:function; `record_filter` decides which records are kept.

    `content` is accepted because existing files have it; it never had an effect.
    """

    url: OneOrMore = ()
    title: OneOrMore = ()
    date: OneOrMore = ()
    body: OneOrMore = ()
    tags: OneOrMore = ()
    record_filter: OneOrMore = ()
    content: OneOrMore | None = None


class Newspaper(_StrictStruct, frozen=True):
    """A newspaper.

    `rate_limit`: seconds between two requests to a host. `concurrency`: concurrent requests to a host. `retries`,
    `retry_seconds`: how often a failed request is repeated, and after which time at least. `known`: files with articles
    that exist already, beside those of earlier runs. `max_pages`, `max_articles`: limits of a run. `user_agent`:
    `browser` sends what a browser does. `language`: of its dates. `paragraphs`: a body keeps a line for each block.
    """

    base_url: str
    listing: Listing
    selectors: Selectors = Selectors()
    client: str = "http"
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
    user_agent: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    language: str | None = None
    paragraphs: bool = False


def as_tuple(value: OneOrMore | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else value


def read_newspaper(header: YamlHeader) -> Newspaper:
    """The checked settings of the file; no request is made. Raises InvalidScraper."""
    header = msgspec.structs.replace(header, settings=_without_empty(header.settings))
    paper = convert_settings(_with_stored_fields(header), Newspaper)
    if paper.client != "http":
        message = f"client is {paper.client}, but newspapers are fetched without a browser: over HTTP."
        remedy = "Write client: http if its pages have their text without one; if not, enabled: false."
        raise yaml_error(header, ["client"], message, remedy=remedy)
    _check_url(header, ["base_url"], paper.base_url)
    _check_listing(header, paper.listing)
    if paper.selectors.thumbnail is None and not isinstance(paper.listing, ApiListing):
        kind = type(paper.listing).__name__.lower()
        message = f"selectors.thumbnail is missing; a listing of type {kind} needs it."
        raise yaml_error(header, ["selectors"], message, remedy="Add container, title and url below it.")
    json_body = isinstance(paper.listing, ApiListing) and paper.listing.json_paths.body is not None
    if not paper.selectors.article.body and not json_body:
        raise yaml_error(header, ["selectors", "article"], "selectors.article.body is missing.", remedy="Add it.")
    if paper.language is not None and not known_language(paper.language):
        message = f"language is {paper.language!r}, which is no code of a language whose dates are known."
        raise yaml_error(header, ["language"], message, remedy="Write a code such as fr, or remove it.")
    for name, value in paper.headers.items():
        if not (re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) and value.isascii() and value.isprintable()):
            raise yaml_error(header, ["headers", name], f"headers.{name} cannot be sent as a header.")
    return paper


def _without_empty(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without the keys that have no value, as if they were not there; the names of headers and of `exclude` stay."""
    return {
        key: _without_empty(value) if isinstance(value, dict) and key not in ("headers", "exclude") else value
        for key, value in settings.items()
        if value is not None and value != ""
    }


def _check_listing(header: YamlHeader, listing: Listing) -> None:
    _check_templates(header, listing)
    if isinstance(listing, Pagination) and listing.start_url is not None:
        if PLACEHOLDER.search(listing.start_url):
            message = f"listing.start_url is {listing.start_url!r}, but it is one page: nothing is filled in."
            raise yaml_error(header, ["listing", "start_url"], message, remedy="Write the URL of that page.")
        if not listing.start_url.startswith("/"):
            _check_url(header, ["listing", "start_url"], listing.start_url)
    if isinstance(listing, Archive) and listing.end_date is not None and listing.end_date < listing.start_date:
        message = f"listing.end_date is {listing.end_date}, which is before start_date."
        raise yaml_error(header, ["listing", "end_date"], message, remedy="Swap the two.")
    if isinstance(listing, ApiListing):
        _check_article_url(header, listing)
    if isinstance(listing.exclude, dict):
        if not isinstance(listing, ApiListing):
            message = "listing.exclude names fields, which only a listing of type api has."
            remedy = "Write regular expressions for the URLs of unwanted articles."
            raise yaml_error(header, ["listing", "exclude"], message, remedy=remedy)
        return
    for pattern in as_tuple(listing.exclude):
        try:
            re.compile(pattern)
        except re.error as problem:
            message = f"listing.exclude has {pattern!r}, which is no regular expression: {problem}."
            raise yaml_error(header, ["listing", "exclude"], message) from None


def _check_templates(header: YamlHeader, listing: Listing) -> None:
    templates = as_tuple(listing.url_template)
    if not templates or len(set(templates)) < len(templates):
        raise yaml_error(header, ["listing", "url_template"], "listing.url_template is empty, or has one twice.")
    for position, template in enumerate(templates):
        place = [] if isinstance(listing.url_template, str) else [position]
        keys: list[str | int] = ["listing", "url_template", *place]
        _check_placeholders(header, listing, keys, template)
        if not template.startswith("/"):
            _check_url(header, keys, re.sub(r"\{[^}]*\}", "1", template))


def _check_placeholders(header: YamlHeader, listing: Listing, keys: list[str | int], template: str) -> None:
    """Every name in braces is one that is filled in, and one of them changes from page to page."""
    counting, constant = _placeholders(listing)
    names = (*counting, *constant)
    found = list(PLACEHOLDER.finditer(template))
    if unknown := list(dict.fromkeys(each[1] for each in found if each[1] not in names)):
        shown = " and ".join(f"{{{name}}}" for name in unknown)
        message = f"listing.url_template has {shown}, which {'is' if len(unknown) == 1 else 'are'} not filled in"
        close = {name: difflib.get_close_matches(name.lower(), names, n=1) for name in unknown}
        meant = [f"{{{similar[0]}}} for {{{name}}}" for name, similar in close.items() if similar]
        remedy = f"Write {' or '.join(f'{{{name}}}' for name in names)}."
        if len(meant) == len(unknown):
            remedy = f"Write {' and '.join(meant) if len(meant) > 1 else meant[0].partition(' ')[0]}."
        raise yaml_error(header, keys, f"{message}: {template!r}.", remedy=remedy)
    for each in found:
        if each[2] is not None and not NUMBER_FORMAT.fullmatch(each[2]):
            message = f"listing.url_template has {each[0]}, which is no format of a number."
            remedy = f"Write {{{each[1]}:d}}, or {{{each[1]}:02d}} for two digits."
            raise yaml_error(header, keys, message, remedy=remedy)
    if not any(each[1] in counting for each in found):
        placeholders = " or ".join(f"{{{name}}}" for name in sorted(counting))
        message = f"listing.url_template is the same for every page: {template!r} has no {placeholders}."
        raise yaml_error(header, keys, message, remedy=f"Write {placeholders} where it changes.")


def _placeholders(listing: Listing) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that may be in a template: those that differ from page to page, and the others."""
    match listing:
        case Pagination():
            return ("num",), ()
        case Archive():
            return ("year", "month", "day"), ()
        case ApiListing(pagination_type="offset"):
            return ("offset", "num"), ("size",)
        case ApiListing():
            return ("page", "num"), ()


def _with_stored_fields(header: YamlHeader) -> YamlHeader:
    """The header with the further keys of `json_paths` under its key `stored`."""
    listing = header.settings.get("listing")
    paths = listing.get("json_paths") if isinstance(listing, dict) else None
    if not isinstance(listing, dict) or not isinstance(paths, dict):
        return header
    if listing.get("type") == "api" and "collection" not in paths:
        message = "listing.json_paths.collection is missing."
        remedy = "Write the path of the list of articles, or $ if the response is that list."
        raise yaml_error(header, ["listing", "json_paths"], message, remedy=remedy)
    listing, known = dict(listing), {*JsonPaths.__struct_fields__} - {"stored"}
    if "url_construction_template" in paths:
        listing.setdefault("url_construction_template", paths["url_construction_template"])
    own = {name: path for name, path in paths.items() if name in known}
    further = {name: path for name, path in paths.items() if name not in (*known, "url_construction_template")}
    for name, path in further.items():
        if name in OWN_FIELDS:
            message = f"listing.json_paths.{name}: {name} is always {OWN_FIELDS[name]}."
            remedy = f"Call the field otherwise, such as article_{name}."
            raise yaml_error(header, ["listing", "json_paths", name], message, remedy=remedy)
        if not isinstance(path, str):
            message = f"listing.json_paths.{name} must be a path in the response, such as meta.{name}."
            raise yaml_error(header, ["listing", "json_paths", name], message)
    listing["json_paths"] = {**own, **({"stored": further} if further else {})}
    return msgspec.structs.replace(header, settings={**header.settings, "listing": listing})


def _check_article_url(header: YamlHeader, listing: ApiListing) -> None:
    template, paths = listing.url_construction_template, listing.json_paths
    if template is None:
        if paths.url is None:
            raise yaml_error(header, ["listing", "json_paths"], "listing.json_paths.url is missing.", remedy="Add it.")
        return
    names = {name for name in ("url", "title", "date") if getattr(paths, name)} | {*paths.fields, *paths.stored}
    unknown = [name for name in re.findall(r"\{(\w+)\}", template) if name not in names]
    if unknown:
        message = f"listing.url_construction_template has {{{unknown[0]}}}, which is no key of json_paths."
        raise yaml_error(
            header, ["listing", "url_construction_template"], message, remedy="Add its path to json_paths."
        )


def _check_url(header: YamlHeader, keys: Sequence[str | int], url: str) -> None:
    try:
        url_key(url)
    except InvalidItem as problem:
        where = ".".join(key for key in keys if isinstance(key, str))
        raise yaml_error(header, keys, f"{where}: {problem.message}", remedy="Write an absolute URL.") from None
