"""Letting items out of `waiting` when their lane has room, and making lanes."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.ledger.sqlite.transaction import Transaction, json_text


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
