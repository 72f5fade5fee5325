"""Which items a command is about: named one by one, or by a filter; and how many those are."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from shoal.cli.render.session import Session
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter

if TYPE_CHECKING:
    from shoal.ledger.protocols import Ledger

# Counted exactly up to here: beyond it nobody needs to know more than that it is many.
MOST_COUNTED = 10_000
PAGE = 1_000
MOST_PAGES = 200


class Choice(NamedTuple):
    """What the command line says about items."""

    states: list[ItemState] | None = None
    stage: str | None = None
    partition: str | None = None
    outcome: str | None = None
    error: str | None = None
    item: int | None = None
    key: str | None = None


def _state(text: str) -> ItemState:
    try:
        return ItemState(text.strip().lower())
    except ValueError:
        near = difflib.get_close_matches(text.lower(), list(ItemState), n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(ItemState)}."
        raise typer.BadParameter(f"{text!r} is no state of an item; {hint}") from None


_FILTERS: dict[str, Any] = {
    "states": Annotated[
        list[ItemState],
        typer.Option(
            "--state",
            metavar=f"[{'|'.join(ItemState)}]",
            parser=_state,
            help="Only in this state; may be repeated.",
        ),
    ],
    "stage": Annotated[str | None, typer.Option(help="Only of this stage.")],
    "partition": Annotated[str | None, typer.Option(help="Only of this partition.")],
    "outcome": Annotated[str | None, typer.Option(help="Only if the last attempt ended so, as `permanent`.")],
    "error": Annotated[str | None, typer.Option(help="Only if the last error has this text in it.")],
}


def with_filter(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose items; it gets them as its parameter `choice`."""
    signature = inspect.signature(function, eval_str=True)

    def command(session: Session, **given: Any) -> None:
        function(session, choice=Choice(**{name: given.pop(name) for name in _FILTERS}), **given)

    filters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _FILTERS.items()
    ]
    own = [parameter for name, parameter in signature.parameters.items() if name != "choice"]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own[1:]]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([own[0], *keywords, *filters])  # type: ignore[attr-defined]
    return command


def chosen(choice: Choice) -> ItemFilter:
    return ItemFilter(
        ids=() if choice.item is None else (choice.item,),
        states=tuple(choice.states or ()),
        stage=choice.stage,
        partition=choice.partition,
        outcome=choice.outcome,
        error=choice.error,
    )


async def count_of(ledger: Ledger, run_id: str, which: ItemFilter, limit: int | None) -> int | str:
    """How many items match, at most `limit`. From the ledger's counts where they tell, else by looking."""
    if not (which.ids or which.partition or which.outcome or which.error):
        counts = await ledger.reads.stats(run_id, stage=which.stage)
        matching: int = sum(getattr(counts, state.value) for state in which.states)
        return matching if limit is None else min(matching, limit)
    most = MOST_COUNTED if limit is None else limit
    counted, cursor = 0, None
    for _ in range(MOST_PAGES):
        page = await ledger.reads.items(run_id, which, cursor=cursor, limit=min(PAGE, most - counted))
        counted += len(page.rows)
        cursor = page.cursor
        if cursor is None or counted == most:
            break
    return counted if cursor is None or limit is not None else f"{counted} or more"
