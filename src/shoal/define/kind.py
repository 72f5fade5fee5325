"""From a declared file to its scraper: the code it names, fed with what it says."""

from __future__ import annotations

from pathlib import Path

from shoal.define.declared import Declared, read_declared
from shoal.define.modules import load_object
from shoal.define.scraper import Scraper
from shoal.define.typed import settings_for, typed_settings, wrong
from shoal.errors import InvalidScraper, NotFound


def declared_scraper(path: Path, folder: Path) -> Scraper:
    """The scraper of a YAML file, checked. What it names is looked for in `folder`.

    Its kind is a Scraper, which gets the file's keys as its settings, or a function that takes a Declared and returns
    one. Raises NotFound or InvalidScraper.
    """
    declared = read_declared(path, folder)
    scraper = _made(declared)
    scraper.name = declared.scraper_name
    scraper.files.append(path)
    return scraper.check()


def _made(declared: Declared) -> Scraper:
    try:
        # A scraper belongs to one file: the next file of this kind gets one of its own.
        kind = load_object(declared.scraper, declared.folder, fresh=True)
    except (NotFound, InvalidScraper) as problem:
        raise wrong(declared, ["scraper"], problem.message, remedy=problem.remedy) from problem
    if isinstance(kind, Scraper):
        return _fed(declared, kind)
    scraper = kind(declared) if callable(kind) else kind
    if not isinstance(scraper, Scraper):
        what = "makes no Scraper" if callable(kind) else "is neither a Scraper nor a function that makes one"
        raise wrong(declared, ["scraper"], f"{declared.scraper} {what}.", remedy="Name one that does.")
    scraper.declared = declared.settings
    return scraper


def _fed(declared: Declared, scraper: Scraper) -> Scraper:
    kind = scraper.settings_type
    if kind is None:
        if declared.settings:
            key = next(iter(declared.settings))
            raise wrong(
                declared,
                [key],
                f"{key} is for {declared.scraper}, which takes no settings.",
                remedy=f"Write Scraper({scraper.name!r}, settings=YourClass) there, or remove the key.",
            )
        return scraper
    typed_settings(declared, kind)
    scraper.declared = settings_for(declared, kind)
    return scraper
