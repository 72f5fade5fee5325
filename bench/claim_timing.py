"""How long single claims take; what they took is committed outside the measurement."""

from __future__ import annotations

import time

from bench.consumer import Consumer


async def timed_claims(worker: Consumer, count: int) -> list[float]:
    """Seconds of `count` full claims."""
    timings = []
    for _ in range(count):
        began = time.perf_counter()
        batch = await worker.claim()
        timings.append(time.perf_counter() - began)
        if len(batch) < worker.batch:
            raise RuntimeError(f"a claim found {len(batch)} of {worker.batch} items: the backlog is too small")
        await worker.commit(batch)
    return timings
