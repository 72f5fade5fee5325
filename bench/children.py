"""Work in fresh processes: for memory that nobody else has touched, and for several workers at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from typing import ParamSpec, TypeVar

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_SPAWN = multiprocessing.get_context("spawn")
_START_SECONDS = 60.0
_barrier: Barrier | None = None


def in_child(work: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
    """Run a module-level function in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=_SPAWN) as pool:
        return pool.submit(work, *args, **kwargs).result()


def in_children(count: int, work: Callable[..., _Result], *args: object) -> list[_Result]:
    """Run a module-level function in `count` processes at once; `wait_for_all` lets them start together."""
    with ProcessPoolExecutor(count, _SPAWN, _keep, (_SPAWN.Barrier(count),)) as pool:
        return [task.result() for task in [pool.submit(work, *args) for _ in range(count)]]


def wait_for_all() -> None:
    if _barrier is not None:
        _barrier.wait(_START_SECONDS)


def _keep(barrier: Barrier) -> None:
    global _barrier  # noqa: PLW0603  (an initializer has no other way to hand something to its process)
    _barrier = barrier
