"""From the bytes of a page to its text."""

from __future__ import annotations

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, read_bom, to_unicode

FALLBACK = "cp1252"


def decode(body: bytes, content_type: str, *, markup: bool) -> tuple[str, str]:
    """The encoding and the text: by byte order mark, then Content-Type, then the markup's own declaration.

    Without any of them it is UTF-8 if it is valid, and windows-1252, as browsers assume, if it is not.
    """
    mark_encoding, mark = read_bom(body)
    if mark_encoding is not None and mark is not None:
        return mark_encoding, to_unicode(body[len(mark) :], mark_encoding)
    encoding = http_content_type_encoding(content_type)
    if encoding is None and markup:
        encoding = html_body_declared_encoding(body)
        # A declaration that can be read as ASCII proves that the page is not in UTF-16 or UTF-32.
        if encoding is not None and encoding.startswith(("utf-16", "utf-32")):
            encoding = "utf-8"
    if encoding is not None:
        return encoding, to_unicode(body, encoding)
    try:
        return "utf-8", body.decode("utf-8")
    except UnicodeDecodeError:
        return FALLBACK, to_unicode(body, FALLBACK)
