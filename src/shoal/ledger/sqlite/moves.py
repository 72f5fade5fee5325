"""Moves of items between waiting, ready and lease that several roles use: admission by lanes, and the end of leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.ledger.sqlite.connection import Transaction, json_text

# A step holds the write lock for some milliseconds.
RESCUE_BATCH = 1_000

UnleaseKind = Literal["returned", "released", "crashed"]


def admit(tx: Transaction) -> int:
    """Admit as many items as the lanes in temp.touched allow, and clear temp.touched."""
    moved = tx.run("admit_pick")
    if moved:
        tx.run("admit_leave")
        tx.run("admit_ready", tx.now)
        tx.run("admit_delayed", tx.now)
        tx.run("admit_lanes")
        tx.run("admit_counts", tx.now)
        tx.run("admit_end")
    tx.run("touch_end")
    return moved


def admit_to(tx: Transaction, lanes: str) -> int:
    """Admit items of these lanes, a JSON list of ids."""
    tx.run("touch_lanes", lanes)
    return admit(tx)


def ensure_lanes(tx: Transaction, wanted: Sequence[tuple[str, int]]) -> list[int]:
    """The ids of these lanes (name, stage), created if needed, in the given order."""
    lanes = json_text(wanted)
    tx.run("ensure_lanes", lanes)
    ids: list[int] = [lane for _, lane in sorted(tx.json("find_lanes", lanes))]
    return ids


def unlease(tx: Transaction, pairs: str, how: UnleaseKind, reason: str | None) -> tuple[int, int]:
    """End these leases, `[[item, epoch], ...]`. Returns how many items were returned and how many quarantined.

    returned: nothing is charged or recorded. released: recorded. crashed: recorded and counted as a rescue.
    """
    if not tx.run("unlease_pick", pairs, how):
        return 0, 0
    back, quarantined, laned = tx.json("unlease_summary")
    tx.run("unlease_leave")
    if how != "returned":
        tx.run("unlease_attempts", tx.now, how, reason)
    if quarantined:
        tx.run("unlease_quarantined", tx.now, reason)
    tx.run("unlease_ready", tx.now)
    if laned:
        tx.run("unlease_delayed", tx.now)
        tx.run("unlease_waiting", tx.now)
        tx.run("unlease_lanes", tx.now, how)
        tx.run("unlease_touch")
    tx.run("unlease_counts")
    tx.run("unlease_minutes", tx.now)
    if quarantined:
        tx.run("unlease_activity", tx.now)
    tx.run("unlease_end")
    if laned:
        admit(tx)
    tx.should_notify = tx.should_notify or back > 0
    return back, quarantined


def declare_lost(tx: Transaction, dead_workers: Sequence[int] = ()) -> tuple[str, ...]:
    """Declare workers without a recent heartbeat lost, and `dead_workers` at once. `rescue` then returns their leases.

    After a suspend the first reaper finds every worker silent. That is accepted: a worker that is declared lost while
    it wakes up loses its leases, notices at its next call and registers again; the laws still hold.
    """
    return tuple(row[0] for row in tx.rows("declare_lost", tx.now, json_text(dead_workers)))


def rescue(tx: Transaction) -> tuple[int, int, bool]:
    """End leases of stopped and lost workers, at most RESCUE_BATCH of them, and release their host slots.

    Returns how many items were returned, how many were quarantined, and whether there may be more.
    """
    release_slots(tx, tx.value("orphaned_slots"))
    rescued = quarantined = leased = 0
    for reason, leases, count in tx.rows("orphaned_leases", RESCUE_BATCH):
        back, dead = unlease(tx, leases, "crashed", reason)
        rescued, quarantined, leased = rescued + back, quarantined + dead, leased + count
    return rescued, quarantined, leased == RESCUE_BATCH


def stop_worker(tx: Transaction, worker: int) -> int:
    """Stop a worker. Its leases are returned at once."""
    tx.run("stop_worker", worker, tx.now)
    release_slots(tx, tx.value("slots_of_worker", worker))
    return unlease(tx, tx.value("leases_of_worker", worker), "returned", None)[0]


def release_slots(tx: Transaction, slots: str) -> None:
    """Release host slots, a JSON list, or withdraw requests for them. Their lanes admit others."""
    lanes: str = tx.value("lanes_of_slots", slots)
    if lanes != "[]":
        tx.run("delete_slots", slots)
        tx.run("count_slots", lanes)
        admit_to(tx, lanes)
        tx.should_notify = True


def reconcile(tx: Transaction, worker: int, known: str) -> int:
    """Return the leases of a worker that are not among these: `[[item, epoch], ...]`."""
    return unlease(tx, tx.value("leases_unknown", worker, known), "returned", None)[0]


def release(tx: Transaction, claimed_until: int, run_no: int | None, reason: str, most: int) -> int:
    """Release some of the leases claimed until then; 0: none is left."""
    return unlease(tx, tx.value("leases_by_age", claimed_until, run_no, most), "released", reason)[0]
