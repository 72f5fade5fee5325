"""The checks of `shoal doctor`: each can succeed and fail."""

import datetime as dt
from pathlib import Path

import pytest

from shoal.config import Settings
from shoal.model.views import HealthReport
from shoal.model.worker import Scope, WorkerReport, WorkerState, WorkerView
from shoal.observe.doctor import (
    check_code,
    check_disk,
    check_heartbeats,
    check_ledger,
    check_server,
    check_trouble,
    check_versions,
)
from shoal.wiring import connect_ledger, ledger_context
from tests.support.live_run import prepare
from tests.support.snapshots import NOON


def health(sessions: int = 5, waits: int = 0, longest: float | None = None) -> HealthReport:
    return HealthReport(clock=NOON, sessions=sessions, most_sessions=100, lock_waits=waits, longest_transaction=longest)


def worker(
    version: str = "1.0",
    silent: float = 1.0,
    code: str | None = "abc",
    scraper: str | None = "shop",
    leased: int = 0,
    report: WorkerReport | None = None,
) -> WorkerView:
    return WorkerView(
        id="w",
        node="n",
        pid=1,
        version=version,
        code=code,
        state=WorkerState.LIVE,
        started_at=NOON,
        silent_seconds=silent,
        lease_seconds=30.0,
        leased=leased,
        scope=Scope(scraper=scraper),
        report=report,
    )


@pytest.mark.parametrize(
    ("samples", "wrong"),
    [
        ([health(), health(waits=9)], []),  # a passing wait
        ([health(waits=2), health(waits=9)], ["locks"]),  # S0.20
        ([health(sessions=90)], ["connections"]),
        ([health(longest=7200.0)], ["transactions"]),
    ],
)
def test_server_checks(samples: list[HealthReport], wrong: list[str]) -> None:
    checks = check_server(samples)
    assert [check.name for check in checks if not check.ok] == wrong
    assert all(check.fix for check in checks if not check.ok)


def test_a_server_with_too_few_connections() -> None:
    (connections, *_) = check_server([health(sessions=60)], 20)
    assert connections.ok
    (connections, *_) = check_server([health(sessions=60)], 50)
    assert not connections.ok
    assert "50 workers, 3 each, need 150" in connections.text
    assert "max_connections" in connections.fix


def test_worker_checks() -> None:
    assert check_versions([worker()], "1.0").ok
    assert "0.9" in check_versions([worker(), worker("0.9")], "1.0").text
    assert not check_versions([worker("0.9")], "1.0").ok
    assert check_heartbeats([worker()]).ok
    check = check_heartbeats([worker(), worker(silent=31.0, leased=3)])
    assert not check.ok
    assert (
        "1 of 2 are dead or disconnected; w: no heartbeat for 31 s (its lease is 30 s); its 3 items return"
        in check.text
    )
    assert check_trouble([worker(), worker(report=WorkerReport())]).ok
    check = check_trouble([worker(), worker(report=WorkerReport(trouble="There is no space left for x.db."))])
    assert (check.ok, "w: There is no space left for x.db." in check.text) == (False, True)


def test_workers_with_different_code() -> None:
    """Only among the workers of one scraper: two scrapers always have different code."""
    assert check_code([worker(), worker(code=None), worker(code="def", scraper="books")]).ok
    check = check_code([worker(), worker(), worker(code="def")])
    assert not check.ok
    assert "shop: abc (2 workers), def (1 worker)" in check.text
    assert "shoal workers stop" in check.fix


def test_disk_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_disk(tmp_path / "ledger.db").ok
    monkeypatch.setattr("shoal.observe.doctor.MIN_FREE_BYTES", 1 << 60)
    assert not check_disk(tmp_path / "ledger.db").ok
    assert not check_disk(tmp_path / "gone" / "ledger.db").ok


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_checks_on_a_real_ledger(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = request.getfixturevalue("sqlite_path" if kind == "sqlite" else "postgres_url")
    settings = Settings(ledger=str(place))
    raw = await connect_ledger(settings)
    assert [check.name for check in await check_ledger(raw, version="1.0") if not check.ok] == ["schema"]
    await raw.close()
    async with ledger_context(settings, migrate=True) as ledger:
        await prepare(ledger, version="1.0")
        checks = {check.name: check for check in await check_ledger(ledger, version="1.0")}
        assert [check for check in checks.values() if not check.ok] == []
        assert ("connections" in checks) == (kind == "postgres")
        monkeypatch.setattr("shoal.observe.doctor.STALE_LEASE_SECONDS", 0.0)
        found = {check.name for check in await check_ledger(ledger, version="2.0") if not check.ok}
        assert found == {"versions", "leases"}


async def test_a_wrong_clock(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger_context(Settings(ledger=str(sqlite_path))) as ledger:
        real = await ledger.health.check()

        async def off() -> HealthReport:
            return HealthReport(clock=real.clock - dt.timedelta(hours=2))

        monkeypatch.setattr(ledger.health, "check", off)
        (clock,) = [check for check in await check_ledger(ledger, version="1") if check.name == "clock"]
    assert not clock.ok
    assert "2h00 ahead of" in clock.text
