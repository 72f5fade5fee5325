"""Which recipes there are, and the files that each one makes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

import msgspec

from shoal.errors import UsageError

DEFAULT = "shop"
SHOP = "python -m shoal.demo.shop --port 8001"
# A file that began with a dot here would rule this folder too, or be left out of the package.
_DOTTED = {"gitignore": ".gitignore", "env.example": ".env.example"}


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A project to start from.

    `scraper` names the scraper, `file` where it is (a Python file of its name unless given), `stage` its first stage.
    `site_command` is the command that serves a local site for it. `try_arguments` is what to give `shoal try` after the
    file, `run_arguments` what to give `shoal run`.
    """

    name: str
    about: str
    scraper: str
    stage: str
    site_command: str
    try_arguments: str
    run_arguments: str
    file: str | None = None

    @property
    def target(self) -> str:
        return self.file or f"{self.scraper}.py"

    def files(self) -> Iterator[tuple[str, str]]:
        """Path in the project and text of every file: those that all projects have, then its own."""
        root = files("shoal.recipes") / "files"
        own = dict(_texts(root / self.name))
        own_settings = own.pop("settings.toml", "")
        for path, text in _texts(root / "common"):
            filled = Template(text).substitute(
                scraper=self.scraper,
                table=f'"{self.scraper}"' if "." in self.scraper else self.scraper,
                target=self.target,
                stage=self.stage,
                own_settings=own_settings,
            )
            yield _DOTTED.get(path, path), filled
        yield from own.items()

    def next_commands(self, folder: str) -> list[tuple[str, str]]:
        """What to type now, each with what it does."""
        return [
            *([(f"cd {folder}", "")] if folder != "." else []),
            (f"{self.site_command} &", "a local site to try it on"),
            (f"shoal try {self.target} {self.try_arguments}", "one item, nothing stored"),
            (f"shoal run {self.run_arguments}", "all of it; Ctrl-C stops, the same command goes on"),
            ("shoal export latest -o out.jsonl", "the records as a file"),
            ("pytest", "the test, on a saved page"),
        ]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="shop",
            about="listing pages that lead to product pages: two stages",
            scraper="shop",
            stage="listing",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/category/garden",
            run_arguments="shop",
        ),
        Recipe(
            name="pages",
            about="a list of URLs in a file, one record for each",
            scraper="pages",
            stage="title",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/about",
            run_arguments="pages --urls-file urls.txt",
        ),
        Recipe(
            name="crawl",
            about="a whole site by its links, to a depth",
            scraper="crawl",
            stage="visit",
            site_command=SHOP,
            try_arguments="http://127.0.0.1:8001/",
            run_arguments="crawl",
        ),
        Recipe(
            name="api",
            about="a JSON API: items without URLs, requests of your own, settings",
            scraper="rivers",
            stage="index",
            site_command="python stand_in.py",
            try_arguments="--stage river --key danube",
            run_arguments="rivers",
        ),
        Recipe(
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


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        known = "; ".join(f"{recipe.name} ({recipe.about})" for recipe in RECIPES.values())
        raise UsageError(f"There is no recipe {name!r}.", remedy=f"Choose one of: {known}.")
    return RECIPES[name]


def _texts(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _texts(entry, f"{above}{entry.name}/")
        else:
            yield above + entry.name, entry.read_text(encoding="utf-8")
