"""Errands: one of many does it, once, and another one does it when that one dies."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from shoal.errors import InvalidItem
from shoal.testing.lab import Lab

LONG = 60.0


class ErrandsConformance:
    async def test_one_of_many_takes_an_errand(self, lab: Lab) -> None:
        second = await lab.another()
        try:
            askers = [lab.ledger, second] * 5
            taken = await asyncio.gather(
                *(ledger.errands.take("slot", f"node-{number}", LONG) for number, ledger in enumerate(askers))
            )
        finally:
            await second.close()
        assert sorted(taken) == [False] * 9 + [True]
        errand = await lab.ledger.errands.get("slot")
        assert errand is not None
        assert errand.taken_by == f"node-{taken.index(True)}"
        assert errand.finished_at is None
        assert abs(errand.until - errand.taken_at - dt.timedelta(seconds=LONG)) < dt.timedelta(seconds=1)

    async def test_who_has_an_errand_may_take_it_again(self, lab: Lab) -> None:
        assert await lab.ledger.errands.take("slot", "me", LONG)
        assert await lab.ledger.errands.take("slot", "me", LONG)
        assert not await lab.ledger.errands.take("slot", "you", LONG)

    async def test_an_errand_whose_time_is_up_goes_to_another(self, lab: Lab) -> None:
        errands = lab.ledger.errands
        assert await errands.take("slot", "me", 0.0)
        assert await errands.take("slot", "you", LONG)
        assert not await errands.keep("slot", "me", LONG)
        assert not await errands.finish("slot", "me", {"run_id": "1"})
        assert await errands.finish("slot", "you", {"run_id": "2"})

    async def test_a_kept_errand_stays(self, lab: Lab) -> None:
        errands = lab.ledger.errands
        assert await errands.take("slot", "me", 0.0)
        assert await errands.keep("slot", "me", LONG)
        assert not await errands.take("slot", "you", LONG)

    async def test_a_finished_errand_is_nobodys_any_more(self, lab: Lab) -> None:
        errands = lab.ledger.errands
        assert await errands.take("slot", "me", 0.0)
        assert await errands.finish("slot", "me", {"run_id": "1"})
        assert await errands.finish("slot", "me", {"run_id": "1"})  # the answer to the first may have been lost
        assert not await errands.take("slot", "me", LONG)
        assert not await errands.take("slot", "you", LONG)
        assert not await errands.keep("slot", "me", LONG)
        errand = await errands.get("slot")
        assert errand is not None
        assert errand.finished_at is not None
        assert errand.value == {"run_id": "1"}

    async def test_a_dropped_errand_is_free_at_once(self, lab: Lab) -> None:
        errands = lab.ledger.errands
        assert await errands.take("slot", "me", LONG)
        assert not await errands.drop("slot", "you")
        assert await errands.drop("slot", "me")
        assert await errands.take("slot", "you", LONG)

    async def test_errands_are_listed_by_their_names_the_last_first(self, lab: Lab) -> None:
        errands = lab.ledger.errands
        for name in ("daily:2026-02", "daily:2026-01", "daily-b:2026-03", "Daily:2026-09", "daily:2026-10"):
            assert await errands.take(name, "me", LONG)
        assert [one.name for one in await errands.list("daily:")] == [
            "daily:2026-10",
            "daily:2026-02",
            "daily:2026-01",
        ]
        assert [one.name for one in await errands.list("daily:", limit=1)] == ["daily:2026-10"]
        assert await errands.get("daily:") is None

    async def test_an_errand_needs_a_name(self, lab: Lab) -> None:
        with pytest.raises(InvalidItem):
            await lab.ledger.errands.take(" ", "me", LONG)
