"""Which exit an attempt gets: round robin, the healthiest, or always the same one for a text. Pure rules.

A choice costs the same with ten or ten thousand exits: exits that cannot be used are dropped from the rotation when
they are met, and the rotation is completed again when one comes back.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from shoal.config.egress import Choice
from shoal.egress.health import LocalExit, LocalHealth
from shoal.egress.sharing import Places, best_of

# A host that blocks exits has a rotation of its own; so many hosts.
MAX_ROTATIONS = 64
MAX_STICKY_TEXTS = 10_000
# An exit that came back is used after so many seconds at most, so that rotations are not made anew all the time.
_RENEW_AFTER = 1.0
# The healthiest of so many is chosen; one in so many choices goes round robin, so that every exit is tried again.
_SAMPLES = 8
_EXPLORE_EVERY = 10
_VISITS = 400
# Among so few exits a text looks at all; that is the most even.
_FEW = 200
# From so many on, all that cannot be used are dropped at once.
_MANY_DROPPED = 16

IsUsable = Callable[[LocalExit, str], bool]


class Rotation:
    """Exits in an order of use. Each gets one turn per round; one that cannot be used is dropped."""

    __slots__ = ("made_at", "next_turn", "records", "returns")

    def __init__(self, records: list[LocalExit], next_turn: int = 0) -> None:
        self.records = records
        self.next_turn = next_turn
        self.returns = -1
        self.made_at = 0.0

    def take(self, is_usable: Callable[[LocalExit], bool], avoid: Collection[str]) -> LocalExit | None:
        """The next usable exit that is not to be avoided. One that is avoided keeps its turn."""
        skipped = dropped = 0
        while skipped < len(self.records):
            records = self.records
            if self.next_turn >= len(records):
                self.next_turn = 0
            at = (self.next_turn + skipped) % len(records)
            record = records[at]
            if not is_usable(record):
                dropped += 1
                if dropped > _MANY_DROPPED:
                    self.drop_unusable(is_usable)
                else:
                    del records[at]
                    self.next_turn -= at < self.next_turn
                continue
            if record.key in avoid:
                skipped += 1
                continue
            turn = self.next_turn
            if at >= turn:
                records[at], records[turn] = records[turn], record
                self.next_turn = turn + 1
            else:
                self.next_turn = at + 1
            return record
        return None

    def drop_unusable(self, is_usable: Callable[[LocalExit], bool]) -> None:
        self.records = [record for record in self.in_order() if is_usable(record)]
        self.next_turn = 0

    def in_order(self) -> list[LocalExit]:
        """The exits, the next one first."""
        return self.records[self.next_turn :] + self.records[: self.next_turn]


class Part:
    """The exits of a pool that one worker has, and the choice among them.

    `start`: where its round robin begins. `rotate=False`: it stays with the exit that it chose while that can be used.
    `previous`: the part that it had; the order and the texts of exits that are in both stay as they were.
    """

    def __init__(
        self,
        health: LocalHealth,
        keys: Sequence[str],
        *,
        choose: Choice = "round_robin",
        start: int = 0,
        rotate: bool = True,
        previous: Part | None = None,
        rng: random.Random | None = None,
        is_usable: IsUsable | None = None,
    ) -> None:
        self.keys = frozenset(keys)
        self._health = health
        self._records = [health.records[key] for key in keys]
        self._choice = choose
        self._is_usable = is_usable or health.is_usable
        self._rng = rng or random.Random()
        self._rotations: OrderedDict[str, Rotation] = OrderedDict()
        first = start % len(self._records) if self._records else 0
        order = self._records[first:] + self._records[:first]
        self._explored = 0
        self._places = Places(())
        self._places_returns = -1
        self._places_made_at = 0.0
        self._sticky: OrderedDict[tuple[str, str], LocalExit] = OrderedDict()
        self._rotate = rotate
        self._kept: LocalExit | None = None
        if previous is not None:
            if previous._kept is not None and self.has(previous._kept):
                self._kept = previous._kept
            stay = dict.fromkeys(record for record in previous._rotations[""].in_order() if self.has(record))
            order = [*stay, *(record for record in order if record not in stay)]
            self._sticky.update((name, record) for name, record in previous._sticky.items() if self.has(record))
        self._rotations[""] = Rotation(order)

    @property
    def records(self) -> Sequence[LocalExit]:
        return self._records

    def choose(self, host: str, sticky: str, avoid: Collection[str], now: float) -> LocalExit | None:
        """A usable exit that is not to be avoided, or None. An exit whose trial is ready goes first."""
        if self._rotate:
            return self._choose(host, sticky, avoid, now)
        if self._kept is None or self._kept.key in avoid or not self._is_usable(self._kept, host):
            self._kept = self._choose(host, sticky, avoid, now)
        return self._kept

    def _choose(self, host: str, sticky: str, avoid: Collection[str], now: float) -> LocalExit | None:
        if self._choice == "sticky" and sticky:
            return self._stick(host, sticky, avoid, now)
        for record in self._health.trials.values():
            if record.key in self.keys and record.key not in avoid and self._is_usable(record, host):
                return record
        rotation = self._rotation(host, now)
        if self._choice == "healthiest":
            self._explored += 1
            if self._explored % _EXPLORE_EVERY:
                found = self._healthiest(rotation.records, host, avoid)
                if found is not None:
                    return found
        found = rotation.take(lambda record: self._is_usable(record, host), avoid)
        if found is None and self._renew(rotation, host, now):
            found = rotation.take(lambda record: self._is_usable(record, host), avoid)
        return found

    def has(self, record: LocalExit) -> bool:
        return record.key in self.keys and self._health.records.get(record.key) is record

    def _rotation(self, host: str, now: float) -> Rotation:
        name = host if host in self._health.blocks else ""
        rotation = self._rotations.get(name)
        if rotation is None:
            # It begins where the common one is, so that a host's first block does not begin a new round.
            common = self._rotation("", now)
            rotation = Rotation(list(common.records), common.next_turn)
            rotation.returns, rotation.made_at = common.returns, common.made_at
            self._rotations[name] = rotation
            if len(self._rotations) > MAX_ROTATIONS:
                self._rotations.popitem(last=False)
        if name:
            self._rotations.move_to_end(name)
            self._rotations.move_to_end("")  # never left out
        if now - rotation.made_at >= _RENEW_AFTER:
            self._renew(rotation, host, now)
        return rotation

    def _renew(self, rotation: Rotation, host: str, now: float) -> bool:
        """Add the exits that came back. Returns whether one may have."""
        returns = self._health.returns
        if rotation.returns == returns:
            return False
        known = {record.key for record in rotation.records}
        rotation.records += [
            record for record in self._records if record.key not in known and self._is_usable(record, host)
        ]
        rotation.returns, rotation.made_at = returns, now
        return True

    def _healthiest(self, records: Sequence[LocalExit], host: str, avoid: Collection[str]) -> LocalExit | None:
        if len(records) > _SAMPLES:
            records = [records[self._rng.randrange(len(records))] for _ in range(_SAMPLES)]
        usable = [record for record in records if record.key not in avoid and self._is_usable(record, host)]
        return min(usable, key=lambda record: (record.cost, self._rng.random()), default=None)

    def _stick(self, host: str, text: str, avoid: Collection[str], now: float) -> LocalExit | None:
        cached = self._sticky.get((text, ""))
        blocked = cached is not None and cached.key in self._health.blocks.get(host, ())
        name = (text, host if blocked else "")
        record = self._sticky.get(name)
        if record is None or not self._is_usable(record, host):
            record = self._place(host, text, (), now)
            if record is None:
                return None
            self._sticky[name] = record
            if len(self._sticky) > MAX_STICKY_TEXTS:
                self._sticky.popitem(last=False)
        self._sticky.move_to_end(name)
        # What is to be avoided was tried by this attempt: another one has to do, this time.
        return self._place(host, text, avoid, now) if record.key in avoid else record

    def _place(self, host: str, text: str, avoid: Collection[str], now: float) -> LocalExit | None:
        self._renew_places(now)
        records = self._health.records
        gone: list[str] = []

        def is_usable(key: str) -> bool:
            record = records.get(key)
            if record is None or not self._is_usable(record, ""):
                gone.append(key)
                return False
            return key not in avoid and self._is_usable(record, host)

        found = self._places.find(text, is_usable, _VISITS) if len(self._places) > _FEW else None
        for key in gone:
            self._places.remove(key)
        if found is None:
            # There are few exits, or few that can be used here.
            rotation = self._rotation(host, now)
            self._renew(rotation, host, now)
            rotation.drop_unusable(lambda record: self._is_usable(record, host))
            usable = [record.key for record in rotation.records if record.key not in avoid]
            if not usable:
                return None
            found = best_of(text, usable)
        return records[found]

    def _renew_places(self, now: float) -> None:
        returns = self._health.returns
        if self._places_returns != returns and (not len(self._places) or now - self._places_made_at >= _RENEW_AFTER):
            self._places = Places(record.key for record in self._records if self._is_usable(record, ""))
            self._places_returns, self._places_made_at = returns, now
