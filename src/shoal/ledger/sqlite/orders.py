"""Orders that end items or give them another life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shoal.ledger.bulk import Place
from shoal.ledger.sqlite.admit import admit
from shoal.ledger.sqlite.transaction import Transaction, json_text

# Other runs wait for the lock while a step lasts: some milliseconds.
STEP = 1_000
_LOWEST_PRIORITY = -(2**31)
# Leases first, so that no commit adds anything; ready last, because what comes due goes there.
_OPEN = ("some_leased", "some_delayed", "some_waiting", "some_ready")


def cancel_items(tx: Transaction, no: int, items: str, reason: str | None) -> int:
    """End these items of a run, a JSON list, as cancelled, wherever they stand. What has ended is left alone.

    Without a reason they leave no trace: nobody will ask what became of the items of a removed run.
    """
    cancelled = sum(tx.run(place, no, items, tx.now) for place in ("drop_ready", "drop_waiting", "drop_delayed"))
    cancelled += tx.run("drop_leased", no, items)
    if cancelled:
        tx.run("drop_leave_ready")
        tx.run("drop_leave_waiting", no)
        tx.run("drop_leave_delayed")
        tx.run("drop_leave_leased")
        if reason is not None:
            tx.run("drop_outcomes", no, tx.now, reason)
        tx.run("drop_lanes")
        tx.run("drop_counts")
        tx.run("drop_touch")
        tx.run("drop_end")
        admit(tx)
    return cancelled


def cancel_open_items(
    tx: Transaction, no: int, reason: str | None, place: Place | None = None
) -> tuple[int, Place | None]:
    """One step of ending a cancelled or (without a reason) removed run's open items.

    Returns how many were ended and where to go on; None: a whole round was made.
    """
    if tx.value("run_state", no) != ("removed" if reason is None else "cancelled"):
        return 0, None
    for found, after in rows_of_run(tx, no, _OPEN, place):
        return cancel_items(tx, no, json_text([item for _, item, _ in found]), reason), after
    return 0, None


def rows_of_run(
    tx: Transaction, no: int, tables: Sequence[str], place: Place | None
) -> Iterator[tuple[list[tuple[int, int, int | None]], Place]]:
    """A run's rows in these tables, a step at a time: (priority, item, lane) of each, and the place behind them.

    A place is: which of the tables, queue, priority, item.
    """
    begin = place or (0, 0, _LOWEST_PRIORITY, 0)
    queues = [row[0] for row in tx.rows("queues_of_run", no)]
    for table in range(begin[0], len(tables)):
        for queue in queues:
            if [table, queue] < list(begin[:2]):
                continue
            after = begin[2:] if [table, queue] == list(begin[:2]) else (_LOWEST_PRIORITY, 0)
            found = tx.json(tables[table], queue, *after, STEP)
            if found:
                yield found, (table, queue, *found[-1][:2])


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
