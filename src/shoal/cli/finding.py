"""How commands get at things by name: the ledger, a run, an item; and who it is that asks."""

from __future__ import annotations

import difflib
import getpass
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shoal.cli.render.session import Session
from shoal.errors import NotFound
from shoal.model.run import COLLECTION_KEY_PREFIX

if TYPE_CHECKING:
    from shoal.config import Settings
    from shoal.ledger.protocols import Ledger
    from shoal.model.run import Run
    from shoal.model.views import ItemView

T = TypeVar("T")
LATEST = "latest"
NEAR_RUNS = 200

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, `latest`, or `latest:SCRAPER`.")]


def item_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"{text!r} is no item's number; name an item by its key or URL with --key {text!r}.")
    if len(text) > 18:  # more than any ledger counts to
        raise NotFound(f"There is no item {text}.", remedy="`shoal items ls RUN` lists the items of a run.")
    return int(text)


ItemId = Annotated[
    int | None,
    typer.Argument(metavar="ITEM", help="The item's number.", show_default=False, parser=item_number),
]
ItemKey = Annotated[str | None, typer.Option("--key", help="The item by its key or URL instead.")]


def ask(session: Session, work: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
    """Open the ledger, which must be there already, and do this with it."""

    async def asking() -> T:
        from shoal.wiring import ledger_context

        async with ledger_context(session.settings, migrate=False) as ledger:
            with naming_the_ledger(session.settings):
                return await work(ledger)

    return session.wait(asking())


@contextmanager
def naming_the_ledger(settings: Settings) -> Iterator[None]:
    """What is not found was looked for in a place, and it may be the wrong one."""
    try:
        yield
    except NotFound as error:
        from shoal.wiring import find_ledger_damage

        # A broken index hides what is there. Most often it is a slip of the pen, which must not wait for long.
        if (damage := find_ledger_damage(settings.ledger, seconds=0.5)) is not None:
            raise damage from error
        place = f"{settings.shown()['ledger']} (from {settings.origins['ledger']})"
        error.message = f"{error.message.removesuffix('.')}; the ledger is {place}."
        raise


async def find_run(ledger: Ledger, name: str) -> Run:
    """A run by its id, the newest (`latest`), or the newest of a scraper (`latest:SCRAPER`).

    The newest is never a member of a collection: whoever runs a collection means that.
    """
    if name == LATEST:
        newest = (await ledger.runs.list(limit=NEAR_RUNS)).rows
        if not newest:
            raise NotFound("The ledger has no runs yet.", remedy="Start one with `shoal run`.")
        return next((run for run in newest if not is_member(run)), newest[0])
    if name.startswith(f"{LATEST}:"):
        scraper = name.partition(":")[2]
        run = await ledger.runs.latest(scraper)
        if run is None:
            raise NotFound(f"There is no run of {scraper!r}.", remedy=await _near(ledger, scraper, by_scraper=True))
        return run
    try:
        return await ledger.runs.get(name)
    except NotFound as error:
        raise NotFound(error.message, remedy=await _near(ledger, name)) from None


def is_member(run: Run) -> bool:
    """Whether the run is one of a collection's members."""
    return (run.idempotency_key or "").startswith(COLLECTION_KEY_PREFIX)


async def find_item(ledger: Ledger, run: Run, item: int | None, key: str | None, stage: str | None = None) -> ItemView:
    """One item by its number, or by its key: the URL as it was enqueued does too."""
    if (item is None) == (key is None):
        raise typer.BadParameter("name the item by its number or by --key, one of the two.", param_hint="ITEM")
    try:
        if key is None:
            view = await ledger.reads.item(run.id, id=item)
            if stage not in (None, view.stage):
                raise NotFound(f"The item {item} of run {run.id} is of the stage {view.stage!r}, not of {stage!r}.")
            return view
        return await _by_key(ledger, run, key, stage)
    except NotFound as error:
        raise NotFound(error.message, remedy=f"`shoal items ls {run.id}` lists its items.") from None


async def _by_key(ledger: Ledger, run: Run, key: str, stage: str | None) -> ItemView:
    from shoal.errors import InvalidItem
    from shoal.model.url_key import url_key

    spellings = [key]
    with suppress(InvalidItem):  # a key that is no URL
        spellings.append(url_key(key))
    for name in [stage] if stage else run.stages:
        for spelling in spellings:
            try:
                return await ledger.reads.item(run.id, key=spelling, stage=name)
            except NotFound:
                continue
    raise NotFound(f"The run {run.id} has no item with the key {key!r}.")


async def _near(ledger: Ledger, name: str, *, by_scraper: bool = False) -> str:
    runs = (await ledger.runs.list(limit=NEAR_RUNS)).rows
    known = dict.fromkeys(run.scraper if by_scraper else run.id for run in runs)
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return hint + "`shoal runs ls` lists the runs."


def operator() -> str:
    """Who gives an order, as the ledger's events name them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
