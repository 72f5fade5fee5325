"""Views that scrapers declare: created once, replaced after a change, never in the place of somebody else's."""

from __future__ import annotations

import asyncio

import pytest

from shoal.errors import InvalidScraper
from shoal.ledger.schema import SqlView
from shoal.testing.harness import LedgerHarness

ONE = SqlView("numbers", "select 1 as number")
TWO = SqlView("doubles", "select number * 2 as twice from numbers")


class ViewsConformance:
    async def test_views_are_created_once_and_replaced_after_a_change(self, harness: LedgerHarness) -> None:
        schema = harness.ledger.schema
        assert await schema.put_views([ONE, TWO])
        assert not await schema.put_views([ONE, TWO])
        changed = SqlView("numbers", "select 'a' as text, 3 as number")
        assert await schema.put_views([changed, TWO])
        assert not await schema.put_views([changed, TWO])

    async def test_of_two_processes_one_creates_them(self, harness: LedgerHarness) -> None:
        second = await harness.open_again()
        try:
            created = await asyncio.gather(
                *(ledger.schema.put_views([ONE, TWO]) for ledger in (harness.ledger, second) * 3)
            )
        finally:
            await second.close()
        assert any(created)
        assert not await harness.ledger.schema.put_views([ONE, TWO])

    async def test_a_wrong_select_changes_nothing(self, harness: LedgerHarness) -> None:
        schema = harness.ledger.schema
        await schema.put_views([ONE])
        with pytest.raises(InvalidScraper, match="cannot be created"):
            await schema.put_views(
                [SqlView("numbers", "select 2 as number"), SqlView("wrong", "select * from nowhere")]
            )
        assert not await schema.put_views([ONE])
