"""Forgetting a run: a piece at a time, or all at once when it is alone."""

from __future__ import annotations

from shoal.ledger.sqlite.orders import STEP, cancel_open_items
from shoal.ledger.sqlite.transaction import Transaction


def purge(tx: Transaction, no: int) -> int:
    """Delete some items of a removed run with all that belongs to them; 0 means that the run is gone."""
    if dropped := cancel_open_items(tx, no, "The run was removed."):
        return dropped
    items = tx.value("purge_pick", no, STEP)
    tx.run("purge_results", no, items)
    tx.run("purge_attempts", items)
    tx.run("purge_outcomes", items)
    deleted = tx.run("purge_items", items)
    if not deleted:
        for forget in (
            "forget_counts",
            "forget_minutes",
            "forget_lanes",
            "forget_queues",
            "forget_stages",
            "forget_notes",
            "forget_run",
        ):
            tx.run(forget, no)
    return deleted


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
