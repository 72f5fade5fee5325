"""URL files: valid and invalid lines, and the line numbers of errors."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config import Settings
from shoal.errors import InvalidItem, UsageError
from shoal.feeds.lines import BLOCK, MAX_LINE
from shoal.feeds.url_file import UrlFile
from shoal.model.item import NewItem
from shoal.model.run import RunSpec, StageSpec
from shoal.wiring import ledger_context
from tests.support import LONG


def make(url: str | None, **fields: Any) -> NewItem:
    return NewItem(url=url, **fields)


def read(folder: Path, content: bytes) -> tuple[UrlFile, list[NewItem]]:
    path = folder / "urls.txt"
    path.write_bytes(content)
    file = UrlFile(path, make)
    return file, list(file)


def urls(folder: Path, content: bytes) -> list[str | None]:
    return [item.url for item in read(folder, content)[1]]


A, B = "https://a.example/1", "https://b.example/2"
MANY_LINES = 1_000_000 if LONG else 200_000


@pytest.mark.parametrize(
    "content",
    [
        f"{A}\n{B}\n",
        f"{A}\n{B}",
        f"{A}\r\n{B}\r\n",
        f"{A}\r{B}\r",
        f"{A}\r{B}",
        f"\ufeff{A}\n{B}\n",
        f"\n\n# a comment\n  # another\n{A}\n\t\n  {B} \t\n#{A}\n\n",
        f"   {A}\u00a0\n\u3000{B}",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_lines_in_every_form(tmp_path: Path, content: str, packed: bool) -> None:
    data = content.encode()
    assert urls(tmp_path, gzip.compress(data) if packed else data) == [A, B]


@pytest.mark.parametrize("content", [b"", b"\n", b"# nothing\n", b"\xef\xbb\xbf", b"\xef\xbb", b"\r"])
def test_files_without_a_url(tmp_path: Path, content: bytes) -> None:
    assert [url for url in urls(tmp_path, content) if url is not None] == []
    assert urls(tmp_path, gzip.compress(b"")) == []


def test_the_url_is_kept_as_it_is(tmp_path: Path) -> None:
    odd = "HTTPS://Ex.example/%7e?a=b%20c&&x#frag ment\u00e9"
    assert urls(tmp_path, f"{odd}\n".encode()) == [odd]


def test_json_lines_name_every_field(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "url": A,
        "key": "k",
        "payload": {"deep": [1]},
        "partition": "p",
        "priority": -2,
        "lane": "l",
        "stage": "s",
        "delay": 1.5,
    }
    _, items = read(tmp_path, f'{json.dumps(fields)}\n{{"key": "only", "lane": null}}\n  {{"url": "{B}"}}'.encode())
    assert items == [NewItem(**fields), NewItem(key="only"), NewItem(url=B)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"url": "https://a.example/", "prio": 1}', "line 3: The line is not a JSON object that describes an item"),
        (b'{"url": "https://a.example/", "prio": 1}', "unknown field `prio`"),
        (b'{"url": 5}', "Expected `str | null`, got `int` - at `$.url`"),
        (b'{"url": "https://a.example/"', "The line is not a JSON object"),
        (b'{"payload": ' + b"[" * 5000, "The line is not a JSON object"),
        (b"https://a.example/\xff", r"line 3: 'https://a.example/\xff' is not valid UTF-8."),
        (b"https://a.example/\0", r"line 3: 'https://a.example/\x00' contains a NUL byte."),
        (b"x" * (MAX_LINE + 1), "line 3: The line is longer than 8 MiB."),
    ],
)
def test_an_invalid_line_is_reported_and_does_not_affect_others(tmp_path: Path, line: bytes, reason: str) -> None:
    file, items = read(tmp_path, b"# first\n" + A.encode() + b"\n" + line + b"\n" + B.encode())
    assert [item.url for item in items] == [A, None, B]
    assert items[1] == NewItem()
    assert reason in file.describe_error(1, "error of the intake")
    assert file.describe_error(2, "error of the intake") == "line 4: error of the intake"


def test_a_line_that_the_maker_refuses_is_invalid_too(tmp_path: Path) -> None:
    def picky(url: str) -> NewItem:
        if url == A:
            raise InvalidItem("Not that one.")
        return NewItem(url=url)

    (tmp_path / "urls").write_text(f"\n{A}\n{B}\n")
    file = UrlFile(tmp_path / "urls", picky)
    assert list(file) == [NewItem(), NewItem(url=B)]
    assert file.describe_error(0, "no url") == "line 2: Not that one."


def test_a_file_full_of_bad_lines_keeps_few_reasons(tmp_path: Path) -> None:
    file, items = read(tmp_path, b"\xff\n" * 50_000)
    assert len(items) == 50_000
    assert "not valid UTF-8" in file.describe_error(19, "")
    assert file.describe_error(49_999, "too late") == "line 50000: too late"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(A.encode(), mtime=0)[:-9], "its compressed data ends too early"),
        (b"\x1f\x8b\x08\x00", "its compressed data ends too early"),
        (b"\x1f\x8bnonsense", "its compressed data is broken"),
        (gzip.compress(A.encode(), mtime=0)[:-8] + b"\0" * 8, "its compressed data is broken"),
        (f"{A}\n".encode("utf-16"), "is UTF-16 text"),
    ],
)
def test_files_with_a_wrong_format_are_reported(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        read(tmp_path, data)
    assert "urls.txt" in caught.value.message


def test_gzip_in_several_members_with_padding(tmp_path: Path) -> None:
    packed = gzip.compress(f"{A}\n{B[:9]}".encode()) + gzip.compress(f"{B[9:]}\n".encode())
    assert urls(tmp_path, packed) == [A, B]
    assert urls(tmp_path, packed + b"\0" * 1000) == [A, B]
    assert urls(tmp_path, packed + b"\x1f") == [A, B]


def test_paths_that_cannot_be_read_are_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name, why in [
        ("missing", "no such file or directory"),
        ("", "it is a folder"),
        ("loop", "too many levels of symbolic links"),
        ("a\0b", "embedded null byte"),
    ]:
        with pytest.raises(UsageError, match=rf"The URLs cannot be read from .*: {why}") as caught:
            UrlFile(f"{tmp_path}/{name}", make)
        assert caught.value.exit_code == 2


def test_a_file_without_permission_is_reported(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(A)
    secret.chmod(0)
    tmp_path.chmod(0o755)
    code = (
        "import os, sys\n"
        "from shoal.feeds.url_file import UrlFile\n"
        "from shoal.errors import UsageError\n"
        "os.chdir(os.path.dirname(sys.argv[1]))\n"
        "os.getuid() or os.setuid(65534)\n"
        "try: UrlFile('secret', print)\n"
        "except UsageError as error: print(error.message)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(secret)], capture_output=True, text=True, check=True)
    assert result.stdout == "The URLs cannot be read from secret: permission denied.\n"


FROM_STDIN = """
import asyncio, sys
from shoal.feeds.url_file import UrlFile
from shoal.model.item import NewItem

