"""Looks at items that have not moved for a while: `why` must name reasons, and each reason must be true.

What `why` says is compared with facts that it has not been told: which processes live, which exits were killed, and
rows of the ledger that are read again. A reason counts as false when it is still false some seconds later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from shoal.errors import ShoalError
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.views import ItemFilter, ItemView, WaitReason
from tests.chaos.scene import Scene, Team

# An item that has not moved for this long must have a reason.
QUIET_SECONDS = 20.0
# What is due, or held by a dead worker, moves within this time when there are workers.
PROMPT_SECONDS = 15.0
# No attempt of the campaign may take longer.
LONGEST_ATTEMPT = 120.0
_EGRESS_SECONDS = 90.0
_AGAIN_SECONDS = 3.0
_SAMPLE = 25
_OPEN = (ItemState.READY, ItemState.WAITING, ItemState.DELAYED, ItemState.LEASED)
# A waiting item needs one of these besides its rank.
_LANE_CODES = {"lane_paused", "lane_blocked", "lane_limit", "lane_delay", "lane_order"}
_LANE = """
    select l.paused, l.blocked_until > shoal.clock() as blocked, l.delay_max > 0 as paced, l.ordered,
           l.max_active, l.slots_granted, l.taken,
           (select count(*) from shoal.lease s where s.lane = l.id)
           + (select count(*) from shoal.ready r where r.lane = l.id)
           + (select count(*) from shoal.delayed d where d.lane = l.id and d.slotted) as holders
    from shoal.lane l where l.key = $1 and l.run = 0
"""


class Facts(NamedTuple):
    """What is known without `why`, at one time. `lane`: the row of the item's lane."""

    run_state: str
    lane: dict[str, Any] | None
    pids: frozenset[int]
    pid: int | None
    silent: float
    quiet: float
    overdue: float
    moves: bool
    has_workers: bool
    exits_failed: bool


def false_reasons(item: ItemView, reasons: Sequence[WaitReason], facts: Facts) -> list[str]:
    """What is wrong with the reasons of an item that has not moved for a while; empty when they are true."""
    if not reasons:
        return ["no reason is named"]
    wrong = [f"{reason.code}: {why}" for reason in reasons if (why := _why_false(reason, facts))]
    codes = {reason.code for reason in reasons}
    elsewhere = {"run_paused", "no_worker", "egress"}
    if item.state is ItemState.WAITING and not codes & (_LANE_CODES | elsewhere):
        wrong.append("it waits for a lane that is neither full, closed nor slow")
    return wrong


def _why_false(reason: WaitReason, facts: Facts) -> str | None:  # noqa: PLR0911, PLR0912 - one case for each reason
    lane = facts.lane or {}
    match reason.code:
        case "run_paused":
            return None if facts.run_state == "paused" else f"the run is {facts.run_state}"
        case "running" | "claimed" | "leased":
            if facts.pid not in facts.pids:
                return "its process is gone" if facts.quiet > PROMPT_SECONDS else None
            return None if facts.quiet <= LONGEST_ATTEMPT else f"it cannot take {facts.quiet:.0f} s"
        case "held_by_dead":
            is_late = facts.has_workers and facts.silent > PROMPT_SECONDS + QUIET_SECONDS
            return f"not returned for {facts.silent:.0f} s, though there are workers" if is_late else None
        case "lane_paused":
            return None if lane.get("paused") else "the lane is not paused"
        case "lane_blocked" | "delayed_blocked":
            return None if lane.get("blocked") else "the lane is not blocked"
        case "lane_delay":
            return None if lane.get("paced") else "the lane has no delay"
        case "lane_order" | "delayed_order":
            return None if lane.get("ordered") else "the lane is no group"
        case "lane_limit":
            taken = lane.get("holders", 0) + lane.get("slots_granted", 0)
            return None if taken >= lane.get("max_active", 0) else f"only {taken} places of the lane are taken"
        case "lane_rank":
            return None
        case "no_worker" | "no_worker_for_partition":
            return "its workers live" if facts.has_workers else None
        case "egress" | "delayed_egress":
            return None if facts.exits_failed else "no exit of it was in trouble"
        case "queue_rank":
            if not facts.has_workers or facts.run_state != "active":
                return None
            if reason.items:
                return None if facts.moves else "nothing of the run moves"
            return "it is the first in its queue"
        case code if code.startswith("delayed_"):
            is_late = facts.overdue > PROMPT_SECONDS and facts.has_workers
            return f"it is due for {facts.overdue:.0f} s, though there are workers" if is_late else None
        case code:
            return f"the campaign does nothing that leads to {code}"


