"""The boundaries of the blocks make no difference."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from shoal.feeds.lines import BadLine, LineSplitter, Unpacker

TEXTS = st.lists(st.sampled_from([b"a", b"\n", b"\r", "é€\U0001f41f".encode(), b"\xff", b"\0"])).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=20)


def cut(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    start = 0
    for place in sorted(places):
        if start < place < len(data):
            yield data[start:place]
            start = place
    if data[start:]:
        yield data[start:]


@given(TEXTS, CUTS)
def test_lines_do_not_depend_on_the_blocks(text: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter()
    found = [line for block in cut(text, cuts) for line in splitter.feed(block)] + splitter.finish()
    expected = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [b"bad" if isinstance(line, BadLine) else line.encode() for line in found][: len(expected)] == [
        b"bad" if b"\xff" in line or b"\0" in line else line for line in expected
    ]
    assert all(line == "" for line in found[len(expected) :])


@given(st.binary(max_size=300), st.lists(st.binary(max_size=100), max_size=3), CUTS, st.booleans())
def test_unpacking_does_not_depend_on_the_blocks(text: bytes, more: list[bytes], cuts: list[int], marked: bool) -> None:
    plain = b"#" + b"".join([text, *more])
    mark = b"\xef\xbb\xbf" if marked else b""
    members = [mark + b"#" + text, *more]
    packed = b"".join(gzip.compress(member, 1) for member in members)
    for data in (mark + plain, packed):
        unpacker = Unpacker("x")
        parts = [part for block in cut(data, cuts) for part in unpacker.feed(block)] + list(unpacker.finish())
        assert b"".join(parts) == plain
