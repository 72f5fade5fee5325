"""API tokens: what a fleet spends of their budgets by the API's own count, and what a token costs a request."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Mapping

from bench.figures import Report
from bench.places import open_ledger
from bench.session import Effort, Session
from shoal.config.egress import EgressConfig
from shoal.egress.tokens import TokenPool
from shoal.model.egress import BudgetPolicy
from shoal.model.worker import WorkerSpec
from tests.support.sinks import SilentLog
from tests.support.token_api import TokenApi
from tests.support.token_workers import TOKENS, start_workers

LIMIT, WINDOW = 300, 10
WINDOWS: dict[Effort, int] = {"quick": 3, "full": 12}
REQUESTS: dict[Effort, int] = {"quick": 10_000, "full": 50_000}
KILLS = 4
URL = "https://api.example/users/1"
HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}


def run(session: Session) -> Report:
    windows, requests = session.size(WINDOWS), session.size(REQUESTS)
    report = Report(
        "egress_tokens",
        "Does a fleet stay within the budgets of its tokens, use them up, and pay little for it?",
        {"tokens": len(TOKENS), "calls": LIMIT, "seconds": WINDOW, "windows": windows, "killed": KILLS},
    )
    for place, groups in ((session.postgres, (6, 6)), (session.sqlite, (6,))):
        with place.fresh() as address, TokenApi({"core": (LIMIT, WINDOW)}) as api:
            spent = _spend(address, api, groups, windows)
        report.add(f"{place.name}: spent of each window", "share", spent)
        report.target(f"{place.name}: requests over a token budget", float(len(api.over)), at_most=0)
        report.target(f"{place.name}: calls / what the budgets allow", sum(spent) / len(spent), at_least=0.95)
        with place.fresh() as address:
            costs = [asyncio.run(_cost(address, requests)) for _ in range(session.rounds)]
        report.add(f"{place.name}: a token for a request", "microseconds", costs)
    return report


def _spend(address: str, api: TokenApi, groups: tuple[int, ...], windows: int) -> list[float]:
    """The share of the budget that was spent in each window, while some workers are killed."""
    rng = random.Random(1)
    with start_workers(address, api.url, groups, f"{LIMIT}/{WINDOW}s") as pids:
        first = int(time.time() // WINDOW) + 1
        for number in range(KILLS):
            time.sleep(max(0.0, (first + (number + 0.5) * windows / KILLS) * WINDOW - time.time()))
            os.kill(pids.pop(rng.randrange(len(pids))), signal.SIGKILL)
        time.sleep(max(0.0, (first + windows) * WINDOW - time.time()))
        counted = api.counted()
    return [
        sum(counted[token, window] for token in TOKENS.values()) / (LIMIT * len(TOKENS))
        for window in range(first, first + windows)
    ]


async def _cost(address: str, requests: int) -> float:
    """Microseconds per request for choosing a token, counting the call and reading the answer's headers."""
    ledger = await open_ledger(address)
    try:
        await ledger.workers.register(WorkerSpec(id="bench", node="bench", pid=1, lease_seconds=3_600))
        config = EgressConfig(
            name="api", kind="tokens", env=("API_TOKEN_*",), given=TOKENS, budget=BudgetPolicy(100_000_000, 3_600.0)
        )
        pool = TokenPool(config, log=SilentLog())
        await pool.start()
        await pool.sync(ledger, "bench")
        began = time.perf_counter()
        for _ in range(requests):
            identity = pool.choose("api.example")
            await identity.before_request(URL, 0)
            identity.on_response(URL, 200, HEADERS)
        seconds = time.perf_counter() - began
        await pool.close()
        return seconds / requests * 1e6
    finally:
        await ledger.close()
