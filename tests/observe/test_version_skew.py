"""Version skew: which workers count, and the sentences about it."""

from __future__ import annotations

import pytest

from shoal.model.worker import Scope, WorkerState, WorkerView
from shoal.observe.snapshot import live_workers, version_skew
from tests.support.snapshots import NOON, run_like


def worker(
    name: str = "w", *, version: str = "2.0", code: str | None = "new", scope: Scope | None = None
) -> WorkerView:
    return WorkerView(
        id="w",
        node="n",
        pid=1,
        version=version,
        code=code,
        state=WorkerState.LIVE,
        started_at=NOON,
        silent_seconds=1.0,
        lease_seconds=30.0,
        leased=0,
        scope=scope or Scope(scraper="shop"),
    )


def test_version_skew_sentences() -> None:
    assert version_skew([worker(), worker(), worker(version="", code=None)]).lines == []
    mixed = version_skew([worker(version="1.0", code="old"), worker(), worker()])
    assert mixed.versions == {"2.0": 2, "1.0": 1}
    assert mixed.lines == [
        "Workers run different versions of Shoal: 2.0 (2 workers), 1.0 (1 worker).",
        "Workers run different code: new (2 workers), old (1 worker).",
    ]


@pytest.mark.parametrize(
    ("scope", "counts"),
    [
        (Scope(), True),
        (Scope(scraper="shop"), True),
        (Scope(scraper="shop", run_ids=("20260131_120000",)), True),
        (Scope(scraper="shop", run_ids=("20260101_000000",)), False),
        (Scope(scraper="books"), False),
    ],
)
def test_live_workers_of_a_run(scope: Scope, counts: bool) -> None:
    assert bool(live_workers([worker(scope=scope)], run_like(id="20260131_120000", scraper="shop"))) == counts
