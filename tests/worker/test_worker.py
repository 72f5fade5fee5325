"""A worker on a real ledger, while operators and other workers change the ledger."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from shoal import EarlierRuns, Item, Permanent, Scraper, Transient
from shoal.config import Settings
from shoal.errors import LedgerFull
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState, Lease, NewItem
from shoal.model.outcome import DONE, FinishedAttempt
from shoal.model.run import Run, RunSpec, RunState, StageSpec
from shoal.model.views import CommitReport, ItemFilter, WaitReason
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker import earlier_runs
from shoal.worker import registration as registration_module
from shoal.worker.commit import CommitQueue
from shoal.worker.hooks import watch_finished_runs
from shoal.worker.state import StopReason, WorkerOptions, WorkSummary
from shoal.worker.worker import Worker

LOG = open_logs(format="console", level="error", file=None, stream=None).log
ITEMS = 40
BEAT_SECONDS = 0.2


class Bench:
    """A scraper whose items (or those of `held_up`) wait for `gate`, and a worker for it."""

    def __init__(self, ledger: Ledger, settings: Settings) -> None:
        self.ledger = ledger
        self.settings = settings
        self.gate = asyncio.Event()
        self.begun: list[str] = []
        self.held_up: set[str] | None = None
        self.seconds = 60.0  # that a worker may take
        self.scraper = Scraper("bench")
        self.stage = self.scraper.stage(lane=None, retries=0)(self._handler())
        self.run: Run | None = None

    def _handler(self) -> Callable[..., AsyncIterator[dict[str, str]]]:
        async def work(item: Item) -> AsyncIterator[dict[str, str]]:
            self.begun.append(item.key)
            if self.held_up is None or item.key in self.held_up:
                await self.gate.wait()
            yield {"key": item.key}

        return work

    async def fill(self, count: int = ITEMS, *, seal: bool = True) -> Run:
        self.run = run = await self.ledger.runs.create(self.scraper.run_spec())
        await self.enqueue(0, count)
        if seal:
            await self.ledger.runs.seal(run.id, by="test")
        return run

    async def enqueue(self, first: int, end: int) -> None:
        assert self.run is not None
        await self.ledger.intake.enqueue(self.run.id, [self.stage.item(key=str(n)) for n in range(first, end)])

    @asynccontextmanager
    async def working(
        self, *, run_ids: tuple[str, ...] = (), **options: object
    ) -> AsyncIterator[tuple[Worker, "asyncio.Task[WorkSummary]"]]:
        """A worker that has begun; it must have ended by itself when the block does."""
        fetcher = build_fetcher(self.settings)
        given: dict[str, Any] = {"concurrency": 4, "batch_size": 8, "lease": 20.0, **options}
        chosen = WorkerOptions(scope=Scope(scraper="bench", run_ids=run_ids), **given)
        # A lease that no busy machine lets end, and heartbeats as often as if it were short.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shoal.worker.heartbeat.MAX_INTERVAL_SECONDS", BEAT_SECONDS)
            worker = build_worker(self.scraper, self.settings, self.ledger, fetcher, chosen, log=LOG)
        task = asyncio.create_task(worker.work())
        try:
            async with asyncio.timeout(self.seconds):
                await self.until(lambda: bool(self.begun) or task.done() or chosen.forever)
                yield worker, task
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await fetcher.close()

    async def until(self, happened: Callable[[], bool]) -> None:
        while not happened():  # noqa: ASYNC110 - it happens in handlers and on the heartbeat's thread
            await asyncio.sleep(0.01)

    async def stored(self) -> list[str]:
        assert self.run is not None
        rows = (await self.ledger.reads.results(self.run.id)).rows
        return sorted((json.loads(row.record)["key"] for row in rows), key=int)

    async def check_all_stored_once(self, count: int = ITEMS) -> None:
        assert await self.stored() == [str(number) for number in range(count)]
        assert await self.ledger.upkeep.audit() == []


@pytest.fixture(params=["sqlite", "postgres"])
async def bench(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Bench]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    settings = Settings(ledger=place, lease=2.0)
    async with ledger_context(settings, migrate=True) as ledger:
        yield Bench(ledger, settings)


async def test_a_worker_leaves_when_the_ledger_orders_it(bench: Bench) -> None:
    """S1.15: it finishes what runs, returns the rest uncharged, and leaves."""
    run = await bench.fill()
    async with bench.working() as (worker, task):
        await bench.until(lambda: len(bench.begun) == 4)
        await bench.ledger.workers.drain(worker.id, by="test")
        await bench.until(lambda: worker.stop_reason is not None)
        bench.gate.set()
    report = task.result()
    assert (report.stop_reason, report.done) == (StopReason.ORDERED, 4)
    counts = await bench.ledger.reads.stats(run.id)
    assert (counts.done, counts.leased, counts.remaining) == (4, 0, ITEMS - 4)


async def test_a_worker_declared_dead_continues_under_another_id_and_stores_nothing_twice(bench: Bench) -> None:
    """Its running attempts are not stored; it registers again and continues."""
    await bench.fill()
    async with bench.working() as (worker, task):
        await bench.until(lambda: len(bench.begun) == 4)
        first = worker.id
        await bench.ledger.workers.mark_dead(first)
        await bench.until(lambda: worker.id != first)
        bench.gate.set()
    assert task.result().stop_reason is StopReason.NOTHING_LEFT
    await bench.check_all_stored_once()
    # The four that ran when it was declared dead were started again: execution is at least once.
    assert len(bench.begun) >= ITEMS + 1


async def test_heartbeats_report_what_runs_and_what_is_only_claimed(bench: Bench) -> None:
    run = await bench.fill()
    async with bench.working() as (worker, _):
        await bench.until(lambda: len(bench.begun) == 4)
        # A worker claims no slow items ahead, so another one is claimed under its id.
        (extra,) = await bench.ledger.claims.claim(worker.id, Scope(scraper="bench"), 1)
        code = ""
        while code != "claimed":  # until the next heartbeat it is unknown whether it has started
            await asyncio.sleep(0.01)
            ((code, _),) = [(gate.code, gate.text) for gate in await bench.ledger.reads.why_item(run.id, extra.item)]
        (view,) = await bench.ledger.workers.list()
        while view.report is None or not view.report.running:  # this heartbeat may have been prepared before they began
            await asyncio.sleep(0.01)
            (view,) = await bench.ledger.workers.list()
        assert (view.leased, view.report.running, len(view.report.items)) == (5, {run.no: 4}, 4)
        (gate,) = await bench.ledger.reads.why_item(run.id, view.report.items[0][0])
        assert (gate.code, gate.text.startswith(f"{worker.id} has been running it for ")) == ("running", True)
        gates = {gate.code: gate.text for gate in await bench.ledger.reads.why_run(run.id)}
        assert gates["leased"] == "4 items are being worked on, 1 item is claimed and not begun."
        await bench.ledger.claims.return_leases(worker.id, [extra.lease])
        bench.gate.set()


async def test_a_worker_that_cannot_store_reports_it_with_its_heartbeat(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "FULL_RETRY_SECONDS", 0.02)
    run = await bench.fill(8)
    commit, full = bench.ledger.commits.commit, True

    async def refuse(worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        if full:
            raise LedgerFull("There is no space left for it.")
        return await commit(worker, finished)

    monkeypatch.setattr(bench.ledger.commits, "commit", refuse)
    async with bench.working():
        bench.gate.set()
        gates: list[WaitReason] = []
        while not any("There is no space left for it." in gate.text for gate in gates):
            gates = await bench.ledger.reads.why_run(run.id)
            await asyncio.sleep(0.01)
        assert gates[0].code == "ledger_full"
        full = False
    await bench.check_all_stored_once(8)


async def test_leases_that_an_operator_released_are_not_committed(bench: Bench) -> None:
    """S0.21, S1.24."""
    await bench.fill()
    async with bench.working() as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        assert await bench.ledger.steering.release(older_than=0, by="test") >= 4
        bench.gate.set()
    assert task.result().lost >= 1
    await bench.check_all_stored_once()


async def test_an_item_claimed_again_while_its_old_attempt_still_runs(bench: Bench) -> None:
    """The same process may claim it under a new lease; the end of the old attempt must not touch that lease."""
    bench.held_up = {"0"}
    await bench.fill()
    async with bench.working() as (_, task):
        await bench.until(lambda: "0" in bench.begun)
        await bench.ledger.steering.release(older_than=0, by="test")
        await bench.until(lambda: bench.begun.count("0") == 2)
        bench.gate.set()
    assert task.result().stop_reason is StopReason.NOTHING_LEFT
    await bench.check_all_stored_once()


async def test_a_cancelled_run_ends_its_worker(bench: Bench) -> None:
    run = await bench.fill()
    async with bench.working() as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        await bench.ledger.runs.cancel(run.id, by="test")
        bench.gate.set()
    assert task.result().done == 0
    assert await bench.stored() == []
    assert (await bench.ledger.runs.get(run.id)).state is RunState.CANCELLED


async def test_a_paused_run_waits_and_is_resumed(bench: Bench) -> None:
    run = await bench.fill()
    async with bench.working() as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        await bench.ledger.runs.pause(run.id, by="test")
        bench.gate.set()
        while (await bench.ledger.reads.stats(run.id)).leased:  # noqa: ASYNC110 - ledgers are asked, they do not tell
            await asyncio.sleep(0.01)
        assert not task.done()
        await bench.ledger.runs.resume(run.id, by="test")
    assert task.result().stop_reason is StopReason.NOTHING_LEFT
    await bench.check_all_stored_once()


async def test_a_limit_is_kept_exactly(bench: Bench) -> None:
    run = await bench.fill()
    bench.gate.set()
    async with bench.working(limit=7) as (_, task):
        pass
    assert (task.result().stop_reason, task.result().attempts) == (StopReason.LIMIT, 7)
    counts = await bench.ledger.reads.stats(run.id)
    assert (counts.done, counts.leased) == (7, 0)


async def test_an_open_run_keeps_its_worker_and_a_draining_one_leaves(bench: Bench) -> None:
    """S1.14: a run that is not sealed may get more items; --drain leaves when nothing is claimable now."""
    run = await bench.fill(3, seal=False)
    bench.gate.set()
    async with bench.working(stop_when_idle=True) as (_, leaver):
        pass
    assert leaver.result().done == 3
    bench.begun.clear()
    await bench.enqueue(3, 5)
    async with bench.working() as (_, stayer):
        while (await bench.ledger.reads.stats(run.id)).remaining:  # noqa: ASYNC110 - ledgers are asked, they do not tell
            await asyncio.sleep(0.01)
        assert not stayer.done()
        await bench.enqueue(5, 6)
        await bench.ledger.runs.seal(run.id, by="test")
    assert stayer.result().done == 3
    await bench.check_all_stored_once(6)


async def test_an_item_of_a_stage_that_the_code_no_longer_has(bench: Bench) -> None:
    run = await bench.fill(5)
    bench.gate.set()
    bench.scraper.stages.clear()
    bench.scraper.stage(name="renamed", lane=None)(bench._handler())
    async with bench.working():
        pass
    dead = (await bench.ledger.reads.items(run.id, ItemFilter(states=(ItemState.DEAD,)))).rows
    assert len(dead) == 5
    assert "no stage 'work'" in (dead[0].error or "")


# The way to the ledger


class SlowLedger:
    """Commits a batch when `open` is set, and keeps the sizes of the batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.open = asyncio.Event()
        self.full = 0

    async def commit(self, batch: Sequence[FinishedAttempt]) -> CommitReport:
        await self.open.wait()
        if self.full:
            self.full -= 1
            raise LedgerFull("There is no space left.")
        self.batches.append(len(batch))
        return CommitReport(committed=len(batch), lost=(), repeated=(), enqueued=0, duplicates=0)


