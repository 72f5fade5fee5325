"""Who uses which exits: the parts of a pool that workers have, and the exits that texts stick to. Pure rules."""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache

_MASK = (1 << 64) - 1
# So many places are looked at for a text: with 24 no exit has much more than its fair share.
_PROBES = 24
_HASHES = tuple(bytes([number]) for number in range(_PROBES // 8))
_EIGHT_WORDS = struct.Struct(">8Q")


def split(holders: Collection[str], things: Collection[str]) -> dict[str, list[str]]:
    """Every thing belongs to exactly one holder, and no holder has two more than another.

    The result depends on the names only, not on their order. Few things move when a holder comes or goes: each thing
    ranks all holders by a hash and goes to the first one that has room.
    """
    parts: dict[str, list[str]] = {holder: [] for holder in sorted(set(holders))}
    if not parts:
        return parts
    each, larger = divmod(len(set(things)), len(parts))
    open_holders = {holder: _number(holder) for holder in parts} if each or larger else {}
    for number, thing in sorted((_number(thing), thing) for thing in set(things)):
        holder = _best(number, open_holders.items())
        part = parts[holder]
        part.append(thing)
        if len(part) > each:
            larger -= 1
            del open_holders[holder]
            if larger == 0:
                open_holders = {name: mark for name, mark in open_holders.items() if len(parts[name]) < each}
        elif len(part) == each and larger == 0:
            del open_holders[holder]
    return {holder: sorted(part) for holder, part in parts.items()}


def part_of(worker: str, members: Iterable[str], keys: Sequence[str]) -> list[str]:
    """The exits of a worker when each has a part of its own.

    With fewer exits than workers each worker has one, and each exit as many workers as any other, within one.
    """
    workers = {*members, worker}
    if len(keys) >= len(workers):
        return split(workers, keys)[worker]
    return [key for key, users in split(keys, workers).items() if worker in users]


def fixed_part(number: int, workers: int, keys: Sequence[str]) -> list[str]:
    """The exits of the worker with this number of so many, by their order in the list: five of fifty for each of ten.

    With fewer exits than workers each worker has one.
    """
    if len(keys) < workers:
        return [keys[number % len(keys)]] if keys else []
    return list(keys[number * len(keys) // workers : (number + 1) * len(keys) // workers])


class Places:
    """Many exits on a circle of numbers. A text belongs to the exit that follows the best of its places there.

    When an exit comes or goes, only texts that go to it or come from it move.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = dict(sorted((_number(key), key) for key in keys))
        self._numbers = list(self._keys)

    def __len__(self) -> int:
        return len(self._numbers)

    def remove(self, key: str) -> None:
        number = _number(key)
        if self._keys.pop(number, None) is not None:
            del self._numbers[bisect_left(self._numbers, number)]

    def find(self, text: str, is_usable: Callable[[str], bool], visits: int) -> str | None:
        """The exit of a text; None if that cannot be told by looking at so many exits."""
        best, found = _MASK + 1, None
        for place in _places(text):
            at = start = bisect_left(self._numbers, place)
            while True:
                if visits == 0 or at - start >= len(self._numbers):
                    return None
                visits -= 1
                number = self._numbers[at % len(self._numbers)]
                if is_usable(self._keys[number]):
                    break
                at += 1
            distance = (number - place) & _MASK
            if distance < best:
                best, found = distance, self._keys[number]
        return found


def best_of(text: str, keys: Iterable[str]) -> str:
    """The exit of a text among a few. When one comes or goes, only texts that go to it or come from it move."""
    number = _number(text)
    return _best(number, [(key, _key_number(key)) for key in keys])


def _places(text: str) -> Iterable[int]:
    data = text.encode(errors="surrogatepass")
    for salt in _HASHES:
        yield from _EIGHT_WORDS.unpack(hashlib.blake2b(data, salt=salt).digest())


@lru_cache(maxsize=20_000)
def _key_number(key: str) -> int:
    return _number(key)


def _number(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8, person=b"shoal share").digest()
    return int.from_bytes(digest)


def _best(number: int, numbers: Iterable[tuple[str, int]]) -> str:
    """The name that ranks highest for a number; each number has an order of its own."""
    highest, best = -1, ""
    for name, other in numbers:
        rank = (number ^ other) * 0x9E3779B97F4A7C15 & _MASK
        if rank > highest:
            highest, best = rank, name
    return best
