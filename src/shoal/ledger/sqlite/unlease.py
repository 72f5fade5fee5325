"""Taking leases away: given back by their worker, released by a person, or rescued from a dead worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shoal.ledger.sqlite.admit import admit, admit_to
from shoal.ledger.sqlite.clock import micros
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.model.views import Tending

How = Literal["returned", "released", "crashed"]


def unlease(tx: Transaction, pairs: str, how: How, reason: str | None) -> tuple[int, int]:
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
    tx.wakes = tx.wakes or back > 0
    return back, quarantined


def reap(tx: Transaction, corpses: Sequence[int] = ()) -> Tending:
    """Declare silent workers lost and give their work to others. `corpses` are workers somebody saw die.

    After a suspend every worker looks silent to the first reaper. Nothing is done about it: a worker that is reaped
    while it wakes up loses its leases, finds out at its next call and registers again; the laws hold all the same.
    """
    lost = tuple(row[0] for row in tx.rows("reap_bury", tx.now, json_text(corpses)))
    leave(tx, tx.value("orphaned_visits"))
    rescued = quarantined = 0
    for reason, leases in tx.rows("orphaned_leases"):
        back, dead = unlease(tx, leases, "crashed", reason)
        rescued, quarantined = rescued + back, quarantined + dead
    return Tending(lost_workers=lost, rescued=rescued, quarantined=quarantined)


def stop_worker(tx: Transaction, worker: int) -> int:
    """A worker leaves. Whatever it still holds goes back at once."""
    tx.run("stop_worker", worker, tx.now)
    leave(tx, tx.value("visits_of_worker", worker))
    return unlease(tx, tx.value("leases_of_worker", worker), "returned", None)[0]


def leave(tx: Transaction, visits: str) -> None:
    """Visits, a JSON list, are over or no longer wanted. Their places go to whoever waits."""
    lanes: str = tx.value("lanes_of_visits", visits)
    if lanes != "[]":
        tx.run("drop_visits", visits)
        tx.run("count_visits", lanes)
        admit_to(tx, lanes)
        tx.wakes = True


def reconcile(tx: Transaction, worker: int, known: str) -> int:
    """Give back what a worker holds beyond these leases: `[[item, epoch], ...]`."""
    return unlease(tx, tx.value("leases_unknown", worker, known), "returned", None)[0]


def release(tx: Transaction, older_than: float, run_no: int | None, reason: str) -> int:
    return unlease(tx, tx.value("leases_by_age", tx.now - micros(older_than), run_no), "released", reason)[0]
