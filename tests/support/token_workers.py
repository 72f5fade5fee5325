"""Workers of a token pool, each in a process of its own, all forked from one: how a fleet spends its budgets.

    python -m tests.support.token_workers LEDGER_URL API_URL BUDGET WORKERS SECONDS

Its environment has the tokens, in variables that begin with API_TOKEN. It prints the process ids of its workers in one
line, and ends when they have. Workers call the API without a pause, as many requests at once as `AT_ONCE`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import structlog

from shoal.config.egress import EgressConfig, parse_budget
from shoal.egress.tokens import TokenPool
from shoal.errors import EgressUnavailable
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.url_key import host_or_none
from shoal.model.worker import WorkerSpec

TOKENS = {f"API_TOKEN_{number}": f"secret-of-token-{number}" for number in range(3)}
MAX_SECONDS = 300.0
AT_ONCE = 3
SYNC_SECONDS = 0.5
_REPOSITORY = Path(__file__).parents[2]


@contextmanager
def start_workers(ledger: str, api_url: str, groups: tuple[int, ...], budget: str) -> Iterator[list[int]]:
    """Groups of so many workers with three tokens. The process ids; those that live are stopped at the end."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, ledger, api_url, budget, str(count), str(MAX_SECONDS)],
            cwd=_REPOSITORY,
            env={**os.environ, **TOKENS},
            stdout=subprocess.PIPE,
            text=True,
        )
        for count in groups
    ]
    pids: list[int] = []
    try:
        for process in processes:
            assert process.stdout is not None
            pids += [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == sum(groups)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        for process in processes:
            assert process.wait(30) == 0
            assert process.stdout is not None
            process.stdout.close()


def main(ledger_url: str, api_url: str, budget: str, workers: str, seconds: str) -> None:
    pids = []
    for number in range(int(workers)):
        pid = os.fork()
        if pid == 0:
            asyncio.run(work(ledger_url, api_url, budget, f"worker-{number}-{os.getpid()}", float(seconds)))
            os._exit(0)
        pids.append(pid)
    print(*pids, flush=True)
    for pid in pids:
        os.waitpid(pid, 0)


async def work(ledger_url: str, api_url: str, budget: str, name: str, seconds: float) -> None:
    ledger: Ledger = await (open_postgres(ledger_url) if "://" in ledger_url else open_sqlite(Path(ledger_url)))
    await ledger.workers.register(WorkerSpec(id=name, node="node", pid=os.getpid(), lease_seconds=30))
    given = {key: value for key, value in os.environ.items() if key.startswith("API_TOKEN")}
    config = EgressConfig(name="api", kind="tokens", env=("API_TOKEN*",), given=given, budget=parse_budget(budget))
    pool = TokenPool(config, log=structlog.get_logger())
    await pool.start()
    ends_at = time.monotonic() + seconds
    stopping = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set_result, None)
    try:
        async with aiohttp.ClientSession() as session:
            await pool.sync(ledger, name)
            callers = [asyncio.create_task(call(pool, session, api_url)) for _ in range(AT_ONCE)]
            while time.monotonic() < ends_at and not stopping.done():
                await pool.sync(ledger, name)
                await asyncio.wait([stopping], timeout=min(SYNC_SECONDS, max(0.0, ends_at - time.monotonic())))
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
    finally:
        await pool.close()
        await ledger.close()


async def call(pool: TokenPool, session: aiohttp.ClientSession, api_url: str) -> None:
    """What a fetcher does with an identity, for ever."""
    while True:
        try:
            url = f"{api_url}/users/anybody"
            identity = pool.choose(host_or_none(url) or "")
            headers = await identity.before_request(url, 0)
        except EgressUnavailable as unavailable:
            await asyncio.sleep(min(unavailable.retry_after or 0.1, 0.2))
            continue
        (made,) = identity._calls.values()
        async with session.get(url, headers={**headers, "X-Taken-At": repr(made.call.sent_at)}) as response:
            identity.on_response(url, response.status, response.headers)
            await response.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
