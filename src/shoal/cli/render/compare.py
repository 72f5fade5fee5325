"""What `shoal runs compare` prints about records: each difference as it is found, then the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shoal.cli.render.session import BOLD, DIM, Session
from shoal.observe.formatting import pluralize, printable

if TYPE_CHECKING:
    from shoal.service.compare import RecordChange, RecordComparison

MAX_VALUE = 60


class RecordChanges:
    """Prints at most `limit` differences, and counts the rest."""

    def __init__(self, session: Session, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._count = 0

    def add(self, change: RecordChange) -> None:
        self._count += 1
        if self._count > self._limit:
            return
        session = self._session
        if session.json:
            session.record({"kind": "record", **msgspec.to_builtins(change)})
            return
        if self._count == 1:
            session.data("\n" + session.styled("Records that differ", BOLD))
        session.data(f"{change.change:<7}  {printable(change.key)}  {session.styled(change.stage, DIM)}")
        for field in change.fields or ():
            session.data(f"    {printable(field.field)}: {_shown(field.before)} -> {_shown(field.after)}")
        if change.fields is None:
            session.data(session.styled("    its older version was replaced, so the fields are not known", DIM))

    def print_totals(self, totals: RecordComparison) -> None:
        session = self._session
        if session.json:
            session.record({"kind": "records", **msgspec.to_builtins(totals)})
            return
        if self._count > self._limit:
            session.note(f"... and {pluralize(self._count - self._limit, 'more record')}; --limit shows more.")
        session.data(
            f"\nRecords: {totals.new:,} new, {totals.changed:,} changed, {totals.gone:,} gone, "
            f"{totals.unchanged:,} unchanged"
        )
        if totals.unknown_gone:
            session.note(
                f"Stage {', '.join(totals.unknown_gone)}: duplicates of earlier runs are dropped, so which of the "
                "older records are gone is not known."
            )


def _shown(value: Any) -> str:
    text = printable(value if value == "(missing)" else msgspec.json.encode(value).decode())
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"
