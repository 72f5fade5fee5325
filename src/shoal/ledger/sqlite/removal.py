"""Forgetting a run: a piece at a time, or all at once when it is alone."""

from __future__ import annotations

from shoal.ledger.sqlite.orders import STEP
from shoal.ledger.sqlite.transaction import Transaction


def purge(tx: Transaction, no: int) -> int:
    """Delete some items of a removed run that has no open ones, with all that belongs to them; 0: the run is gone."""
    if tx.value("run_state", no) != "removed":
        return 0
    items = tx.value("purge_pick", no, STEP)
    tx.run("purge_results", no, items)
    tx.run("purge_attempts", items)
    tx.run("purge_outcomes", items)
    if deleted := tx.run("purge_items", items):
        return deleted
    if deleted := tx.run("purge_lanes", no, STEP):
        return deleted
    for forget in ("forget_counts", "forget_minutes", "forget_queues", "forget_stages", "forget_notes", "forget_run"):
        tx.run(forget, no)
    return 0


def empty_if_alone(tx: Transaction, no: int) -> None:
    """When the run is the only one, its tables are emptied: without a WHERE, SQLite drops whole pages unread."""
    if tx.value("other_runs", no):
        return
    for table in (
        "item",
        "ready",
        "waiting",
        "delayed",
        "lease",
        "outcome",
        "attempt",
        "result",
        "queue_count",
        "minute_count",
    ):
        tx.run(f"empty_{table}")
    tx.run("reset_lanes")
