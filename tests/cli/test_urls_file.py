"""Lists of URLs as people have them, and the answer that an orchestrator reads (S1.4, S1.5, S1.6, S1.21)."""

import gzip
import json
import re
import shlex
import subprocess
import time
from urllib.parse import urlsplit

import pytest

from tests.support.fork_server import COMMAND
from tests.support.project import Project, clean_environment

SCRAPER = """
    shop = Scraper("shop")

    @shop.stage
    async def page(page: Page):
        yield {"url": page.url}

    @shop.stage
    async def detail(page: Page):
        yield {"url": page.url}
"""
MESSY = (
    b"\xef\xbb\xbfhttp://127.0.0.1:1/a\r\n"
    b"\r\n"
    b"# a comment\r\n"
    b"  http://127.0.0.1:1/b  \r\n"
    b"http://127.0.0.1:1/a\r\n"
    b"not a url\r\n"
    b"http://127.0.0.1:1/a#fragment\r\n"
    b"ftp://127.0.0.1/c\r\n"
    b"\xff\xfe\r\n"
    b'{"url": "http://127.0.0.1:1/d", "stage": "detail", "priority": -3}\r\n'
    b'{"url": "http://127.0.0.1:1/e", "stage": "nowhere"}\r\n'
    b"http://127.0.0.1:1/last"
)


def test_a_messy_file(project: Project) -> None:
    """CRLF, a BOM, blanks, comments, duplicates and bad lines: the good ones are stored, the bad ones named by line."""
    project.write(SCRAPER)
    (project.folder / "urls.txt").write_bytes(MESSY)
    said = project.shoal("enqueue", "shop.py", "--urls-file", "urls.txt")
    answer = json.loads(said.stdout)
    assert (answer["enqueued"], answer["duplicates"], answer["invalid"]) == (4, 2, 4)
    assert "4 lines of urls.txt" in said.stderr
    for line, about in [(6, "not a url"), (8, "ftp"), (9, "UTF-8"), (11, "nowhere")]:
        assert re.search(rf"line {line}: .*{about}", said.stderr), said.stderr
    assert "Traceback" not in said.stderr
    found = {(item.stage, item.url, item.priority) for item in project.items()}
    assert found == {
        ("page", "http://127.0.0.1:1/a", 0),
        ("page", "http://127.0.0.1:1/b", 0),
        ("page", "http://127.0.0.1:1/last", 0),
        ("detail", "http://127.0.0.1:1/d", -3),
    }


