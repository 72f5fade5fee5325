"""The projects that `shoal init` creates: their catalogue, and their files.

The files of a template are in the folder of its name; those of a recipe are in the folder `project` of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import msgspec

from shoal.errors import UsageError

DEFAULT = "shop"
SHOP = "python -m shoal.demo.shop --port 8001"
# With their leading dot these files would apply to this folder too, or be left out of the package.
_DOTTED = {"gitignore": ".gitignore", "env.example": ".env.example"}
# Shown unless a project has settings of the stage: TOML refuses a table that is there twice.
_STAGE_EXAMPLE = """
# [scrapers.{table}.stages.{stage}]  # overrides what the code declares
# rate = "30/min"
# retries = 5
"""


class ProjectTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A project to start from.

    `scraper` is the scraper's name, `file` its path (by default a Python file of that name), `stage` its first stage.
    `commands`, each with its effect, are shown after `shoal init`. Without them they are made of `site_command`, which
    serves a local site, `try_arguments`, those of `shoal try` behind the file, and `run_arguments`, those of
    `shoal run`. `package` and `folder` are where its files are.
    """

    name: str
    about: str
    scraper: str
    stage: str
    site_command: str = ""
    try_arguments: str = ""
    run_arguments: str = ""
    file: str | None = None
    commands: tuple[tuple[str, str], ...] = ()
    package: str = "shoal.templates"
    folder: str = ""

    @property
    def target(self) -> str:
        return self.file or f"{self.scraper}.py"

    def files(self) -> Iterator[tuple[str, str]]:
        """Path in the project and text of every file: first those common to all projects, then its own.

        A file of its own replaces the common one; `settings.toml` becomes a part of the common `shoal.toml`.
        """
        own = {_DOTTED.get(path, path): text for path, text in _texts(files(self.package) / (self.folder or self.name))}
        own_settings = own.pop("settings.toml", "")
        table = f'"{self.scraper}"' if "." in self.scraper else self.scraper
        example = _STAGE_EXAMPLE.format(table=table, stage=self.stage)
        for path, text in _texts(files("shoal.templates") / "common"):
            if _DOTTED.get(path, path) in own:
                continue
            filled = Template(text).substitute(
                scraper=self.scraper,
                table=table,
                target=self.target,
                own_settings=own_settings,
                stage_example="" if f"[scrapers.{table}.stages.{self.stage}]" in own_settings else example,
            )
            yield _DOTTED.get(path, path), filled
        yield from own.items()

    def next_commands(self, folder: str) -> list[tuple[str, str]]:
        """The next commands to run, each with its effect."""
        enter = [(f"cd {folder}", "")] if folder != "." else []
        if self.commands:
            return [*enter, *self.commands]
        return [
            *enter,
            (f"{self.site_command} &", "a local site to try it on"),
            (f"shoal try {self.target} {self.try_arguments}", "one item, nothing stored"),
            (f"shoal run {self.run_arguments}", "all of it; Ctrl-C stops it, the same command continues it"),
            ("shoal export latest -o out.jsonl", "the records as a file"),
            ("pytest", "the test, on a saved page"),
        ]


TEMPLATES = {
    template.name: template
    for template in (
        ProjectTemplate(
            name="shop",
            about="listing pages that lead to product pages: two stages",
            scraper="shop",
            stage="listing",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/category/garden",
            run_arguments="shop",
        ),
        ProjectTemplate(
            name="pages",
            about="a list of URLs in a file, one record for each",
            scraper="pages",
            stage="title",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/about",
            run_arguments="pages --urls-file urls.txt",
        ),
        ProjectTemplate(
            name="crawl",
            about="a whole site by its links, to a depth",
            scraper="crawl",
            stage="visit",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/",
            run_arguments="crawl",
        ),
        ProjectTemplate(
            name="api",
            about="a JSON API: items without URLs, requests of your own, settings",
            scraper="rivers",
            stage="index",
            site_command="python stand_in.py",
            try_arguments="--stage river --key danube",
            run_arguments="rivers",
        ),
        ProjectTemplate(
            name="newspaper",
            about="a newspaper in YAML: listing pages that lead to articles, without Python",
            scraper="fiji.times",
            file="configs/fiji/times.yaml",
            stage="listing",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/category/garden",
            run_arguments="fiji.times",
        ),
    )
}


def write_project(folder: Path, texts: Mapping[str, str], *, recipe: str = DEFAULT) -> None:
    """Write the files of a project: all of them, or none when one exists already. Raises UsageError."""
    existing = [name for name in texts if (folder / name).exists() or (folder / name).is_symlink()]
    if existing:
        raise UsageError(
            f"{folder.resolve()} has {', '.join(existing)} already; nothing was written.",
            remedy="Choose another folder: shoal init DIR" + (f" --recipe {recipe}." if recipe != DEFAULT else "."),
        )
    try:
        for name, text in texts.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as opened:
                opened.write(text)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder} cannot be written: {error.strerror}.", remedy="Choose another folder."
        ) from None


def _texts(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name not in ("__pycache__", ".pytest_cache", ".shoal"):
                yield from _texts(entry, f"{above}{entry.name}/")
        else:
            yield above + entry.name, entry.read_text(encoding="utf-8")