def ended(number: int) -> FinishedAttempt:
    return FinishedAttempt(lease=Lease(number, 1, 1), decision=DONE)


async def test_a_follow_up_that_the_ledger_refuses_ends_its_item_and_nothing_else(bench: Bench) -> None:
    """New code with a new stage works on a run that the old code began."""
    new_code = Scraper("bench")

    @new_code.stage(lane=None, retries=0, name="work")
    async def work(item: Item) -> AsyncIterator[object]:
        bench.begun.append(item.key)
        yield {"key": item.key}
        if int(item.key) % 10 == 3:
            yield extra.item(key=f"extra of {item.key}")

    @new_code.stage(lane=None, retries=0)
    async def extra(item: Item) -> None: ...

    run = await bench.fill()
    bench.scraper = new_code
    async with bench.working() as (_, task):
        pass
    report = task.result()
    assert (report.done, report.dead, report.stop_reason) == (36, 4, StopReason.NOTHING_LEFT)
    refused = await bench.ledger.reads.items(run.id, ItemFilter(states=(ItemState.DEAD,)))
    assert sorted(item.key or "" for item in refused.rows) == ["13", "23", "3", "33"]
    assert all("no stage 'extra'" in (item.error or "") for item in refused.rows)
    assert len(await bench.stored()) == 36, "nothing of a refused attempt is stored"


