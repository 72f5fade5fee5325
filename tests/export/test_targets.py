"""Export targets: files are complete or absent, old files stay until commit, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.errors import ShoalError, UsageError
from shoal.export import Format, check_target, export_run
from shoal.storage import open_target
from shoal.testing.harness import LedgerHarness
from tests.support import missing
from tests.support.export_shop import stored
from tests.support.ledgers import sqlite_harness
from tests.support.object_store import BUCKET, S3Server

ROOT = Path(__file__).resolve().parents[2]
OLD = "what was there before\n"
BOOKS = [{"title": f"Book {n}"} for n in range(300)]


@pytest.fixture(params=["nameless", "named"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of an earlier export, on systems with and without files that have no name."""
    if request.param == "named":
        monkeypatch.setattr("shoal.storage.targets.O_TMPFILE", None)
    folder = tmp_path / "exports"
    folder.mkdir()
    (folder / "out.jsonl").write_text(OLD)
    return folder


def test_the_old_file_stays_until_commit(place: Path) -> None:
    target = open_target(str(place / "out.jsonl"))
    target.write(b"new")
    assert (place / "out.jsonl").read_text() == OLD
    target.commit()
    assert (place / "out.jsonl").read_text() == "new"
    assert os.listdir(place) == ["out.jsonl"]


def test_a_discarded_file_leaves_nothing(place: Path) -> None:
    target = open_target(str(place / "out.jsonl"))
    target.write(b"new")
    target.discard()
    assert (place / "out.jsonl").read_text() == OLD
    assert os.listdir(place) == ["out.jsonl"]


def test_permissions_and_links_are_kept(place: Path) -> None:
    (place / "out.jsonl").chmod(0o640)
    (place / "link.jsonl").symlink_to("out.jsonl")
    target = open_target(str(place / "link.jsonl"))
    target.write(b"new")
    target.commit()
    assert (place / "link.jsonl").is_symlink()
    assert (place / "out.jsonl").read_text() == "new"
    assert (place / "out.jsonl").stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_of_the_umask(place: Path) -> None:
    before = os.umask(0o027)
    try:
        target = open_target(str(place / "new.jsonl"))
        target.commit()
    finally:
        os.umask(before)
    assert (place / "new.jsonl").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["missing/out.jsonl", "out.jsonl/out.jsonl", "."])
def test_paths_that_cannot_be_written(place: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_target(str(place / name))
    says_what_to_do(caught.value)
    assert "folder" in caught.value.message


def says_what_to_do(error: ShoalError) -> None:
    assert error.message.endswith(".")
    assert error.remedy.endswith(".")
    assert "\n" not in str(error)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing("a small file system needs root (mount)")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_read_only_disk(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(UsageError, match="cannot be written: Read-only") as caught:
        open_target(str(small_disk / "out.jsonl"))
    says_what_to_do(caught.value)


@pytest.mark.parametrize("format", ["jsonl", "jsonl.gz", "csv", "parquet"])
async def test_a_full_disk(sqlite: LedgerHarness, small_disk: Path, format: str) -> None:
    run = await stored(sqlite.ledger, [{"text": os.urandom(20_000).hex()} for _ in range(60)])
    path = small_disk / f"out.{format}"
    path.write_text(OLD)
    if not format.startswith("jsonl"):
        # Room for the records that wait, none for the table.
        enlarge = ["mount", "-o", "remount,size=4m", str(small_disk)]
        await asyncio.to_thread(subprocess.run, enlarge, check=True)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        await export_run(sqlite.ledger, run.id, path)
    says_what_to_do(caught.value)
    assert path.read_text() == OLD
    assert os.listdir(small_disk) == [path.name]


@pytest.fixture
async def sqlite(sqlite_path: Path) -> AsyncIterator[LedgerHarness]:
    async with sqlite_harness(sqlite_path) as harness:
        yield harness


@pytest.mark.parametrize("format", ["jsonl", "json.zst", "csv", "parquet"])
async def test_cancelled_in_the_middle(sqlite: LedgerHarness, place: Path, format: str) -> None:
    run = await stored(sqlite.ledger, BOOKS)
    path = place / f"out.{format}"
    path.write_text(OLD)

    def cancel(verb: str, _: int) -> None:
        if verb == "wrote":
            job.cancel()

    job = asyncio.ensure_future(export_run(sqlite.ledger, run.id, path, progress=cancel))
    with pytest.raises(asyncio.CancelledError):
        await job
    assert path.read_text() == OLD
    assert set(os.listdir(place)) == {path.name, "out.jsonl"}


@pytest.mark.parametrize("format", ["jsonl", "csv"])
async def test_an_upload_that_is_cancelled_is_aborted(sqlite: LedgerHarness, s3: S3Server, format: str) -> None:
    run = await stored(sqlite.ledger, [{"text": os.urandom(20_000).hex()} for _ in range(60)])
    begun: list[str] = []

    def cancel(verb: str, records: int) -> None:
        if verb == "wrote" and records > 30:
            begun.extend(s3.uploads())
            job.cancel()

    job = asyncio.ensure_future(export_run(sqlite.ledger, run.id, f"s3://{BUCKET}/out.{format}", progress=cancel))
    with pytest.raises(asyncio.CancelledError):
        await job
    assert begun[:1] == [f"out.{format}"]
    assert (s3.objects(), s3.uploads()) == ({}, [])


STUCK = """
import asyncio, sys, time
from shoal.config import Settings
from shoal.export import Format, check_target, export_run
from shoal.wiring import ledger_context

def stuck(verb, records):
    if verb == sys.argv[4]:
        print(records, flush=True)
        time.sleep(600)

async def main():
    async with ledger_context(Settings(ledger=sys.argv[1])) as ledger:
        await export_run(ledger, sys.argv[2], sys.argv[3], progress=stuck)

asyncio.run(main())
"""


@pytest.mark.parametrize(("format", "moment"), [("jsonl", "wrote"), ("csv", "read"), ("csv", "wrote")])
async def test_killed_in_the_middle(
    sqlite: LedgerHarness, sqlite_path: Path, tmp_path: Path, format: str, moment: str
) -> None:
    """kill -9: the old file is as it was, nothing lies beside it, and the next export is complete."""
    run = await stored(sqlite.ledger, BOOKS)
    folder = tmp_path / "exports"
    folder.mkdir()
    path = folder / f"out.{format}"
    path.write_text(OLD)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STUCK, str(sqlite_path), run.id, str(path), moment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert int(await process.stdout.readline()) > 0
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert path.read_text() == OLD
    assert os.listdir(folder) == [path.name]
    report = await export_run(sqlite.ledger, run.id, path)
    assert report.records == len(BOOKS)
    assert path.stat().st_size == report.bytes


def test_check_target_writes_nothing_and_does_not_open_a_pipe(tmp_path: Path) -> None:
    there = tmp_path / "a.csv"
    there.write_text("old")
    assert check_target(there) is Format.CSV
    assert check_target(tmp_path / "new.jsonl") is Format.JSONL
    os.mkfifo(tmp_path / "pipe")
    assert check_target(tmp_path / "pipe", Format.JSONL) is Format.JSONL  # would wait for a reader if it opened it
    assert check_target("-") is Format.JSONL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "pipe"]
    assert there.read_text() == "old"
    for path in (tmp_path / "no" / "a.csv", tmp_path, tmp_path / "a.xlsx"):
        with pytest.raises(UsageError):
            check_target(path, None if path.suffix else "csv")
