"""Parses sitemaps: XML, plain text, RSS and Atom, gzipped or not. Nothing is fetched here."""

from __future__ import annotations

import datetime as dt
import math
import re
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Literal

import msgspec

from shoal.fetch.body import GZIP_MAGIC, Inflater
from shoal.fetch.classify import read_date

MAX_INFLATED = 50 << 20
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_START = re.compile(rb"<\?xml\s|<!DOCTYPE\s+(?!html)|<(?:\w+:)?(?:urlset|sitemapindex|rss|feed|RDF)[\s>/]")
_SCHEMES = ("http://", "https://")
_NO_SITEMAP = "It is neither a sitemap, nor a feed, nor a list of URLs."
_MARKUP = re.compile(r"\s*<")
_SITEMAP_LINE = re.compile(r"^[ \t]*sitemap[ \t]*:[ \t]*(https?://[^\s#]+)", re.IGNORECASE | re.MULTILINE)


class SitemapEntry(msgspec.Struct, frozen=True, gc=False):
    """One URL. `lastmod` always has a time zone; it and `priority` are None when absent or invalid."""

    loc: str
    lastmod: dt.datetime | None = None
    priority: float | None = None


class Sitemap(msgspec.Struct, frozen=True):
    """`kind`: whether the entries are pages or further sitemaps. `problem`: why the rest could not be read."""

    kind: Literal["index", "urls"]
    entries: tuple[SitemapEntry, ...]
    problem: str = ""


def read_sitemap(body: bytes) -> Sitemap:
    """The entries of a sitemap or a feed. Never raises: errors are in `problem`, beside the entries before them."""
    body, problem = _inflate(body)
    encoding = None
    if body.startswith(_UTF16_MARKS):
        body, encoding = body.decode("utf-16", "replace").encode(), "utf-8"
    start = _START.search(body)
    found = _read_text(body) if start is None else _read_xml(body[start.start() :], encoding)
    return msgspec.structs.replace(found, problem=problem) if problem else found


def robots_sitemaps(text: str) -> list[str]:
    """The sitemaps that a robots.txt names, each once, in its order."""
    return list(dict.fromkeys(_SITEMAP_LINE.findall(text.lstrip("\ufeff"))))


def _inflate(body: bytes) -> tuple[bytes, str]:
    """The body without its gzip layers. Some servers compress a .gz file once more, so there may be two."""
    for _ in range(2):
        if not body.startswith(GZIP_MAGIC):
            break
        inflater, pieces, size = Inflater(), [], 0
        try:
            for piece in inflater.feed(body):
                pieces.append(piece)
                size += len(piece)
                if size > MAX_INFLATED:
                    return b"".join(pieces)[:MAX_INFLATED], f"It is larger than {MAX_INFLATED >> 20} MiB when inflated."
        except zlib.error as error:
            return b"".join(pieces), f"Its compressed data is broken ({error})."
        body = b"".join(pieces)
        if inflater.is_cut_short:
            return body, "Its compressed data ends too early."
    return body, ""


def _read_text(body: bytes) -> Sitemap:
    text = body.decode("utf-8-sig", "replace")
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    entries = tuple(SitemapEntry(line) for line in lines if line.startswith(_SCHEMES))
    if _MARKUP.match(text) or not entries:
        return Sitemap("urls", (), _NO_SITEMAP if lines else "It is empty.")
    others = len(lines) - len(entries)
    return Sitemap("urls", entries, f"{others} of its lines are no URLs." if others else "")


def _read_xml(body: bytes, encoding: str | None) -> Sitemap:
    # Slow to import, and not needed by most processes.
    from lxml import etree  # type: ignore[import-untyped]

    entries: list[SitemapEntry] = []
    problem = ""
    # Entities are not resolved and nothing is loaded; the parser's own limits on depth and size stay on.
    ends = etree.iterparse(
        BytesIO(body),
        tag=[f"{{*}}{name}" for name in _READERS],
        encoding=encoding,
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
    )
    root = None
    try:
        for _, element in ends:
            if root is None:
                root = element.getroottree().getroot()
                if _declares_entities(root):
                    return Sitemap(_kind(root), (), "It declares entities of its own, which is refused.")
            entry = _READERS[_local_name(element)](element)
            if entry is not None:
                entries.append(entry)
            _free_parsed(element)
        root = ends.root
    except etree.XMLSyntaxError as error:
        problem = f"Its XML is broken: {error.msg}."
    if not problem and not entries and _local_name(root) not in _ROOTS:
        problem = _NO_SITEMAP
    return Sitemap(_kind(root), tuple(entries), problem)


def _kind(root: Any) -> Literal["index", "urls"]:
    return "index" if root is not None and _local_name(root) == "sitemapindex" else "urls"


def _read_url(element: Any) -> SitemapEntry | None:
    """`url` and `sitemap`. Children of other namespaces, such as `image:loc`, are ignored."""
    namespace = _namespace(element)
    texts = {_local_name(child): _text(child) for child in _children(element) if _namespace(child) == namespace}
    loc = texts.get("loc", "")
    return SitemapEntry(loc, read_date(texts.get("lastmod")), _parse_priority(texts.get("priority"))) if loc else None


def _read_item(element: Any) -> SitemapEntry | None:
    """An item of RSS."""
    # Feeds often have an `atom:link` without text beside the real link.
    texts = {_local_name(child): text for child in _children(element) if (text := _text(child))}
    loc = texts.get("link") or _permalink(element)
    return SitemapEntry(loc, read_date(texts.get("pubDate") or texts.get("date"))) if loc else None


def _permalink(element: Any) -> str:
    for child in _children(element):
        if _local_name(child) == "guid" and child.get("isPermaLink", "true") == "true":
            text = _text(child)
            return text if text.startswith(_SCHEMES) else ""
    return ""


def _read_entry(element: Any) -> SitemapEntry | None:
    """An entry of Atom."""
    children = list(_children(element))
    texts = {_local_name(child): _text(child) for child in children}
    for child in children:
        if (
            _local_name(child) == "link"
            and child.get("rel", "alternate") == "alternate"
            and child.get("href", "").strip()
        ):
            return SitemapEntry(child.get("href").strip(), read_date(texts.get("updated") or texts.get("published")))
    return None


_ROOTS = ("urlset", "sitemapindex", "rss", "feed", "RDF")
_READERS: dict[str, Callable[[Any], SitemapEntry | None]] = {
    "url": _read_url,
    "sitemap": _read_url,
    "item": _read_item,
    "entry": _read_entry,
}


def _children(element: Any) -> Iterator[Any]:
    """Child elements; the tag of a comment is not a text."""
    return (child for child in element if isinstance(child.tag, str))


def _text(element: Any) -> str:
    """The text of a leaf, "" for anything else: an unresolved entity would leave half of a URL."""
    return "" if len(element) else (element.text or "").strip()


def _local_name(element: Any) -> str:
    tag: str = element.tag
    return tag.rpartition("}")[2]


def _namespace(element: Any) -> str:
    tag: str = element.tag
    return tag.rpartition("}")[0]


def _declares_entities(root: Any) -> bool:
    dtd = root.getroottree().docinfo.internalDTD
    return dtd is not None and any(True for _ in dtd.iterentities())


def _free_parsed(element: Any) -> None:
    """Free parsed elements, so that a large file does not become a large tree."""
    element.clear(keep_tail=True)
    while element.getprevious() is not None:
        del element.getparent()[0]


def _parse_priority(text: str | None) -> float | None:
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if math.isfinite(number) and 0 <= number <= 1 else None