async def test_a_removed_run_affects_no_other_run(bench: Bench) -> None:
    """Its leases are lost; the worker continues with its other runs."""
    doomed = await bench.fill(4)
    async with bench.working() as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        await bench.ledger.runs.cancel(doomed.id, by="test")
        await bench.ledger.runs.remove(doomed.id, by="test")
        await bench.fill(ITEMS)
        bench.gate.set()
    assert (task.result().stop_reason, task.result().done) == (StopReason.NOTHING_LEFT, ITEMS)
    await bench.check_all_stored_once()


async def test_a_worker_of_named_runs_leaves_when_they_are_removed(bench: Bench) -> None:
    doomed = await bench.fill(4)
    async with bench.working(run_ids=(doomed.id,)) as (_, task):
        await bench.until(lambda: len(bench.begun) == 4)
        await bench.ledger.runs.cancel(doomed.id, by="test")
        await bench.ledger.runs.remove(doomed.id, by="test")
        bench.gate.set()
    assert (task.result().stop_reason, task.result().done) == (StopReason.NOTHING_LEFT, 0)


async def test_finish_hooks_are_called_once_while_workers_stay(bench: Bench) -> None:
    called: list[str] = []
    bench.gate.set()

    @bench.scraper.on_finish
    async def tell(run: Run) -> None:
        called.append(run.id)

    scope = Scope(scraper="bench")
    async with bench.working(forever=True) as (worker, task):
        end = asyncio.Event()
        watching = [
            asyncio.create_task(watch_finished_runs(bench.scraper, bench.ledger, scope, LOG, until=end, every=0.05))
            for _ in range(3)
        ]
        run = await bench.fill(10)
        await bench.until(lambda: len(called) == 1)
        assert not task.done(), "the worker stays"
        removed = await bench.fill(2)
        await bench.until(lambda: len(called) == 2)
        await bench.ledger.runs.remove(removed.id, by="test")
        end.set()
        await asyncio.gather(*watching)
        worker.drain()
    assert called == [run.id, removed.id]


