"""A pool: starts workers one after another, fills the places of those that crash, and sends all of them home.

A worker that ends well, that somebody stopped, or whose handler fails every time is not replaced. One that crashes is:
its items are free at once, a new process takes its place after a pause that doubles each time, and after so many
restarts the slot is given up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from shoal.errors import LedgerError, UsageError
from shoal.fleet.partitions import PartitionAssignment
from shoal.fleet.pool_workers import PoolSlot, PoolWorkers, SlotState
from shoal.fleet.process import Launcher
from shoal.model.log import Log
from shoal.observe.formatting import pluralize
from shoal.worker.watchdog import EXIT_HUNG

STOPPED_BY_SIGNAL = 130
HANDLER_FAILS = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# Beyond the seconds that running items get to end, so long may a worker take to say goodbye.
EXIT_SECONDS = 10.0
EX_OSERR = 71  # as the system names it: it cannot fork


Replan = Callable[[int | None], Awaitable[PartitionAssignment]]


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stagger`: seconds between two starts, from .. to. `drain`: seconds that what runs gets when a worker leaves.

    `only`: workers take nothing but their own partitions, so one without any is not started, and one whose partitions
    change is replaced.
    """

    stagger: tuple[float, float] = (2.0, 5.0)
    max_restarts: int = 5
    drain: float = 30.0
    only: bool = False


