"""Keeping an errand while it is being done, and noticing when it is lost."""

from __future__ import annotations

import asyncio
import time

from shoal.errors import LedgerError
from shoal.ledger.protocols import Errands

KEPT_PER_LEASE = 4


async def keep_until_lost(errands: Errands, name: str, by: str, seconds: float) -> None:
    """Say again and again that it is ours. Returns when it is somebody else's, or may be: the ledger has not answered
    for as long as others would wait.
    """
    heard = time.monotonic()
    while (left := heard + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(left, seconds / KEPT_PER_LEASE))
        asked = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, heard + seconds - asked)):
                if not await errands.keep(name, by, seconds):
                    return
                heard = asked
        except (TimeoutError, LedgerError):
            continue
