"""What any worker does now and then. The reading connection looks first: most rounds write nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from shoal.ledger.sqlite.admit import admit_to
from shoal.ledger.sqlite.claims import promote_due
from shoal.ledger.sqlite.clock import MICRO
from shoal.ledger.sqlite.database import Database
from shoal.ledger.sqlite.idle import settle_idle
from shoal.ledger.sqlite.integrity import examine
from shoal.ledger.sqlite.orders import cancel_open_items
from shoal.ledger.sqlite.removal import purge
from shoal.ledger.sqlite.schema import made_schema
from shoal.ledger.sqlite.transaction import Transaction, json_text
from shoal.ledger.sqlite.unlease import reap
from shoal.ledger.upkeep import AuditedUpkeep
from shoal.model.run import RunState
from shoal.model.views import Finding, Tending

EVERY = {"reap": 1 * MICRO, "lanes": 5 * MICRO, "tidy": 60 * MICRO}
SWEEP_AT_ONCE = 10_000
STEPS_AT_ONCE = 1_000
MINUTES_KEPT = 8 * 24 * 60
ERRAND_DAYS_KEPT = 400


class SqliteUpkeep(AuditedUpkeep):
    def __init__(self, db: Database, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def tend(self) -> Tending:
        woken = 0
        if await self._db.value(self._sql["anything_due"]):
            while moved := await self._db.write(promote_due):
                woken += moved
        reaped = Tending()
        for row in await self._db.fetch(self._sql["ticks_due"], json_text(EVERY)):
            match row["name"]:
                case "reap":
                    reaped = await self._db.write(_reap)
                case "lanes" if await self._db.write(lambda tx: _take(tx, "lanes")):
                    await settle_idle(self._db, self._sql)
                    await self._sweep_lanes()
                case "tidy" if await self._db.write(_tidy):
                    await self._take_up()
        finished: tuple[str, ...] = ()
        if await self._db.fetch(self._sql["finishable_runs"]):
            finished = await self._db.write(finish_runs)
        return Tending(
            woken=woken,
            lost_workers=reaped.lost_workers,
            rescued=reaped.rescued,
            quarantined=reaped.quarantined,
            finished=finished,
        )

    async def audit(self, *, content: bool = False) -> list[Finding]:
        """The file first: rules can be checked only on rows that can be read."""
        found = await self._db.read(lambda connection: examine(connection, made_schema())) if content else []
        return [*found, *await super().audit()]

    async def wait(self, seconds: float) -> None:
        await self._db.wait_for_wake(seconds)

    async def _sweep_lanes(self) -> None:
        """Ask lanes that could let somebody out but were not asked."""
        lanes: str = await self._db.value(self._sql["lanes_with_room"], SWEEP_AT_ONCE)
        if lanes != "[]":
            await self._db.write(lambda tx: admit_to(tx, lanes))

    async def _take_up(self) -> None:
        """What was interrupted half-way is taken up again by whoever comes by."""
        for row in await self._db.fetch(self._sql["half_cancelled_runs"]):
            await self._in_steps(partial(cancel_open_items, no=row["no"], reason="The run was cancelled."))
        for row in await self._db.fetch(self._sql["removed_runs"]):
            await self._in_steps(partial(purge, no=row["no"]))

    async def _in_steps(self, step: Callable[[Transaction], int]) -> None:
        for _ in range(STEPS_AT_ONCE):
            if not await self._db.write(step):
                return


def _take(tx: Transaction, name: str) -> bool:
    """True for one caller per interval; the others go on."""
    return tx.run("take_tick", name, tx.now, EVERY[name]) > 0


def _reap(tx: Transaction) -> Tending:
    return reap(tx) if _take(tx, "reap") else Tending()


def _tidy(tx: Transaction) -> bool:
    due = _take(tx, "tidy")
    if due:
        tx.run("tidy_minutes", tx.now - MINUTES_KEPT * 60 * MICRO)
        tx.run("tidy_errands", tx.now - ERRAND_DAYS_KEPT * 24 * 3_600 * MICRO)
    return due


def finish_runs(tx: Transaction) -> tuple[str, ...]:
    """Runs that are sealed and have nothing left are finished. Returns their ids."""
    finished = []
    for no, run_id in tx.rows("finishable_runs"):
        tx.run("change_run_state", no, RunState.FINISHED.value, tx.now)
        tx.note(no, "ledger", "run.finished", run_id, {})
        finished.append(run_id)
    return tuple(finished)
