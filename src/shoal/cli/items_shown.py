"""Items as they are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.cli.render.session import BOLD, Session
from shoal.cli.render.tables import gate_text, item_name

if TYPE_CHECKING:
    from shoal.model.views import AttemptView, ItemView, WaitReason

ERROR_WIDTH = 60


def print_items(session: Session, items: Sequence[ItemView]) -> None:
    if session.json:
        for item in items:
            session.record(item)
    elif items:
        session.table(
            ["ITEM", "STAGE", "PARTITION", "STATE", "TRIES", "LANE", "NAME", "ERROR"],
            [
                (i.id, i.stage, i.partition, i.state, i.tries, i.lane, item_name(i), (i.error or "")[:ERROR_WIDTH])
                for i in items
            ],
        )


def print_item(session: Session, item: ItemView, attempts: list[AttemptView], gates: list[WaitReason]) -> None:
    import msgspec

    from shoal.observe.formatting import format_time

    if session.json:
        session.record({**msgspec.to_builtins(item), "attempts": attempts, "why": list(gate_records(gates))})
        return
    facts: dict[str, Any] = {name: getattr(item, name) for name in item.__struct_fields__}
    facts |= {"since": format_time(item.since), "due_at": format_time(item.due_at)}
    facts["payload"] = None if item.payload is None else msgspec.json.encode(item.payload).decode()
    session.table(["FACT", "VALUE"], [(name.replace("_", " "), value) for name, value in facts.items()])
    if attempts:
        session.data("\n" + session.styled("Attempts", BOLD))
        session.table(
            ["EPOCH", "CLAIMED", "SECONDS", "OUTCOME", "WORKER", "ERROR"],
            [(a.epoch, format_time(a.claimed_at), f"{a.seconds:.2f}", a.outcome, a.worker, a.error) for a in attempts],
        )
    session.data("\n" + session.styled("Why it is where it is", BOLD))
    for gate in gates:
        session.data(gate_text(gate))


def gate_records(gates: Iterable[WaitReason]) -> Iterable[dict[str, Any]]:
    return (
        {"code": gate.code, "text": gate.text, "since": gate.since, "until": gate.until, "items": gate.items}
        for gate in gates
    )
