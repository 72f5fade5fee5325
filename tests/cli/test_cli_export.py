"""`shoal export` and `shoal results` through real processes."""

import asyncio
import csv
import gzip
import io
import json
import os
import pty
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

from shoal.cli.main import main
from shoal.config import Settings
from shoal.model.run import Run
from shoal.wiring import ledger_context
from tests.support.export_shop import REVIEW, add, read_jsonl, read_parquet, stored
from tests.support.fork_server import COMMAND
from tests.support.object_store import BUCKET, SECRET, S3Server, fault_proxy
from tests.support.project import Shoal, clean_environment

BOOKS = [{"title": f"Book {n}", "price": n + 0.5, "tags": ["a", "b"]} for n in range(120)]


def fill(address: str, records: Sequence[Mapping[str, Any]] = BOOKS, *, end: bool = True, reviews: int = 0) -> Run:
    async def work() -> Run:
        async with ledger_context(Settings(ledger=address), migrate=True) as ledger:
            run = await stored(ledger, records, end=end and not reviews)
            if reviews:
                await add(ledger, run, [{"stars": n} for n in range(reviews)], stage=REVIEW)
            return run

    return asyncio.run(work())


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_path" if request.param == "sqlite" else "postgres_url"))


def test_every_format(shoal: Shoal, address: str, tmp_path: Path) -> None:
    run = fill(address)
    for format in ("jsonl", "csv", "parquet", "json.gz"):
        said = shoal("export", run.id, "-o", f"out.{format}", "--json", SHOAL_LEDGER=address)
        assert (said.returncode, said.stderr) == (0, f"Wrote 120 records to out.{format}\n")
        summary = json.loads(said.stdout)
        size = (tmp_path / f"out.{format}").stat().st_size
        assert (summary["run_id"], summary["records"], summary["bytes"]) == (run.id, 120, size)
    assert read_jsonl((tmp_path / "out.jsonl").read_bytes()) == BOOKS
    assert json.loads(gzip.decompress((tmp_path / "out.json.gz").read_bytes())) == BOOKS
    assert read_parquet(tmp_path / "out.parquet").to_pylist() == BOOKS
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_bytes().decode(), newline="")))
    assert rows[7] == {"title": "Book 7", "price": "7.5", "tags": '["a","b"]'}


def test_to_stdout(shoal: Shoal, sqlite_path: Path) -> None:
    fill(str(sqlite_path))
    said = shoal("export", "latest", SHOAL_LEDGER=str(sqlite_path))
    assert read_jsonl(said.stdout.encode()) == BOOKS
    assert said.stderr == "Wrote 120 records to standard output\n"
    table = shoal(
        "export", "latest:shop", "-o", "-", "--format", "csv", "--columns", "price, title", "--json", "-q",
        SHOAL_LEDGER=str(sqlite_path),
    )  # fmt: skip
    assert table.stdout.startswith("price,title\n0.5,Book 0\n")
    assert len(table.stdout.splitlines()) == 121, "data and nothing else"
    assert table.stderr == ""


