"""A pool: starts workers one after another, restarts those that crash, and stops all of them.

A worker that finishes, is stopped, or whose handler fails every time is not restarted, and none is when the ledger was
upgraded. When one crashes, its leases are released at once and a new process starts after a pause that doubles each
time; after `max_restarts` the pool gives the slot up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from shoal.errors import EXIT_HUNG, EXIT_INTERRUPTED, LedgerError, LedgerTooNew, UsageError
from shoal.fleet.plan import PartitionAssignment
from shoal.fleet.pool_workers import PoolSlot, PoolWorkers, SlotState, WorkerLauncher
from shoal.fleet.process import EX_OSERR
from shoal.model.log import Log
from shoal.observe.formatting import pluralize

EXIT_HANDLER_FAILS = 1
MIN_BACKOFF, MAX_BACKOFF = 0.5, 30.0

Replan = Callable[[int | None], Awaitable[PartitionAssignment]]


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`stagger`: seconds between two starts, as a range. `max_restarts`: of one slot.

    `only`: workers take nothing but their own partitions, so one without any is not started, and one whose partitions
    change is replaced.
    """

    stagger: tuple[float, float] = (2.0, 5.0)
    max_restarts: int = 5
    only: bool = False


class Pool:
    """Supervises one slot per worker.

    `replan` assigns the partitions to so many workers, or to as many as are configured; it raises UsageError when the
    assignment does not allow it. `print_line` gets one sentence for the operator at a time.
    """

    def __init__(
        self,
        launcher: WorkerLauncher,
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
        """All slots so far, by number; one that was given up and started again is listed twice."""
        return sorted([*self._replaced, *self._slots.values()], key=lambda slot: slot.number)

    async def run(self, assignment: PartitionAssignment) -> None:
        """Until no worker is left. Cancelled or failing, it stops all workers first."""
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
        """All workers finish what runs and exit; called again, they give it back."""
        again, self.stopping = self.stopping, True
        self._to_start.clear()
        self._to_reload.clear()
        for slot in self._slots.values():
            self._stop_worker(slot, again=again)
        self._changed.set()

    def stop_starting(self) -> None:
        """The run has ended: start no more workers. Those that run exit by themselves."""
        self._is_finishing = True
        self._to_start.clear()
        for slot in self._slots.values():
            if slot.is_empty:
                self._stop_worker(slot)
        self._changed.set()

    def finish(self) -> None:
        """Nothing is left for these workers, though the run may not have ended: stop all of them."""
        self._is_finishing = True
        self._to_start.clear()
        self._to_reload.clear()
        for slot in self._slots.values():
            self._stop_worker(slot)
        self._changed.set()

    @property
    def is_outdated(self) -> bool:
        """Whether its workers have exited because the ledger was upgraded."""
        return any(slot.state is SlotState.OUTDATED for slot in self._slots.values())

    @property
    def assignment(self) -> PartitionAssignment:
        return self._assignment

    @property
    def size(self) -> int:
        """How many workers the pool shall have."""
        return len(self._assignment)

    @property
    def expected(self) -> int:
        """How many workers run or will be started: `size` without those that exited by themselves or were given up."""
        return sum(not self._has_exited(number) for number in range(self.size))

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [slot.pids[-1] for slot in self._slots.values() if not slot.is_empty]

    async def scale(self, workers: int) -> None:
        """Set the size, as an operator asked: the highest numbers stop first, and partitions are assigned anew."""
        if (assignment := await self._replan_or_report(workers)) is not None:
            self._report(f"From now on {pluralize(workers, 'worker')}.", workers=workers)
            self._apply_assignments(assignment)

    async def resize(self, workers: int, why: str) -> None:
        """As `scale`, by the autoscaler: workers that exited by themselves or were given up are not started again."""
        if (assignment := await self._replan_or_report(workers)) is not None:
            self._report(f"{self.size} to {pluralize(workers, 'worker')}: {why}.", workers=workers)
            self._apply_assignments(assignment, again=False)

    async def reload(self) -> None:
        """Read the assignment again and replace the workers one by one, so that they read their settings again."""
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
            changed = self._options.only and slot.partitions != assignment[number]
            if (changed or self._has_other_options(number)) and number not in self._to_reload:
                self._to_reload.append(number)
            slot.wanted, slot.partitions = True, assignment[number]
        self._to_start = [
            number for number in range(len(assignment)) if number not in not_started and not self._is_supervised(number)
        ]
        self._to_reload.sort()
        self._has_orders.set()

    def _has_other_options(self, number: int) -> bool:
        """Whether its worker runs with other options than one that starts now would get."""
        slot = self._slots[number]
        if slot.options is None or not self._is_supervised(number):
            return False
        return slot.options != self._launcher.options_of(number)

    def _has_exited(self, number: int) -> bool:
        """Whether its worker has exited for good without having been stopped by this pool."""
        slot = self._slots.get(number)
        return slot is not None and slot.wanted and not self._is_supervised(number)

    def _is_supervised(self, number: int) -> bool:
        return number in self._supervisors and not self._supervisors[number].done()

    def _stop_worker(self, slot: PoolSlot, *, again: bool = False) -> None:
        slot.wanted = False
        self._request_stop(slot, again=again)

    def _request_stop(self, slot: PoolSlot, *, again: bool = False) -> None:
        if again or not slot.stop_requested:
            slot.stop()

    async def _start_and_reload(self) -> None:
        """Start missing workers, and replace those of a reload, one after another.

        Workers with outdated options go first, from the lowest number: what was fixed by their numbers is free then for
        those that start.
        """
        while True:
            if self._to_start and not any(map(self._has_other_options, self._to_reload)):
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
        """Returns when the new process has started, or when none will."""
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
                slot.state = SlotState.STOPPED
            elif code in (0, EXIT_INTERRUPTED):
                slot.state = SlotState.COMPLETED if code == 0 else SlotState.STOPPED
                return
            elif code == EXIT_HANDLER_FAILS:  # another process would fail as well, and use up attempts of more items
                slot.state = SlotState.HANDLER_FAILING
                log = self._launcher.log_file(slot.number)
                self._report(f"Worker {slot.number} exits: the scraper's code fails every time; its log is {log}.")
                return
            elif code == LedgerTooNew.exit_code and await self._is_outdated():
                slot.state = SlotState.OUTDATED
                self._report(f"Worker {slot.number} exits: the ledger was upgraded.")
                self._is_finishing = True  # those that still run are told by the ledger
                self._to_start.clear()
                self._to_reload.clear()
                return
            elif slot.restarts >= self._options.max_restarts:
                slot.state = SlotState.GAVE_UP
                self._report(
                    f"Worker {slot.number} is given up after {pluralize(slot.restarts, 'restart')}; its log is "
                    f"{self._launcher.log_file(slot.number)}. The other workers continue."
                )
                return
            else:
                await self._wait_before_restart(slot, code)
        slot.state = SlotState.COMPLETED if self._is_finishing else SlotState.STOPPED

    async def _run_process(self, slot: PoolSlot) -> int:
        """One process from its start to its end; returns its exit code after its leases were released."""
        slot.state = SlotState.RUNNING
        slot.options = self._launcher.options_of(slot.number)
        on_kill = partial(self._report_kill, slot)
        child = self._launcher.build(slot.number, slot.partitions, slot.options, on_kill=on_kill)
        try:
            await slot.start(child)
        except OSError as error:
            self._report(f"Worker {slot.number} cannot be started: {error.strerror}.")
            return EX_OSERR
        self._log.info("worker started", worker=slot.number, pid=child.pid, partitions=slot.partitions)
        code = await slot.wait()
        self._log.info("worker exited", worker=slot.number, pid=child.pid, code=code)
        if code != 0:
            try:
                freed = await self._pool_workers.mark_dead(child.pid)
                self._log.info("leases released", worker=slot.number, items=freed)
            except LedgerError as error:  # they are released when the lease ends
                self._report(f"The items of worker {slot.number} are released when its lease expires: {error.message}")
        return code

    async def _wait_before_restart(self, slot: PoolSlot, code: int) -> None:
        slot.restarts += 1
        pause = min(MAX_BACKOFF, MIN_BACKOFF * 2 ** (slot.restarts - 1))
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

    async def _is_outdated(self) -> bool:
        try:
            return await self._pool_workers.are_outdated()
        except LedgerError:  # then it is not known to be newer, and a new process may find it
            return False

    def _report_kill(self, slot: PoolSlot) -> None:
        self._report(f"Worker {slot.number} does not exit and is killed.")

    def _wake(self, _: object) -> None:
        self._changed.set()

    def _report(self, text: str, **facts: object) -> None:
        self._log.info(text, **facts)
        self._print(text)
