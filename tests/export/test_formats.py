"""Which format and compression a name means, and what compressed files contain."""

from __future__ import annotations

import gzip
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.export import FileType, Format, export_run, file_type
from shoal.storage.compression import Compression
from shoal.testing.harness import LedgerHarness
from tests.support.export_shop import stored
from tests.support.ledgers import sqlite_harness

BOOKS = [{"title": f"Book {n}", "price": n / 2} for n in range(3_000)]


@pytest.fixture
async def sqlite(sqlite_path: Path) -> AsyncIterator[LedgerHarness]:
    async with sqlite_harness(sqlite_path) as harness:
        yield harness


@pytest.mark.parametrize(
    ("path", "requested", "expected"),
    [
        ("out.jsonl", None, FileType(Format.JSONL)),
        ("OUT.NDJSON.GZ", None, FileType(Format.JSONL, Compression.GZIP)),
        ("a.b/out.json.zst", None, FileType(Format.JSON, Compression.ZSTD)),
        ("s3://bucket/out.xml.gz", None, FileType(Format.XML, Compression.GZIP)),
        ("out.gz", "csv", FileType(Format.CSV, Compression.GZIP)),
        ("out.jsonl", "csv.zst", FileType(Format.CSV, Compression.ZSTD)),
        ("-", None, FileType(Format.JSONL)),
        ("-", "jsonl.gz", FileType(Format.JSONL, Compression.GZIP)),
        ("-", "parquet", FileType(Format.PARQUET)),
    ],
)
def test_what_a_name_means(path: str, requested: str | None, expected: FileType) -> None:
    assert file_type(path, requested) == expected


@pytest.mark.parametrize(
    ("path", "requested"),
    [
        ("out", None),
        ("out.gz", None),
        (".jsonl", None),
        ("out.jsonl.gz.gz", None),
        ("out.csv", "gz"),
        ("out.csv", "xls"),
    ],
)
def test_names_that_mean_nothing(path: str, requested: str | None) -> None:
    with pytest.raises(UsageError, match=r"does not say which format|is not a format") as caught:
        file_type(path, requested)
    assert "xml, parquet" in caught.value.remedy or ".xml, .parquet" in caught.value.remedy


def test_parquet_is_not_compressed_again() -> None:
    with pytest.raises(UsageError, match="compressed by itself"):
        file_type("out.parquet.gz")


@pytest.mark.parametrize("format", ["jsonl", "json", "csv", "xml"])
async def test_compressed_files(sqlite: LedgerHarness, tmp_path: Path, format: str) -> None:
    """The same bytes each time: no name and no time in them."""
    run = await stored(sqlite.ledger, BOOKS)
    plain = await export_run(sqlite.ledger, run.id, tmp_path / f"out.{format}")
    for compression in Compression:
        files = [tmp_path / f"{name}.{format}.{compression}" for name in ("first", "second")]
        for file in files:
            report = await export_run(sqlite.ledger, run.id, file)
            assert (report.format, report.compression, report.records) == (format, compression, len(BOOKS))
            assert report.bytes == file.stat().st_size < plain.bytes / 2
        first, second = (file.read_bytes() for file in files)
        assert first == second
        assert unpacked(first, compression) == (tmp_path / f"out.{format}").read_bytes()


def unpacked(data: bytes, compression: Compression) -> bytes:
    if compression is Compression.GZIP:
        assert data[3:8] == bytes(5)  # no flags, so no name; no time
        return gzip.decompress(data)
    text: bytes = import_module("zstandard").ZstdDecompressor().decompressobj().decompress(data)
    return text


async def test_zstd_without_its_package(sqlite: LedgerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    run = await stored(sqlite.ledger, BOOKS[:1])
    with pytest.raises(UsageError, match=r"pip install 'shoal\[zstd\]'"):
        await export_run(sqlite.ledger, run.id, tmp_path / "out.jsonl.zst")
    assert list(tmp_path.glob("out*")) == []
