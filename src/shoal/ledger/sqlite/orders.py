"""Orders that end items or give them another life."""

from __future__ import annotations

from shoal.ledger.sqlite.admit import admit
from shoal.ledger.sqlite.transaction import Transaction

# Other runs wait for the lock while a step lasts: some milliseconds.
STEP = 1_000


def cancel_items(tx: Transaction, no: int, items: str, reason: str) -> int:
    """End these items of a run, a JSON list, as cancelled, wherever they stand. What has ended is left alone."""
    cancelled = sum(tx.run(place, no, items, tx.now) for place in ("drop_ready", "drop_waiting", "drop_delayed"))
    cancelled += tx.run("drop_leased", no, items)
    if cancelled:
        tx.run("drop_leave_ready")
        tx.run("drop_leave_waiting", no)
        tx.run("drop_leave_delayed")
        tx.run("drop_leave_leased")
        tx.run("drop_outcomes", no, tx.now, reason)
        tx.run("drop_lanes")
        tx.run("drop_counts")
        tx.run("drop_touch")
        tx.run("drop_end")
        admit(tx)
    return cancelled


def cancel_open_items(tx: Transaction, no: int, reason: str) -> int:
    """End some open items of a cancelled or removed run; 0 means that none is left. Nothing of it is claimed."""
    if tx.value("run_state", no) not in ("cancelled", "removed"):
        return 0
    return cancel_items(tx, no, tx.value("open_items", no, STEP), reason)


def retry_items(tx: Transaction, no: int, items: str) -> int:
    """Give dead or cancelled items another life. A finished or cancelled run is active again."""
    if tx.value("run_state", no) in (None, "removed"):
        return 0
    revived = tx.run("revive_pick", no, items)
    if revived:
        tx.run("revive_leave")
        tx.run("revive_history", no)
        tx.run("revive_ready", tx.now)
        tx.run("revive_waiting", no, tx.now)
        tx.run("revive_lanes")
        tx.run("revive_counts")
        tx.run("revive_touch")
        tx.run("revive_end")
        if (run_id := tx.value("wake_run", no, tx.now)) is not None:
            tx.note(no, "ledger", "run.active", run_id, {"because": "items are retried"})
        admit(tx)
        tx.wakes = True
    return revived
