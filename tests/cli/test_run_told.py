"""What `shoal run` says: before it starts what cannot be, at its end what came of it and what to type next."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.fork_server import COMMAND
from tests.support.project import Project, clean_environment
from tests.support.site import Site

PAGES = """
    shop = Scraper("shop")

    @shop.stage
    async def page(page: Page):
        yield {"url": page.url}
"""


@pytest.mark.parametrize("command", ["run", "enqueue"])
def test_a_start_with_a_typo_is_told_and_leaves_no_run(either: Project, command: str) -> None:
    either.write(PAGES + '    shop.start("htp://shop.example/", "www.shop.example")\n')
    said = either.shoal(command, "shop.py", code=2)
    error = said.stderr.splitlines()[-1]
    assert error.startswith("Error: None of the 2 items to start from is valid: ")
    assert "htp://shop.example/" in error
    assert "www.shop.example" in said.stderr
    urls = either.urls(["# one", "shop.example"])
    either.write(PAGES)
    (error,) = [
        line
        for line in either.shoal(command, "shop.py", "--urls-file", urls, code=2).stderr.splitlines()
        if "shop.example" in line
    ]
    assert error.startswith("Error: The only item to start from is not valid: ")
    assert "line 2" in error
    assert either.shoal("runs", "ls", "--json").stdout == ""


def test_there_must_be_a_run_to_resume(project: Project) -> None:
    project.write(PAGES)
    urls = project.urls(["http://127.0.0.1:1/a"])
    sentence = f"There is no run of shop to resume in {project.ledger}. Omit --resume to start one."
    for made in (False, True):
        if made:
            project.shoal("db", "migrate")
        for command in (["run", "shop.py", "--dry-run"], ["run", "shop.py"], ["enqueue", "shop.py"]):
            said = project.shoal(*command, "--urls-file", urls, "--resume", code=5)
            assert (sentence if "--dry-run" not in command else "Omit --resume") in said.stderr
        assert Path(project.ledger).exists() == made
    assert project.shoal("runs", "ls", "--json").stdout == ""


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("out.xlsx", "does not say which format"),
        ("missing/out.csv", "There is no folder"),
        (".", "does not say which format"),
        ("out.parquet", "needs the package pyarrow"),
    ],
)
def test_an_output_that_cannot_be_is_refused_at_once(project: Project, output: str, sentence: str) -> None:
    project.write(PAGES)
    (project.folder / "without").mkdir()
    (project.folder / "without" / "pyarrow.py").write_text("raise ImportError")
    urls = project.urls(["http://127.0.0.1:1/a"])
    command = ("run", "shop.py", "--urls-file", urls, "-o", output)
    said = project.shoal(*command, code=2, PYTHONPATH=str(project.folder / "without"))
    assert sentence in said.stderr
    assert said.stdout == ""
    assert not Path(project.ledger).exists()
    assert not (project.folder / output).is_file()


def test_an_export_that_fails_leaves_a_complete_run(project: Project) -> None:
    project.write(PAGES + "\n    @shop.on_finish\n    def end():\n        import os; os.rmdir('out')\n")
    (project.folder / "out").mkdir()
    with Site() as site:
        urls = project.urls([f"{site.url}/page/1"])
        said = project.shoal("run", "shop.py", "--urls-file", urls, "-o", "out/a.jsonl", code=2)
    run = project.run()
    assert "is finished" in said.stdout
    error = said.stderr.splitlines()[-1]
    assert error.startswith("Error: There is no folder ")
    assert "The run is complete; export it with: " in error
    (project.folder / "out").mkdir()
    command = error.rpartition("shoal ")[2]
    assert command == f"export {run.id} -o out/a.jsonl"
    project.shoal(*shlex.split(command))
    assert (project.folder / "out" / "a.jsonl").read_text().count("\n") == 1


BUGGY = """
    shop = Scraper("shop")

    @shop.stage(lane=None, retries=0)
    async def page(item: Item):
        yield page.item("htp://nowhere.example/" + item.key)
        if item.key != "good":
            raise Permanent(f"no price for {item.key!r}")
        yield {"key": item.key}

    shop.start(page.item(key=key) for key in ("good", "plum", "pear"))
