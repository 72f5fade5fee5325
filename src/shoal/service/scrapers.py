"""From a scraper's name or file to the scraper, configured, with the settings that apply to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import UnknownStage
from shoal.model.item import NewItem

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile


# An event loop that reads a long list serves others after so many entries.
_SLICE = 1_000


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


class UrlList:
    """URLs and items that a program gives instead of a file; see `UrlSource`."""

    name = "the given URLs"

    def __init__(
        self, entries: Iterable[str | NewItem] | AsyncIterable[str | NewItem], make: Callable[..., NewItem]
    ) -> None:
        self._entries = entries
        self._make = make

    async def __aiter__(self) -> AsyncIterator[NewItem]:
        if isinstance(self._entries, AsyncIterable):
            async for entry in self._entries:
                yield self._item(entry)
            return
        for count, entry in enumerate(self._entries):
            yield self._item(entry)
            if count % _SLICE == 0:
                await asyncio.sleep(0)

    def describe_error(self, position: int, message: str) -> str:
        return f"number {position + 1}: {message}"

    def _item(self, entry: str | NewItem) -> NewItem:
        return self._make(entry) if isinstance(entry, str) else entry


def url_source(
    scraper: Scraper, urls: str | Path | Iterable[str | NewItem] | AsyncIterable[str | NewItem], stage: str | None
) -> UrlFile | UrlList:
    """A file of URLs by its path, or the URLs and items themselves."""
    if isinstance(urls, str | Path):
        return url_file(scraper, str(urls), stage)
    return UrlList(urls, item_maker(scraper, stage))


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
