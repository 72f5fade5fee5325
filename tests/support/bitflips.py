"""Damage a copy of a SQLite ledger, give it to commands, and tell what they said: one JSON line for each call.

    python -m tests.support.bitflips FOLDER FIRST_SEED COUNT

Commands run in this process, which is much faster; whoever starts it watches the time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from shoal.cli.main import main

SCRAPER = """
from shoal import Item, Permanent, Scraper, Transient

s = Scraper("s")

@s.stage(lane=lambda item: f"lane-{hash(item.key) % 3}", retries=2)
async def first(item: Item):
    number = int(item.key)
    if number % 7 == 3:
        raise Permanent("gone")
    if number % 7 == 5:
        raise Transient("not now")
    yield {"number": number, "text": "x" * 50}
    yield second.item(key=f"s{number}", payload={"from": number})

@s.stage
async def second(item: Item):
    yield {"key": item.key}

s.start(*[first.item(key=str(number), payload={"n": number}) for number in range(120)])
"""
PAGE = 4096
LOOKS = (
    ("status",),
    ("runs", "show", "latest"),
    ("items", "ls", "latest", "--limit", "200"),
    ("export", "latest", "-o", "out.jsonl"),
    ("doctor",),
    ("db", "check", "--deep"),
)
# The last one changes the file, so a fresh copy is not needed before it.
COMMANDS = (*LOOKS, ("run", "s.py", "--limit", "20", "-q"))


def make(ledger: Path) -> None:
    """A ledger with items in every state, made in the current folder."""
    Path("s.py").write_text(SCRAPER)
    assert main(["run", "s.py", "--limit", "90", "-q", "--ledger", str(ledger)]) == 0
    # The file alone is copied; on a busy machine a thread may close its connection late, with rows in the log still.
    with closing(sqlite3.connect(ledger)) as connection:
        busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
    assert not busy


def rows_of(file: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that is stored, table by table."""
    with closing(sqlite3.connect(file)) as connection:
        connection.text_factory = bytes
        tables = connection.execute("select name from sqlite_schema where type = 'table'").fetchall()
        return {
            str(name, "utf-8"): connection.execute(f"select * from {name.decode()}").fetchall() for (name,) in tables
        }


def damage(file: Path, rng: random.Random) -> str:
    """Flip bits where something is stored, or in the headers of pages; rarely lose a page. Says what was done."""
    data = bytearray(file.read_bytes())
    pages = len(data) // PAGE
    kind = rng.choice(("content", "content", "headers", "headers", "schema", "page lost"))
    match kind:
        case "content":
            used = [place for place in range(PAGE, len(data)) if data[place]]
            places = rng.sample(used, rng.choice((1, 4, 32)))
        case "headers":  # of a page, with the pointers to its cells
            places = [rng.randrange(1, pages) * PAGE + rng.randrange(24) for _ in range(rng.choice((1, 2, 8)))]
        case "schema":
            places = [rng.randrange(PAGE) for _ in range(rng.choice((1, 4)))]
        case _:
            page = rng.randrange(1, pages)
            data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
            places = [page * PAGE]
    if kind != "page lost":
        for place in places:
            data[place] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"{kind} at {places[:4]}"


def call(arguments: tuple[str, ...]) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main([*arguments, "--ledger", "bad.db"])
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    return {"code": code, "err": err.getvalue()[-2000:]}


def work(folder: Path, first_seed: int, count: int) -> None:
    os.chdir(folder)
    good, damaged = Path("good.db"), Path("bad.db")
    make(good)
    for seed in range(first_seed, first_seed + count):
        for old in Path().glob("bad.db*"):
            old.unlink()
        shutil.copy(good, damaged)
        what = damage(damaged, random.Random(seed))
        shutil.copy(damaged, "as-damaged.db")
        for command in COMMANDS:
            print(json.dumps({"begins": seed, "what": what, "command": command}), flush=True)
            ended = call(command)
            if command == ("db", "check", "--deep") and ended["code"] == 0:
                ended["unseen"] = unseen(rows_of(good), rows_of(Path("as-damaged.db")))
            print(json.dumps({"seed": seed, "what": what, "command": command, **ended}), flush=True)


def unseen(good: dict[str, list[tuple[object, ...]]], damaged: dict[str, list[tuple[object, ...]]]) -> list[str]:
    """The tables whose rows were lost, or whose items have another key, though the check found nothing."""
    lost = [table for table, rows in good.items() if len(damaged.get(table, [])) != len(rows)]
    keys = [[(row[0], *row[10:13]) for row in rows["item"]] for rows in (good, damaged)]
    return lost if keys[0] == keys[1] else [*lost, "keys of items"]


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
