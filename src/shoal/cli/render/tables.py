"""How runs, items and counts are written: as JSON values and as cells of tables, the same in every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.cli.render.session import Session
    from shoal.model.run import Run
    from shoal.model.views import Counts, ItemView, WaitReason
    from shoal.observe.meter import Reading

STATES = ("ready", "waiting", "delayed", "leased", "done", "dead", "cancelled")
NAME_WIDTH = 60


def per_state(counts: Counts) -> dict[str, int]:
    return {state: getattr(counts, state) for state in STATES}


def run_record(run: Run, counts: Counts) -> dict[str, Any]:
    return {
        "run": run.id,
        "scraper": run.scraper,
        "state": run.state,
        "sealed": run.sealed,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "total": counts.total,
        **per_state(counts),
        "results": counts.results,
        "duplicates": counts.duplicates,
    }


def print_runs(session: Session, found: Sequence[tuple[Run, Counts]]) -> None:
    """Runs with their items per state: a record each, or a table."""
    if session.json:
        for run, counts in found:
            session.record(run_record(run, counts))
    elif found:
        session.table(
            ["RUN", "SCRAPER", "STATE", *map(str.upper, STATES), "RESULTS"],
            [(run.id, run.scraper, run.state, *per_state(counts).values(), counts.results) for run, counts in found],
        )


def reading_record(reading: Reading) -> dict[str, Any]:
    low, high = reading.eta or (None, None)
    return {
        **run_record(reading.snapshot.run, reading.snapshot.counts),
        "share": round(reading.share, 4),
        "rate_per_minute": None if reading.rate is None else round(reading.rate, 2),
        "ok": None if reading.ok is None else round(reading.ok, 4),
        "eta_seconds": None if low is None or high is None else [round(low, 1), round(high, 1)],
        "growing": reading.growing,
        "waiting_for": reading.waiting_for,
        "waiting_because": reading.bottleneck.text,
    }


def gate_text(gate: WaitReason) -> str:
    """The sentence, with since when and until when."""
    from shoal.observe.formatting import format_time, printable

    times: Mapping[str, Any] = {"since": gate.since, "until": gate.until}
    shown = ", ".join(f"{word} {format_time(moment)}" for word, moment in times.items() if moment is not None)
    return printable(f"{gate.text} ({shown})" if shown else gate.text)


def item_name(item: ItemView) -> str:
    name = item.url or item.key or ""
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + "..."
