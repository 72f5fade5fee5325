"""Moves of items between waiting, ready and lease, used by every role.

Letting items out of `waiting` when their lane has room, and making lanes.

Taking leases away: given back by their worker, released by a person, or rescued from a dead worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.ledger.sqlite.transaction import Transaction, json_text

# Other runs wait for the lock while a step lasts: some milliseconds.
RESCUE_BATCH = 1_000

UnleaseKind = Literal["returned", "released", "crashed"]


def admit(tx: Transaction) -> int:
    """Let as many items out as the lanes in temp.touched allow; then no lane is touched any more."""
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
    """The same for these lanes, a JSON list of ids."""
    tx.run("touch_lanes", lanes)
    return admit(tx)


def ensure_lanes(tx: Transaction, wanted: Sequence[tuple[str, int]]) -> list[int]:
    """The ids of these lanes (name, stage), made if need be, in the order asked for."""
    asked = json_text(wanted)
    tx.run("ensure_lanes", asked)
    ids: list[int] = [lane for _, lane in sorted(tx.json("find_lanes", asked))]
    return ids


def unlease(tx: Transaction, pairs: str, how: UnleaseKind, reason: str | None) -> tuple[int, int]:
    """Take away these leases, `[[item, epoch], ...]`. Returns how many items went back and how many were quarantined.

    returned: nothing is charged or recorded. released: recorded. crashed: recorded and counted as a rescue.
    """
    if not tx.run("unlease_pick", pairs, how):
        return 0, 0
    back, quarantined, laned = tx.json("unlease_facts")
    tx.run("unlease_leave")
    if how != "returned":
        tx.run("unlease_attempts", tx.now, how, reason)
    if quarantined:
        tx.run("unlease_buried", tx.now, reason)
    tx.run("unlease_ready", tx.now)
    if laned:
        tx.run("unlease_delayed", tx.now)
        tx.run("unlease_waiting", tx.now)
        tx.run("unlease_lanes", tx.now, how)
        tx.run("unlease_touch")
    tx.run("unlease_counts")
    tx.run("unlease_minutes", tx.now)
    tx.run("unlease_end")
    if laned:
        admit(tx)
    tx.should_notify = tx.should_notify or back > 0
    return back, quarantined


def declare_lost(tx: Transaction, dead_workers: Sequence[int] = ()) -> tuple[str, ...]:
    """Declare silent workers lost; `dead_workers` are workers somebody saw die. `rescue` gives their work to others.

    After a suspend every worker looks silent to the first reaper. Nothing is done about it: a worker that is reaped
    while it wakes up loses its leases, finds out at its next call and registers again; the laws hold all the same.
    """
    return tuple(row[0] for row in tx.rows("reap_bury", tx.now, json_text(dead_workers)))


def rescue(tx: Transaction) -> tuple[int, int, bool]:
    """Give leases of workers that are gone to others, at most RESCUE_BATCH of them, and their places at hosts.

    Returns how many items went back, how many were quarantined, and whether there may be more.
    """
    release_slots(tx, tx.value("orphaned_visits"))
    rescued = quarantined = leased = 0
    for reason, leases, count in tx.rows("orphaned_leases", RESCUE_BATCH):
        back, dead = unlease(tx, leases, "crashed", reason)
        rescued, quarantined, leased = rescued + back, quarantined + dead, leased + count
    return rescued, quarantined, leased == RESCUE_BATCH


def stop_worker(tx: Transaction, worker: int) -> int:
    """A worker leaves. Whatever it still holds goes back at once."""
    tx.run("stop_worker", worker, tx.now)
    release_slots(tx, tx.value("visits_of_worker", worker))
    return unlease(tx, tx.value("leases_of_worker", worker), "returned", None)[0]


def release_slots(tx: Transaction, visits: str) -> None:
    """Visits, a JSON list, are over or no longer wanted. Their places go to whoever waits."""
    lanes: str = tx.value("lanes_of_visits", visits)
    if lanes != "[]":
        tx.run("drop_visits", visits)
        tx.run("count_visits", lanes)
        admit_to(tx, lanes)
        tx.should_notify = True


def reconcile(tx: Transaction, worker: int, known: str) -> int:
    """Give back what a worker holds beyond these leases: `[[item, epoch], ...]`."""
    return unlease(tx, tx.value("leases_unknown", worker, known), "returned", None)[0]


def release(tx: Transaction, claimed_until: int, run_no: int | None, reason: str, most: int) -> int:
    """Release some of the leases that were claimed until then; 0: none is left."""
    return unlease(tx, tx.value("leases_by_age", claimed_until, run_no, most), "released", reason)[0]
