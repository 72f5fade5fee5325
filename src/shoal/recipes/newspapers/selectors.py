"""CSS selectors as newspapers' files use them: the text of whole elements, fallbacks, classes written with a space."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.define.yaml_scraper import YamlHeader, yaml_error
from shoal.recipes.newspapers.settings import Newspaper, OneOrMore, as_tuple

if TYPE_CHECKING:
    from parsel import Selector

_PSEUDO = re.compile(r"::(text|attr\([^)]*\))\s*$")
_TEXT = re.compile(r"\s*[>\s]?\s*::text\s*$")
# A name that follows white space or begins the selector, where CSS means an element.
_BARE_NAME = re.compile(r"(^|\s+)([A-Za-z_][\w-]*)(?=[\s.:\[#]|$)")
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "footer", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
})
_ELEMENTS = _BLOCKS | {
    "a", "abbr", "area", "audio", "b", "base", "bdi", "bdo", "body", "button", "canvas", "caption", "center", "cite",
    "code", "col", "colgroup", "data", "datalist", "del", "details", "dfn", "dialog", "em", "embed", "fieldset", "font",
    "form", "head", "hgroup", "html", "i", "iframe", "img", "input", "ins", "kbd", "label", "legend", "link", "main",
    "map", "mark", "menu", "meta", "meter", "nav", "noscript", "object", "optgroup", "option", "output", "picture",
    "progress", "q", "s", "samp", "script", "search", "select", "small", "source", "span", "strong", "style", "sub",
    "summary", "sup", "svg", "tbody", "template", "textarea", "tfoot", "thead", "time", "title", "track", "u", "var",
    "video", "wbr",
}
# fmt: on
_SKIPPED = frozenset({"script", "style", "noscript", "template"})


def check_selectors(header: YamlHeader, paper: Newspaper) -> None:
    """Raises InvalidScraper for an invalid selector."""
    for table in ("thumbnail", "article"):
        given = getattr(paper.selectors, table)
        for field in given.__struct_fields__ if given is not None else ():
            value = getattr(given, field)
            for position, selector in enumerate(as_tuple(value)):
                place = [position] if isinstance(value, tuple) else []
                _check_selector(header, ["selectors", table, field, *place], selector)


def _check_selector(header: YamlHeader, keys: list[str | int], selector: str) -> None:
    from parsel import Selector

    try:
        Selector(text="<html></html>").css(_as_understood(selector))
    except Exception as problem:  # parsel raises errors of several unrelated classes
        why = " ".join(str(problem).split())
        remedy = None
        if type(problem).__name__ == "ExpressionError":  # parsel's own library has understood it, but cannot do it
            what, remedy = "which Shoal cannot use", "Write it with elements, classes, attributes and :nth-child()."
            if "-of-type" in why:
                remedy = "Name the element before it, such as div:nth-of-type(2)."
        else:
            what = "which is no CSS selector"
        message = f"{'.'.join(map(str, keys[:3]))} is {selector!r}, {what}: {why}."
        raise yaml_error(header, keys, message, remedy=remedy) from None


def _as_understood(selector: str) -> str:
    """The selector in the words of the library: `:not(a, b)` as `:not(a):not(b)`, Soup's name of `:contains()`."""
    before, found, inner = selector.replace(":-soup-contains(", ":contains(").partition(":not(")
    if not found:
        return before
    refused, end = _parts(inner, until=")")
    return before + "".join(f":not({part})" for part in refused) + _as_understood(end)


def class_reading(selector: str) -> str | None:
    """`.card wide` as `.card.wide`: a class attribute copied with its space; None if the selector has no such name."""

    def as_class(found: re.Match[str]) -> str:
        return found[0] if found[2].lower() in _ELEMENTS else f".{found[2]}"

    def read_part(part: str) -> str:
        pseudo = _PSEUDO.search(part)
        return _BARE_NAME.sub(as_class, part[: pseudo.start()] if pseudo else part) + (pseudo[0] if pseudo else "")

    parts, _ = _parts(selector)
    read = [read_part(part) for part in parts]
    return None if read == parts else ", ".join(read)