def test_parquet_through_a_pipe(shoal: Shoal, sqlite_path: Path, tmp_path: Path) -> None:
    fill(str(sqlite_path))
    with (tmp_path / "piped").open("wb") as file:
        export = subprocess.Popen(
            [*COMMAND, "export", "latest", "--format", "parquet", "--ledger", str(sqlite_path)],
            cwd=tmp_path,
            env=clean_environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        subprocess.run(["cat"], stdin=export.stdout, stdout=file, check=True)
        assert export.stdout is not None
        export.stdout.close()
        assert export.wait() == 0
    assert read_parquet(tmp_path / "piped").to_pylist() == BOOKS


def test_a_reader_that_leaves(shoal: Shoal, sqlite_path: Path, tmp_path: Path) -> None:
    """As `head` does: no error is said. The records are more than a pipe holds."""
    fill(str(sqlite_path), [{"text": "x" * 5_000}] * 200)
    said = subprocess.run(
        ["sh", "-c", f"({COMMAND[0]} export latest -q; echo $? >code) | head -n 1 >first"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, SHOAL_LEDGER=str(sqlite_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr == ""
    assert (tmp_path / "code").read_text() == "0\n"
    assert len((tmp_path / "first").read_text().splitlines()) == 1


def test_to_an_object_store(shoal: Shoal, sqlite_path: Path, s3: S3Server) -> None:
    fill(str(sqlite_path))
    environment = {**s3.environment(), "SHOAL_LEDGER": str(sqlite_path)}
    said = shoal("export", "latest", "-o", f"s3://{BUCKET}/day/out.jsonl.gz", "-v", **environment)
    assert said.returncode == 0
    assert said.stderr.endswith(f"Wrote 120 records to s3://{BUCKET}/day/out.jsonl.gz\n")
    assert read_jsonl(gzip.decompress(s3.content("day/out.jsonl.gz"))) == BOOKS
    wrong = shoal("export", "latest", "-o", "s3://no-such-bucket/out.csv", "-v", **environment)
    assert (wrong.returncode, "There is no bucket s3://no-such-bucket" in wrong.stderr) == (2, True)
    for text in (said.stdout, said.stderr, wrong.stdout, wrong.stderr):
        assert SECRET not in text
    assert s3.uploads() == []


def test_a_stopped_upload_is_aborted(
    sqlite_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By SIGTERM, as a service manager stops a command, while parts are on their way."""
    fill(str(sqlite_path), [{"text": os.urandom(20_000).hex()} for _ in range(60)])
    begun: list[str] = []
    first, stopped = Lock(), Event()
    raise_signal = signal.raise_signal

    def stop_it(_: str, path: str) -> None:
        if "partNumber" in path:
            if first.acquire(blocking=False):
                begun.extend(s3.uploads())
                os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(60)

    def raise_and_tell(number: int) -> None:
        raise_signal(number)
        stopped.set()

    monkeypatch.setattr("shoal.cli.export.signal.raise_signal", raise_and_tell)
    with fault_proxy(s3.endpoint, stop_it) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        command = ["export", "latest", "-o", f"s3://{BUCKET}/out.jsonl", "--ledger", str(sqlite_path)]
        assert main(command) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert begun == ["out.jsonl"]
    assert (s3.objects(), s3.uploads()) == ({}, [])


def test_since_last(shoal: Shoal, address: str, tmp_path: Path) -> None:
    run = fill(address, BOOKS[:3], end=False)
    command = ["export", "shop", "--since-last", "-o", "new-{n}.csv", "--columns", "title"]
    said = shoal(*command, SHOAL_LEDGER=address)
    assert (said.returncode, said.stderr) == (0, "Wrote 3 records to new-000001.csv\n")
    said = shoal(*command, SHOAL_LEDGER=address)
    assert (said.returncode, said.stderr) == (0, "There are no new records of shop since the last export.\n")
    fill_more(address, run, BOOKS[3:5])
    said = shoal(*command, "--json", SHOAL_LEDGER=address)
    summary = json.loads(said.stdout)
    assert (summary["number"], summary["records"], summary["path"]) == (2, 2, "new-000002.csv")
    assert (tmp_path / "new-000002.csv").read_text() == "title\nBook 3\nBook 4\n"
    said = shoal("export", run.id, "--cursor", "pipe", "-q", SHOAL_LEDGER=address)
    assert (read_jsonl(said.stdout.encode()), said.stderr) == (BOOKS[:5], "")
    said = shoal("export", "shop", "--since-last", "-o", "out.csv", SHOAL_LEDGER=address)
    assert (said.returncode, "Put {n} into it" in said.stderr) == (2, True)
    fill_more(address, run, BOOKS[5:8])
    said = shoal("results", "cursors", "--json", SHOAL_LEDGER=address)
    cursors = {each["cursor"]: each for each in map(json.loads, said.stdout.splitlines())}
    shop = cursors["default:shop"]
    assert (shop["exports"], shop["records"], shop["behind"]) == (2, 5, 3)
    assert cursors.keys() == {"default:shop", f"pipe:{run.id}"}
    said = shoal("results", "forget", "default:shop", SHOAL_LEDGER=address)
    assert (said.returncode, "--yes" in said.stderr) == (2, True)
    assert shoal("results", "forget", "default:shop", "--yes", SHOAL_LEDGER=address).returncode == 0
    said = shoal(*command[:3], "-o", "again-{n}.csv", SHOAL_LEDGER=address)
    assert said.stderr == "Wrote 8 records to again-000001.csv\n"


def fill_more(address: str, run: Run, records: Sequence[Mapping[str, Any]]) -> None:
    async def work() -> None:
        async with ledger_context(Settings(ledger=address)) as ledger:
            await add(ledger, run, records, name=f"more-{len(records)}")

    asyncio.run(work())


def test_notes_about_what_is_exported(shoal: Shoal, sqlite_path: Path) -> None:
    fill(str(sqlite_path), BOOKS[:2], reviews=3)
    said = shoal("export", "latest", "-o", "out.csv", SHOAL_LEDGER=str(sqlite_path))
    assert "The run is active" in said.stderr
    assert "--stage page" in said.stderr
    said = shoal(
        "export", "latest", "-o", "out.csv", "--stage", "review", "--columns", "sters", SHOAL_LEDGER=str(sqlite_path)
    )
    assert "Wrote 3 records" in said.stderr
    assert "No record has sters" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["latest", "-o", "out.xlsx"], 2, "does not say which format"),
        (["latest", "-o", "out"], 2, "does not say which format"),
        (["latest", "-o", "out.csv", "--format", "excel"], 2, "'excel' is not a format"),
        (["latest", "-o", "missing/out.csv"], 2, "There is no folder missing."),
        (["latest", "-o", "."], 2, "does not say which format"),
        (["latest", "-o", "/dev/full", "--format", "csv"], 2, "No space left on device"),
        (["latest", "-o", "/dev/full", "--format", "parquet"], 2, "No space left on device"),
        (["latest", "-o", "out.jsonl", "--bom"], 2, "are for CSV"),
        (["latest", "-o", "out.csv", "--columns", "a,,b"], 2, "empty name"),
        (["latest", "-o", "out.csv", "--stage", "nope"], 2, "it has page, review"),
        (["latest:nobody", "-o", "out.csv"], 5, "There is no run of 'nobody'"),
        (["20010101_000000", "-o", "out.csv"], 5, "There is no run"),
    ],
)
def test_refusals_are_one_sentence(
    shoal: Shoal, sqlite_path: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    fill(str(sqlite_path), BOOKS[:2])
    said = shoal("export", *arguments, "--ledger", str(sqlite_path))
    assert said.returncode == code
    assert said.stdout == ""
    assert said.stderr.startswith("Error: ")
    assert len(said.stderr.splitlines()) == 1
    assert words in said.stderr
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(sqlite_path.name)] == []


def test_a_file_that_may_not_grow(shoal: Shoal, sqlite_path: Path, tmp_path: Path) -> None:
    fill(str(sqlite_path), [{"text": "x" * 5_000}] * 200)
    (tmp_path / "out.jsonl").write_text("old")
    said = subprocess.run(
        ["sh", "-c", f"ulimit -f 500; exec {COMMAND[0]} export latest -o out.jsonl"],
        cwd=tmp_path,
        env=clean_environment(tmp_path, SHOAL_LEDGER=str(sqlite_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert "File too large" in said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert (tmp_path / "out.jsonl").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_a_long_export_says_how_far_it_is(
    sqlite_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(str(sqlite_path))
    monkeypatch.setattr("shoal.cli.export.SECONDS_IN_LOG", 0.0)
    assert main(["export", "latest", "-o", str(tmp_path / "out.csv"), "--ledger", str(sqlite_path)]) == 0
    *_, before_last, last = capsys.readouterr().err.splitlines()
    assert before_last == "wrote 120 of 120 records"
    assert last.startswith("Wrote 120 records to ")


def test_ctrl_c(sqlite_path: Path, tmp_path: Path) -> None:
    """Stopped while the reader of its pipe does not read."""
    fill(str(sqlite_path), [{"text": "x" * 5_000}] * 400)
    with subprocess.Popen(
        [*COMMAND, "export", "latest", "--ledger", str(sqlite_path)],
        cwd=tmp_path,
        env=clean_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read().decode().splitlines() == ["Interrupted."]
        assert process.wait() == 130


def test_sample_and_coverage(shoal: Shoal, address: str) -> None:
    run = fill(address)
    said = shoal("results", "sample", "latest", "-n", "3", SHOAL_LEDGER=address)
    assert read_jsonl(said.stdout.encode()) == BOOKS[:3]
    said = shoal("results", "coverage", "latest", SHOAL_LEDGER=address)
    assert said.stdout.splitlines()[0].split() == ["FIELD", "RECORDS", "FILLED", "SHARE", "TYPES", "EXAMPLE"]
    assert said.stdout.splitlines()[2].split() == ["price", "120", "120", "100.0%", "float", "0.5"]
    assert said.stderr == f"120 records of run {run.id} (shop).\n"
    said = shoal("results", "coverage", "latest", "--json", "-q", SHOAL_LEDGER=address)
    assert [json.loads(line)["field"] for line in said.stdout.splitlines()] == ["title", "price", "tags"]
    said = shoal("results", "export", "latest", "-o", "out.csv", SHOAL_LEDGER=address)
    assert said.stderr == "Wrote 120 records to out.csv\n"


def test_no_records_yet(shoal: Shoal, sqlite_path: Path) -> None:
    fill(str(sqlite_path), [])
    said = shoal("results", "sample", "latest", SHOAL_LEDGER=str(sqlite_path))
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "The run has no records yet.\n")
    assert shoal("results", "coverage", "latest", SHOAL_LEDGER=str(sqlite_path)).stdout == ""


def test_on_a_terminal(sqlite_path: Path, tmp_path: Path) -> None:
    """Fields below each other; what a site sent cannot steer the terminal; Parquet is refused."""
    fill(str(sqlite_path), [{"title": "Red\x1b[31m\nFish", "long": "y" * 500}])
    code, text = on_terminal(tmp_path, "results", "sample", "latest", "--ledger", str(sqlite_path))
    assert code == 0
    assert "title  Red [31m Fish" in text
    assert "y…" in text
    assert max(map(len, text.splitlines())) <= 100
    code, text = on_terminal(tmp_path, "export", "latest", "--format", "parquet", "--ledger", str(sqlite_path))
    assert code == 2
    assert "binary and cannot be written to a terminal" in text


def on_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=clean_environment(folder, TERM="xterm", COLUMNS="100", LINES="30", NO_COLOR="1"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:
        pass  # how Linux says that the other end was closed
    os.close(ours)
    return process.wait(), said.decode()
