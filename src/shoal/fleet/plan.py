"""The plan of a pool: what each worker has before it and, if the run has been measured, how long that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from shoal.fleet.shares import Shares, check_covers, deal, fitted, read_assignment
from shoal.ledger.protocols import Ledger
from shoal.observe.moment import look
from shoal.observe.rate import MINUTES, recent_rate


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done. `waiting`: open items by partition. `speed`: items per minute of one worker, if measured."""

    waiting: Mapping[str, int]
    done: int = 0
    total: int = 0
    speed: float | None = None


class PlannedWorker(msgspec.Struct, frozen=True, kw_only=True):
    """`waiting`: open items of its partitions, and its part of those that nobody owns. `eta`: seconds, if known."""

    number: int
    partitions: tuple[str, ...]
    waiting: int
    eta: float | None


async def outlook_on(ledger: Ledger, run_id: str) -> Outlook:
    moment = await look(ledger, run_id, gates=())
    waiting: Counter[str] = Counter()
    for part in moment.partitions:
        waiting[part.partition] += part.counts.remaining
    rate = await recent_rate(ledger, moment)
    busy = sum(1 for worker in await ledger.reads.workers(run_id, minutes=MINUTES) if worker.done + worker.dead)
    return Outlook(
        waiting=waiting,
        done=moment.counts.done,
        total=moment.counts.total,
        speed=rate / busy if rate and busy else None,
    )


def plan_workers(outlook: Outlook, shares: Shares) -> list[PlannedWorker]:
    owned = {name for share in shares for name in share}
    loose = sum(items for name, items in outlook.waiting.items() if name not in owned)
    planned = []
    for number, share in enumerate(shares):
        waiting = sum(outlook.waiting.get(name, 0) for name in share)
        waiting += loose // len(shares) + (number < loose % len(shares))
        eta = None if outlook.speed is None else waiting / outlook.speed * 60
        planned.append(PlannedWorker(number=number, partitions=share, waiting=waiting, eta=eta))
    return planned


class Dealer:
    """Gives every worker its partitions: evenly, or as the assignment says, which is read anew each time.

    `workers`: how many there are to be; None leaves it to the assignment, and without one to the configuration, which
    is read anew too. `unknown`: codes of the assignment that the run did not know when it was last read.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Outlook]],
        *,
        assignment: Path | None,
        workers: int | None,
        configured: Callable[[], int],
    ) -> None:
        self._look = look
        self._assignment = assignment
        self._fixed = workers
        self._configured = configured
        self._known = configured()
        self._workers = workers or self._known
        self.unknown: list[str] = []

    async def shares(self, workers: int | None = None) -> Shares:
        """For so many workers, or for as many as are configured. Raises UsageError for a wrong assignment."""
        waiting = (await self._look()).waiting
        if self._assignment is None:
            if workers is None and self._fixed is None and (now := self._configured()) != self._known:
                self._known = self._workers = now
            self._workers = workers or self._workers
            return deal(waiting, self._workers)
        assigned = read_assignment(self._assignment)
        self.unknown = check_covers(assigned, waiting)
        return fitted(assigned, workers or self._fixed or len(assigned))