def elements(scope: Selector, selectors: OneOrMore) -> list[Selector]:
    """The elements of the first selector that matches."""
    return next((found for selector in _readings(selectors) if (found := _matches(scope, selector))), [])


def texts(scope: Selector, selectors: OneOrMore) -> list[str]:
    """The texts of the first selector that finds any: those of attributes, or the whole text of each element."""
    for selector in _readings(selectors):
        values = _values(scope, selector)
        if found := [stripped for value in values if (stripped := value.strip())]:
            return found
    return []


def text(scope: Selector, selectors: OneOrMore) -> str | None:
    """The first of the texts, in one line."""
    found = texts(scope, selectors)
    return " ".join(found[0].split()) if found else None


def link(scope: Selector, selectors: OneOrMore) -> str | None:
    """The first URL; of an element without ::text or ::attr its href."""
    parts = [
        [part if _PSEUDO.search(part) else f"{part}::attr(href)" for part in _parts(each)[0]]
        for each in as_tuple(selectors)
    ]
    return text(scope, tuple(", ".join(each) for each in parts))


def text_in(root: Any) -> str:
    """The visible text of an element: one line for each block, without scripts."""
    lines = "".join(_pieces(root)).split("\n")
    return "\n".join(line for each in lines if (line := " ".join(each.split())))


def _readings(selectors: OneOrMore) -> Iterator[str]:
    """Each selector as it is written, then with its classes joined."""
    for selector in as_tuple(selectors):
        yield selector
        if (read := class_reading(selector)) is not None:
            yield read


def _parts(selector: str, *, until: str = "") -> tuple[list[str], str]:
    """The selectors of a group: split at the commas that are neither in brackets nor in quotes.

    They end at `until` outside of brackets, or with the text; what follows is returned beside them.
    """
    parts, depth, quote = [""], 0, ""
    for position, letter in enumerate(selector):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == until and not depth:
            return [part.strip() for part in parts], selector[position + 1 :]
        elif letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts], ""


def _values(scope: Selector, selector: str) -> list[str]:
    """The values that a group of selectors finds, in the order of the page."""
    found: list[tuple[Any, str]] = []
    whole: dict[Any, None] = {}
    parts, _ = _parts(selector)
    for part in parts:
        pseudo = _PSEUDO.search(part)
        if pseudo is not None and pseudo[1] != "text":
            name = pseudo[1].removeprefix("attr(").removesuffix(")").strip()
            roots = _roots(scope, part[: pseudo.start()].strip())
            found += [(root, value) for root in roots if (value := root.get(name)) is not None]
        else:
            # `::text` is the text of the element with all that is in it, not only of its own text nodes.
            whole |= dict.fromkeys(_roots(scope, _TEXT.sub("", part).strip() if pseudo else part))
    # Of elements in each other the outer one has the text of all.
    found += [(root, text_in(root)) for root in whole if whole.keys().isdisjoint(root.iterancestors())]
    if len(parts) > 1:
        position = {root: number for number, root in enumerate(scope.root.iter())}
        found.sort(key=lambda each: position[each[0]])
    return [value for _, value in found]


def _roots(scope: Selector, plain: str) -> list[Any]:
    """The elements of lxml that a selector without ::text or ::attr finds; the scope itself for an empty one."""
    return [match.root for match in _matches(scope, plain)] if plain else [scope.root]


def _matches(scope: Selector, selector: str) -> list[Selector]:
    """The elements in the scope that match. Ancestors that the selector names may lie outside of the scope."""
    selector = _as_understood(selector)
    found: list[Selector] = list(scope.css(selector))
    if found or (" " not in selector.strip() and ">" not in selector):
        return found
    document = scope.root.getroottree().getroot()
    if document is scope.root:
        return found
    inside = set(scope.root.iter())
    return [match for match in type(scope)(root=document, type="html").css(selector) if match.root in inside]


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
