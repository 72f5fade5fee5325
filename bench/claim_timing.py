"""How long single claims take, and the commits of what they took."""

from __future__ import annotations

import time

from bench.consumer import Consumer


async def timed_steps(worker: Consumer, count: int) -> tuple[list[float], list[float]]:
    """Seconds of `count` full claims, and of their commits."""
    claims, commits = [], []
    for _ in range(count):
        began = time.perf_counter()
        batch = await worker.claim()
        claimed = time.perf_counter()
        if len(batch) < worker.batch:
            raise RuntimeError(f"a claim found {len(batch)} of {worker.batch} items: the backlog is too small")
        await worker.commit(batch)
        commits.append(time.perf_counter() - claimed)
        claims.append(claimed - began)
    return claims, commits
