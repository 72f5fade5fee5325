"""Finds what an operator names: a scraper with its settings, a run, an item, a lane; errors suggest similar names."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.errors import InvalidItem, InvalidSetting, NotFound, UnknownStage, UsageError
from shoal.model.item import NewItem
from shoal.model.run import COLLECTION_KEY_PREFIX
from shoal.project import find_project

if TYPE_CHECKING:
    from types import ModuleType

    from shoal.config import Settings
    from shoal.define.scraper import Scraper
    from shoal.feeds.url_file import UrlFile
    from shoal.ledger.protocols import Ledger
    from shoal.model.changes import ChangeFilter
    from shoal.model.lane import LaneView
    from shoal.model.run import Run
    from shoal.model.views import ItemView

# An event loop that reads a long list serves others after so many entries.
_SLICE = 1_000
LATEST = "latest"
MAX_RUNS_READ = 200
MAX_LANES_READ = 1_000
MAX_SUGGESTIONS = 3
DAMAGE_CHECK_SECONDS = 0.5


def load_configured(
    target: str, settings: Settings, *, name: str | None = None, uses_ledger: bool = True
) -> tuple[Scraper, Settings]:
    """The scraper that `target` names (a file, module:scraper, or a name of the configuration), and its settings.

    `name` replaces the scraper's own: its runs, its settings and its lock are those of that name. Unless `uses_ledger`,
    a distributed scraper needs no PostgreSQL.
    """
    from shoal.define.load import load_scraper

    registered = {name: table.target for name, table in settings.scrapers.items() if table.target}
    folder = Path.cwd() / settings.project if target in registered else Path.cwd()
    scraper = load_scraper(target, registered, folder)
    if name is not None:
        scraper.rename(name)
    return scraper, configure(scraper, settings, uses_ledger=uses_ledger)


def load_routes(settings: Settings) -> ModuleType | None:
    """The author's module that adds paths to the server; None when the project has none.

    Raises NotFound or InvalidScraper.
    """
    if not settings.serve_routes:
        return None
    from shoal.define.author_code import import_module

    return import_module(settings.serve_routes, Path.cwd() / settings.project)


def find_code_of_run(settings: Settings, run: Run) -> str:
    """Where the code of a run is: a name of the configuration, or the file with the scraper's name. Raises NotFound."""
    if run.scraper in settings.scrapers:
        return run.scraper
    files = [name for name in (f"{run.scraper}.py", f"{run.scraper}.yaml") if Path(name).is_file()]
    if not files:
        raise NotFound(
            f"The code of {run.scraper} was not found: not in shoal.toml, and there is no {run.scraper}.py.",
            remedy="Name it with --scraper, such as --scraper books.py.",
        )
    return files[0]


def configure(scraper: Scraper, settings: Settings, *, uses_ledger: bool = True) -> Settings:
    """Apply the configuration to the scraper, and return the settings that apply to it."""
    settings = settings.for_scraper(scraper.name, mode=scraper.mode, uses_ledger=uses_ledger)
    table = settings.scraper(scraper.name)
    scraper.configure(
        settings=table.settings,
        stages={name: msgspec.structs.asdict(stage) for name, stage in table.stages.items()},
        variables={
            name.removeprefix("settings."): str(origin.variable)
            for name, origin in table.origins.items()
            if name.startswith("settings.") and origin.variable is not None
        },
        **settings.retry_options(scraper.name),
    )
    scraper.since, scraper.until = read_period(settings)
    scraper.from_scratch = settings.from_scratch
    scraper.output_folder = settings.member_output
    from shoal.config.load import secret_finder

    scraper.find_secret = secret_finder(environ=os.environ, folder=find_project(Path.cwd(), os.environ))
    return msgspec.structs.replace(settings, hidden=scraper.secrets)


