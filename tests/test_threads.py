"""The thread runner: order, reuse, errors, cancellation."""

import asyncio
import functools
import threading

import pytest

from shoal.threads import ThreadRunner


async def test_one_thread_makes_its_calls_in_order() -> None:
    runner = ThreadRunner("one", max_threads=1)
    calls: list[tuple[int, str]] = []

    def call(number: int) -> None:
        calls.append((number, threading.current_thread().name))

    await asyncio.gather(*(runner.run(functools.partial(call, n)) for n in range(20)))
    assert calls == [(n, "one") for n in range(20)]
    runner.close()


async def test_there_are_as_many_threads_as_calls_at_once_and_idle_ones_are_reused() -> None:
    runner = ThreadRunner("many")
    together = threading.Barrier(3)
    names: set[str] = set()

    def call() -> None:
        together.wait(10)
        names.add(threading.current_thread().name)

    for _ in range(2):
        await asyncio.gather(*(runner.run(call) for _ in range(3)))
    assert names == {"many-1", "many-2", "many-3"}
    runner.close()


@pytest.mark.parametrize(
    ("raised", "seen"), [(KeyError("k"), KeyError), (StopIteration(1), RuntimeError), (SystemExit(3), SystemExit)]
)
async def test_errors_reach_the_caller(raised: BaseException, seen: type[BaseException]) -> None:
    runner = ThreadRunner("errors")

    def call() -> None:
        raise raised

    with pytest.raises(seen):
        await runner.run(call)
    assert await runner.run(lambda: 1) == 1
    runner.close()


async def test_a_call_can_find_out_that_its_caller_was_cancelled() -> None:
    runner = ThreadRunner("one", max_threads=1)
    started, proceed = threading.Event(), threading.Event()
    seen: list[bool] = []

    def call(cancelled: object) -> None:
        assert callable(cancelled)
        started.set()
        proceed.wait(10)
        seen.append(cancelled())

    running = asyncio.create_task(runner.run_cancellable(call))
    waiting = asyncio.create_task(runner.run(lambda: seen.append(True)))
    await asyncio.to_thread(started.wait, 10)
    running.cancel()
    waiting.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    proceed.set()
    await runner.run(lambda: None)
    assert seen == [True], "a call that was cancelled before it began is skipped"
    runner.close()
