"""Three tokens, twelve workers in two groups of processes, some killed: no call too many, and hardly one too few."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.ledger.budgets import LATE_SHARE
from shoal.ledger.sqlite.ledger import open_sqlite
from tests.support import LONG
from tests.support.ledgers import prepare_template
from tests.support.postgres import PostgresDatabases, unique_name
from tests.support.token_api import TokenApi
from tests.support.token_workers import TOKENS, start_workers

LIMIT, WINDOW = (60, 5) if LONG else (30, 4)
WINDOWS = 12 if LONG else 2
KILLS = 8 if LONG else 3
DEADLINE = 240.0
# What the workers must have spent of the whole budget.
SHARE = 0.95
# A call may be under way for a quarter of a window after its share has ended; until then the ledger counts it in the
# next window too. One that a busy machine delays for longer may be counted by the site in a window for which it was not
# taken: each of them excuses one call above the budget there.
MAX_UNDER_WAY = WINDOW * LATE_SHARE


def full_windows(api: TokenApi, first: int) -> dict[int, float]:
    """The share of the budget that was spent in each window that is over, from the first on."""
    counted = api.counted()
    last = int(time.time() // WINDOW)
    return {
        window: sum(counted[token, window] for token in TOKENS.values()) / (len(TOKENS) * LIMIT)
        for window in range(first, last)
    }


def watch(api: TokenApi, pids: list[int], *, kills: int, windows: int) -> None:
    """Kill some workers, and wait until the others have spent the whole budget for some windows on end."""
    rng = random.Random(5)
    deadline = time.monotonic() + DEADLINE
    # In the window that runs now nobody knows yet when windows begin.
    first = int(time.time() // WINDOW) + 1
    kill_at = [time.monotonic() + WINDOW * (0.8 + 0.5 * number) for number in range(kills)]
    while time.monotonic() < deadline:
        if kill_at and time.monotonic() > kill_at[0]:
            del kill_at[0]
            os.kill(pids.pop(rng.randrange(len(pids))), signal.SIGKILL)
        spent = full_windows(api, first)
        if not kill_at and any(
            sum(spent[window] for window in range(start, start + windows)) >= SHARE * windows
            for start in spent
            if start + windows - 1 in spent
        ):
            return
        time.sleep(0.05)
    raise AssertionError(full_windows(api, first))


def calls_over_budget(api: TokenApi) -> Counter[tuple[str, int]]:
    """How many calls were too many, by token and window, without those that late calls explain."""
    return Counter((call.token, call.window) for call in api.over) - api.late_calls(MAX_UNDER_WAY)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresDatabases) -> Iterator[str]:
    name = unique_name()
    postgres_server.create_database(name)
    asyncio.run(prepare_template(postgres_server.url(name)))
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def test_twelve_workers_spend_all_of_three_budgets_and_nothing_more(database: str) -> None:  # S0.24
    with (
        TokenApi({"core": (LIMIT, WINDOW)}) as api,
        start_workers(database, api.url, (6, 6), f"{LIMIT}/{WINDOW}s") as pids,
    ):
        watch(api, pids, kills=KILLS, windows=WINDOWS)
    assert {call.token for call in api.calls} == {*TOKENS.values()}
    assert calls_over_budget(api) == Counter()


def test_workers_on_one_file_spend_all_of_it_and_nothing_more(sqlite_path: Path) -> None:
    async def migrate() -> None:
        ledger = await open_sqlite(sqlite_path)
        await ledger.schema.migrate()
        await ledger.close()

    asyncio.run(migrate())
    with (
        TokenApi({"core": (LIMIT, WINDOW)}) as api,
        start_workers(str(sqlite_path), api.url, (4,), f"{LIMIT}/{WINDOW}s") as pids,
    ):
        watch(api, pids, kills=1, windows=1)
    assert calls_over_budget(api) == Counter()