"""


def test_the_summary_tells_what_went_wrong_in_the_words_of_one_case(project: Project) -> None:
    project.write(BUGGY)
    said = project.shoal("run", "shop.py", "--max-dead", "100%")
    assert re.search("^  1 done, 2 dead, 0 left; 1 record\n  3 attempts here in ", said.stdout, re.MULTILINE)
    died = "^  2 dead: permanent, for example: no price for '(plum|pear)', last: (plum|pear)$"
    assert re.search(died, said.stdout, re.MULTILINE)
    told = [line for line in said.stdout.splitlines() if "refused, the first: " in line]
    assert len(told) == 1, said.stdout
    assert "htp://nowhere.example/" in told[0]
    (group,) = json.loads(project.shoal("status", "latest", "--json").stdout)["failures"]
    assert group["message"] == "no price for '...'"
    assert group["error"] in ("no price for 'plum'", "no price for 'pear'")
    assert group["error"] in project.shoal("status", "latest").stdout
    facts = json.loads(project.shoal("run", "shop.py", "--fresh", "--max-dead", "100%", "--json", "-q").stdout)
    assert facts["work"]["dropped"] >= 1
    assert "htp://nowhere.example/" in facts["work"]["first_dropped"]


def test_what_is_said_at_the_end_fits_what_was_done(project: Project) -> None:
    """Only what can be done next is proposed, and -q leaves nothing but what is wrong."""
    project.write(BUGGY)
    allowed = ("--fresh", "--max-dead", "100%")
    plain = project.shoal("run", "shop.py", *allowed).stderr.partition("Next:")[2]
    assert ("shoal export" in plain, "results sample" in plain, "items retry" in plain) == (True, True, True)
    written = project.shoal("run", "shop.py", *allowed, "-o", "a.jsonl").stderr
    assert "Wrote 1 record to a.jsonl." in written
    assert ("shoal export" in written, "results sample" in written) == (False, True)
    project.write(BUGGY.replace('"good", ', ""))
    empty = project.shoal("run", "shop.py", *allowed).stderr
    assert ("shoal export" in empty, "results sample" in empty, "items retry" in empty) == (False, False, True)
    quiet = project.shoal("run", "shop.py", "--fresh", "-q", code=1)
    assert quiet.stdout == ""
    assert "Too many items are dead: 2 of 2; allowed: 10%." in quiet.stderr
    assert re.search("^2 items died:\n  2 dead: permanent, for example: no price for ", quiet.stderr, re.MULTILINE)
    project.shoal("enqueue", "shop.py", "--fresh")
    worker = project.shoal("worker", "shop.py", "-q")
    assert re.search("^2 items died:\n  no price for '.*' x 2 dead, last: ", worker.stderr, re.MULTILINE)


def test_in_one_file_the_lines_stand_in_the_order_they_were_said(project: Project) -> None:
    project.write(BUGGY)
    with (project.folder / "both.txt").open("w") as both:
        subprocess.run(
            [*COMMAND, "run", "shop.py", "--max-dead", "100%"],
            cwd=project.folder,
            env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger),
            stdout=both,
            stderr=both,
            timeout=60,
            check=True,
        )
    said = (project.folder / "both.txt").read_text()
    assert said.index("begins.") < said.index("is finished") < said.index("Next:")


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["--max-dead", "lots"], "(from --max-dead)"),
        (["--set", "max_dead=lots"], "(from --set max_dead)"),
        (["-j", "many"], "'--concurrency' / '-j'"),
    ],
)
def test_a_wrong_value_is_told_by_the_option_that_was_typed(project: Project, typed: list[str], named: str) -> None:
    project.write(BUGGY)
    assert named in project.shoal("run", "shop.py", *typed, code=2).stderr
