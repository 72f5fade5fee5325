"""The two shapes of a consumer: one step after the other, and as a worker does it, claims ahead of commits.

Shoal and the bare loops run through the same code here, so that like is compared with like.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

_Row = TypeVar("_Row")
Claim = Callable[[], Awaitable[Sequence[_Row]]]
Commit = Callable[[Sequence[_Row]], Awaitable[None]]

BATCHES_AHEAD = 2
COMMITS_IN_FLIGHT = 2


async def sequential(claim: Claim[_Row], commit: Commit[_Row], total: int) -> float:
    """Claim a batch, commit it, and so on until `total` items are done. Returns the seconds it took."""
    began = time.perf_counter()
    done = 0
    while done < total:
        batch = await claim()
        if not batch:
            raise RuntimeError(f"nothing left to claim after {done} of {total} items")
        await commit(batch)
        done += len(batch)
    return time.perf_counter() - began


async def pipelined(claim: Claim[_Row], commit: Commit[_Row], total: int) -> float:
    """One claimer fills a small buffer; up to two commits are in flight. Returns the seconds it took."""
    began = time.perf_counter()
    batches: asyncio.Queue[Sequence[_Row] | None] = asyncio.Queue(BATCHES_AHEAD)
    committed = asyncio.Event()

    async def committer() -> None:
        while (batch := await batches.get()) is not None:
            await commit(batch)
            committed.set()

    async with asyncio.TaskGroup() as group:
        for _ in range(COMMITS_IN_FLIGHT):
            group.create_task(committer())
        claimed = 0
        while claimed < total:
            committed.clear()
            batch = await claim()
            if batch:
                claimed += len(batch)
                await batches.put(batch)
                continue
            # Behind a full lane there is nothing until a commit frees a place; the poll covers other processes.
            with suppress(TimeoutError):
                await asyncio.wait_for(committed.wait(), 0.01)
        for _ in range(COMMITS_IN_FLIGHT):
            await batches.put(None)
    return time.perf_counter() - began