class Pool:
    """`replan` deals the partitions out to so many workers, or to as many as are configured; it raises UsageError when
    the assignment does not allow it. `print_line` says a line to whoever watches.
    """

    def __init__(
        self,
        launcher: Launcher,
        pool_workers: PoolWorkers,
        replan: Replan,
        options: PoolOptions,
        *,
        log: Log,
        print_line: Callable[[str], None],
    ) -> None:
        self._launcher = launcher
        self._pool_workers = pool_workers
        self._replan = replan
        self._options = options
        self._log = log
        self._print = print_line
        self._slots: dict[int, PoolSlot] = {}
        self._supervisors: dict[int, asyncio.Task[None]] = {}
        self._replaced: list[PoolSlot] = []
        self._to_start: list[int] = []
        self._to_reload: list[int] = []
        self._assignment: PartitionAssignment = ()
        self._has_orders = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_finishing = False
        self.stopping = False

    @property
    def slots(self) -> list[PoolSlot]:
        """All there ever were, by number; a place that was given up and filled again is there twice."""
        return sorted([*self._replaced, *self._slots.values()], key=lambda slot: slot.number)

    async def run(self, assignment: PartitionAssignment) -> None:
        """Until nobody is left. Cancelled or failing, it sends everybody home first."""
        self._apply_assignments(assignment)
        starter = asyncio.create_task(self._start_and_reload())
        starter.add_done_callback(self._wake)
        try:
            while self._supervisors or self._to_start:
                await self._changed.wait()
                self._changed.clear()
                if starter.done():
                    starter.result()
                for number in [number for number, task in self._supervisors.items() if task.done()]:
                    self._supervisors.pop(number).result()
        finally:
            starter.cancel()
            if self._supervisors:
                self.stop()
                await asyncio.wait(self._supervisors.values())

    def stop(self) -> None:
        """Everybody finishes what runs and leaves; called again, they give it back."""
        again, self.stopping = self.stopping, True
        self._to_start.clear()
        self._to_reload.clear()
        for slot in self._slots.values():
            self._stop_worker(slot, again=again)
        self._changed.set()

    def stop_starting(self) -> None:
        """The run has ended: who is not there, or not there yet, need not come."""
        self._is_finishing = True
        self._to_start.clear()
        for slot in self._slots.values():
            if slot.is_empty:
                self._stop_worker(slot)
        self._changed.set()

    def finish(self) -> None:
        """Nothing is left for these workers, though the run may go on: all of them leave."""
        self._is_finishing = True
        self._to_start.clear()
        self._to_reload.clear()
        for slot in self._slots.values():
            self._stop_worker(slot)
        self._changed.set()

    @property
    def assignment(self) -> PartitionAssignment:
        return self._assignment

    @property
    def size(self) -> int:
        """How many workers there are to be."""
        return len(self._assignment)

    @property
    def expected(self) -> int:
        """How many of them are at work or yet to come: not those that left by themselves or were given up."""
        return sum(not self._has_exited(number) for number in range(self.size))

    @property
    def pids(self) -> list[int]:
        """The processes that are there now."""
        return [slot.pids[-1] for slot in self._slots.values() if not slot.is_empty]

    async def scale(self, workers: int) -> None:
        """From now on so many; those with the highest numbers go first. Newcomers get a share as if all began now."""
        if (assignment := await self._replan_or_report(workers)) is not None:
            self._report(f"From now on {pluralize(workers, 'worker')}.", workers=workers)
            self._apply_assignments(assignment)

    async def resize(self, workers: int, why: str) -> None:
        """As `scale`, by a rule and not by a person: those that left by themselves or were given up stay away."""
        if (assignment := await self._replan_or_report(workers)) is not None:
            self._report(f"{self.size} to {pluralize(workers, 'worker')}: {why}.", workers=workers)
            self._apply_assignments(assignment, again=False)

    async def reload(self) -> None:
        """Read the assignment anew and replace the workers one after another, so that they read their settings anew."""
        assignment = await self._replan_or_report(None)
        if assignment is not None and not self.stopping and not self._is_finishing:
            self._report("Reloading: workers are replaced one after another.", workers=len(assignment))
            kept = sorted(number for number in self._supervisors if number < len(assignment))
            self._apply_assignments(assignment)
            self._to_reload = kept

    async def _replan_or_report(self, workers: int | None) -> PartitionAssignment | None:
        try:
            return await self._replan(workers)
        except UsageError as error:
            self._report(f"Nothing was changed: {error.message} {error.remedy}")
            return None

    def _apply_assignments(self, assignment: PartitionAssignment, *, again: bool = True) -> None:
        if self.stopping or self._is_finishing:
            return
        self._assignment = assignment
        not_started = set() if again else {number for number in range(len(assignment)) if self._has_exited(number)}
        if self._options.only:
            not_started |= {number for number, share in enumerate(assignment) if not share}
        self._to_reload = [number for number in self._to_reload if number < len(assignment)]
        for number, slot in self._slots.items():
            if number >= len(assignment) or (self._options.only and not assignment[number]):
                self._stop_worker(slot)
                continue
            if self._options.only and slot.partitions != assignment[number] and number not in self._to_reload:
                self._to_reload.append(number)
            slot.wanted, slot.partitions = True, assignment[number]
        self._to_start = [
            number for number in range(len(assignment)) if number not in not_started and not self._is_supervised(number)
        ]
        self._has_orders.set()

    def _has_exited(self, number: int) -> bool:
        """Whether its worker has gone for good though nobody here sent it home."""
        slot = self._slots.get(number)
        return slot is not None and slot.wanted and not self._is_supervised(number)

    def _is_supervised(self, number: int) -> bool:
        return number in self._supervisors and not self._supervisors[number].done()

    def _stop_worker(self, slot: PoolSlot, *, again: bool = False) -> None:
        slot.wanted = False
        self._request_stop(slot, again=again)

    def _request_stop(self, slot: PoolSlot, *, again: bool = False) -> None:
        if again or not slot.stop_requested:
            slot.request_stop(self._options.drain + EXIT_SECONDS, self._report)

    async def _start_and_reload(self) -> None:
        """Start those who are missing and replace those who are to be, one after another."""
        while True:
            if self._to_start:
                self._start(self._to_start.pop(0))
            elif self._to_reload:
                await self._reload(self._to_reload.pop(0))
            else:
                self._has_orders.clear()
                await self._has_orders.wait()
                continue
            if self._to_start or self._to_reload:
                await asyncio.sleep(random.uniform(*self._options.stagger))

    def _start(self, number: int) -> None:
        if (before := self._slots.get(number)) is not None:
            self._replaced.append(before)
        slot = self._slots[number] = PoolSlot(number, self._assignment[number])
        self._supervisors[number] = asyncio.create_task(self._supervise(slot))
        self._supervisors[number].add_done_callback(self._wake)

    async def _reload(self, number: int) -> None:
        """Returns when the new process is there, or when nobody will come."""
        slot, task = self._slots[number], self._supervisors.get(number)
        filled = len(slot.pids)
        self._request_stop(slot)
        while task is not None and not task.done() and len(slot.pids) == filled:
            slot.changed.clear()
            changed = asyncio.create_task(slot.changed.wait())
            await asyncio.wait((task, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _supervise(self, slot: PoolSlot) -> None:
        while slot.wanted:
            code = await self._run_process(slot)
            if slot.stop_requested:
                slot.stop_requested = False
                slot.state = SlotState.STOPPED
            elif code in (0, STOPPED_BY_SIGNAL):
                slot.state = SlotState.COMPLETED if code == 0 else SlotState.STOPPED
                return
            elif code == HANDLER_FAILS:  # another process would fail as well, and use up the tries of more items
                slot.state = SlotState.HANDLER_FAILING
                log = self._launcher.log_file(slot.number)
                self._report(f"Worker {slot.number} leaves: the scraper's code fails every time; its log is {log}.")
                return
            elif slot.restarts >= self._options.max_restarts:
                slot.state = SlotState.GAVE_UP
                self._report(
                    f"Worker {slot.number} is given up after {pluralize(slot.restarts, 'restart')}; its log is "
                    f"{self._launcher.log_file(slot.number)}. The others go on."
                )
                return
            else:
                await self._wait_before_restart(slot, code)
        slot.state = SlotState.COMPLETED if self._is_finishing else SlotState.STOPPED

    async def _run_process(self, slot: PoolSlot) -> int:
        """One process from its start to its end; what it may have left behind is freed."""
        slot.state = SlotState.RUNNING
        try:
            child = await self._launcher.launch(slot.number, slot.partitions)
        except OSError as error:
            self._report(f"Worker {slot.number} cannot be started: {error.strerror}.")
            return EX_OSERR
        self._log.info("worker started", worker=slot.number, pid=child.pid, partitions=slot.partitions)
        if not slot.wanted:  # it was sent home while its process was being made
            asyncio.get_running_loop().call_soon(self._stop_worker, slot)
        code = await slot.run_process(child)
        self._log.info("worker exited", worker=slot.number, pid=child.pid, code=code)
        if code != 0:
            try:
                freed = await self._pool_workers.mark_dead(child.pid)
                self._log.info("leases of the worker released", worker=slot.number, items=freed)
            except LedgerError as error:  # then the end of its lease frees them
                self._report(f"The items of worker {slot.number} wait for the end of its lease: {error.message}")
        return code

    async def _wait_before_restart(self, slot: PoolSlot, code: int) -> None:
        slot.restarts += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (slot.restarts - 1))
        how = f"was killed by signal {-code}" if code < 0 else f"crashed (exit {code})"
        if code == EXIT_HUNG:
            how = f"hung on an item and ended itself; its log {self._launcher.log_file(slot.number)} names it"
        self._report(
            f"Worker {slot.number} {how}; restart {slot.restarts} of {self._options.max_restarts} in {pause:g} s."
        )
        slot.changed.clear()
        try:
            async with asyncio.timeout(pause):
                while slot.wanted:
                    await slot.changed.wait()
                    slot.changed.clear()
        except TimeoutError:
            return

    def _wake(self, _: object) -> None:
        self._changed.set()

    def _report(self, text: str, **facts: object) -> None:
        self._log.info(text, **facts)
        self._print(text)
