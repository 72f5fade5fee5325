"""Scans HTML tag by tag for links, without building a tree.

A tree takes quadratic time for very deep nesting or very many attributes, and formatting elements can make it far
larger than the page. Scanning takes linear time for any input: each pattern consumes what it inspects (every repetition
is possessive), so nothing is scanned twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5
from typing import NamedTuple

MAX_ATTRIBUTES = 500
# A page of this size cannot have enough attributes to take longer than a fraction of a second.
_SMALL_PAGE = 64 * 1024


def _any_case(name: str) -> str:
    # Faster than matching the whole pattern regardless of case.
    return "".join(f"[{char}{char.upper()}]" for char in name)


_END = r"(?:>|\Z)"
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))"""
# Between the name of a tag and its end. A quote opens a value only behind an equals sign.
_ATTRIBUTES = rf"[^>=]*+(?:=\s*+{_QUOTED}?[^>=]*+)*+"
_FEW_ATTRIBUTES = rf"[^>=]{{0,{2 * MAX_ATTRIBUTES}}}+(?:=\s*+{_QUOTED}?[^>=]{{0,{2 * MAX_ATTRIBUTES}}}+){{0,200}}+"
# The content of these has no tags.
_RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
_RAW_NAMES = [_any_case(name) for name in _RAW]
_IS_RAW = rf"(?:{'|'.join(_RAW_NAMES)})[\s/>]"
_RAW_ELEMENT = "|".join(rf"<{name}(?=[\s/>]){_ATTRIBUTES}(?:>.*?(?:</{name}(?=[\s/>])|\Z)|\Z)" for name in _RAW_NAMES)
_COMMENT = r"<!--(?:-?>|.*?(?:--!?>|\Z))"
_NO_TAG = rf"{_RAW_ELEMENT}|{_COMMENT}|<[!?/][^>]*+>?|<(?![a-zA-Z!?/])"
_LINK_TAGS = "|".join(_any_case(name) for name in ("a", "area", "base"))

# No wanted name begins with one of these, so one letter decides for most tags.
_SKIPPED_TAG_START = "[c-hj-mo-ru-wyzC-HJ-MO-RU-WYZ]"

_WITHOUT_LONG_TAG = re.compile(
    rf"(?:[^<]++|</?+{_SKIPPED_TAG_START}{_FEW_ATTRIBUTES}{_END}|</[a-zA-Z]{_FEW_ATTRIBUTES}{_END}"
    rf"|<(?!{_IS_RAW})[a-zA-Z]{_FEW_ATTRIBUTES}{_END}|{_NO_TAG})*+",
    re.DOTALL,
)
_TAG = re.compile(rf"</?+[a-zA-Z][^\s/>]*+({_ATTRIBUTES}){_END}", re.DOTALL)
_NEXT_LINK = re.compile(
    rf"(?:[^<]++|</?+{_SKIPPED_TAG_START}{_ATTRIBUTES}{_END}|</[a-zA-Z]{_ATTRIBUTES}{_END}"
    rf"|<(?!(?:{_LINK_TAGS})[\s/>]|{_IS_RAW})[a-zA-Z]{_ATTRIBUTES}{_END}|{_NO_TAG})*+"
    rf"<([a-zA-Z]++)({_ATTRIBUTES}){_END}",
    re.DOTALL,
)
_NAME = r"[^\s/>][^\s/>=]*+"
_VALUE = rf"(?:\s*+=\s*+(?:{_QUOTED}|[^\s>]*+))?+"
_ATTRIBUTE = re.compile(rf"{_NAME}{_VALUE}[\s/]*+", re.DOTALL)
_HREF_NAME = _any_case("href")
_HREF = re.compile(
    rf"[\s/]*+(?:(?!{_HREF_NAME}(?:[\s=/>]|\Z)){_NAME}{_VALUE}[\s/]*+)*+"
    rf"""{_HREF_NAME}(?:\s*+=\s*+(?:"([^"]*+)|'([^']*+)|([^\s>"'][^\s>]*+)))?+""",
    re.DOTALL,
)
_REFERENCE = re.compile(r"&(?:#([0-9]++);?|#[xX]([0-9a-fA-F]++);?|([A-Za-z][A-Za-z0-9]{1,32};?)(=?))")
_MAX_DIGITS = 7


class Link(NamedTuple):
    """`tag`: a, area or base, in lower case."""

    tag: str
    href: str


def links(text: str) -> Iterator[Link]:
    """The href of each <a>, <area> and <base> element of an HTML page, as written there."""
    position = 0
    # match, not search: a search would continue inside of what was skipped and rescan the rest from every position.
    while (found := _NEXT_LINK.match(text, position)) is not None:
        name, attributes = found.groups()
        position = found.end()
        href = _HREF.match(attributes)
        if href is not None:
            yield Link(name.lower(), _unescape_attribute(href[1] or href[2] or href[3] or ""))


def has_overlong_tag(text: str) -> bool:
    """Whether an element has more than MAX_ATTRIBUTES attributes; pages too small to matter are not scanned."""
    position = 0
    while len(text) - position > _SMALL_PAGE:
        harmless = _WITHOUT_LONG_TAG.match(text, position)
        assert harmless is not None, "it also matches the empty text"
        tag = _TAG.match(text, harmless.end())
        if tag is None:
            return False
        count = sum(1 for _ in zip(_ATTRIBUTE.finditer(tag[1]), range(MAX_ATTRIBUTES + 1), strict=False))
        if count > MAX_ATTRIBUTES:
            return True
        position = tag.end()
    return False


def _unescape_attribute(value: str) -> str:
    """An attribute's value with its character references resolved, by the rules for attributes."""
    return _REFERENCE.sub(_resolve_reference, value) if "&" in value else value


def _resolve_reference(found: re.Match[str]) -> str:
    decimal, hexadecimal, name, equals = found.groups()
    if name is not None:
        # Without a semicolon `&copy=1` is a parameter, not a character.
        known = None if equals and not name.endswith(";") else html5.get(name)
        return found[0] if known is None else known + equals
    digits = (decimal or hexadecimal).lstrip("0")
    code = int(digits or "0", 10 if decimal else 16) if len(digits) <= _MAX_DIGITS else 0
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