def test_the_answer_of_enqueue(fleet: Project) -> None:
    """S1.5: everything an orchestrator needs, and no password in it; its command works as it stands."""
    fleet.write(SCRAPER)
    secret = urlsplit(fleet.ledger).password
    urls = fleet.urls(["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"])
    said = fleet.shoal("enqueue", "shop.py", "--urls-file", urls, "--json", "--ledger", fleet.ledger)
    assert secret
    assert secret not in said.stdout + said.stderr
    answer = json.loads(said.stdout)
    assert (answer["status"], answer["mode"], answer["enqueued"], answer["duplicates"]) == (
        "queued",
        "single",  # S1.1: nothing says otherwise
        2,
        0,
    )
    assert re.fullmatch(r"\d{8}_\d{6}\w*", answer["run_id"])
    assert f"--run-id {answer['run_id']}" in answer["worker_command"]
    assert answer["worker_command"].split()[1:3] == ["worker", "shop.py"]
    # Pasted into another terminal, where the ledger is unknown but the password is set, it finds the run.
    arguments = shlex.split(answer["worker_command"])[1:]
    other = clean_environment(fleet.folder, PGPASSWORD=secret)
    pasted = subprocess.run([*COMMAND, *arguments, "--limit", "1"], cwd=fleet.folder, env=other, check=False)
    assert pasted.returncode == 0
    assert "set PGPASSWORD" in said.stderr
    named_by_variable = json.loads(fleet.shoal("enqueue", "shop.py", "--urls-file", urls).stdout)["worker_command"]
    assert named_by_variable == answer["worker_command"]
    # ... also when only a file of this folder names the ledger.
    place = urlsplit(fleet.ledger)
    for file, text in ((".env", f"SHOAL_LEDGER={fleet.ledger}"), ("shoal.toml", f"ledger = '{fleet.ledger}'")):
        (fleet.folder / file).write_text(text)
        by_file = subprocess.run(
            [*COMMAND, "enqueue", "shop.py", "--urls-file", urls],
            cwd=fleet.folder,
            env=clean_environment(fleet.folder),
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"@{place.hostname}:{place.port}{place.path}" in json.loads(by_file.stdout)["worker_command"], file
        assert secret not in by_file.stdout + by_file.stderr
        (fleet.folder / file).unlink()
    # The same list again is all duplicates and the same run; --fresh is a new run.
    again = json.loads(fleet.shoal("enqueue", "shop.py", "--urls-file", urls, "--resume").stdout)
    assert (again["run_id"], again["enqueued"], again["duplicates"]) == (answer["run_id"], 0, 2)
    fresh = json.loads(fleet.shoal("enqueue", "shop.py", "--urls-file", urls, "--fresh").stdout)
    assert (fresh["run_id"] != answer["run_id"], fresh["enqueued"]) == (True, 2)


def test_no_password_in_the_answer(project: Project) -> None:
    project.write(SCRAPER)
    urls = project.urls(["http://127.0.0.1:1/a"])
    ledger = "postgresql://someone:hunter22secret@127.0.0.1:9/nothing"
    said = project.shoal("enqueue", "shop.py", "--urls-file", urls, "--ledger", ledger, "--set", "patience=0", code=3)
    assert "hunter22secret" not in said.stdout + said.stderr
    assert "127.0.0.1:9" in said.stderr


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_standard_input(project: Project, packed: bool) -> None:
    project.write(SCRAPER)
    text = b"http://127.0.0.1:1/a\n\nhttp://127.0.0.1:1/b"
    said = subprocess.run(
        [*COMMAND, "enqueue", "shop.py", "--urls-file", "-", "--stage", "detail"],
        cwd=project.folder,
        env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger),
        input=gzip.compress(text) if packed else text,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert json.loads(said.stdout)["enqueued"] == 2
    assert {item.stage for item in project.items()} == {"detail"}


def test_a_long_list(project: Project) -> None:
    """S1.6: a million takes ten times this. Packed, because such lists are."""
    project.write(SCRAPER)
    lines = "".join(f"https://shop.example/product/{number}?ref=list\n" for number in range(100_000))
    (project.folder / "urls.txt.gz").write_bytes(gzip.compress(lines.encode(), 1))
    began = time.monotonic()
    answer = json.loads(project.shoal("enqueue", "shop.py", "--urls-file", "urls.txt.gz").stdout)
    assert answer["enqueued"] == 100_000
    assert time.monotonic() - began < 45


def test_wrong_calls_are_one_sentence_and_store_nothing(project: Project) -> None:
    project.write(SCRAPER)
    project.urls(["http://127.0.0.1:1/a"])
    project.shoal("db", "migrate")
    calls = [
        (["--urls-file", "missing.txt"], "missing.txt"),
        (["--urls-file", "."], "folder"),
        (["--urls-file", "urls.txt", "--stage", "nowhere"], "nowhere"),
        (["--urls-file", "urls.txt", "--resume", "--fresh"], "--resume"),
        ([], "no items to start with"),
    ]
    commands = [project.start("enqueue", "shop.py", *arguments) for arguments, _ in calls]
    for command, (_, sentence) in zip(commands, calls, strict=True):
        assert command.wait() == 2
        assert sentence in command.stderr
        assert "Traceback" not in command.stderr
        assert command.stdout == ""
    assert project.shoal("runs", "ls", "--json").stdout == ""
