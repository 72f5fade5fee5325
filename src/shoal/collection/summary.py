"""What became of every member, read from the ledger."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

from shoal.collection.office import occasion_of
from shoal.collection.verdict import Status
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.run import Run
from shoal.model.views import Counts, ItemView

PAGE = 1_000
NOT_RUN = "not run"


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: success, warning, failed, or `not run` for one whose turn has not come or not ended."""

    member: str
    group: str | None
    status: str
    reason: str
    run_id: str | None = None
    done: int = 0
    dead: int = 0
    records: int = 0
    seconds: float | None = None
    log: str | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    at: dt.datetime
    members: Sequence[MemberReport]

    def count(self, status: str) -> int:
        return sum(member.status == status for member in self.members)


async def summarize(ledger: Ledger, run: Run) -> Summary:
    """Every member that the run has, singles and those of groups alike, in the order they were planned."""
    records = await _records(ledger, run)
    members, cursor = [], None
    while True:
        page = await ledger.reads.items(run.id, cursor=cursor, limit=PAGE)
        members += [await _report(ledger, run, item, records.get(item.id)) for item in page.rows]
        cursor = page.cursor
        if cursor is None:
            break
    return Summary(at=(await ledger.health.examine()).clock, members=members)


async def _report(ledger: Ledger, run: Run, item: ItemView, record: str | None) -> MemberReport:
    key = item.key or ""
    group = (item.payload or {}).get("group")
    if record is not None:
        return msgspec.convert({**msgspec.json.decode(record), "group": group}, MemberReport)
    own = await ledger.runs.of_occasion(occasion_of(run.id, key))
    counts = Counts() if own is None else await ledger.reads.stats(own.id)
    failed = item.state is ItemState.DEAD
    attempts = await ledger.reads.attempts(run.id, item.id) if failed else []
    return MemberReport(
        member=key,
        group=group,
        status=Status.FAILED.value if failed else NOT_RUN,
        reason=item.error or ("" if failed else item.state.value),
        run_id=None if own is None else own.id,
        done=counts.done,
        dead=counts.dead,
        records=counts.results,
        seconds=round(attempts[-1].seconds, 1) if attempts else None,
    )


async def _records(ledger: Ledger, run: Run) -> dict[int, str]:
    found: dict[int, str] = {}
    cursor = None
    while True:
        page = await ledger.reads.results(run.id, cursor=cursor, limit=PAGE)
        found |= {row.item: row.record for row in page.rows}
        cursor = page.cursor
        if cursor is None:
            return found
