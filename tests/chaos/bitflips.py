"""Damage a copy of a SQLite ledger, give it to commands, and tell what they said: one JSON line for each call.

    python -m tests.chaos.bitflips LEDGER FOLDER FIRST_SEED COUNT

Commands run in this process, which is much faster; whoever starts it watches the time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import time
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
COMMANDS = (
    ("status",),
    ("runs", "show", "latest"),
    ("items", "ls", "latest", "--limit", "200"),
    ("export", "latest", "-o", "out.jsonl"),
    ("db", "check", "--deep"),
    ("doctor",),
    ("run", "s.py", "--limit", "20", "--timeout", "5", "-q"),
)


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
    began = time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = main([*arguments, "--ledger", "damaged.db"])
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    return {
        "code": code,
        "err": err.getvalue()[-2000:],
        "out": out.getvalue()[-500:],
        "seconds": time.monotonic() - began,
    }


def work(ledger: Path, folder: Path, first_seed: int, count: int) -> None:
    os.chdir(folder)
    for seed in range(first_seed, first_seed + count):
        for command in COMMANDS:
            for old in folder.glob("damaged.db*"):
                old.unlink()
            shutil.copy(ledger, "damaged.db")
            what = damage(Path("damaged.db"), random.Random(seed))
            print(json.dumps({"begins": seed, "command": command}), flush=True)
            print(json.dumps({"seed": seed, "what": what, "command": command, **call(command)}), flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
