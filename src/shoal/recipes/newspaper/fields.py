"""Selectors: one or several, of which the first that finds something counts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shoal.define.declared import Declared
from shoal.define.typed import wrong
from shoal.recipes.newspaper.settings import Newspaper, OneOrMore, many

if TYPE_CHECKING:
    from parsel import Selector

_PSEUDO = re.compile(r"::(text|attr\([^)]*\))\s*$")
# fmt: off
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "figure", "footer", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
})
# fmt: on
_UNREAD = frozenset({"script", "style", "noscript", "template"})


def check_selectors(declared: Declared, paper: Newspaper) -> None:
    """Raises InvalidScraper for a selector that cannot be understood."""
    from parsel import Selector

    empty = Selector(text="<html></html>")
    for table in ("thumbnail", "article"):
        given = getattr(paper.selectors, table)
        for field in given.__struct_fields__ if given is not None else ():
            for selector in many(getattr(given, field)):
                try:
                    empty.css(selector)
                except Exception as problem:  # the library has errors of several families for this
                    where = f"selectors.{table}.{field}"
                    message = f"{where} is {selector!r}, which is no CSS selector: {' '.join(str(problem).split())}."
                    raise wrong(declared, ["selectors", table, field], message) from None


def elements(scope: Selector, selectors: OneOrMore) -> list[Selector]:
    """What the first selector that finds anything finds."""
    return next((found for selector in many(selectors) if (found := scope.css(selector))), [])


def texts(scope: Selector, selectors: OneOrMore) -> list[str]:
    """The texts of the first selector that finds any. Without ::text or ::attr they are all that an element says."""
    for selector in many(selectors):
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
    """The same for an address: an element stands for its href."""
    return text(scope, tuple(each if _PSEUDO.search(each) else f"{each}::attr(href)" for each in many(selectors)))


def text_in(root: Any) -> str:
    """What a reader sees of an element: a line for each block, nothing of its scripts."""
    lines = "".join(_pieces(root)).split("\n")
    return "\n".join(line for each in lines if (line := " ".join(each.split())))


def _pieces(root: Any) -> Iterator[str]:
    """The texts below an element, with a line break around blocks. Without recursion: pages nest deeper than calls."""
    left = [(root, False)]
    while left:
        node, closing = left.pop()
        shown = isinstance(node.tag, str) and node.tag not in _UNREAD  # comments have no name
        if shown and node.tag in _BLOCKS:
            yield "\n"
        if not closing and shown:
            yield _spaced(node.text)
            left.append((node, True))
            left += [(child, False) for child in reversed(node)]
        elif node is not root:
            yield _spaced(node.tail)


def _spaced(text: str | None) -> str:
    """A line break in the source is only a space to its reader."""
    return re.sub(r"\s+", " ", text or "")
