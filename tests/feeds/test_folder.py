"""A watched folder: whole files only, moved to done/ or failed/, read by one feed at a time."""

from __future__ import annotations

import fcntl
import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.feeds import files
from shoal.feeds.files import FolderSource
from shoal.feeds.source import Message, Rejection, open_source, parse_address


@pytest.fixture
async def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FolderSource]:
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)
    source = FolderSource(tmp_path)
    await source.open()
    yield source
    await source.close()


def bodies(messages: list[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


async def test_a_file_is_moved_to_done_when_all_its_lines_are_stored(inbox: FolderSource, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n# no message\ntwo\nthree")
    first = await inbox.receive(2, 1)
    assert bodies(first) == ["one", "two"]
    await inbox.acknowledge(first)
    second = await inbox.receive(2, 1)
    assert bodies(second) == ["three"]
    assert (tmp_path / "a.txt").exists()
    await inbox.acknowledge(second)
    assert (tmp_path / "done" / "a.txt").exists()
    assert not (tmp_path / "a.txt").exists()
    assert await inbox.is_empty()


async def test_a_file_with_a_refused_line_is_moved_to_failed_with_the_reason(
    inbox: FolderSource, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\npoison\n")
    good, bad = await inbox.receive(10, 1)
    await inbox.reject([Rejection(bad, "no URL")])
    await inbox.acknowledge([good])
    assert (tmp_path / "failed" / "a.txt").read_text() == "one\npoison\n"
    assert (tmp_path / "failed" / "a.txt.reason").read_text() == "line 2: no URL\n"


async def test_a_damaged_file_is_moved_to_failed(inbox: FolderSource, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-6])
    messages = await inbox.receive(10, 1)
    await inbox.acknowledge(messages)
    await inbox.receive(10, 0)
    assert "ends too early" in (tmp_path / "failed" / "a.gz.reason").read_text()


async def test_a_file_is_not_read_before_it_is_complete(
    inbox: FolderSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".hidden", "a.part", "b.tmp", "c~"):
        (tmp_path / name).write_text("one\n")
    assert await inbox.receive(10, 0) == []
    assert await inbox.is_empty()
    monkeypatch.setattr(files, "SETTLE_SECONDS", 3600.0)
    (tmp_path / "growing.txt").write_text("one\n")
    assert await inbox.receive(10, 0) == []
    assert not await inbox.is_empty()
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)
    assert bodies(await inbox.receive(10, 1)) == ["one"]


async def test_files_are_read_in_the_order_of_their_times(inbox: FolderSource, tmp_path: Path) -> None:
    for number, name in enumerate(("b", "c", "a")):
        (tmp_path / name).write_text(f"{name}\n")
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    found = []
    for _ in range(3):
        messages = await inbox.receive(10, 1)
        found += bodies(messages)
        await inbox.acknowledge(messages)
    assert found == ["b", "c", "a"]


async def test_two_feeds_do_not_read_the_same_file(inbox: FolderSource, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("two\n")
    other = FolderSource(tmp_path)
    mine, others = await inbox.receive(10, 1), await other.receive(10, 1)
    assert sorted(bodies(mine) + bodies(others)) == ["one", "two"]
    await inbox.close()
    # A file that was not finished stays, and is read again.
    again = await inbox.receive(10, 1)
    assert bodies(again) == bodies(mine)
    await other.close()


async def test_a_locked_file_is_left_alone(inbox: FolderSource, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    with (tmp_path / "a").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert await inbox.receive(10, 0) == []
    assert bodies(await inbox.receive(10, 1)) == ["one"]


async def test_a_name_that_was_used_before_is_kept_apart(inbox: FolderSource, tmp_path: Path) -> None:
    for text in ("one\n", "two\n"):
        (tmp_path / "a.txt").write_text(text)
        await inbox.acknowledge(await inbox.receive(10, 1))
    assert sorted(path.read_text() for path in (tmp_path / "done").iterdir()) == ["one\n", "two\n"]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("amqp://host/", "does not say which queue"),
        ("redis://host/0", "does not say which stream or list"),
        ("redis://host/0?stream=a&list=b", "does not say which stream or list"),
        ("amqp://host:port/?queue=a", "not valid"),
        ("kafka://host/?topic=a", "neither a folder nor an address"),
        ("/no/such/folder", "neither a folder nor an address"),
        ("redis://host/0?stream=a&claim_after=never", "claim_after"),
    ],
)
def test_a_wrong_address_is_refused(address: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        open_source(address)


def test_the_password_of_an_address_is_never_shown() -> None:
    found = parse_address("amqp://me:p%40ss-w0rd@host:5672/v?queue=a&heartbeat=5")
    assert found.password == "p@ss-w0rd"
    assert found.shown == "amqp://host:5672/v"
    assert found.url == "amqp://me:p%40ss-w0rd@host:5672/v?heartbeat=5"
    assert found.redacted("cannot reach p@ss-w0rd") == "cannot reach ***"
    assert "p@ss" not in open_source("redis://:p%40ss-w0rd@host/0?list=a").name
