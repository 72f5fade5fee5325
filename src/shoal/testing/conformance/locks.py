"""Locks: one of many does it, once, and another one does it when that one dies."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from shoal.errors import InvalidItem
from shoal.testing.harness import LedgerHarness

LONG = 60.0


class LocksConformance:
    async def test_one_of_many_acquires_a_lock(self, harness: LedgerHarness) -> None:
        second = await harness.open_again()
        try:
            askers = [harness.ledger, second] * 5
            taken = await asyncio.gather(
                *(ledger.locks.acquire("slot", f"node-{number}", LONG) for number, ledger in enumerate(askers))
            )
        finally:
            await second.close()
        assert sorted(taken) == [False] * 9 + [True]
        lock = await harness.ledger.locks.get("slot")
        assert lock is not None
        assert lock.taken_by == f"node-{taken.index(True)}"
        assert lock.finished_at is None
        assert abs(lock.until - lock.taken_at - dt.timedelta(seconds=LONG)) < dt.timedelta(seconds=1)

    async def test_the_owner_may_acquire_a_lock_again(self, harness: LedgerHarness) -> None:
        assert await harness.ledger.locks.acquire("slot", "me", LONG)
        assert await harness.ledger.locks.acquire("slot", "me", LONG)
        assert not await harness.ledger.locks.acquire("slot", "you", LONG)

    async def test_an_expired_lock_goes_to_another(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.acquire("slot", "you", LONG)
        assert not await locks.renew("slot", "me", LONG)
        assert not await locks.complete("slot", "me", {"run_id": "1"})
        assert await locks.complete("slot", "you", {"run_id": "2"})

    async def test_a_renewed_lock_stays(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.renew("slot", "me", LONG)
        assert not await locks.acquire("slot", "you", LONG)

    async def test_a_completed_lock_cannot_be_acquired(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", 0.0)
        assert await locks.complete("slot", "me", {"run_id": "1"})
        assert await locks.complete("slot", "me", {"run_id": "1"})  # the answer to the first may have been lost
        assert not await locks.acquire("slot", "me", LONG)
        assert not await locks.acquire("slot", "you", LONG)
        assert not await locks.renew("slot", "me", LONG)
        lock = await locks.get("slot")
        assert lock is not None
        assert lock.finished_at is not None
        assert lock.value == {"run_id": "1"}

    async def test_a_released_lock_is_free_at_once(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        assert await locks.acquire("slot", "me", LONG)
        assert not await locks.release("slot", "you")
        assert await locks.release("slot", "me")
        assert await locks.acquire("slot", "you", LONG)

    async def test_locks_are_listed_by_name_descending(self, harness: LedgerHarness) -> None:
        locks = harness.ledger.locks
        for name in ("daily:2026-02", "daily:2026-01", "daily-b:2026-03", "Daily:2026-09", "daily:2026-10"):
            assert await locks.acquire(name, "me", LONG)
        assert [one.name for one in await locks.list("daily:")] == [
            "daily:2026-10",
            "daily:2026-02",
            "daily:2026-01",
        ]
        assert [one.name for one in await locks.list("daily:", limit=1)] == ["daily:2026-10"]
        assert await locks.get("daily:") is None

    async def test_a_lock_needs_a_name(self, harness: LedgerHarness) -> None:
        with pytest.raises(InvalidItem):
            await harness.ledger.locks.acquire(" ", "me", LONG)
