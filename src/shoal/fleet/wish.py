"""How many workers a pool is to have: said by anybody through the ledger, heard by the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shoal.errors import LedgerError
from shoal.ledger.protocols import Ledger

LOOK_SECONDS = 1.0
# Instead of a number: let the pool decide again.
AUTO = 0


async def put_wish(ledger: Ledger, scraper: str, workers: int, *, by: str) -> None:
    await ledger.settings.put(_scope(scraper), {"workers": workers}, by=by)


async def newest_wish(ledger: Ledger, scraper: str) -> tuple[int, int]:
    """Its version and the number of workers; zeros when nobody has ever said one."""
    found = await ledger.settings.get(_scope(scraper))
    return (0, 0) if found is None else (found[0], int(found[1]["workers"]))


async def follow_wishes(ledger: Ledger, scraper: str, obey: Callable[[int], Awaitable[None]], seen: int) -> None:
    """Let the pool obey whenever a newer wish than `seen` is there; never ends by itself."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            version, workers = await newest_wish(ledger, scraper)
            if version > seen:
                await obey(workers)
                seen = version
        except LedgerError:
            continue  # looked at again in a moment; the display tells of outages


def _scope(scraper: str) -> str:
    return f"pool:{scraper}"