async def main():
    async for item in UrlFile("-", lambda url: NewItem(url=url)):
        print(item.url, flush=True)

if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
elif sys.argv[1] == "asyncio":
    asyncio.run(main())
else:
    for item in UrlFile("-", lambda url: NewItem(url=url)):
        print(item.url, flush=True)
"""


@pytest.mark.parametrize("way", ["sync", "asyncio", "uvloop"])
def test_standard_input_is_read_while_it_is_written(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-c", FROM_STDIN, way]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(f"{A}\n{B[:5]}".encode())
        reader.stdin.flush()
        assert reader.stdout.readline().decode() == f"{A}\n"
        reader.stdin.write(B[5:].encode())
        reader.stdin.close()
        assert reader.stdout.read().decode() == f"{B}\n"
    (tmp_path / "urls").write_text(f"{A}\n{B}\n")
    with (tmp_path / "urls").open() as file:
        assert subprocess.run(command, stdin=file, capture_output=True, check=True).stdout == f"{A}\n{B}\n".encode()
    nothing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert nothing.stdout == b""


async def test_an_empty_pipe_does_not_block_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    holder = os.open(path, os.O_RDWR)
    try:
        entries = aiter(UrlFile(path, make))
        waiting = asyncio.ensure_future(anext(entries))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        os.write(holder, f"{A}\n".encode())
        assert (await waiting).url == A
    finally:
        os.close(holder)


LINES = st.one_of(
    st.just(""),
    st.just("  "),
    st.just("# note"),
    st.text("abc/:é€\U0001f41f ", min_size=1),
    st.integers(0, 9).map(lambda n: f'{{"url": "https://j.example/{n}"}}'),
    st.just("{broken"),
)


@given(
    lines=st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))),
    last=LINES,
    packed=st.booleans(),
    marked=st.booleans(),
)
def test_entries_and_their_lines_follow_a_simple_model(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str]],
    last: str,
    packed: bool,
    marked: bool,
) -> None:
    """Every line that is not blank and not a comment is one entry, and its position maps back to the line."""
    text = "".join(line + end for line, end in lines) + last
    expected: list[tuple[int, str | None]] = []
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        stripped = line.strip()
        if stripped.startswith("{"):
            expected.append((number, json.loads(stripped)["url"] if stripped.endswith("}") else None))
        elif stripped and not stripped.startswith("#"):
            expected.append((number, stripped))
    data = text.encode("utf-8-sig" if marked else "utf-8")
    path = tmp_path_factory.getbasetemp() / "model"
    path.write_bytes(gzip.compress(data) if packed else data)
    file = UrlFile(path, make)
    found = [item.url for item in file]
    assert [(file.line_of(position), url) for position, url in enumerate(found)] == expected


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes"
    path.write_bytes(b"https://a.example/\n" + content + b"\nhttps://z.example/")
    found = [item.url for item in UrlFile(path, make)]
    assert (found[0], found[-1]) == ("https://a.example/", "https://z.example/")


@pytest.mark.slow
def test_many_lines_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for start in range(0, MANY_LINES, 10_000):
            file.write(b"".join(b"https://a.example/page/%d\n" % n for n in range(start, start + 10_000)))
    many = UrlFile(path, lambda url: NewItem(url=url))
    tracemalloc.start()
    try:
        count = sum(1 for _ in many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == MANY_LINES
    assert many.line_of(MANY_LINES - 1) == MANY_LINES
    assert peak < 20 * BLOCK


@pytest.mark.slow
def test_a_bomb_without_an_end_of_line_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    bomb = UrlFile(path, make)
    tracemalloc.start()
    try:
        assert list(bomb) == [NewItem()]
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_LINE
    finally:
        tracemalloc.stop()


async def test_the_intake_counts_invalid_lines(tmp_path: Path) -> None:
    good = f"# list\n{A}\nftp://a.example/\n\n{A}#again\n".encode()
    bad = b'\xff\n{"url": "https://c.example/", "x": 1}\n'
    (tmp_path / "urls").write_bytes(good + bad + B.encode())
    file = UrlFile(tmp_path / "urls", make)
    async with ledger_context(Settings(ledger=str(tmp_path / "ledger.db"))) as ledger:
        run = await ledger.runs.create(RunSpec(scraper="books", stages=(StageSpec("listing"),)))
        report = await ledger.intake.enqueue(run.id, file)
    assert (report.enqueued, report.duplicates, report.invalid) == (2, 1, 3)
    errors = [file.describe_error(position, message) for position, message in report.invalid_entries]
    assert [text.partition(":")[0] for text in errors] == ["line 3", "line 6", "line 7"]
    assert "only http and https" in errors[0]
    assert "not valid UTF-8" in errors[1]
    assert "unknown field `x`" in errors[2]
