"""A node that runs schedules: it finds slots that are due, acquires their locks, and runs them.

Nodes are equal. Each slot is a lock in the ledger, so one node has it; when that one dies, another acquires the lock
and resumes the same run.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from contextlib import suppress

from shoal.config.schedules import ScheduleConfig
from shoal.errors import LedgerError
from shoal.fleet.schedule.slot_runner import SlotOptions, SlotRunner
from shoal.fleet.schedule.slots import (
    Slot,
    SlotDecision,
    SlotReport,
    Timetable,
    decide,
    next_slots,
    read_slots,
    record_first_seen,
)
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log

# How often a node looks for slots that others have lost; also the longest that it sleeps.
POLL_SECONDS = 5.0
MIN_SECONDS = 0.05
RETRY_SECONDS = 0.2

Schedules = Mapping[str, ScheduleConfig]


class Scheduler:
    """`at_once`: slots that this node runs at a time. `print_line` gets sentences for the operator, `on_slot_ended` the
    end of each slot.
    """

    def __init__(
        self,
        ledger: Ledger,
        options: SlotOptions,
        *,
        at_once: int,
        log: Log,
        print_line: Callable[[str], None],
        on_slot_ended: Callable[[SlotReport], None],
    ) -> None:
        self._ledger = ledger
        self._options = options
        self._at_once = at_once
        self._log = log
        self._print_line = print_line
        self._on_slot_ended = on_slot_ended
        self._schedules: Schedules = {}
        self._first_seen: dict[str, dt.datetime] = {}
        self._runners: dict[asyncio.Task[None], SlotRunner] = {}
        self._changed = asyncio.Event()
        self._now = dt.datetime.min.replace(tzinfo=dt.UTC)
        self._ledger_answers = True
        self._stopped = asyncio.Event()

    def set_schedules(self, schedules: Schedules) -> None:
        """Replace the schedules; slots that run are not affected."""
        self._first_seen = {
            name: first_seen
            for name, first_seen in self._first_seen.items()
            if name in schedules and schedules[name].rule == self._schedules[name].rule
        }
        self._schedules = dict(schedules)
        self._changed.set()

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Start no more slots and drain those that run; other nodes resume their runs."""
        self._stopped.set()
        for runner in self._runners.values():
            runner.stop()

    async def run(self) -> None:
        """Until stopped and all slots of this node have ended."""
        polling = asyncio.create_task(self._poll_forever())
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait((polling, stopped), return_when=asyncio.FIRST_COMPLETED)
            if polling.done():
                polling.result()
        finally:
            # A ledger that does not answer must not delay a stop.
            for task in (polling, stopped):
                task.cancel()
            await asyncio.gather(polling, stopped, return_exceptions=True)
            if not self.stopping:
                self.stop()
            if self._runners:
                await asyncio.wait(self._runners)

    async def _poll_forever(self) -> None:
        while True:
            self._changed.clear()
            pause = await self._poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _poll(self) -> float:
        """Returns how many seconds to sleep."""
        try:
            self._now = (await self._ledger.health.check()).clock
            pauses = [await self._poll_schedule(name, config) for name, config in self._schedules.items()]
        except LedgerError as error:
            if self._ledger_answers:
                self._print(f"The ledger does not answer; no slot is started: {error.message}")
            self._ledger_answers = False
            return POLL_SECONDS
        if not self._ledger_answers:
            self._print("The ledger answers again.")
        self._ledger_answers = True
        return min([POLL_SECONDS, self._options.lease / 2, *pauses])

    async def _poll_schedule(self, name: str, config: ScheduleConfig) -> float:
        """Returns the seconds until its next slot."""
        first_seen = self._first_seen.get(name)
        if first_seen is None:
            first_seen = await record_first_seen(self._ledger, name, config, self._now, by=self._options.owner)
        if first_seen is None:
            return RETRY_SECONDS
        self._first_seen[name] = first_seen
        table = Timetable(config, first_seen)
        known = await read_slots(self._ledger.locks, name)
        due = table.due(known.last_taken, self._now)
        decision = decide(name, known, due.slots, config.overlap, self._now)
        if decision is not None and await self._apply(decision, config, table) and due.has_dropped and decision.begin:
            self._print(f"{name}: slots before {decision.begin[0].name} were missed and will not run.")
        return max(MIN_SECONDS, (next_slots(table, self._now, 1)[0] - self._now).total_seconds())

    async def _apply(self, decision: SlotDecision, config: ScheduleConfig, table: Timetable) -> bool:
        """Returns whether a slot has been begun here."""
        for slot in decision.skip:
            if decision.blocked_by is not None and await self._acquire(slot):
                value = {
                    "state": "skipped",
                    "why": f"the slot of {decision.blocked_by.name} is still running",
                    "behind": decision.blocked_by.lock_name,
                }
                await self._ledger.locks.complete(slot.lock_name, self._options.owner, value)
                self._report(SlotReport(slot, value))
        ours = [runner.slot for runner in self._runners.values()]  # a lost one may still be ending
        for slot in decision.begin if decision.resume is None else (decision.resume,):
            if len(ours) < self._at_once and slot not in ours and await self._acquire(slot):
                how = "begins" if decision.resume is None else "is resumed here, its node has lost it"
                self._start(
                    SlotRunner(slot, config, self._options, self._ledger.locks, self._still_due(slot, table)), how
                )
                return True
        return False

    async def _acquire(self, slot: Slot) -> bool:
        return await self._ledger.locks.acquire(slot.lock_name, self._options.owner, self._options.lease)

    def _still_due(self, slot: Slot, table: Timetable) -> Callable[[], bool]:
        """A function that says whether the timetable would still choose this slot."""
        just_before = slot.at - dt.timedelta(seconds=1)
        return lambda: slot.at in table.due(just_before, self._now).slots

    def _start(self, runner: SlotRunner, how: str) -> None:
        self._print(f"{runner.slot.schedule}: the slot of {runner.slot.name} {how}; its log is {runner.log_file}.")
        task = asyncio.create_task(self._run_slot(runner))
        self._runners[task] = runner
        task.add_done_callback(self._remove)

    async def _run_slot(self, runner: SlotRunner) -> None:
        try:
            self._report(await runner.run_to_end())
        except Exception as error:  # the other slots go on; another node acquires the lock of this one
            self._log.error("slot failed", slot=runner.slot.lock_name, exc_info=error)
            self._print_line(
                f"{runner.slot.schedule}: the slot of {runner.slot.name} failed: {type(error).__name__}: {error}."
            )

    def _remove(self, task: asyncio.Task[None]) -> None:
        del self._runners[task]
        self._changed.set()

    def _report(self, report: SlotReport) -> None:
        self._log.info(report.text, **report.value)
        self._on_slot_ended(report)

    def _print(self, text: str) -> None:
        self._log.info(text)
        self._print_line(text)
