"""The size of a pool: asked for through the ledger, or chosen by the autoscaler.

How many workers a pool is to have: said by anybody through the ledger, heard by the pool.

How many workers a pool has, when it may choose: it looks every few seconds, and the elastic rule decides.

A person who says a number is obeyed, and the rule rests until a person lets it decide again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from shoal.autoscale.rules import Pace, Signs
from shoal.autoscale.scaler import ACTION, Ends, Scaler, backlog_of
from shoal.errors import LedgerError, NotFound
from shoal.fleet.pool import Pool
from shoal.fleet.pool_workers import Roll
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.model.worker import Scope

SIZE_POLL_SECONDS = 1.0
# Instead of a number: let the pool decide again.
AUTO = 0
LOOK_SECONDS = 2.0
# A process takes a second to come and may take half a minute to leave.
PACE = Pace(grow=4.0, settle=30.0, hot=6.0, quiet=30.0, remember=300.0)
WHAT = "workers"
# The ledger counts by whole minutes: two of them hold at least the last one.
MINUTES = 2


async def put_wish(ledger: Ledger, scraper: str, workers: int, *, by: str) -> None:
    await ledger.settings.put(_scope(scraper), {"workers": workers}, by=by)


async def newest_wish(ledger: Ledger, scraper: str) -> tuple[int, int]:
    """Its version and the number of workers; zeros when nobody has ever said one."""
    found = await ledger.settings.get(_scope(scraper))
    return (0, 0) if found is None else (found[0], int(found[1]["workers"]))


async def follow_wishes(ledger: Ledger, scraper: str, obey: Callable[[int], Awaitable[None]], seen: int) -> None:
    """Let the pool obey whenever a newer wish than `seen` is there; never ends by itself."""
    while True:
        await asyncio.sleep(SIZE_POLL_SECONDS)
        try:
            version, workers = await newest_wish(ledger, scraper)
            if version > seen:
                await obey(workers)
                seen = version
        except LedgerError:
            continue  # looked at again in a moment; the display tells of outages


def _scope(scraper: str) -> str:
    return f"pool:{scraper}"


class Elastic:
    """Moves a pool within the scaler's bounds. `each`: items that one worker works on at once."""

    def __init__(self, ledger: Ledger, run: Run, pool: Pool, roll: Roll, scaler: Scaler, *, each: int) -> None:
        self._ledger = ledger
        self._run_id = run.id
        self._scraper = run.scraper
        self._pool = pool
        self._roll = roll
        self._scaler = scaler
        self._each = each
        self._resting = False
        self._subject = f"pool {socket.gethostname()}"

    async def obey(self, workers: int) -> None:
        """A person asked for so many, or for the rule to decide again. Raises LedgerError."""
        self._resting = workers != AUTO
        before = self._pool.size
        if self._resting:
            await self._pool.scale(workers)
            why = f"a person asked for it; the elastic rule rests until `shoal pool scale {self._scraper} auto`"
        else:
            why = "a person let the elastic rule decide again"
        most = self._scaler.bounds.most
        detail = {"from": before, "to": self._pool.size, "most": most, "what": WHAT, "why": why}
        await self._ledger.runs.record_event(self._run_id, ACTION, self._subject, detail, by=self._subject)

    async def run(self) -> None:
        """Until it is cancelled. While the ledger is away everything stays as it is."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._resting or self._pool.stopping:
                continue
            with suppress(LedgerError, NotFound):  # others tell of outages, and of a run that was removed
                await self._look()

    async def _look(self) -> None:
        pool, now = self._pool, self._pool.size
        backlog = await backlog_of(self._ledger, Scope(run_ids=(self._run_id,)))
        held = await self._roll.held_by(pool.pids)
        recent = await self._ledger.reads.recent(self._run_id, minutes=MINUTES)
        # An item that dies at once, as a page that is not there does, is no sign of trouble. Those that died of what is
        # tried again have left retries behind them.
        ends = Ends(
            recent.done + recent.dead + recent.retried + recent.throttled,
            recent.retried + min(recent.dead, recent.retried),
            recent.throttled,
        )
        signs = Signs(
            at=time.monotonic(),
            backlog=backlog.ready,
            behind_lanes=backlog.behind_lanes,
            idle=max(0, pool.expected - -(-held // self._each)),
            each=self._each,
        )
        decision = self._scaler.judge(now, signs, ends)
        if self._resting or not backlog.run_ids:
            return  # a person was faster, or the run is not active
        if decision.target != now:
            await pool.fit(decision.target, decision.why)
        await self._scaler.tell(self._ledger.runs, backlog.run_ids, self._subject, now, decision)
