"""The extras of the wheel: each installed alone, and what is said when one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.dist import PROJECT, Installed, WheelError, run_command, scratch_folder

# What recipes need besides the engine.
RECIPE_EXTRAS = {"countries": "browser", "subtitles": "subtitles"}
_LEDGER = ("--ledger", "ledger.db")
_SCRAPER = """
from shoal import Page, Scraper

books = Scraper("books")


@books.stage(client="chrome")
async def title(page: Page):
    yield {"title": page.css("title::text").get()}
"""
# Imports every library of an extra, by what is installed.
_IMPORT = """
import importlib, importlib.metadata, re, sys
by_name = {}
for module, names in importlib.metadata.packages_distributions().items():
    for name in names:
        by_name.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(module)
for name in sys.argv[1:]:
    modules = [module for module in by_name[name] if not module.startswith("_")]
    for module in modules:
        importlib.import_module(module)
print(len(list(importlib.metadata.distributions())))
"""


def try_missing(installed: Installed) -> Iterator[str]:
    """Use what an extra is for without it: one sentence names it. Needs an environment without any extra.

    tests/test_extras.py does it for every library.
    """
    installed.run("shoal", "demo", *_LEDGER, "--quiet")
    (installed.work / "books.py").write_text(_SCRAPER)
    uses = {
        "serve": ("serve", "--port", "0"),
        "browser": ("demo", "countries"),
        "subtitles": ("demo", "subtitles"),
        "parquet": ("export", "latest", "-o", "out.parquet", *_LEDGER),
        "zstd": ("export", "latest", "-o", "out.jsonl.zst", *_LEDGER),
        "s3": ("export", "latest", "-o", "s3://bucket/out.jsonl", *_LEDGER),
        "brokers": ("feed", "redis://127.0.0.1:9/0?list=tasks", "books.py", *_LEDGER),
        "notify": ("alerts", "test", "--set", "notify=json://127.0.0.1:9/", *_LEDGER),
        "chrome": ("try", "books.py", "http://127.0.0.1:9/"),
    }
    for extra, arguments in uses.items():
        ended = installed.try_run("shoal", *arguments)
        said = ended.stderr + ended.stdout
        if ended.returncode == 0 or f"pip install 'shoal[{extra}]'" not in said or "Traceback" in said:
            raise WheelError(f"shoal {' '.join(arguments)} without the extra {extra}: {ended.returncode}\n{said}")
        yield f"without {extra}: {' '.join(said.split())}"


def install_each_alone(wheel: Path, python: str) -> Iterator[str]:
    """Install each extra into an empty environment and import what it is made of."""
    for extra, requirements in {"": [], **PROJECT["optional-dependencies"]}.items():
        names = [requirement.partition(">")[0].lower().replace("_", "-") for requirement in requirements]
        with scratch_folder() as folder:
            environment = folder / "environment"
            uv = [sys.executable, "-m", "uv", "--quiet"]
            run_command([*uv, "venv", "--python", python, str(environment)], folder, None)
            program = environment / "bin" / "python"
            wanted = f"shoal{extra and f'[{extra}]'} @ {wheel.as_uri()}"
            run_command(
                [*uv, "pip", "install", "--python", str(program), "--only-binary", ":all:", wanted], folder, None
            )
            names = [] if extra == "all" else names
            packages = run_command([str(program), "-c", _IMPORT, *names], folder, {}).strip()
            run_command([str(environment / "bin" / "shoal"), "--version"], folder, {})
        yield f"shoal{extra and f'[{extra}]'} alone: {packages} packages"
