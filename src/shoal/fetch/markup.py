"""The text of parsed elements, as a browser shows it."""

from __future__ import annotations

import re
from typing import Any

_SPACE = re.compile(r"[\s\u200b]+")
# No text of these elements is shown by a browser.
_HIDDEN = frozenset({"script", "style", "template", "noscript", "head"})
# A browser begins a new line at these, so their texts are separate words.
_BREAKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"),
        *("figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"),
        *("option", "p", "pre", "section", "table", "td", "th", "tr", "ul"),
    }
)


def element_text(element: Any) -> str:
    """The text of an lxml element without scripts and comments, and with a space where a line begins."""
    if not len(element):
        return element.text or ""
    from lxml import etree  # type: ignore[import-untyped]

    parts: list[str] = []
    walk = etree.iterwalk(element, events=("start", "end", "comment", "pi"))
    for event, node in walk:
        if event == "start":
            if node.tag in _HIDDEN and node is not element:
                walk.skip_subtree()
                continue
            if node.tag in _BREAKS:
                parts.append(" ")
            parts.append(node.text or "")
            continue
        if event == "end" and node.tag in _BREAKS:
            parts.append(" ")
        if node is not element:
            parts.append(node.tail or "")
    return "".join(parts)


def one_line(text: str) -> str:
    """A text with single spaces for all white space, and none around it."""
    return _SPACE.sub(" ", text).strip()
