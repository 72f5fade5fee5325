"""Reads the body of a response and decodes it to text.

The body is decompressed here and not by aiohttp, so that the size cap applies to the decompressed bytes of a zip bomb.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, read_bom, to_unicode

from shoal.errors import Permanent, Transient
from shoal.fetch.inflate import Inflater

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from shoal.fetch.memory import Reservation

ACCEPT_ENCODING = "gzip, deflate"
# A body of unknown size is reserved in steps of this.
_RESERVE_STEP = 64 * 1024
FALLBACK = "cp1252"

# Python's names of the encodings of the WHATWG standard. Others are ignored: some of Python's codecs are not encodings
# of text (base64, rot13, zlib), and others take quadratic time (punycode, idna).
_WEB_ENCODINGS = frozenset(
    {
        *(f"cp{number}" for number in (866, 874, 932, 949, *range(1250, 1259))),
        *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be"),
        *("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic"),
        *("gb18030", "big5hkscs", "euc_jp", "iso2022_jp"),
    }
)


async def read_body(
    response: ClientResponse, cap: int, *, truncate: bool = False, memory: Reservation | None = None
) -> bytes:
    """The whole body, or its first `cap` bytes if `truncate`; never more in memory than the cap and one read.

    Its size is reserved in `memory`. Raises Permanent for a body above the cap and Transient for broken compression.
    """
    inflater = _inflater_of(response)
    length = response.content_length
    content_type = response.headers.get("Content-Type", "").lower()
    if length is not None and response.method != "HEAD":
        if length <= cap and inflater is None:
            if memory is not None:
                await memory.reserve(length, content_type)
            return await response.read()
        if length > cap and not truncate:
            raise too_large_error(str(response.url), cap)
    pieces: list[bytes] = []
    size = reserved = 0
    try:
        while chunk := await response.content.readany():
            for piece in _decoded_pieces(inflater, chunk):
                pieces.append(piece)
                size += len(piece)
                if size > cap:
                    break
            if size > cap:
                if not truncate:
                    raise too_large_error(str(response.url), cap)
                response.close()  # the unread rest makes the connection unusable
                return b"".join(pieces)[:cap]
            if memory is not None and size > reserved:
                reserved = size + _RESERVE_STEP
                await memory.reserve(reserved, content_type)
    except zlib.error as error:
        raise Transient(f"{response.url}: the compressed body is broken ({error})") from None
    if inflater is not None and inflater.is_cut_short:
        raise Transient(f"{response.url}: the compressed body ends too early")
    return b"".join(pieces)


def _decoded_pieces(inflater: Inflater | None, chunk: bytes) -> Iterable[bytes]:
    return (chunk,) if inflater is None else inflater.feed(chunk)


def too_large_error(url: str, cap: int) -> Permanent:
    return Permanent(f"{url} is larger than {cap} bytes")


def _inflater_of(response: ClientResponse) -> Inflater | None:
    encoding = response.headers.get("Content-Encoding")
    if encoding is None:
        return None
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(deflate=True)
    raise Permanent(f"{response.url} has the content encoding {name[:40]!r}; accepted are {ACCEPT_ENCODING}")


def decode(body: bytes, content_type: str, *, markup: bool) -> tuple[str, str]:
    """The encoding and the text: by byte order mark, then Content-Type, then the markup's own declaration.

    Without any of them: UTF-8 if the body is valid UTF-8, otherwise windows-1252, as in browsers.
    """
    mark_encoding, mark = read_bom(body)
    if mark_encoding is not None and mark is not None:
        return mark_encoding, to_unicode(body[len(mark) :], mark_encoding)
    encoding = _web_encoding(http_content_type_encoding(content_type))
    if encoding is None and markup:
        encoding = _web_encoding(html_body_declared_encoding(body))
        # A declaration that is readable as ASCII proves that the page is not UTF-16.
        if encoding is not None and encoding.startswith("utf-16"):
            encoding = "utf-8"
    if encoding is not None:
        return encoding, to_unicode(body, encoding)
    try:
        return "utf-8", body.decode("utf-8")
    except UnicodeDecodeError:
        return FALLBACK, to_unicode(body, FALLBACK)


def _web_encoding(encoding: str | None) -> str | None:
    return encoding if encoding in _WEB_ENCODINGS else None
