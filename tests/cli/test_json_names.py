"""One name for one thing in everything that `--json` writes: all commands are called, and their keys compared."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from shoal import __version__
from shoal.cli.main import main
from shoal.config import Settings
from shoal.model.egress import ExitSpec
from shoal.model.item import ItemState
from shoal.service.records import STATES
from shoal.wiring import ledger_context
from tests.support.commands import commands
from tests.support.live_run import WORKER, Scene, prepare
from tests.support.site import Site

SCRAPER = """
from shoal import Page, Scraper

books = Scraper("books")

@books.stage
def page(page: Page) -> object:
    yield {"title": page.css("title::text").get()}

@books.start
def start():
    yield page.item("URL/page/1")
    yield page.item("URL/status/404")
"""
TABLES = """
[sinks.parts]
kind = "jsonl"
path = "parts"

[scrapers.books]
target = "books.py"
schedule = { cron = "0 4 * * *", timezone = "UTC" }
"""
# Where the author's own names stand, or those of the operator's settings.
FREE = (
    "payload",
    "record",
    "settings",
    "detail",
    "value",
    "example",
    "deaths",
    "versions",
    "code_versions",
    "scope",
    "report",
)
RUN_ID = re.compile(r"\d{8}_\d{6}(_\d+)?")
# Old or ambiguous names of things that have another one.
WRONG = {"run", "id", "item", "runs_id", "results", "key_id", "status_code", "per_minute", "eta", "counts", "told"}
# A prompt, a script, what ends only on request, what needs a pool or an address, and what takes long (`demo`,
# `start` and `schedule now` write what `run` writes).
WITHOUT = {"shell", "completion", "schedule start", "alerts watch", "pool scale", "alerts test"}
WITHOUT |= {"demo", "start", "schedule now", "bench", "serve start"}
# They only say on stderr what they did.
WITHOUT |= {"results forget", "sinks reset"}

NEWSPAPER = (files("shoal.templates") / "newspaper/configs/fiji/times.yaml").read_text()
# Nothing is there to be listed.
EMPTY = {"newspapers check", "newspapers import", "alerts ls", "sinks dead", "results cursors", "proxies test"}
EMPTY |= {"sessions ls"}


def calls(scene: Scene, folder: Path) -> dict[str, tuple[str, ...]]:
    """Arguments for each command; the later ones change what the earlier ones have read."""
    active, finished = scene.active, scene.finished
    return {
        "init": ("new",),
        "status": (active,),
        "stats": ("latest",),
        "watch": (finished,),
        "runs ls": (),
        "runs show": (),
        "runs compare": (active, finished),
        "items ls": (active,),
        "items show": (active, "8"),
        "items why": (active,),
        "lanes ls": (),
        "lanes show": ("shop.example",),
        "lanes set": ("shop.example", "--limit", "3"),
        "lanes pause": ("shop.example",),
        "lanes resume": ("shop.example",),
        "lanes block": ("shop.example", "--for", "30m"),
        "proxies ls": (),
        "proxies show": ("a1",),
        "proxies test": (),
        "proxies rest": ("a1", "--for", "1h"),
        "proxies ban": ("a1",),
        "proxies free": ("a1",),
        "tokens ls": (),
        "tokens show": ("b2",),
        "sessions ls": (),
        "sessions forget": (),
        "workers ls": (),
        "alerts ls": (),
        "export": (finished, "-o", str(folder / "out.jsonl")),
        "results sample": (finished,),
        "results coverage": (finished,),
        "results cursors": (),
        "sinks ls": (),
        "sinks deliver": (),
        "sinks dead": ("parts",),
        "sinks retry": ("parts",),
        "results export": (finished, "-o", str(folder / "out.csv")),
        "newspapers check": (str(folder / "configs"),),
        "newspapers import": (str(folder / "configs"), str(folder / "imported")),
        "db migrate": (),
        "db check": (),
        "db views": ("books.py",),
        "db show": (),
        "db backup": (str(folder / "copy.db"),),
        "serve token add": ("anna",),
        "serve token ls": (),
        "serve token rm": ("anna",),
        "config show": (),
        "doctor": (),
        "plan": ("--pages", "1e9", "--hosts", "1e6", "--hours", "24"),
        "schedule ls": (),
        "schedule next": ("books",),
        "try": ("books.py", "URL/page/2"),
        "runs pause": (active,),
        "runs resume": (active,),
        "runs seal": (active,),
        "items retry": (active, "--yes"),
        "items replay": (finished, "5", "--store", str(folder / "pages"), "--yes"),
        "items cancel": (active, "--limit", "1", "--yes"),
        "workers stop": (WORKER,),
        "release": ("--run", active, "--older-than", "0"),
        "runs cancel": (active, "--yes"),
        "runs rm": (finished, "--yes"),
        "enqueue": ("books.py", "--fresh"),
        "pool start": ("books.py", "--resume", "--dry-run"),
        "worker": ("books.py", "--run-id", "latest"),
        "feed": (str(folder / "in"), "books.py", "--idle", "0", "--fresh"),
        "run": ("books.py", "--fresh", "--max-dead", "9"),
    }


def test_every_command_names_things_alike(
    tmp_path: Path, sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_LEDGER", str(sqlite_path))
    (tmp_path / "shoal.toml").write_text(TABLES)
    (tmp_path / "in").mkdir()
    (tmp_path / "configs/fiji").mkdir(parents=True)
    (tmp_path / "configs/fiji/times.yaml").write_text(NEWSPAPER)
    (tmp_path / "in/urls.txt").write_text("http://127.0.0.1:1/fed\n")
    scene = asyncio.run(_prepare(str(sqlite_path)))
    users: dict[str, set[str]] = defaultdict(set)
    with Site() as site:
        (tmp_path / "books.py").write_text(SCRAPER.replace("URL", site.url))
        todo = calls(scene, tmp_path)
        assert {name for name, _ in commands()} == todo.keys() | WITHOUT, "name its arguments here"
        for command, arguments in todo.items():
            given = [text.replace("URL", site.url) for text in arguments]
            capsys.readouterr()
            code = main([*command.split(), *given, "--json"])
            said = capsys.readouterr()
            expected = 1 if command == "items replay" else 0  # its page is not in the store
            assert code == expected, f"{command}: {said.out}{said.err}"
            values = [json.loads(line) for line in said.out.splitlines()]
            assert values or command in EMPTY, f"{command} wrote nothing: {said.err}"
            if command == "results sample":
                continue  # the author's records
            for value in _objects(values):
                check(command, value)
                for name in value:
                    users[name].add(command.split()[0])
    documented = _documented_names()
    shared = {name for name, groups in users.items() if len(groups) > 2}
    assert not (rest := shared - documented), " ".join(f"{n} {sorted(users[n])}" for n in rest)
    assert sorted(documented - users.keys()) == []


def check(command: str, value: dict[str, Any]) -> None:
    assert not value.keys() & WRONG, (command, value)
    for name, entry in value.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), f"{command}: {name!r} is no name for a program"
        if name == "run_id" and entry is not None:
            assert RUN_ID.fullmatch(entry), (command, entry)
        if name == "item_id":
            assert isinstance(entry, int), (command, entry)
    if "item_id" in value and "state" in value:
        assert value["state"] in set(ItemState), (command, value)
    if "total" in value and "done" in value:
        assert set(STATES) <= value.keys(), (command, value)
        assert sum(value[state] for state in STATES) == value["total"] == value["ended"] + value["remaining"]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for entry in value:
            yield from _objects(entry)
    elif isinstance(value, dict):
        yield value
        for name, entry in value.items():
            if name not in FREE:
                yield from _objects(entry)


def _documented_names() -> set[str]:
    page = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    table = page.partition("## Names in JSON")[2].partition("What each command writes")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


async def _prepare(address: str) -> Scene:
    async with ledger_context(Settings(ledger=address), migrate=True) as ledger:
        scene = await prepare(ledger, version=__version__)
        await ledger.exits.register(WORKER, "homes", "proxies", [ExitSpec("a1", "127.0.0.1:1080")])
        await ledger.exits.register(WORKER, "github", "tokens", [ExitSpec("b2", "GITHUB_TOKEN")])
        return scene