async def test_what_earlier_runs_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead, cancelled and open items of the last runs; a handler gets a bounded number of them."""
    bench.scraper = scraper = Scraper("bench")
    failed, unfinished = list[str](), list[str]()
    errors: dict[str, type[Exception]] = {"slow": Transient, "gone": Permanent, "first-slow": Transient}

    @scraper.stage(lane=None, retries=0)
    async def page(item: Item) -> None:
        bench.begun.append(item.key)
        if (error := errors.get(item.key.split()[0])) is not None:
            raise error("it failed")

    @scraper.stage(lane=None, retries=0)
    async def again(item: Item, earlier: EarlierRuns) -> None:
        bench.begun.append(item.key)
        failed[:] = sorted(each.key for each in await earlier.failed("page"))
        unfinished[:] = sorted(each.key for each in await earlier.unfinished("page"))

    async def work(run: Run, stage: str, *keys: str) -> None:
        await bench.ledger.intake.enqueue(run.id, [NewItem(key=key) for key in keys], stage=stage)
        await bench.ledger.runs.seal(run.id, by="test")
        async with bench.working(run_ids=(run.id,)):
            pass

    async def create() -> Run:
        return await bench.ledger.runs.create(scraper.run_spec())

    oldest, cancelled, paused, active, first, second = [await create() for _ in range(6)]
    await work(oldest, "page", "slow of the oldest", "first-slow 1", "first-slow 2")
    for run in (cancelled, paused, active):
        await bench.ledger.intake.enqueue(run.id, [NewItem(key=f"of {run.id}")], stage="page")
    await bench.ledger.runs.cancel(cancelled.id, by="test")
    await bench.ledger.runs.pause(paused.id, by="test")
    await work(first, "page", *(f"slow {n}" for n in range(4)), *(f"gone {n}" for n in range(9)))
    await work(await create(), "page", "well")
    said = StringIO()
    monkeypatch.setattr(
        "tests.worker.test_worker.LOG", open_logs(format="console", level="warning", file=None, stream=said).log
    )
    monkeypatch.setattr(earlier_runs, "PAGE", 2)
    await work(second, "again", "1")
    of_first = [f"slow {n}" for n in range(4)]
    assert failed == ["first-slow 1", "first-slow 2", *of_first, "slow of the oldest"]
    assert unfinished == sorted((f"of {cancelled.id}", f"of {paused.id}"))
    assert "more items" not in said.getvalue()
    for error, key in ((Permanent, "first-slow 1"), (None, "first-slow 2")):
        errors.pop("first-slow")
        errors |= {"first-slow": error} if error is not None else {}
        await work(await create(), "page", key)
    await bench.ledger.runs.create(RunSpec(scraper="bench", stages=(StageSpec("other"),)))
    await work(await create(), "again", "1")
    assert failed == [*of_first, "slow of the oldest"], "the last run that has an item decides"
    for most, pages, expected in ((3, 100, 3), (100, 2, 2)):
        monkeypatch.setattr(earlier_runs, "MAX_LEFT", most)
        monkeypatch.setattr(earlier_runs, "MAX_PAGES", pages)
        said.truncate(0)
        await work(await create(), "again", f"{most} items")
        assert len(failed) + len(unfinished) == expected
        assert "earlier runs left more items than a handler gets" in said.getvalue()
    for _ in range(earlier_runs.LOOK_BACK):
        await create()
    await work(await create(), "again", "1")
    assert (failed, unfinished) == ([], []), "older runs are not read"


async def test_whatever_a_handler_raises_ends_its_item_only(bench: Bench) -> None:
    bad: list[type[BaseException]] = [
        GeneratorExit,
        SystemExit,
        StopIteration,
        StopAsyncIteration,
        asyncio.CancelledError,
    ]
    bench.scraper = scraper = Scraper("bench")

    def answer(item: Item) -> object:
        bench.begun.append(item.key)
        if (number := int(item.key)) < len(bad):
            raise bad[number]
        return {"key": item.key}

    @scraper.stage(lane=None, retries=0)
    async def generator(item: Item) -> AsyncIterator[object]:
        yield {"key": item.key}
        yield answer(item)

    @scraper.stage(lane=None, retries=0)
    async def coroutine(item: Item) -> object:
        return answer(item)

    @scraper.stage(lane=None, retries=0)
    def plain(item: Item) -> object:
        return answer(item)

    run = await bench.ledger.runs.create(scraper.run_spec())
    for stage in scraper.stages:
        await bench.ledger.intake.enqueue(run.id, [NewItem(key=str(n)) for n in range(8)], stage=stage)
    await bench.ledger.runs.seal(run.id, by="test")
    async with bench.working() as (_, task):
        pass
    assert (task.result().done, task.result().dead, task.result().stop_reason) == (9, 15, StopReason.NOTHING_LEFT)
    dead = (await bench.ledger.reads.items(run.id, ItemFilter(states=(ItemState.DEAD,)))).rows
    assert Counter(item.key for item in dead) == {str(n): 3 for n in range(len(bad))}


@pytest.mark.parametrize(
    ("size", "limits", "held"), [(1, {"max_pending_items": 6}, 6), (100, {"max_pending_bytes": 450}, 5)]
)
async def test_a_slow_ledger_makes_the_slots_wait(size: int, limits: dict[str, int], held: int) -> None:
    """Back-pressure by items and by bytes: what is not committed yet never exceeds the bound."""
    ledger = SlowLedger()
    queue = CommitQueue(**limits)

    async def commit() -> None:
        while True:
            batch = await queue.next_batch()
            await ledger.commit(batch)
            queue.batch_done(batch)

    running = asyncio.create_task(commit())

    async def work() -> None:
        for number in range(20):
            await queue.put(ended(number), size)

    working = asyncio.create_task(work())
    await asyncio.sleep(0.1)
    assert queue.pending == held
    assert not working.done()
    ledger.open.set()
    async with asyncio.timeout(60):
        await working
        await queue.flush()
    assert sum(ledger.batches) == 20
    running.cancel()


@pytest.mark.parametrize(("times", "survives"), [(2, True), (1_000, False)])
async def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch, times: int, survives: bool) -> None:
    monkeypatch.setattr(registration_module, "FULL_RETRY_SECONDS", 0.02)
    ledger = SlowLedger()
    ledger.full = times
    ledger.open.set()
    patient = registration_module.RetryWhenFull(60 if survives else 0.3, LOG)
    if survives:
        await patient.call(lambda: ledger.commit([ended(1)]))
        assert ledger.batches == [1]
    else:
        with pytest.raises(LedgerFull):
            await patient.call(lambda: ledger.commit([ended(1)]))


async def test_what_a_worker_measures_is_in_the_history_of_its_run(bench: Bench) -> None:
    run = await bench.fill()
    await asyncio.sleep(0.2)  # they are claimable, and nobody claims them
    bench.gate.set()
    async with bench.working() as (worker, task):
        pass
    assert task.result().done == ITEMS
    points = await bench.ledger.reads.history(run.id, seconds=900, step=60)
    assert sum(point.done for point in points) == ITEMS
    for latency in ("wait", "work"):
        assert sum(getattr(point, latency).count for point in points) == ITEMS
    assert all((point.wait.quantile(0) or 1) > 0.1 for point in points)
    metrics = worker.metrics
    assert (metrics.claimed_items, metrics.committed_items, metrics.lost_items) == (ITEMS, ITEMS, 0)
    assert metrics.attempts.total() == metrics.wait_seconds.histogram.count == metrics.work_seconds.histogram.count
    assert metrics.claim_seconds.histogram.count >= ITEMS / 8
    assert 0 < metrics.commit_seconds.seconds < 20
    assert (metrics.claim_errors, metrics.commit_errors) == (0, 0)
