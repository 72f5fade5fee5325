"""From the bytes of a page to its text."""

from __future__ import annotations

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, read_bom, to_unicode

FALLBACK = "cp1252"

# Python's names of the encodings of the WHATWG standard. A site may name no other: some of Python's codecs are no
# encodings of text at all (base64, rot13, zlib), and others take quadratic time (punycode, idna).
_WEB_ENCODINGS = frozenset(
    {
        *(f"cp{number}" for number in (866, 874, 932, 949, *range(1250, 1259))),
        *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be"),
        *("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic"),
        *("gb18030", "big5hkscs", "euc_jp", "iso2022_jp"),
    }
)


def decode(body: bytes, content_type: str, *, markup: bool) -> tuple[str, str]:
    """The encoding and the text: by byte order mark, then Content-Type, then the markup's own declaration.

    Without any of them it is UTF-8 if it is valid, and windows-1252, as browsers assume, if it is not.
    """
    mark_encoding, mark = read_bom(body)
    if mark_encoding is not None and mark is not None:
        return mark_encoding, to_unicode(body[len(mark) :], mark_encoding)
    encoding = _allowed(http_content_type_encoding(content_type))
    if encoding is None and markup:
        encoding = _allowed(html_body_declared_encoding(body))
        # A declaration that can be read as ASCII proves that the page is not in UTF-16.
        if encoding is not None and encoding.startswith("utf-16"):
            encoding = "utf-8"
    if encoding is not None:
        return encoding, to_unicode(body, encoding)
    try:
        return "utf-8", body.decode("utf-8")
    except UnicodeDecodeError:
        return FALLBACK, to_unicode(body, FALLBACK)


def _allowed(encoding: str | None) -> str | None:
    return encoding if encoding in _WEB_ENCODINGS else None
