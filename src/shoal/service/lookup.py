"""Finds the run, item, lane or worker that an operator names; a NotFound error suggests similar names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from shoal.errors import InvalidItem, NotFound, UsageError
from shoal.model.run import COLLECTION_KEY_PREFIX

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.lane import LaneView
    from shoal.model.run import Run
    from shoal.model.views import ItemView

LATEST = "latest"
MAX_RUNS_READ = 200
MAX_LANES_READ = 1_000
MAX_SUGGESTIONS = 3
DAMAGE_CHECK_SECONDS = 0.5


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
        scraper = name.partition(":")[2]
        run = await ledger.runs.latest(scraper)
        if run is None:
            scrapers = [run.scraper for run in (await ledger.runs.list(limit=MAX_RUNS_READ)).rows]
            raise NotFound(f"There is no run of {scraper!r}.", remedy=_run_remedy(scraper, scrapers))
        return run
    try:
        return await ledger.runs.get(name)
    except NotFound as error:
        ids = [run.id for run in (await ledger.runs.list(limit=MAX_RUNS_READ)).rows]
        raise NotFound(error.message, remedy=_run_remedy(name, ids)) from None


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
