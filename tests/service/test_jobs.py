"""Jobs: numbers that equal the ledger's, recovery that touches only the dead, settings within their bounds."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from shoal.config import Settings, load_settings
from shoal.errors import NotAllowed, NotFound, UsageError, WrongState
from shoal.fleet.autoscale import read_desired_size
from shoal.fleet.process import machine_identity, process_identity
from shoal.model.item import ClaimedItem
from shoal.model.outcome import FinishedAttempt
from shoal.model.run import RunState
from shoal.model.views import Counts
from shoal.model.worker import POOL_LOST_SECONDS, Scope, WorkerPoolSpec, WorkerSpec
from shoal.service.jobs import Jobs, format_eta, job_status, out_of_bounds
from shoal.service.local_pools import LocalPools, find_target, project_scrapers
from shoal.testing.harness import LedgerHarness, dead, done, retry

SHOP = 'from shoal import Scraper\n\nshop = Scraper("shop")\n\n\n@shop.stage\ndef page(item):\n    yield {}\n'


@pytest.fixture
def settings(tmp_path: Path, place: Path | str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a project with one scraper."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shoal.toml").touch()
    return load_settings({"ledger": str(place)}, environ={}, folder=tmp_path)


@pytest.fixture
async def jobs(settings: Settings, either_harness: LedgerHarness) -> AsyncIterator[Jobs]:
    found = make_jobs(settings, either_harness)
    yield found
    await found.close()


def make_jobs(settings: Settings, harness: LedgerHarness, scraper: str | None = None) -> Jobs:
    pools = LocalPools(lambda: harness.ledger, settings)
    return Jobs(lambda: harness.ledger, settings, pools, scraper)


def ended_process() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def pool_here(run_id: str, pid: int, process: str, id: str = "p1") -> WorkerPoolSpec:
    return WorkerPoolSpec(
        id=id, scraper="shop", run_id=run_id, node=socket.gethostname(), pid=pid, process=process, wanted=2
    )


async def test_numbers_are_those_of_the_ledger(jobs: Jobs, either_harness: LedgerHarness) -> None:
    """S4.16, S4.17: of all workers together; S4.12: who has what, and since when."""
    harness = either_harness
    assert (await jobs.status()).status == "idle"
    assert (await jobs.queue()).total == 0
    run = await harness.run()
    await harness.put(run, *"abcdefghij")
    first, second = await harness.worker(), await harness.worker()
    ends: dict[str, Callable[[ClaimedItem], FinishedAttempt]] = {"a": done, "b": done, "c": done, "d": dead, "e": retry}
    for item in await harness.claim(first, 4):
        await harness.commit(first, ends[item.name](item))
    for item in await harness.claim(second, 1):
        await harness.commit(second, ends[item.name](item))
    (held,) = await harness.claim(second, 1)
    await harness.advance_clock(30)
    await harness.ledger.workers.heartbeat(second)
    await harness.ledger.workers.heartbeat(first)

    status = await jobs.status()
    assert (status.status, status.run_id, status.worker_status.running) == ("running", run.id, True)
    assert status.worker_status.active_workers == 1
    assert (status.worker_status.total_processed, status.worker_status.total_failed) == (4, 1)
    assert status.performance_metrics.success_rate == 0.75
    # Four items in a run that is 30 s old or a little more, on a slow machine.
    assert 4 * 3600 / 90 < status.performance_metrics.processing_rate_per_hour <= 4 * 3600 / 30
    assert status.performance_metrics.estimated_completion_time is not None

    queue = await jobs.queue()
    counts = await harness.ledger.reads.stats(run.id)
    assert (queue.pending, queue.processing, queue.completed, queue.failed) == (5, 1, 3, 1)
    assert (queue.total, queue.remaining, queue.delayed) == (counts.total, counts.remaining, counts.delayed)

    performance = await jobs.performance()
    by_name = {worker.name: worker for worker in performance.workers}
    assert (by_name[first].processed, by_name[first].failed, by_name[first].status) == (4, 1, "idle")
    # `done` of the harness takes half a second, everything else no time: three of four attempts.
    assert by_name[first].average_runtime_seconds == pytest.approx(0.375, abs=0.001)
    assert (by_name[second].attempts, by_name[second].processed) == (1, 0)
    assert (by_name[second].status, by_name[second].item) == ("processing", held.name)
    assert performance.average_runtime_seconds == pytest.approx(0.3, abs=0.001)

    frame = await jobs.frame()
    assert (frame.status, frame.active_workers, list(frame.workers)) == ("running", 1, [second])
    assert frame.workers[second].item == held.name
    assert 30 <= (frame.at - frame.workers[second].started_at).total_seconds() < 90
    assert frame.throughput_per_min > 0
    assert [(error.item, error.level) for error in frame.recent_errors] == [("e", "WARN"), ("d", "ERROR")]


async def test_numbers_are_those_of_one_stage(
    settings: Settings, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    """S4.17: with `jobs_stage` every count, rate and expected end is about its items; the status is the run's."""
    harness = either_harness
    (tmp_path / "shoal.toml").write_text('[scrapers.shop]\ntarget = "shop.py"\njobs_stage = "video"\n')
    jobs = make_jobs(load_settings({"ledger": settings.ledger}, environ={}, folder=tmp_path), harness)
    run = await harness.run("channel", "video")
    await harness.put(run, "m", "n", stage="channel")
    worker = await harness.worker()
    listing, other = await harness.claim(worker, 2)
    await harness.commit(worker, done(listing))
    found = await jobs.performance()
    assert (found.queue.total, found.items_per_hour, found.throughput_per_min, found.success_rate) == (0, 0, 0, None)
    assert found.eta_seconds is None, "the other listing may still find some"

    await harness.put(run, *"abcdefgh", stage="video")
    a, b, c = await harness.claim(worker, 3)
    await harness.commit(worker, done(a), dead(b), dead(c), dead(other))
    await harness.advance_clock(30)
    queue, status, performance, frame = (
        await jobs.queue(),
        await jobs.status(),
        await jobs.performance(),
        await jobs.frame(),
    )
    assert (queue.total, queue.completed, queue.failed, queue.pending) == (8, 1, 2, 5)
    assert (performance.queue, frame.counts) == (queue, queue)
    assert (status.worker_status.total_processed, status.worker_status.total_failed) == (3, 2)
    for rate in (status.performance_metrics.success_rate, performance.success_rate):
        assert rate == pytest.approx(1 / 3, abs=1e-3)
    # Three videos in a run that is 30 s old or a little more; with the listings it would be five.
    for rate in (status.performance_metrics.processing_rate_per_hour, performance.items_per_hour):
        assert 0 < rate <= 3 * 3600 / 30
    assert 0 < frame.throughput_per_min <= 3 * 60 / 30
    assert performance.eta_seconds is not None
    assert {error.item for error in frame.recent_errors} == {b.name, c.name, other.name}, "of all stages"

    for item in await harness.claim(worker, 5):
        await harness.commit(worker, done(item) if item.name in "de" else dead(item))
    await harness.ledger.runs.seal(run.id)
    await harness.ledger.upkeep.run_once()
    counts = await harness.ledger.reads.stats(run.id)
    assert (counts.done, counts.dead, (await jobs.queue()).completed) == (4, 6, 3)
    assert (await jobs.status()).status == (await jobs.frame()).status == "failed"
    await jobs.close()


