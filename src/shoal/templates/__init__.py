"""The projects that `shoal init` creates: their catalogue. The files of each are in the folder of its name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

import msgspec

from shoal.errors import UsageError

DEFAULT = "shop"
SHOP = "python -m shoal.demo.shop --port 8001"
# With their leading dot these files would apply to this folder too, or be left out of the package.
_DOTTED = {"gitignore": ".gitignore", "env.example": ".env.example"}


class ProjectTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A project to start from.

    `scraper` is the scraper's name, `file` its path (by default a Python file of that name), `stage` its first stage.
    `site_command` serves a local site for it. `try_arguments` are the arguments of `shoal try` behind the file,
    `run_arguments` those of `shoal run`.
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
        """Path in the project and text of every file: first those common to all projects, then its own."""
        root = files("shoal.templates")
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
        """The next commands to run, each with its effect."""
        return [
            *([(f"cd {folder}", "")] if folder != "." else []),
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


def find_template(name: str) -> ProjectTemplate:
    if name not in TEMPLATES:
        known = "; ".join(f"{template.name} ({template.about})" for template in TEMPLATES.values())
        raise UsageError(f"There is no recipe {name!r}.", remedy=f"Choose one of: {known}.")
    return TEMPLATES[name]


def _texts(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _texts(entry, f"{above}{entry.name}/")
        else:
            yield above + entry.name, entry.read_text(encoding="utf-8")