class WaitCheck:
    """`checked`: how many long waits were looked at; `false`: what was wrong with them."""

    def __init__(self, ledger: Ledger, scene: Scene) -> None:
        self._ledger = ledger
        self._scene = scene
        self._done: dict[str, tuple[int, float]] = {}
        self.checked = 0
        self.false: list[str] = []

    async def look(self) -> None:
        """A sample of each run; an item whose reasons look false is looked at again before it counts."""
        try:
            suspects = [(team, item) for team in self._scene.teams.values() for item in await self._suspects(team)]
            if not suspects:
                return
            await asyncio.sleep(_AGAIN_SECONDS)
            for team, item in suspects:
                again = await self._ledger.reads.items(team.run_id, ItemFilter(ids=(item.id,)), limit=1)
                if again.rows and (again.rows[0].state, again.rows[0].since) == (item.state, item.since):
                    found = await self._wrong(team, again.rows[0])
                    self.false += [f"{team.name} item {item.id}, {item.state.value}: {text}" for text in found]
        except (ShoalError, OSError, asyncpg.PostgresError):
            return  # the database is away

    async def _suspects(self, team: Team) -> list[ItemView]:
        done = (await self._ledger.reads.stats(team.run_id)).done
        if done != self._done.get(team.name, (-1, 0.0))[0]:
            self._done[team.name] = done, time.monotonic()
        now = (await self._ledger.health.check()).clock
        found = []
        for state in _OPEN:
            page = await self._ledger.reads.items(team.run_id, ItemFilter(states=(state,)), limit=_SAMPLE)
            for item in page.rows:
                if (now - item.since).total_seconds() >= QUIET_SECONDS:
                    self.checked += 1
                    if await self._wrong(team, item):
                        found.append(item)
        return found

    async def _wrong(self, team: Team, item: ItemView) -> list[str]:
        reasons = await self._ledger.reads.why_item(team.run_id, item.id)
        return false_reasons(item, reasons, await self._facts(team, item))

    async def _facts(self, team: Team, item: ItemView) -> Facts:
        worker = next((each for each in await self._ledger.workers.list() if each.id == item.worker), None)
        now = (await self._ledger.health.check()).clock
        connection = await asyncpg.connect(self._scene.fleet.operator.ledger)
        try:
            row = None if item.lane is None else await connection.fetchrow(_LANE, item.lane)
        finally:
            await connection.close()
        trouble = self._scene.egress_trouble_at.get(team.name)
        return Facts(
            run_state=(await self._ledger.runs.get(team.run_id)).state.value,
            lane=None if row is None else dict(row),
            pids=frozenset(each.pid for each in self._scene.workers),
            pid=None if worker is None else worker.pid,
            silent=0.0 if worker is None else worker.silent_seconds,
            quiet=(now - item.since).total_seconds(),
            overdue=0.0 if item.due_at is None else (now - item.due_at).total_seconds(),
            moves=time.monotonic() - self._done[team.name][1] < QUIET_SECONDS,
            has_workers=team.has_worker_since(PROMPT_SECONDS),
            exits_failed=trouble is not None and time.monotonic() - trouble < _EGRESS_SECONDS,
        )
