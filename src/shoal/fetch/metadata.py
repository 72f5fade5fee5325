"""What a page says about itself for machines: JSON-LD, microdata, OpenGraph, Twitter cards, <meta>, canonical link.

Sites write it by hand, so broken parts are left out, and the work is bounded whatever the page contains.
"""

from __future__ import annotations

import html
import json
import re
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.fetch.markup import element_text, one_line

if TYPE_CHECKING:
    from shoal.fetch.page import Page

MAX_SCRIPTS = 200
MAX_SCRIPT_CHARS = 4 << 20
MAX_ITEMS = 5_000
MAX_DEPTH = 64
# Elements that are visited for microdata, those of repeated visits by itemref and for texts included.
MAX_VISITS = 100_000
MAX_VALUE_CHARS = 1 << 20

# What authors and tools put around JSON in a script.
_BEFORE = ("<!--", "<![CDATA[", "//<![CDATA[", "// <![CDATA[", "/*<![CDATA[*/", "/* <![CDATA[ */")
_BEHIND = ("-->", "]]>", "//", ";", "/*]]>*/", "/* ]]> */")
_MAX_WRAPPERS = 8
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_GRAPH_PREFIXES = ("og:", "article:", "book:", "product:", "profile:", "music:", "video:", "fb:")
_LINKS = {
    **dict.fromkeys(("a", "area", "link"), "href"),
    **dict.fromkeys(("audio", "embed", "iframe", "img", "source", "track", "video"), "src"),
    "object": "data",
}
_VALUES = {"meta": "content", "data": "value", "meter": "value", "time": "datetime"}


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a page says about itself; everything is plain JSON.

    `json_ld`: the items of all scripts, those of a `@graph` one by one. `microdata`: items in the same form, with
    `@type`. `opengraph`: by name without `og:`; `twitter`: without `twitter:`; `meta`: the other names. A name that is
    repeated has a list. `canonical` is absolute.
    """

    title: str | None = None
    canonical: str | None = None
    language: str | None = None
    json_ld: list[dict[str, Any]] = []
    microdata: list[dict[str, Any]] = []
    opengraph: dict[str, str | list[str]] = {}
    twitter: dict[str, str | list[str]] = {}
    meta: dict[str, str | list[str]] = {}

    def items(self, *types: str) -> list[dict[str, Any]]:
        """The items of these types (`"Product"`), of JSON-LD and then microdata, inner ones too."""
        found = []
        pending: deque[tuple[Any, int]] = deque((item, 0) for item in (*self.json_ld, *self.microdata))
        while pending:
            value, depth = pending.popleft()
            if isinstance(value, dict):
                if not _types(value).isdisjoint(types):
                    found.append(value)
                value = list(value.values())
            if isinstance(value, list) and depth < MAX_DEPTH:
                pending.extendleft((each, depth + 1) for each in reversed(value) if isinstance(each, dict | list))
        return found


def read_metadata(page: Page) -> Metadata:
    """The metadata of an HTML page; empty for other pages. Raises Permanent for a page that cannot be parsed."""
    root = page.selector.root
    if page.selector.type != "html" or not hasattr(root, "iter"):
        return Metadata()
    scripts: list[str] = []
    opengraph: dict[str, str | list[str]] = {}
    twitter: dict[str, str | list[str]] = {}
    meta: dict[str, str | list[str]] = {}
    title = canonical = None
    for element in root.iter("title", "link", "meta", "script"):
        match element.tag:
            case "title":
                if title is None and next(element.iterancestors("svg"), None) is None:
                    title = one_line(element_text(element)) or None
            case "link":
                href = element.get("href")
                if canonical is None and href and "canonical" in (element.get("rel") or "").lower().split():
                    canonical = page.join(href)
            case "meta":
                _add_meta(element, opengraph, twitter, meta)
            case _:
                kind = (element.get("type") or "").partition(";")[0].strip().lower()
                if kind == "application/ld+json" and len(scripts) < MAX_SCRIPTS:
                    scripts.append(element.text or "")
    top = root if root.tag == "html" else next(root.iter("html"), root)
    return Metadata(
        title=title,
        canonical=canonical,
        language=(top.get("lang") or "").strip() or None,
        json_ld=[item for script in scripts for item in _json_ld(script)][:MAX_ITEMS],
        microdata=_Microdata(page, root).read() if b"itemscope" in page.body.lower() else [],
        opengraph=opengraph,
        twitter=twitter,
        meta=meta,
    )


def _add_meta(element: Any, opengraph: dict[str, Any], twitter: dict[str, Any], meta: dict[str, Any]) -> None:
    content = element.get("content")
    name = (element.get("property") or element.get("name") or "").strip().lower()
    if content is None or not name or len(content) > MAX_VALUE_CHARS:
        return
    if name.startswith(_GRAPH_PREFIXES):
        group, name = opengraph, name.removeprefix("og:")
    elif name.startswith("twitter:"):
        group, name = twitter, name.removeprefix("twitter:")
    else:
        group = meta
    _add(group, name, content.strip())


def _add(group: dict[str, Any], name: str, value: Any) -> None:
    """Add a value under a name; a second one makes a list."""
    if name not in group:
        group[name] = value
    elif isinstance(group[name], list):
        if len(group[name]) < MAX_ITEMS:
            group[name].append(value)
    else:
        group[name] = [group[name], value]


# --- JSON-LD


def _json_ld(text: str) -> Iterator[dict[str, Any]]:
    """The items of one script; none if it is not JSON, even after the usual repairs."""
    if len(text) > MAX_SCRIPT_CHARS:
        return
    try:
        data = _loads(_unwrapped(text))
    except (ValueError, RecursionError):
        return
    pending = deque([(data, 0)])
    visits = 0
    while pending and visits < MAX_VISITS:
        value, depth = pending.popleft()
        visits += 1
        if isinstance(value, list) and depth < MAX_DEPTH:
            pending.extendleft((each, depth + 1) for each in reversed(value))
        elif isinstance(value, dict):
            graph = value.get("@graph")
            if isinstance(graph, list | dict) and depth < MAX_DEPTH:
                pending.appendleft((graph, depth + 1))
                value = {name: inner for name, inner in value.items() if name != "@graph"}
                if value.keys() <= {"@context", "@id"}:
                    continue
            yield value


def _unwrapped(text: str) -> str:
    text = text.strip()
    for _ in range(_MAX_WRAPPERS):
        before = text
        for mark in _BEFORE:
            text = text.removeprefix(mark).lstrip()
        for mark in _BEHIND:
            text = text.removesuffix(mark).rstrip()
        if text == before:
            break
    return text


def _loads(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    # Line breaks within texts, commas behind the last value, text that was escaped for HTML.
    for repaired in (text, _TRAILING_COMMA.sub("", text), html.unescape(text)):
        try:
            return json.loads(repaired, strict=False, parse_constant=lambda _: None)
        except ValueError:
            continue
    raise ValueError("not JSON")


def _types(item: dict[str, Any]) -> set[str]:
    """The types of an item without their vocabulary: `https://schema.org/Product` is `Product`."""
    kinds = item.get("@type")
    named = kinds if isinstance(kinds, list) else [kinds]
    return {re.split(r"[/#:]", kind)[-1] for kind in named if isinstance(kind, str)}


# --- microdata


class _Microdata:
    """Reads the items of a page by the HTML standard. Stops silently at its bounds."""

    def __init__(self, page: Page, root: Any) -> None:
        self._page = page
        self._root = root
        self._visits = 0
        self._by_id: dict[str, Any] | None = None

    def read(self) -> list[dict[str, Any]]:
        found = []
        for element in self._root.iter():
            if (
                isinstance(element.tag, str)
                and element.get("itemscope") is not None
                and element.get("itemprop") is None
            ):
                found.append(self._item(element, (element,)))
                if len(found) >= MAX_ITEMS or self._visits > MAX_VISITS:
                    break
        return found

    def _item(self, element: Any, path: tuple[Any, ...]) -> dict[str, Any]:
        item: dict[str, Any] = {}
        kinds = (element.get("itemtype") or "").split()
        if kinds:
            vocabulary, name = re.fullmatch(r"(.*[/#])?(.*)", kinds[0], re.DOTALL).groups()  # type: ignore[union-attr]
            if vocabulary:
                item["@context"] = vocabulary.rstrip("/#")
            names = [re.split(r"[/#]", kind)[-1] for kind in kinds]
            item["@type"] = name if len(names) == 1 else names
        if element.get("itemid"):
            item["@id"] = self._page.join(element.get("itemid"))
        for found in self._properties(element):
            self._visits += 1
            if self._visits > MAX_VISITS:
                break
            names = (found.get("itemprop") or "").split()
            if names and found not in path:
                value = self._value(found, path)
                for name in dict.fromkeys(names):
                    _add(item, re.split(r"[/#]", name)[-1] or name, value)
        return item

    def _properties(self, item: Any) -> Iterator[Any]:
        """The elements with properties of an item, those that its itemref names included."""
        named = map(self._find, (item.get("itemref") or "").split())
        roots = deque([*item, *(each for each in named if each is not None)])
        seen: set[Any] = set()
        while roots:
            element = roots.popleft()
            self._visits += 1
            if self._visits > MAX_VISITS:
                return
            if not isinstance(element.tag, str) or element in seen:
                continue
            seen.add(element)
            if element.get("itemprop") is not None:
                yield element
            if element.get("itemscope") is None:
                roots.extendleft(reversed(element))

    def _value(self, element: Any, path: tuple[Any, ...]) -> Any:
        if element.get("itemscope") is not None:
            return self._item(element, (*path, element)) if len(path) < MAX_DEPTH else {}
        tag = element.tag
        if tag in _LINKS:
            link = element.get(_LINKS[tag])
            return self._page.join(link) if link else ""
        if tag in _VALUES and (value := element.get(_VALUES[tag])) is not None:
            return value.strip()
        self._visits += sum(1 for _ in element.iter()) if len(element) else 1
        return one_line(element_text(element))[:MAX_VALUE_CHARS]

    def _find(self, name: str) -> Any:
        if self._by_id is None:
            self._by_id = {}
            for element in self._root.iter():
                if isinstance(element.tag, str) and (own := element.get("id")):
                    self._by_id.setdefault(own, element)
        return self._by_id.get(name)
