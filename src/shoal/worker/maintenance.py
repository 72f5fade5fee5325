"""The ledger's maintenance, which every worker shares in: due items, dead workers, lanes, counts, finished runs.

It runs beside the work, on the connections of the work, and never on that of the heartbeat: however long the ledger
takes for it, leases stay. A round is bounded in time; what it leaves is done by the next round, of any worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.views import Tending

ROUND_SECONDS = 1.0


class Maintenance:
    """`on_round` hears what a round did."""

    def __init__(self, ledger: Ledger, on_round: Callable[[Tending], None], log: Log) -> None:
        self._ledger = ledger
        self._on_round = on_round
        self._log = log

    async def run(self) -> None:
        """A round a second until it is cancelled; at once again while a round leaves something to do."""
        while True:
            pause = ROUND_SECONDS * random.uniform(1.0, 1.25)
            try:
                done = await self._ledger.upkeep.tend()
            except LedgerError as error:
                # Claims and commits fail as well, and decide how long that is borne.
                self._log.debug("maintenance does not reach the ledger", error=error.message)
            else:
                self._on_round(done)
                if done.more:
                    pause = 0.0
            await asyncio.sleep(pause)
