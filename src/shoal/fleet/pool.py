"""A pool: starts workers one after another, fills the places of those that crash, and sends all of them home.

A worker that ends well, that somebody stopped, or whose handler fails every time is not replaced. One that crashes is:
its items are free at once, a new process takes its place after a pause that doubles each time, and after so many
restarts the place is given up.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec

from shoal.errors import LedgerError, UsageError
from shoal.fleet.partitions import Shares
from shoal.fleet.pool_workers import Ended, Place, Roll
from shoal.fleet.process import Launcher
from shoal.model.log import Log
from shoal.observe.formatting import counted
from shoal.worker.watchdog import EXIT_HUNG

STOPPED_BY_SIGNAL = 130
HANDLER_FAILS = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# Beyond the seconds that running items get to end, so long may a worker take to say goodbye.
FAREWELL_SECONDS = 10.0
REFUSED = 71  # as the system names it: it cannot fork


Replan = Callable[[int | None], Awaitable[Shares]]


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
    the assignment does not allow it. `tell` says a line to whoever watches.
    """

    def __init__(
        self,
        launcher: Launcher,
        roll: Roll,
        replan: Replan,
        options: PoolOptions,
        *,
        log: Log,
        tell: Callable[[str], None],
    ) -> None:
        self._launcher = launcher
        self._roll = roll
        self._replan = replan
        self._options = options
        self._log = log
        self._tell = tell
        self._places: dict[int, Place] = {}
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._past: list[Place] = []
        self._to_start: list[int] = []
        self._to_reload: list[int] = []
        self._shares: Shares = ()
        self._order = asyncio.Event()
        self._changed = asyncio.Event()
        self._over = False
        self.stopping = False

    @property
    def places(self) -> list[Place]:
        """All there ever were, by number; a place that was given up and filled again is there twice."""
        return sorted([*self._past, *self._places.values()], key=lambda place: place.number)

    async def run(self, shares: Shares) -> None:
        """Until nobody is left. Cancelled or failing, it sends everybody home first."""
        self._take_over(shares)
        steering = asyncio.create_task(self._steer())
        steering.add_done_callback(self._wake)
        try:
            while self._keeping or self._to_start:
                await self._changed.wait()
                self._changed.clear()
                if steering.done():
                    steering.result()
                for number in [number for number, task in self._keeping.items() if task.done()]:
                    self._keeping.pop(number).result()
        finally:
            steering.cancel()
            if self._keeping:
                self.stop()
                await asyncio.wait(self._keeping.values())

    def stop(self) -> None:
        """Everybody finishes what runs and leaves; called again, they give it back."""
        again, self.stopping = self.stopping, True
        self._to_start.clear()
        self._to_reload.clear()
        for place in self._places.values():
            self._send_home(place, again=again)
        self._changed.set()

    def start_no_more(self) -> None:
        """The run has ended: who is not there, or not there yet, need not come."""
        self._over = True
        self._to_start.clear()
        for place in self._places.values():
            if place.is_empty:
                self._send_home(place)
        self._changed.set()

    def finish(self) -> None:
        """Nothing is left for these workers, though the run may go on: all of them leave."""
        self._over = True
        self._to_start.clear()
        self._to_reload.clear()
        for place in self._places.values():
            self._send_home(place)
        self._changed.set()

    @property
    def shares(self) -> Shares:
        return self._shares

    @property
    def size(self) -> int:
        """How many workers there are to be."""
        return len(self._shares)

    @property
    def expected(self) -> int:
        """How many of them are at work or yet to come: not those that left by themselves or were given up."""
        return sum(not self._has_left(number) for number in range(self.size))

    @property
    def pids(self) -> list[int]:
        """The processes that are there now."""
        return [place.pids[-1] for place in self._places.values() if not place.is_empty]

    async def scale(self, workers: int) -> None:
        """From now on so many; those with the highest numbers go first. Newcomers get a share as if all began now."""
        if (shares := await self._replanned(workers)) is not None:
            self._note(f"From now on {counted(workers, 'worker')}.", workers=workers)
            self._take_over(shares)

    async def fit(self, workers: int, why: str) -> None:
        """As `scale`, by a rule and not by a person: those that left by themselves or were given up stay away."""
        if (shares := await self._replanned(workers)) is not None:
            self._note(f"{self.size} to {counted(workers, 'worker')}: {why}.", workers=workers)
            self._take_over(shares, again=False)

    async def reload(self) -> None:
        """Read the assignment anew and replace the workers one after another, so that they read their settings anew."""
        shares = await self._replanned(None)
        if shares is not None and not self.stopping and not self._over:
            self._note("Reloading: workers are replaced one after another.", workers=len(shares))
            staying = sorted(number for number in self._keeping if number < len(shares))
            self._take_over(shares)
            self._to_reload = staying

    async def _replanned(self, workers: int | None) -> Shares | None:
        try:
            return await self._replan(workers)
        except UsageError as error:
            self._note(f"Nothing was changed: {error.message} {error.remedy}")
            return None

    def _take_over(self, shares: Shares, *, again: bool = True) -> None:
        if self.stopping or self._over:
            return
        self._shares = shares
        away = set() if again else {number for number in range(len(shares)) if self._has_left(number)}
        if self._options.only:
            away |= {number for number, share in enumerate(shares) if not share}
        self._to_reload = [number for number in self._to_reload if number < len(shares)]
        for number, place in self._places.items():
            if number >= len(shares) or (self._options.only and not shares[number]):
                self._send_home(place)
                continue
            if self._options.only and place.partitions != shares[number] and number not in self._to_reload:
                self._to_reload.append(number)
            place.wanted, place.partitions = True, shares[number]
        self._to_start = [number for number in range(len(shares)) if number not in away and not self._is_kept(number)]
        self._order.set()

    def _has_left(self, number: int) -> bool:
        """Whether its worker has gone for good though nobody here sent it home."""
        place = self._places.get(number)
        return place is not None and place.wanted and not self._is_kept(number)

    def _is_kept(self, number: int) -> bool:
        return number in self._keeping and not self._keeping[number].done()

    def _send_home(self, place: Place, *, again: bool = False) -> None:
        place.wanted = False
        self._ask_to_leave(place, again=again)

    def _ask_to_leave(self, place: Place, *, again: bool = False) -> None:
        if again or not place.told:
            place.ask_to_leave(self._options.drain + FAREWELL_SECONDS, self._note)

    async def _steer(self) -> None:
        """Start those who are missing and replace those who are to be, one after another."""
        while True:
            if self._to_start:
                self._start(self._to_start.pop(0))
            elif self._to_reload:
                await self._reload(self._to_reload.pop(0))
            else:
                self._order.clear()
                await self._order.wait()
                continue
            if self._to_start or self._to_reload:
                await asyncio.sleep(random.uniform(*self._options.stagger))

    def _start(self, number: int) -> None:
        if (before := self._places.get(number)) is not None:
            self._past.append(before)
        place = self._places[number] = Place(number, self._shares[number])
        self._keeping[number] = asyncio.create_task(self._keep(place))
        self._keeping[number].add_done_callback(self._wake)

    async def _reload(self, number: int) -> None:
        """Returns when the new process is there, or when nobody will come."""
        place, task = self._places[number], self._keeping.get(number)
        filled = len(place.pids)
        self._ask_to_leave(place)
        while task is not None and not task.done() and len(place.pids) == filled:
            place.changed.clear()
            changed = asyncio.create_task(place.changed.wait())
            await asyncio.wait((task, changed), return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()

    async def _keep(self, place: Place) -> None:
        while place.wanted:
            code = await self._fill(place)
            if place.told:
                place.told = False
                place.ended = Ended.SENT_HOME
            elif code in (0, STOPPED_BY_SIGNAL):
                place.ended = Ended.LEFT if code == 0 else Ended.SENT_HOME
                return
            elif code == HANDLER_FAILS:  # another process would fail as well, and use up the tries of more items
                place.ended = Ended.BROKEN
                log = self._launcher.log_file(place.number)
                self._note(f"Worker {place.number} leaves: the scraper's code fails every time; its log is {log}.")
                return
            elif place.restarts >= self._options.max_restarts:
                place.ended = Ended.GAVE_UP
                self._note(
                    f"Worker {place.number} is given up after {counted(place.restarts, 'restart')}; its log is "
                    f"{self._launcher.log_file(place.number)}. The others go on."
                )
                return
            else:
                await self._pause_before_restart(place, code)
        place.ended = Ended.LEFT if self._over else Ended.SENT_HOME

    async def _fill(self, place: Place) -> int:
        """One process from its start to its end; what it may have left behind is freed."""
        place.ended = Ended.NO
        try:
            child = await self._launcher.launch(place.number, place.partitions)
        except OSError as error:
            self._note(f"Worker {place.number} cannot be started: {error.strerror}.")
            return REFUSED
        self._log.info("a worker starts", worker=place.number, pid=child.pid, partitions=place.partitions)
        if not place.wanted:  # it was sent home while its process was being made
            asyncio.get_running_loop().call_soon(self._send_home, place)
        code = await place.filled_by(child)
        self._log.info("a worker has ended", worker=place.number, pid=child.pid, code=code)
        if code != 0:
            try:
                freed = await self._roll.mark_dead(child.pid)
                self._log.info("its items are free", worker=place.number, items=freed)
            except LedgerError as error:  # then the end of its lease frees them
                self._note(f"The items of worker {place.number} wait for the end of its lease: {error.message}")
        return code

    async def _pause_before_restart(self, place: Place, code: int) -> None:
        place.restarts += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (place.restarts - 1))
        how = f"was killed by signal {-code}" if code < 0 else f"crashed (exit {code})"
        if code == EXIT_HUNG:
            how = f"hung on an item and ended itself; its log {self._launcher.log_file(place.number)} names it"
        self._note(
            f"Worker {place.number} {how}; restart {place.restarts} of {self._options.max_restarts} in {pause:g} s."
        )
        place.changed.clear()
        try:
            async with asyncio.timeout(pause):
                while place.wanted:
                    await place.changed.wait()
                    place.changed.clear()
        except TimeoutError:
            return

    def _wake(self, _: object) -> None:
        self._changed.set()

    def _note(self, text: str, **facts: object) -> None:
        self._log.info(text, **facts)
        self._tell(text)
