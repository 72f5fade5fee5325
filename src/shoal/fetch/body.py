"""Reads the body of a response: bounded streaming decompression, then decoding to text.

Bodies are decompressed here and not by aiohttp, so that the size cap applies to the decompressed bytes of a zip bomb.
`Inflater` serves sitemaps and URL files too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from w3lib.encoding import html_body_declared_encoding, http_content_type_encoding, read_bom, to_unicode

from shoal.errors import Permanent, Transient

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from shoal.fetch.memory import Reservation

GZIP_MAGIC = b"\x1f\x8b"
STEP = 256 << 10
_GZIP_HEADER = 16 + zlib.MAX_WBITS
_GZIP_OR_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_NO_HEADER = -zlib.MAX_WBITS
ACCEPT_ENCODING = "gzip, deflate"
# A body of unknown size is reserved in steps of this.
_RESERVE_STEP = 64 * 1024
FALLBACK = "cp1252"

# Python's names of the encodings of the WHATWG standard. Others are ignored: some of Python's codecs are not encodings
# of text (base64, rot13, zlib), and others take quadratic time (punycode, idna).
WEB_ENCODINGS = frozenset(
    {
        *(f"cp{number}" for number in (866, 874, 932, 949, *range(1250, 1259))),
        *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
        *("utf-8", "utf-16", "utf-16-le", "utf-16-be"),
        *("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic"),
        *("gb18030", "big5hkscs", "euc_jp", "iso2022_jp"),
    }
)


class Inflater:
    """Decompresses gzip block by block, several members in a row too; no input makes it hold more than a step at once.

    `deflate` accepts zlib streams and bare deflate streams as well. Data behind the last member is ignored, as browsers
    do. The caller counts the bytes and stops iterating at its own limit.
    """

    def __init__(self, *, deflate: bool = False) -> None:
        self._deflate = deflate
        self._header = _GZIP_OR_ZLIB_HEADER if deflate else _GZIP_HEADER
        self._stream: Any = zlib.decompressobj(self._header)
        self._started = False
        self._between_members = b""
        self._ignores_rest = False

    @property
    def is_cut_short(self) -> bool:
        """Whether the input so far ends inside a member. No input at all is complete."""
        return self._started and not self._stream.eof

    def feed(self, block: bytes, step: int = STEP) -> Iterator[bytes]:
        """The decompressed bytes in pieces of at most `step`. Raises zlib.error for broken data."""
        has_output = False
        while (block or has_output) and not self._ignores_rest:
            if self._stream.eof:
                block = self._next_member(block)
                continue
            piece = self._decompress(block, step)
            # zlib may have taken in the whole block and still hold output that did not fit into the step.
            has_output = len(piece) == step and not self._stream.eof
            block = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if piece:
                yield piece

    def _decompress(self, block: bytes, step: int) -> bytes:
        try:
            piece: bytes = self._stream.decompress(block, step)
        except zlib.error as error:
            if self._started or not self._deflate:
                raise
            # Some servers send a bare deflate stream, without the zlib header that HTTP requires.
            self._stream = zlib.decompressobj(_NO_HEADER)
            try:
                piece = self._stream.decompress(block, step)
            except zlib.error:
                raise error from None
        self._started = True
        return piece

    def _next_member(self, block: bytes) -> bytes:
        block = self._between_members + block
        self._between_members = b""
        if len(block) < len(GZIP_MAGIC):
            self._between_members = block
            return b""
        if block.startswith(GZIP_MAGIC):
            self._stream = zlib.decompressobj(self._header)
        else:
            self._ignores_rest = True
        return block


class _BrotliInflater:
    """Decompresses brotli as `Inflater` does gzip. Needs the library."""

    def __init__(self) -> None:
        import brotli

        self._stream = brotli.Decompressor()
        self._error: type[Exception] = brotli.error
        self._started = False

    @property
    def is_cut_short(self) -> bool:
        return self._started and not self._stream.is_finished()

    def feed(self, block: bytes, step: int = STEP) -> Iterator[bytes]:
        while not self._stream.is_finished():
            try:
                piece: bytes = self._stream.process(block, output_buffer_limit=step)
            except self._error as error:
                raise zlib.error(str(error)) from None
            self._started = True
            block = b""
            if piece:
                yield piece
            if self._stream.can_accept_more_data():
                return


class _ZstdInflater:
    """Decompresses zstd as `Inflater` does gzip, with the largest window that browsers accept. Needs the library."""

    # The library has no limit for its output: this many bytes become at most 16 MB.
    _SLICE = 512

    def __init__(self) -> None:
        import zstandard

        self._library: Any = zstandard
        self._streams = zstandard.ZstdDecompressor(max_window_size=8 << 20)
        self._stream = self._streams.decompressobj()
        self._started = False

    @property
    def is_cut_short(self) -> bool:
        return self._started and not self._stream.eof

    def feed(self, block: bytes, step: int = STEP) -> Iterator[bytes]:
        for start in range(0, len(block), self._SLICE):
            rest = block[start : start + self._SLICE]
            while rest:
                if self._stream.eof:  # another frame follows
                    self._stream = self._streams.decompressobj()
                try:
                    piece = self._stream.decompress(rest)
                except self._library.ZstdError as error:
                    raise zlib.error(str(error)) from None
                self._started = True
                rest = self._stream.unused_data
                for at in range(0, len(piece), step):
                    yield piece[at : at + step]


BodyInflater = Inflater | _BrotliInflater | _ZstdInflater


async def read_body(
    response: ClientResponse, cap: int, *, truncate: bool = False, memory: Reservation | None = None
) -> bytes:
    """The whole body, or its first `cap` bytes if `truncate`; never more in memory than the cap and one read.

    Its size is reserved in `memory`. Raises Permanent for a body above the cap and Transient for broken compression.
    """
    inflater = inflater_of(response.headers, str(response.url))
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


def _decoded_pieces(inflater: BodyInflater | None, chunk: bytes) -> Iterable[bytes]:
    return (chunk,) if inflater is None else inflater.feed(chunk)


def too_large_error(url: str, cap: int) -> Permanent:
    return Permanent(f"{url} is larger than {cap} bytes")


def inflater_of(headers: Mapping[str, str], url: str) -> BodyInflater | None:
    """What decompresses a body; None for one that is not compressed. Raises Permanent for an unknown encoding.

    brotli and zstd, which only `client="chrome"` asks for, need `shoal[chrome]`; for zstd, `shoal[zstd]` is enough.
    """
    encoding = headers.get("Content-Encoding")
    if encoding is None:
        return None
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name in ("gzip", "x-gzip", "deflate"):
        return Inflater(deflate=True)
    if name in ("br", "zstd"):
        with suppress(ImportError):
            return _BrotliInflater() if name == "br" else _ZstdInflater()
    raise Permanent(f"{url} has the content encoding {name[:40]!r}; accepted are {ACCEPT_ENCODING}")


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
    return encoding if encoding in WEB_ENCODINGS else None
