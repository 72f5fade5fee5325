"""A collection as a scraper: its items are the members, its ordered lanes are the groups.

So a collection has leases, retries, several machines, progress and `why`, as every run has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from shoal.define.context import Item
from shoal.define.policy import MAX_TIMEOUT_SECONDS
from shoal.define.scraper import Scraper
from shoal.errors import AttemptEnded, Permanent
from shoal.fleet.collection.member_runner import MemberRunner
from shoal.fleet.collection.members import CollectionPlan, Member
from shoal.model.item import NewItem
from shoal.model.log import Log
from shoal.model.run import COLLECTION_SCRAPER_PREFIX

STAGE = "member"


def collection_scraper(
    name: str, all_members: Iterable[Member], chosen: CollectionPlan, member_runner: MemberRunner, *, retries: int
) -> Scraper:
    """The scraper `collection.NAME`. A new run starts with the chosen members; a resumed one may have others."""
    scraper = Scraper(COLLECTION_SCRAPER_PREFIX + name, robots=False)
    members = {member.key: member for member in [*all_members, *chosen.members]}

    followed = {member.key for group in chosen.groups.values() for member in group[:-1]}

    async def pause_after(member: Member) -> None:
        if member.key in followed:
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
