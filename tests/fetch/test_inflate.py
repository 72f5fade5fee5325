"""The one decompressor: its output does not depend on how the input is cut, and never exceeds the step."""

from __future__ import annotations

import gzip
import zlib

import pytest

from shoal.fetch.body import Inflater

TEXT = b"shoal " * 1_000


def bare_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def inflated(blocks: list[bytes], *, step: int = 256 << 10, deflate: bool = False) -> bytes:
    inflater = Inflater(deflate=deflate)
    pieces = [piece for block in blocks for piece in inflater.feed(block, step)]
    assert not inflater.is_cut_short
    assert all(len(piece) <= step for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("size", [1, 7, 100])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, bare_deflate])
def test_every_cut_and_step_gives_the_same(pack: object, size: int) -> None:
    assert callable(pack)
    data = pack(TEXT)
    blocks = [data[:2], *(data[start : start + size] for start in range(2, len(data), size))]
    for step in (1, 999, 1_000, 1_000_000):
        assert inflated(blocks, step=step, deflate=True) == TEXT


def test_output_that_zlib_still_holds_at_the_end_of_the_input_is_not_lost() -> None:
    for size in range(250, 700):  # a long match ends with the input, without a checksum behind it
        assert inflated([bare_deflate(b"x" * size)], step=250, deflate=True) == b"x" * size


def test_members_follow_one_another_wherever_the_input_is_cut() -> None:
    data = gzip.compress(b"one") + gzip.compress(b"two")
    for cut in range(1, len(data)):
        assert inflated([data[:cut], data[cut:]]) == b"onetwo"
        assert inflated([data[:cut], data[cut:]], deflate=True) == b"onetwo"


def test_data_behind_the_last_member_is_ignored() -> None:
    for rest in (b"\0", b"\0" * 100, b"\x1f", b"\x1fx"):
        assert inflated([gzip.compress(TEXT), rest]) == TEXT
        assert inflated([gzip.compress(TEXT) + rest]) == TEXT


def test_an_incomplete_stream_is_known_and_an_empty_one_is_complete() -> None:
    inflater = Inflater()
    assert not inflater.is_cut_short
    assert b"".join(inflater.feed(gzip.compress(TEXT)[:-1])) == TEXT
    assert inflater.is_cut_short


def test_only_gzip_is_accepted_unless_deflate_is_asked_for() -> None:
    for data in (zlib.compress(TEXT), bare_deflate(TEXT), b"plain text"):
        with pytest.raises(zlib.error):
            list(Inflater().feed(data))
    with pytest.raises(zlib.error, match="incorrect header check"):
        list(Inflater(deflate=True).feed(b"<html>plain text"))