async def test_a_stage_that_there_is_not_is_named(
    settings: Settings, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    (tmp_path / "shoal.toml").write_text('jobs_stage = "vidoe"\n')
    jobs = make_jobs(load_settings({"ledger": settings.ledger}, environ={}, folder=tmp_path), either_harness)
    assert (await jobs.queue()).total == 0
    await either_harness.run("channel", "video")
    for read in (jobs.queue, jobs.status, jobs.performance, jobs.frame):
        with pytest.raises(WrongState, match="no stage 'vidoe'; it has channel, video") as caught:
            await read()
        assert "`jobs_stage`" in caught.value.remedy
    await jobs.close()


async def test_an_ended_run_has_a_rate_over_all_of_its_time_and_no_end_to_come(
    jobs: Jobs, either_harness: LedgerHarness
) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    await harness.ledger.runs.seal(run.id)
    worker = await harness.worker()
    (first,) = await harness.claim(worker, 1)
    await harness.commit(worker, done(first))
    await harness.advance_clock(3_600)  # not within the last five minutes
    (second,) = await harness.claim(worker, 1)
    await harness.commit(worker, done(second))
    await harness.ledger.upkeep.run_once()
    status, performance = await jobs.status(), await jobs.performance()
    assert status.status == "completed"
    assert status.performance_metrics.estimated_completion_time is None
    assert (performance.estimated_completion_time, performance.eta_seconds) == (None, None)
    for rate in (status.performance_metrics.processing_rate_per_hour, performance.items_per_hour):
        assert 1.8 < rate <= 2.0


async def job_in_ledger(place: Path | str) -> tuple[str, int]:
    """S4.14: status and active workers of the only run, as somebody with SQL sees them."""
    if isinstance(place, Path):
        connection = sqlite3.connect(place)
        try:
            found: tuple[str, int] = connection.execute("select status, active_workers from jobs").fetchone()
        finally:
            connection.close()
        return found
    database = await asyncpg.connect(place)
    try:
        (row,) = await database.fetch("select status, active_workers from shoal.jobs")
        return row["status"], row["active_workers"]
    finally:
        await database.close()


async def test_the_status_of_a_job_follows_its_run(
    jobs: Jobs, either_harness: LedgerHarness, place: Path | str
) -> None:
    """S4.14: idle, running, paused, completed, failed; the table of jobs in the ledger says the same."""
    harness = either_harness

    async def check(status: str, active: int = 0) -> None:
        found = await jobs.status()
        assert (found.status, found.worker_status.active_workers) == (status, active)
        assert await job_in_ledger(place) == (status, active)

    run = await harness.run()
    await harness.put(run, "a")
    await check("idle")
    worker = await harness.worker()
    await check("running")
    assert (await jobs.pause(by="ann")).status == "paused"
    await check("paused")
    assert await harness.claim(worker) == []
    assert (await jobs.resume(by="ann")).status == "running"
    claimed = await harness.claim(worker)
    await check("running", active=1)
    await harness.finish(worker, claimed)
    await harness.ledger.runs.seal(run.id)
    await harness.ledger.upkeep.run_once()
    await check("completed")
    with pytest.raises(WrongState, match="nothing to pause"):
        await jobs.pause(by="ann")
    with pytest.raises(WrongState, match="nothing to resume"):
        await jobs.resume(by="ann")
    ended = await harness.ledger.runs.get(run.id)
    assert job_status(ended, Counts(done=2, dead=2), is_running=False) == "failed"
    assert job_status(ended, Counts(done=3, dead=2), is_running=False) == "completed"
    with pytest.raises(WrongState, match="No workers"):
        await jobs.stop(by="ann")


def test_the_expected_end_is_written_as_people_say_it() -> None:  # S4.16
    assert format_eta((8_000, 8_200)) == "~2h 15m"
    assert format_eta((40, 60)) == "~50s"
    assert format_eta((60, 3_000)) == "~26m"
    assert format_eta((7_190, 7_190)) == "~2h 0m"
    assert format_eta(None) is None


async def test_a_start_gives_back_what_the_dead_hold_and_nothing_else(
    jobs: Jobs, either_harness: LedgerHarness
) -> None:
    """S4.10: the items of a worker of this machine whose process is gone; those of a live one stay."""
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b", "c")
    here, scope = socket.gethostname(), Scope(run_ids=(run.id,))
    await harness.ledger.pools.register(pool_here(run.id, ended_process(), f"{machine_identity()}:1"))
    for worker, pid in (("dead", ended_process()), ("live", os.getpid())):
        await harness.ledger.workers.register(WorkerSpec(id=worker, node=here, pid=pid, scope=scope))
    await harness.ledger.workers.register(WorkerSpec(id="elsewhere", node="other", pid=ended_process(), scope=scope))
    for worker in ("dead", "live", "elsewhere"):
        assert len(await harness.claim(worker, 1, scope)) == 1
    assert not jobs.recovery.done
    await jobs.recover_at_start()
    recovery = jobs.recovery
    assert (recovery.done, recovery.items, recovery.workers) == (True, 1, 1)
    assert (await jobs.status()).worker_status.startup_recovery_done
    assert sorted([await harness.state(run, key) for key in "abc"]) == ["leased", "leased", "ready"]
    assert (await jobs.reconcile(by="ann")).items == 0
    assert await harness.ledger.pools.list() == [], "the pool whose process is gone has ended"
    events = (await harness.ledger.reads.events(run_id=run.id)).rows
    assert ("reconciled", "ann") in [(event.action, event.actor) for event in events]


async def test_a_pool_is_told_apart_from_another_process_with_its_pid(
    jobs: Jobs, settings: Settings, either_harness: LedgerHarness
) -> None:
    """A pid that is used again, a machine of another name, and one of the same name."""
    harness = either_harness
    run = await harness.run()
    mine = process_identity(os.getpid())
    assert mine is not None
    for id, process in (("own", mine), ("reused", f"{machine_identity()}:1"), ("namesake", "another-boot:x:1")):
        await harness.ledger.pools.register(pool_here(run.id, os.getpid(), process, id))
    away = WorkerPoolSpec(id="away", scraper="shop", run_id=run.id, node="other", pid=1, process="b:x:1")
    await harness.ledger.pools.register(away)
    pools = LocalPools(lambda: harness.ledger, settings)
    states = {status.pool.id: (status.state, status.steerable) for status in await pools.list()}
    assert states == {
        "own": ("running", True),
        "reused": ("gone", False),
        "namesake": ("running", False),
        "away": ("running", False),
    }
    for id in ("away", "namesake"):
        with pytest.raises(NotAllowed, match=f"The pool {id} runs on"):
            await pools.stop(id, by="ann")
        with pytest.raises(NotAllowed):
            await pools.scale(id, 2, by="ann")
    with pytest.raises(WrongState, match="has ended: its process is gone"):
        await pools.scale("reused", 2, by="ann")
    assert (await pools.stop("reused", by="ann")).state == "gone"
    with pytest.raises(NotFound):
        await pools.get("unknown")
    await harness.advance_clock(POOL_LOST_SECONDS + 1)
    assert (await pools.get("away")).state == "gone"
    assert (await pools.get("own")).state == "running", "its process is there, whatever the ledger heard of it"


async def test_settings_are_kept_in_the_ledger_and_checked(
    jobs: Jobs, settings: Settings, either_harness: LedgerHarness
) -> None:
    """S4.2: the defaults, the bounds, and what is stored is read by the next server."""
    found = await jobs.settings()
    assert (found.max_workers, found.max_retries, found.backoff_factor, found.output_dir) == (5, 3, 2.0, "./subtitles")
    await jobs.put_settings({"max_workers": 20, "max_retries": 0}, by="ann")
    await jobs.put_settings({"backoff_factor": 10, "output_dir": "files/of/today"}, by="ann")
    again = await make_jobs(settings, either_harness).settings()
    assert (again.max_workers, again.max_retries, again.backoff_factor) == (20, 0, 10)
    assert again.output_dir == "files/of/today"
    wrong: list[dict[str, object]] = [
        {"max_workers": 0},
        {"max_workers": 21},
        {"max_retries": 11},
        {"max_retries": True},
        {"backoff_factor": 0.9},
        {"backoff_factor": float("nan")},
        {"output_dir": "/etc"},
        {"output_dir": "."},
        {"output_dir": "files/.."},
        {"output_dir": ".git/hooks"},
        {"output_dir": "a/.venv/b"},
        {"output_dir": "a/../../b"},
        {"output_dir": "s3://bucket"},
        {"output_dir": "a\0b"},
        {"unknown": 1},
    ]
    for given in wrong:
        with pytest.raises(UsageError):
            await jobs.put_settings(given, by="ann")
    for change in (jobs.preview_settings({}), jobs.put_settings({}, by="ann")):
        with pytest.raises(UsageError, match="Nothing to change"):
            await change
    assert await jobs.settings() == again


async def test_a_configured_number_out_of_bounds_is_refused_and_not_cut(
    settings: Settings, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    (tmp_path / "shoal.toml").write_text('[scrapers.shop]\ntarget = "shop.py"\nworkers = 50\n')
    project = load_settings({"ledger": settings.ledger}, environ={}, folder=tmp_path)
    jobs = make_jobs(project, either_harness, "shop")
    assert (await jobs.settings()).max_workers == 50, "what is configured is shown as it is"
    assert out_of_bounds(project, "shop") == [
        "max_workers of shop is configured as 50; under /jobs it must be from 1 to 20."
    ]
    assert out_of_bounds(settings, "shop") == []
    run = await either_harness.run()
    await either_harness.ledger.runs.pause(run.id)
    for begin in (jobs.start, jobs.restart, jobs.resume):
        with pytest.raises(UsageError, match=r"configured for 50 workers; it must be from 1 to 20"):
            await begin(by="ann")
    assert (await either_harness.ledger.runs.get(run.id)).state == "paused", "a refused call changes nothing"
    assert await jobs.wanted_workers(3) == 3
    await jobs.put_settings({"max_workers": 7}, by="ann")
    assert await jobs.wanted_workers() == 7
    await jobs.close()


async def test_logs_come_from_the_ledger_and_from_the_files_of_this_machine(
    jobs: Jobs, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    harness = either_harness
    run = await harness.run()
    await harness.put(run, "a", "b")
    worker = await harness.worker()
    for item in await harness.claim(worker, 2):
        await harness.commit(worker, dead(item, "x" * 4_000) if item.name == "a" else retry(item, 5.0, "slow"))
    (tmp_path / "logs").mkdir()
    now = dt.datetime.now(dt.UTC)
    lines = [
        {"time": (now - dt.timedelta(hours=2)).isoformat(), "level": "info", "event": "worker started"},
        {"time": (now - dt.timedelta(hours=1)).isoformat(), "level": "error", "event": "y" * 9_000, "item": "b"},
        {"time": now.isoformat(), "level": "warning", "event": "attempt failed", "item": "b"},
    ]
    text = "no JSON\n" + "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "logs" / "shop_worker_0.log").write_text(text)
    (tmp_path / "logs" / "shops_worker_0.log").write_text(text)
    found = await jobs.logs()
    assert sorted((line.level, line.item) for line in found) == [
        ("ERROR", "a"),
        ("ERROR", "b"),
        ("INFO", None),
        ("WARN", "b"),
    ]
    assert found == sorted(found, key=lambda line: line.at, reverse=True)
    assert {len(line.message) for line in found if line.level == "ERROR"} == {4_000}
    assert [line.item for line in await jobs.logs(level="ERROR", limit=1)] == ["a"]
    assert [line.level for line in await jobs.logs(item="b")] == ["WARN", "ERROR"]
    assert await jobs.logs(item="unknown") == []


async def test_a_clean_up_removes_old_runs_and_logs_but_the_newest_run(
    jobs: Jobs, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    harness = either_harness
    runs = []
    for key in ("old", "young", "newest"):
        run = await harness.run()
        runs.append(run)
        await harness.put(run, key)
        worker = await harness.worker()
        await harness.finish(worker, await harness.claim(worker))
        await harness.ledger.runs.seal(run.id)
        await harness.ledger.upkeep.run_once()
        await harness.advance_clock(10 * 86_400)
    log = tmp_path / "logs" / "shop_worker_7.log"
    log.parent.mkdir()
    log.touch()
    os.utime(log, (0, 0))
    preview = await jobs.preview_cleanup(25)
    assert (preview.runs, preview.items, preview.log_files) == ([runs[0].id], 1, 1)
    assert log.exists()
    assert (await jobs.cleanup(1, by="ann")).complete
    assert not log.exists()
    assert [run.id for run in (await harness.ledger.runs.list()).rows] == [runs[2].id]
    assert runs[2].state is RunState.ACTIVE


def test_a_server_starts_only_what_belongs_to_its_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of the configuration and of files in the folder; never a path, and no code is run to find them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP + "raise SystemExit\n")
    (tmp_path / "two.py").write_text('a = Scraper("first")\nb: Any = Scraper(\n    "second", mode="x")\n')
    (tmp_path / "helper.py").write_text("import shoal\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.py").write_text(SHOP)
    (tmp_path / "shoal.toml").write_text('[scrapers.named]\ntarget = "deep/other.py"\n')
    settings = load_settings({}, environ={}, folder=tmp_path)
    targets = project_scrapers(settings)
    assert sorted(targets) == ["first", "named", "second", "shop"]
    assert targets["first"].endswith("two.py:a")
    assert find_target(settings, "named") == "named"
    for name in ("shop.py", "deep/other.py", "../shop", "/etc/passwd", "os:system", "shopp", ""):
        with pytest.raises(NotFound, match="The project has no scraper"):
            find_target(settings, name)


async def test_which_scraper_a_job_means_must_be_clear(
    settings: Settings, either_harness: LedgerHarness, tmp_path: Path
) -> None:
    (tmp_path / "news.py").write_text(SHOP.replace('"shop"', '"news"'))
    with pytest.raises(WrongState, match=r"has 2 scrapers \(news, shop\)"):
        await make_jobs(settings, either_harness).status()
    assert make_jobs(settings, either_harness, "news").scraper == "news"
    assert make_jobs(settings, either_harness, "shop.py").scraper == "shop"
    with pytest.raises(NotFound):
        await make_jobs(settings, either_harness, "other").status()


async def test_of_two_servers_that_start_the_workers_one_does(
    jobs: Jobs, either_harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one looks again when it is its turn: a pool that was started meanwhile is scaled, not doubled."""
    harness = either_harness
    run = await harness.run()
    acquire = harness.ledger.locks.acquire

    async def acquire_late(*args: object) -> bool:
        process = process_identity(os.getpid())
        assert process is not None
        await harness.ledger.pools.register(pool_here(run.id, os.getpid(), process))
        return await acquire(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(harness.ledger.locks, "acquire", acquire_late)
    status = await jobs.start(by="ann", workers=3)
    assert (status.pool_id, status.pool) == ("p1", "running")
    assert [pool.id for pool in await harness.ledger.pools.list(ended=True)] == ["p1"]
    assert await read_desired_size(harness.ledger, "shop") == (await newest_version(harness), 3)


async def newest_version(harness: LedgerHarness) -> int:
    return (await harness.ledger.settings.get("pool:shop") or (0, {}))[0]