def read_period(settings: Settings) -> tuple[dt.date | None, dt.date | None]:
    """The first and the last day that the operator asked for. Raises InvalidSetting."""
    days: list[dt.date | None] = []
    for name in ("since", "until"):
        text: str = getattr(settings, name)
        try:
            days.append(dt.date.fromisoformat(text) if text else None)
        except ValueError:
            raise InvalidSetting(f"{name} is {text}, which is no day.", remedy="Write it like 2024-01-31.") from None
    since, until = days
    if since is not None and until is not None and until < since:
        raise InvalidSetting(f"until is {until}, which is before since, {since}.", remedy="Swap the two.")
    return since, until


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


def check_stage_names(scraper: Scraper, names: Iterable[str]) -> None:
    """Raise UnknownStage for a name that the scraper has no stage of."""
    for name in names:
        if name not in scraper.stages:
            raise UnknownStage(f"{scraper.name} has no stage {name!r}; it has {', '.join(scraper.stages)}.")


def item_maker(scraper: Scraper, stage: str | None) -> Callable[..., NewItem]:
    """A function from a URL and its fields to an item. Raises UnknownStage, also for a stage among the fields."""

    def maker_of(name: str | None) -> Callable[..., NewItem]:
        if name is None:
            return scraper.first_stage.item
        check_stage_names(scraper, [name])
        return scraper.stages[name].item

    default = maker_of(stage)

    def make(url: str | None, *, stage: str | None = None, **fields: object) -> NewItem:
        return (default if stage is None else maker_of(stage))(url, **fields)

    return make


async def find_selection(ledger: Ledger, name: str, *, stage: str | None = None) -> ChangeFilter:
    """The records that a name means: those of a run, or of all runs of a scraper, later ones too. Raises NotFound."""
    from shoal.model.changes import ChangeFilter

    stages = () if stage is None else (stage,)
    try:
        run = await find_run(ledger, name)
    except NotFound as unknown:
        try:
            run = await find_run(ledger, f"{LATEST}:{name}")
        except NotFound:
            raise NotFound(
                f"There is no run and no scraper {name!r}.", remedy="`shoal db show` lists the runs and their scrapers."
            ) from unknown
        which = ChangeFilter(scrapers=(run.scraper,), stages=stages)
    else:
        which = ChangeFilter(run_id=run.id, stages=stages)
    if stage is not None and stage not in run.stages:
        raise UnknownStage(f"Run {run.id} has no stage {stage!r}; it has {', '.join(run.stages)}.")
    return which


async def find_run(ledger: Ledger, name: str) -> Run:
    """Return the run with this id, the newest run (`latest`), or the newest of a scraper (`latest:SCRAPER`).

    `latest` skips members of collections: the collection's own run stands for them. Raises NotFound.
    """
    if name == LATEST:
        newest = (await ledger.runs.list(limit=MAX_RUNS_READ)).rows
        if not newest:
            raise NotFound("The ledger has no runs yet.", remedy="Start one with `shoal run`.")
        return next((run for run in newest if not is_collection_member(run)), newest[0])
    if name.startswith(f"{LATEST}:"):
        scraper = scraper_name(name.partition(":")[2])
        run = await ledger.runs.latest(scraper)
        if run is None:
            scrapers = [run.scraper for run in (await ledger.runs.list(limit=MAX_RUNS_READ)).rows]
            raise NotFound(f"There is no run of {scraper!r}.", remedy=_run_remedy(scraper, scrapers))
        return run
    try:
        return await ledger.runs.get(name)
    except NotFound as error:
        runs = (await ledger.runs.list(limit=MAX_RUNS_READ)).rows
        if any(run.scraper == name for run in runs):
            remedy = f"{name} is a scraper; its newest run is `{LATEST}:{name}`."
        else:
            remedy = _run_remedy(name, (run.id for run in runs))
        raise NotFound(error.message, remedy=remedy) from None


def scraper_name(text: str) -> str:
    """The scraper that is meant: the summary of a collection writes fiji/times for a member that runs as fiji.times."""
    return text.replace("/", ".")


async def find_run_of(ledger: Ledger, scraper: str, name: str) -> Run:
    """As `find_run`, but `latest` is the newest run of this scraper."""
    return await find_run(ledger, f"{LATEST}:{scraper}" if name == LATEST else name)


