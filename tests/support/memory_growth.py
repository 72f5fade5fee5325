"""How the time of something grows with its size: a busy machine changes times, but hardly their ratio."""

from collections.abc import Callable
from time import process_time

TRIES = 3


def growth(work: Callable[[int], object], size: int, factor: int = 4) -> float:
    """The time for `factor` times the size, over the time for the size: `factor` if linear, its square if quadratic.

    Processor time of the best of a few tries, so that other processes do not count.
    """
    return _best(work, size * factor) / _best(work, size)


def _best(work: Callable[[int], object], size: int) -> float:
    times = []
    for _ in range(TRIES):
        began = process_time()
        work(size)
        times.append(process_time() - began)
    return max(min(times), 5e-3)  # below that it is mostly noise
