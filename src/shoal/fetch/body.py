"""Reading the body of a response: decompression, size limits, character sets.

Reading the body of an answer: inflated by ourselves, so that the size cap holds for what a zip bomb becomes.

From the bytes of a page to its text.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, read_bom, to_unicode

from shoal.errors import Permanent, Transient

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from shoal.fetch.memory import Reservation

ACCEPT_ENCODING = "gzip, deflate"
# A body of unknown size is reserved in steps of at least this.
_RESERVE_STEP = 64 * 1024
_ANY_ZLIB_OR_GZIP_HEADER = 32 + zlib.MAX_WBITS
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


async def read_body(
    response: ClientResponse, cap: int, *, truncate: bool = False, memory: Reservation | None = None
) -> bytes:
    """The whole body, or the first `cap` bytes of it if `truncate`; never more in memory than the cap and one read.

    What it takes is reserved in `memory` before it is read.

    Raises Permanent for a body above the cap and Transient for one that cannot be inflated.
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
    collected: list[bytes] = []
    size = reserved = 0
    content = response.content
    while chunk := await content.readany():
        piece = chunk if inflater is None else inflater.feed(chunk, cap + 1 - size)
        collected.append(piece)
        size += len(piece)
        if size > cap:
            if not truncate:
                raise too_large_error(str(response.url), cap)
            # What is still to come is not wanted, so the connection cannot be used again.
            response.close()
            return b"".join(collected)[:cap]
        if memory is not None and size > reserved:
            reserved = size + _RESERVE_STEP
            await memory.reserve(reserved, content_type)
    if inflater is not None:
        inflater.finish()
    return b"".join(collected)


def too_large_error(url: str, cap: int) -> Permanent:
    return Permanent(f"{url} is larger than {cap} bytes")


class _Inflater:
    """Inflates gzip (several members in a row too) and both readings of `deflate`, never more than asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stream: Any = zlib.decompressobj(_ANY_ZLIB_OR_GZIP_HEADER)
        self._started = False
        self._garbage_follows = False

    def feed(self, data: bytes, limit: int) -> bytes:
        """Inflate until the data is used up or more than fits into `limit` came out."""
        pieces: list[bytes] = []
        while data and limit > 0 and not self._garbage_follows:
            piece = self._inflate(data, limit)
            pieces.append(piece)
            limit -= len(piece)
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data = self._next_member()
        return b"".join(pieces)

    def finish(self) -> None:
        """Check that the stream is complete. An empty body stands for an empty page, whatever it says to be."""
        if self._started and not self._stream.eof and not self._garbage_follows:
            raise Transient(f"{self._url}: the compressed body ends too early")

    def _inflate(self, data: bytes, limit: int) -> bytes:
        try:
            piece: bytes = self._stream.decompress(data, limit)
        except zlib.error as error:
            if self._started:
                raise self._broken(error) from None
            # Some servers send a bare deflate stream, without the header that the standard asks for.
            self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                piece = self._stream.decompress(data, limit)
            except zlib.error:
                raise self._broken(error) from None
        self._started = True
        return piece

    def _next_member(self) -> bytes:
        rest: bytes = self._stream.unused_data
        if rest.startswith(b"\x1f\x8b"):
            self._stream = zlib.decompressobj(_ANY_ZLIB_OR_GZIP_HEADER)
            return rest
        # Browsers ignore what follows the last member, so padding does no harm.
        self._garbage_follows = bool(rest)
        return b""

    def _broken(self, error: zlib.error) -> Transient:
        return Transient(f"{self._url}: the compressed body is broken ({error})")


def _inflater_of(response: ClientResponse) -> _Inflater | None:
    encoding = response.headers.get("Content-Encoding")
    if encoding is None:
        return None
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return _Inflater(str(response.url))
    raise Permanent(f"{response.url} came in the encoding {name[:40]!r}; only {ACCEPT_ENCODING} was asked for")


def decode(body: bytes, content_type: str, *, markup: bool) -> tuple[str, str]:
    """The encoding and the text: by byte order mark, then Content-Type, then the markup's own declaration.

    Without any of them it is UTF-8 if it is valid, and windows-1252, as browsers assume, if it is not.
    """
    mark_encoding, mark = read_bom(body)
    if mark_encoding is not None and mark is not None:
        return mark_encoding, to_unicode(body[len(mark) :], mark_encoding)
    encoding = _web_encoding(http_content_type_encoding(content_type))
    if encoding is None and markup:
        encoding = _web_encoding(html_body_declared_encoding(body))
        # A declaration that can be read as ASCII proves that the page is not in UTF-16.
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
