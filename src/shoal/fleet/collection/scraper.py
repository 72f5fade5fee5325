"""A collection as a scraper: its items are the members, its ordered lanes are the groups; and the report on both.

So a collection has leases, retries, several machines, progress and `why`, as every run has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import msgspec

from shoal.define.context import Item
from shoal.define.policy import MAX_TIMEOUT_SECONDS
from shoal.define.scraper import Scraper
from shoal.errors import AttemptEnded, Permanent
from shoal.fleet.collection.member_runner import MemberRunner, MemberStatus, idempotency_key_of
from shoal.fleet.collection.members import CollectionPlan, Member
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState, NewItem
from shoal.model.log import Log
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, Run, RunState
from shoal.model.views import Counts, ItemView

STAGE = "member"
PAGE = 1_000
NOT_RUN = "not run"
_WORST_FIRST = (MemberStatus.FAILED.value, NOT_RUN, MemberStatus.WARNING.value, MemberStatus.SUCCESS.value)


def collection_scraper(
    name: str, all_members: Iterable[Member], chosen: CollectionPlan, member_runner: MemberRunner, *, retries: int
) -> Scraper:
    """The scraper `collection.NAME`. A new run starts with the chosen members; a resumed one may have others."""
    scraper = Scraper(COLLECTION_SCRAPER_PREFIX + name, robots=False)
    members = {member.key: member for member in [*all_members, *chosen.members]}

    async def pause_after(member: Member) -> None:
        # After the last member too: a second try of the group, or the next run, may begin at once.
        if member.group is not None:
            await member_runner.pause()

    @scraper.stage(name=STAGE, ordered=True, lane=_group, timeout=MAX_TIMEOUT_SECONDS, retries=retries)
    async def work(item: Item, log: Log) -> AsyncIterator[dict[str, Any]]:
        member = members.get(item.key)
        if member is None:
            raise Permanent(f"{item.key} is no longer in the folder")
        try:
            report = await member_runner.run_member(member, item.run_id, log)
        except AttemptEnded:
            await pause_after(member)
            raise
        yield report
        await pause_after(member)

    scraper.start(
        [
            # No partitions: the claim keeps this order within one of them only.
            work.item(key=member.key, payload={"group": member.group}, priority=member.priority)
            for member in chosen.members
        ]
    )
    return scraper


def _group(new: NewItem) -> str | None:
    return (new.payload or {}).get("group")


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: success, warning, failed, or `not run` for one that has not started or not ended.

    `scraper`: the name of its runs.
    """

    member: str
    group: str | None
    status: str
    reason: str
    scraper: str | None = None
    run_id: str | None = None
    done: int = 0
    dead: int = 0
    skipped: int = 0
    records: int = 0
    seconds: float | None = None
    log: str | None = None


class GroupReport(msgspec.Struct, frozen=True, kw_only=True):
    """A group as a whole. `status`: that of its worst member. `seconds`: of its members together.

    `exit_code`: what a collection of these members alone would end with.
    """

    group: str
    status: str
    exit_code: int
    total: int
    success: int
    warnings: int
    failed: int
    not_run: int
    success_rate: float | None
    seconds: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The reports on all members of a run, at the ledger's time `at`; not `complete`: on some of them."""

    at: dt.datetime
    members: Sequence[MemberReport]
    complete: bool = True

    def count(self, status: str) -> int:
        return sum(member.status == status for member in self.members)

    @property
    def success_rate(self) -> float | None:
        """Of the members that have ended, the share that did not fail."""
        ended = len(self.members) - self.count(NOT_RUN)
        return round((ended - self.count(MemberStatus.FAILED)) / ended, 4) if ended else None

    def exit_code(self, if_stopped: int) -> int:
        """0 without failures, 1 with one, `if_stopped` when some were not run."""
        return if_stopped if self.count(NOT_RUN) else int(self.count(MemberStatus.FAILED) > 0)

    def groups(self, if_stopped: int) -> list[GroupReport]:
        """Every group, in the order they were planned."""
        names = dict.fromkeys(member.group for member in self.members if member.group is not None)
        return [self._group(name, if_stopped) for name in names]

    def _group(self, name: str, if_stopped: int) -> GroupReport:
        own = Summary(at=self.at, members=[member for member in self.members if member.group == name])
        return GroupReport(
            group=name,
            status=next(status for status in _WORST_FIRST if own.count(status)),
            exit_code=own.exit_code(if_stopped),
            total=len(own.members),
            success=own.count(MemberStatus.SUCCESS),
            warnings=own.count(MemberStatus.WARNING),
            failed=own.count(MemberStatus.FAILED),
            not_run=own.count(NOT_RUN),
            success_rate=own.success_rate,
            seconds=round(sum(member.seconds or 0.0 for member in own.members), 1),
        )


async def summarize(ledger: Ledger, run: Run, *, most: int | None = None) -> Summary:
    """Every member that the run has, singles and those of groups alike, in the order they were planned.

    `most`: only so many of them; `Summary.complete` says whether there are more.
    """
    records = await _records(ledger, run)
    members: list[MemberReport] = []
    cursor = None
    while True:
        room = PAGE if most is None else min(PAGE, most - len(members))
        page = await ledger.reads.items(run.id, cursor=cursor, limit=room)
        members += [await _report(ledger, run, item, records.get(item.id)) for item in page.rows]
        cursor = page.cursor
        if cursor is None or len(members) == most:
            break
    return Summary(at=(await ledger.health.check()).clock, members=members, complete=cursor is None)


async def _report(ledger: Ledger, run: Run, item: ItemView, record: str | None) -> MemberReport:
    key = item.key or ""
    group = (item.payload or {}).get("group")
    if record is not None:
        return msgspec.convert({**msgspec.json.decode(record), "group": group}, MemberReport)
    own = await ledger.runs.by_idempotency_key(idempotency_key_of(run.id, key))
    counts = Counts() if own is None else await ledger.reads.stats(own.id)
    failed = item.state is ItemState.DEAD
    attempts = await ledger.reads.attempts(run.id, item.id) if failed else []
    # Of the last attempt that has one: an attempt that ended with its worker has no detail.
    detail = next((attempt.detail for attempt in reversed(attempts) if attempt.detail), {})
    seconds = detail.get("seconds", attempts[-1].seconds if attempts else None)
    return MemberReport(
        member=key,
        group=group,
        status=MemberStatus.FAILED.value if failed else NOT_RUN,
        reason=item.error or ("" if failed else _not_ended_reason(run, item, own, counts)),
        scraper=None if own is None else own.scraper,
        run_id=None if own is None else own.id,
        done=counts.done,
        dead=counts.dead,
        skipped=counts.skipped,
        records=counts.results,
        seconds=None if seconds is None else round(seconds, 1),
        log=detail.get("log"),
    )


def _not_ended_reason(run: Run, item: ItemView, own: Run | None, counts: Counts) -> str:
    """Why a member has no outcome: it runs, it was interrupted, or it has not begun."""
    if item.state is ItemState.LEASED:
        return "running" if run.state is RunState.ACTIVE else "interrupted"
    if own is None or item.state is ItemState.CANCELLED:
        return "not started" if own is None else item.state.value
    return f"interrupted, {counts.remaining} of {counts.total} items left"


async def _records(ledger: Ledger, run: Run) -> dict[int, str]:
    found: dict[int, str] = {}
    cursor = None
    while True:
        page = await ledger.reads.results(run.id, cursor=cursor, limit=PAGE)
        found |= {row.item: row.record for row in page.rows}
        cursor = page.cursor
        if cursor is None:
            return found