async def find_run_id(ledger: Ledger, name: str | None) -> str | None:
    """Return the id of the run as `find_run` does; None stays None and means all runs."""
    return None if name is None else (await find_run(ledger, name)).id


def is_collection_member(run: Run) -> bool:
    """Whether the run belongs to one member of a collection."""
    return (run.idempotency_key or "").startswith(COLLECTION_KEY_PREFIX)


async def find_item(
    ledger: Ledger, run: Run, *, id: int | None = None, key: str | None = None, stage: str | None = None
) -> ItemView:
    """Return an item by its id, or by its key or URL.

    A key is searched in `stage`, or in all stages of the run in their order; a URL need not be normalized. With an id,
    `stage` must be the item's. Raises NotFound; UsageError unless exactly one of `id` and `key` is given.
    """
    if (id is None) == (key is None):
        raise UsageError("An item is named by its id or by its key, one of the two.")
    try:
        if key is not None:
            return await _find_item_by_key(ledger, run, key, stage)
        item = await ledger.reads.item(run.id, id=id)
        if stage not in (None, item.stage):
            raise NotFound(f"The item {id} of run {run.id} is of the stage {item.stage!r}, not of {stage!r}.")
        return item
    except NotFound as error:
        raise NotFound(error.message, remedy=f"`shoal items ls {run.id}` lists its items.") from None


async def _find_item_by_key(ledger: Ledger, run: Run, key: str, stage: str | None) -> ItemView:
    from shoal.model.url_key import url_key

    spellings = [key]
    with suppress(InvalidItem):  # a key that is no URL
        spellings.append(url_key(key))
    for name in [stage] if stage else run.stages:
        for spelling in spellings:
            with suppress(NotFound):
                return await ledger.reads.item(run.id, key=spelling, stage=name)
    raise NotFound(f"The run {run.id} has no item with the key {key!r}.")


async def find_lane(ledger: Ledger, key: str, *, run: str | None = None) -> LaneView:
    """Return a shared lane, or with `run` (a name as for `find_run`) a lane of that run. Raises NotFound."""
    run_id = await find_run_id(ledger, run)
    try:
        return await ledger.lanes.get(key, run_id=run_id)
    except NotFound as error:
        lanes = (await ledger.lanes.list(run_id=run_id, limit=MAX_LANES_READ)).rows
        command = "shoal lanes ls" if run_id is None else f"shoal lanes ls --run {run_id}"
        remedy = suggest(key, (lane.key for lane in lanes)) + f"`{command}` lists them."
        raise NotFound(error.message, remedy=remedy) from None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean ...? ` with up to three similar names, or an empty text."""
    import difflib

    similar = difflib.get_close_matches(name, dict.fromkeys(known), n=MAX_SUGGESTIONS)
    return f"Did you mean {' or '.join(similar)}? " if similar else ""


def _run_remedy(name: str, known: Iterable[str]) -> str:
    return suggest(name, known) + "`shoal runs ls` lists the runs."


@contextmanager
def ledger_named_in_errors(settings: Settings) -> Iterator[None]:
    """Add the ledger and where its setting came from to NotFound errors: it may be the wrong ledger.

    When the ledger is damaged, which can hide rows, LedgerCorrupt is raised instead.
    """
    try:
        yield
    except NotFound as error:
        from shoal.wiring import find_ledger_damage

        # Most often the name is misspelt: a long check would only delay that answer.
        if (damage := find_ledger_damage(settings.ledger, seconds=DAMAGE_CHECK_SECONDS)) is not None:
            raise damage from error
        place = f"{settings.shown()['ledger']} (from {settings.origins['ledger']})"
        error.message = f"{error.message.removesuffix('.')}; the ledger is {place}."
        raise


def operator() -> str:
    """Return `user@host` of this process, as the ledger's events name who changed something."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


async def ledger_now(ledger: Ledger) -> dt.datetime:
    """The current time by the ledger's clock."""
    return dt.datetime.fromtimestamp(await ledger.lanes.clock(), dt.UTC)
