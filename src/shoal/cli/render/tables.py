"""Runs, items and reasons as table cells and text, the same in every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.service.records import STATES, item_record, run_record, state_counts

if TYPE_CHECKING:
    from shoal.cli.render.session import Session
    from shoal.model.views import ItemView, WaitReason
    from shoal.service.inspect import RunSummary

NAME_WIDTH = 60
ERROR_WIDTH = 60


def print_runs(session: Session, runs: Sequence[RunSummary]) -> None:
    """Runs with their items per state: JSON records, or a table."""
    if session.json:
        for summary in runs:
            session.record(run_record(summary.run, summary.counts))
    elif runs:
        session.table(
            ["RUN", "SCRAPER", "STATE", *map(str.upper, STATES), "RECORDS"],
            [
                (run.id, run.scraper, run.state, *state_counts(counts).values(), counts.results)
                for run, counts in ((each.run, each.counts) for each in runs)
            ],
        )


def print_items(session: Session, items: Sequence[ItemView], *, run_id: str) -> None:
    """Items of a run: JSON records, or a table."""
    if session.json:
        for item in items:
            session.record(item_record(item, run_id))
    elif items:
        session.table(
            ["ITEM", "STAGE", "PARTITION", "STATE", "TRIES", "LANE", "NAME", "ERROR"],
            [
                (
                    i.id,
                    i.stage,
                    i.partition,
                    i.state,
                    i.tries,
                    i.lane,
                    item_name(i),
                    _error(i),
                )
                for i in items
            ],
        )


def print_facts(session: Session, facts: Mapping[str, Any]) -> None:
    """Names and values below each other; underscores of names become spaces."""
    session.table(["FACT", "VALUE"], [(name.replace("_", " "), value) for name, value in facts.items()])


def reason_text(reason: WaitReason) -> str:
    """The sentence of a wait reason with its times: `... (since 10:02:11, until 10:05:00)`."""
    from shoal.observe.formatting import format_time, printable

    times = {"since": reason.since, "until": reason.until}
    shown = ", ".join(f"{word} {format_time(moment)}" for word, moment in times.items() if moment is not None)
    return printable(f"{reason.text} ({shown})" if shown else reason.text)


def item_name(item: ItemView) -> str:
    """The URL or key of an item, shortened to the width of its column."""
    # Requests to one URL differ in their keys.
    name = (item.key if item.request is not None else None) or item.url or item.key or ""
    return _shortened(name, NAME_WIDTH)


def _error(item: ItemView) -> str:
    return _shortened(item.error or "", ERROR_WIDTH)


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
