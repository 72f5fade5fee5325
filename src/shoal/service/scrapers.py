"""From a scraper's name or file to the scraper, configured, with the settings that apply to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import UnknownStage

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.model.item import NewItem


def load_configured(target: str, settings: Settings, *, name: str | None = None) -> tuple[Scraper, Settings]:
    """The scraper that `target` names (a file, module:scraper, or a name of the configuration), and its settings.

    `name` replaces the scraper's own: its runs, its settings and its lock are those of that name.
    """
    from shoal.define.load import load_scraper

    registered = {name: table.target for name, table in settings.scrapers.items() if table.target}
    scraper = load_scraper(target, registered, Path.cwd())
    if name is not None:
        scraper.rename(name)
    return scraper, configure(scraper, settings)


def configure(scraper: Scraper, settings: Settings) -> Settings:
    """Apply the configuration to the scraper, and return the settings that apply to it."""
    settings = settings.for_scraper(scraper.name, mode=scraper.mode)
    table = settings.scraper(scraper.name)
    scraper.configure(
        settings=table.settings,
        stages={name: msgspec.structs.asdict(stage) for name, stage in table.stages.items()},
        **settings.retry_options(scraper.name),
    )
    return msgspec.structs.replace(settings, hidden=scraper.secrets)


def url_file(scraper: Scraper, path: str, stage: str | None) -> UrlFile:
    """The file of URLs, its lines made items of `stage` or of the first stage."""
    from shoal.feeds.url_file import UrlFile

    return UrlFile(path, item_maker(scraper, stage))


def item_maker(scraper: Scraper, stage: str | None) -> Callable[..., NewItem]:
    """A function from a URL and its fields to an item. Raises UnknownStage, also for a stage among the fields."""

    def maker_of(name: str | None) -> Callable[..., NewItem]:
        if name is None:
            return scraper.first_stage.item
        if name not in scraper.stages:
            raise UnknownStage(f"{scraper.name} has no stage {name!r}; it has {', '.join(scraper.stages)}.")
        return scraper.stages[name].item

    default = maker_of(stage)

    def make(url: str | None, *, stage: str | None = None, **fields: object) -> NewItem:
        return (default if stage is None else maker_of(stage))(url, **fields)

    return make
