"""Child processes: how they are started, stopped, limited and waited for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from shoal.fleet.process import (
    ChildCommand,
    ChildProcess,
    ProcessLimits,
    SessionMemory,
    child_environment,
    wait_within_limits,
)

# In the place of `shoal`: a child that counts the signals it gets, or ignores them.
STUB = """
import signal, sys, time
ignore = "ignore" in sys.argv
def on_signal(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGINT and not ignore:
        sys.exit(7)
signal.signal(signal.SIGTERM, on_signal)
signal.signal(signal.SIGINT, on_signal)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With a package `shoal` that is the stub, and has the real `parent_watch`."""
    import shoal

    package = tmp_path / "stub" / "shoal"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STUB)
    (package / "fleet").symlink_to(Path(shoal.__file__).parent / "fleet")
    return {**os.environ, "PYTHONPATH": str(package.parent), "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}


def command(tmp_path: Path, environment: dict[str, str], *arguments: str, stop_timeout: float = 30.0) -> ChildCommand:
    return ChildCommand(
        arguments=arguments, environment=environment, stop_timeout=stop_timeout, log=tmp_path / "child.log"
    )


async def until_log_has(tmp_path: Path, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in (tmp_path / "child.log").read_text():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)


async def test_the_first_stop_drains_and_the_second_gives_back(tmp_path: Path, environment: dict[str, str]) -> None:
    child = ChildProcess(command(tmp_path, environment))
    await child.start()
    assert child.is_running
    await until_log_has(tmp_path, "ready")
    child.stop()
    await until_log_has(tmp_path, "SIGTERM")
    child.stop()
    assert await child.wait() == 7
    assert (tmp_path / "child.log").read_text().split() == ["ready", "SIGTERM", "SIGINT"]
    assert child.stop_requested
    assert not child.is_running


async def test_a_child_that_does_not_stop_is_killed(tmp_path: Path, environment: dict[str, str]) -> None:
    kills: list[int] = []
    child = ChildProcess(
        command(tmp_path, environment, "ignore", stop_timeout=0.3), on_kill=lambda: kills.append(child.pid)
    )
    await child.start()
    await until_log_has(tmp_path, "ready")
    child.stop()
    assert await child.wait() == -9
    assert kills == [child.pid]


async def test_a_stop_before_the_start_takes_effect(tmp_path: Path, environment: dict[str, str]) -> None:
    child = ChildProcess(command(tmp_path, environment, stop_timeout=0.5))
    child.stop()
    await child.start()
    assert await child.wait() < 0  # by SIGTERM, or by SIGKILL when it was ready for SIGTERM


async def test_a_stop_after_the_end_changes_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    child = ChildProcess(command(tmp_path, environment))
    await child.start()
    child.kill()
    assert await child.wait() == -9
    child.stop()
    assert not child.stop_requested


async def test_a_child_that_exceeds_a_limit_is_stopped(tmp_path: Path, environment: dict[str, str]) -> None:
    async def no_run() -> float | None:
        return None

    child = ChildProcess(command(tmp_path, environment, stop_timeout=0.2))
    await child.start()
    limits = ProcessLimits(timeout=0.5, stale=60, memory=1 << 20)
    ended = await wait_within_limits(child, limits, SessionMemory(), no_run)
    assert ended.limit == "timed out after 0.5 s"
    assert ended.code < 0

    child = ChildProcess(command(tmp_path, environment))
    await child.start()
    limits = ProcessLimits(timeout=60, stale=60, memory=1)
    ended = await wait_within_limits(child, limits, SessionMemory(), no_run)
    assert (ended.code, "more than the 1 MB it may" in (ended.limit or "")) == (-9, True)


def test_children_get_the_flags_as_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_LEDGER", "before.db")
    flags = {"concurrency": "4", "lease": "9", "drain": None, "other": "x"}
    found = child_environment(flags, ledger="mine.db", exclude=("concurrency",))
    assert (found["SHOAL_LEDGER"], found["SHOAL_LEASE"], found["SHOAL_LOG_DIR"]) == ("mine.db", "9", "")
    assert not {"SHOAL_CONCURRENCY", "SHOAL_DRAIN", "SHOAL_OTHER"} & set(found)
    assert child_environment({}, ledger=None)["SHOAL_LEDGER"] == "before.db"
    assert found["PATH"] == os.environ["PATH"]
