"""A node that keeps schedules: looks what is due, takes what nobody has taken, and carries it out.

Nodes are equal. Each slot is a lock of the ledger, so one of them has it; when that one dies, another takes it over
and goes on with the same run.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shoal.config.schedules import ScheduleConfig
from shoal.errors import LedgerError
from shoal.fleet.schedule.slot_runner import Duty, Ways
from shoal.fleet.schedule.slots import Decision, Slot, decide, first_sight, look_up
from shoal.fleet.schedule.timetable import Timetable, next_slots
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log

# How often a node looks for slots that others have lost, and the longest it sleeps.
LOOK_SECONDS = 5.0
LEAST_SECONDS = 0.05
AGAIN_SECONDS = 0.2

Schedules = Mapping[str, ScheduleConfig]


class Scheduler:
    """`at_once`: slots that this node carries out at a time. `tell` says a line to whoever watches, `ended` hears what
    became of each slot."""

    def __init__(
        self,
        ledger: Ledger,
        ways: Ways,
        *,
        at_once: int,
        log: Log,
        tell: Callable[[str], None],
        ended: Callable[[Slot, Mapping[str, Any]], None],
    ) -> None:
        self._ledger = ledger
        self._ways = ways
        self._at_once = at_once
        self._log = log
        self._tell = tell
        self._ended = ended
        self._schedules: Schedules = {}
        self._sights: dict[str, dt.datetime] = {}
        self._duties: dict[asyncio.Task[None], Duty] = {}
        self._changed = asyncio.Event()
        self._now = dt.datetime.min.replace(tzinfo=dt.UTC)
        self._answers = True
        self._stopped = asyncio.Event()

    def keep(self, schedules: Schedules) -> None:
        """From now on these. What is being carried out goes on."""
        self._sights = {
            name: sight
            for name, sight in self._sights.items()
            if name in schedules and schedules[name].rule == self._schedules[name].rule
        }
        self._schedules = dict(schedules)
        self._changed.set()

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Take nothing more; what runs is finished, and the rest of its run left to other nodes."""
        self._stopped.set()
        for duty in self._duties.values():
            duty.stop()

    async def run(self) -> None:
        """Until stopped, and all that was taken has ended."""
        watching = asyncio.create_task(self._watch())
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait((watching, stopped), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            # A ledger that does not answer must not hold up who was told to stop.
            for task in (watching, stopped):
                task.cancel()
            await asyncio.gather(watching, stopped, return_exceptions=True)
            if not self.stopping:
                self.stop()
            if self._duties:
                await asyncio.wait(self._duties)

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            pause = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _look(self) -> float:
        """Returns how many seconds to sleep."""
        try:
            self._now = (await self._ledger.health.check()).clock
            pauses = [await self._attend_to(name, config) for name, config in self._schedules.items()]
        except LedgerError as error:
            if self._answers:
                self._note(f"The ledger does not answer, so nothing is started: {error.message}")
            self._answers = False
            return LOOK_SECONDS
        if not self._answers:
            self._note("The ledger answers again.")
        self._answers = True
        return min([LOOK_SECONDS, self._ways.lease / 2, *pauses])

    async def _attend_to(self, name: str, config: ScheduleConfig) -> float:
        """Returns the seconds until its next slot."""
        sight = self._sights.get(name)
        if sight is None:
            sight = await first_sight(self._ledger, name, config, self._now, by=self._ways.me)
        if sight is None:
            return AGAIN_SECONDS
        self._sights[name] = sight
        table = Timetable(config, sight)
        known = await look_up(self._ledger.locks, name)
        due = table.due(known.behind, self._now)
        decision = decide(name, known, due.slots, config.overlap, self._now)
        if decision is not None and await self._act(decision, config, table) and due.lapsed and decision.begin:
            self._note(f"{name}: slots before {decision.begin[0].name} were missed and are not made up for.")
        return max(LEAST_SECONDS, (next_slots(table, self._now, 1)[0] - self._now).total_seconds())

    async def _act(self, decision: Decision, config: ScheduleConfig, table: Timetable) -> bool:
        """Returns whether a slot has been begun here."""
        for slot in decision.skip:
            if decision.behind is not None and await self._take(slot):
                value = {
                    "state": "skipped",
                    "why": f"the slot of {decision.behind.name} is still going",
                    "behind": decision.behind.lock_name,
                }
                await self._ledger.locks.complete(slot.lock_name, self._ways.me, value)
                self._report(slot, value)
        ours = [duty.slot for duty in self._duties.values()]  # one that was lost may still be about to end
        for slot in decision.begin if decision.resume is None else (decision.resume,):
            if len(ours) < self._at_once and slot not in ours and await self._take(slot):
                how = "begins" if decision.resume is None else "is taken over, its node has left it"
                self._begin(Duty(slot, config, self._ways, self._ledger.locks, self._still(slot, table)), how)
                return True
        return False

    async def _take(self, slot: Slot) -> bool:
        return await self._ledger.locks.acquire(slot.lock_name, self._ways.me, self._ways.lease)

    def _still(self, slot: Slot, table: Timetable) -> Callable[[], bool]:
        """Whether the policy would still choose this slot."""
        just_before = slot.at - dt.timedelta(seconds=1)
        return lambda: slot.at in table.due(just_before, self._now).slots

    def _begin(self, duty: Duty, how: str) -> None:
        self._note(f"{duty.slot.schedule}: the slot of {duty.slot.name} {how}; its log is {duty.log_file}.")
        task = asyncio.create_task(self._carry_out(duty))
        self._duties[task] = duty
        task.add_done_callback(self._leave)

    async def _carry_out(self, duty: Duty) -> None:
        try:
            self._report(duty.slot, await duty.carry_out())
        except Exception as error:  # one slot must not end the others; its lock goes to another node
            self._log.error("a slot failed", slot=duty.slot.lock_name, exc_info=error)
            self._tell(f"{duty.slot.schedule}: the slot of {duty.slot.name} failed: {type(error).__name__}: {error}.")

    def _leave(self, task: asyncio.Task[None]) -> None:
        del self._duties[task]
        self._changed.set()

    def _report(self, slot: Slot, value: Mapping[str, Any]) -> None:
        run = f", run {value['run_id']}" if value.get("run_id") else ""
        why = f": {value['why']}" if value.get("why") else ""
        self._note(f"{slot.schedule}: the slot of {slot.name} is {value['state']}{run}{why}.", **value)
        self._ended(slot, value)

    def _note(self, text: str, **facts: object) -> None:
        self._log.info(text, **facts)
        self._tell(text)
