"""The choice of an exit: fair, healthy or sticky; only usable exits; the same cost for any number of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.egress import Choice
from shoal.egress.choosing import Part
from shoal.egress.health import LocalExit, LocalHealth
from shoal.model.egress import Exit, ExitHealth, ExitState, HealthRules, PoolChanges

RULES = HealthRules(ban_after=1, ban_for=3_600.0, block_after=1, block_for=600.0)
SHOP, BANK = "shop.example", "bank.example"
CHOICES: list[Choice] = ["round_robin", "healthiest", "sticky"]


class Pool:
    """A part over many exits, with a count of the exits that were looked at."""

    def __init__(self, size: int, choose: Choice = "round_robin", **options: object) -> None:
        self.health = LocalHealth(RULES)
        self.keys = [f"exit-{number:05}" for number in range(size)]
        self.health.list_exits(Exit(pool="homes", key=key, label=key) for key in self.keys)
        self.visits = 0
        self.choice = choose
        self.part = self.make_part(self.keys, **options)

    def make_part(self, keys: list[str], **options: object) -> Part:
        return Part(
            self.health,
            keys,
            choose=self.choice,
            rng=random.Random(7),
            is_usable=self.is_usable,
            **options,  # type: ignore[arg-type]
        )

    def is_usable(self, record: LocalExit, host: str) -> bool:
        self.visits += 1
        return self.health.is_usable(record, host)

    def choose(self, host: str = SHOP, sticky: str = "", avoid: tuple[str, ...] = (), now: float = 0.0) -> str | None:
        record = self.part.choose(host, sticky, avoid, now)
        if record is None:
            return None
        self.health.hand_out(record)
        return record.key

    def ban(self, *keys: str) -> None:
        for key in keys:
            self.health.fail(key, "refused", 0.0)

    def block(self, *keys: str, host: str = SHOP) -> None:
        for key in keys:
            self.health.block(key, host, "403", 0.0)

    def free(self, key: str) -> None:
        self.health.take_reports()
        self.health.apply(PoolChanges(at=0.0, exits=(ExitHealth(key=key, state=ExitState.GOOD),)), 0.0)


@given(
    size=st.integers(1, 12),
    choose=st.sampled_from(CHOICES),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["choose", "ban", "block", "free", "wait"]),
            st.integers(0, 11),
            st.sampled_from([SHOP, BANK]),
            st.sets(st.integers(0, 11), max_size=3),
        ),
        max_size=80,
    ),
)
def test_only_usable_exits_are_chosen_and_avoided_ones_never(
    size: int, choose: Choice, steps: list[tuple[str, int, str, set[int]]]
) -> None:
    pool, now = Pool(size, choose), 0.0
    for step, number, host, avoided in steps:
        key = pool.keys[number % size]
        if step == "ban":
            pool.ban(key)
        elif step == "block":
            pool.block(key, host=host)
        elif step == "free":
            pool.free(key)
        elif step == "wait":
            now += 2.0
        else:
            avoid = tuple(pool.keys[each % size] for each in avoided)
            usable = {each for each in pool.keys if pool.health.is_usable(pool.health.records[each], host)}
            found = pool.choose(host, f"text-{number}", avoid, now)
            allowed = usable - {*avoid}
            assert found in allowed if allowed else found is None


@given(
    size=st.integers(1, 15),
    banned=st.sets(st.integers(0, 14)),
    blocked=st.sets(st.integers(0, 14)),
    rounds=st.integers(1, 4),
)
def test_round_robin_is_fair_within_one(size: int, banned: set[int], blocked: set[int], rounds: int) -> None:
    pool = Pool(size)
    for _ in range(size // 2):
        pool.choose()
    pool.ban(*(pool.keys[each] for each in banned if each < size))
    pool.block(*(pool.keys[each] for each in blocked if each < size))
    good = {key for number, key in enumerate(pool.keys) if number not in banned and number not in blocked}
    chosen = [pool.choose() for _ in range(rounds * len(good))]
    if good:
        counts = Counter(chosen)
        assert set(counts) == good
        assert max(counts.values()) - min(counts.values()) <= 1
    else:
        assert pool.choose() is None


def test_an_avoided_exit_keeps_its_turn() -> None:
    pool = Pool(4)
    first = pool.choose()
    assert first is not None
    second = pool.keys[1]
    chosen = [pool.choose(avoid=(second,)), *(pool.choose() for _ in range(6))]
    assert Counter([first, *chosen]) == dict.fromkeys(pool.keys, 2)
    assert pool.choose(avoid=tuple(pool.keys)) is None


def test_an_exit_that_comes_back_is_used_again_in_its_turn() -> None:
    pool = Pool(3)
    pool.ban(*pool.keys)
    assert pool.choose() is None
    pool.free(pool.keys[1])
    assert pool.choose() == pool.keys[1]
    pool.free(pool.keys[2])
    assert {pool.choose(now=2.0) for _ in range(2)} == {pool.keys[1], pool.keys[2]}


def test_a_block_at_one_host_does_not_keep_an_exit_from_others() -> None:
    pool = Pool(3)
    pool.block(pool.keys[0])
    assert {pool.choose(SHOP) for _ in range(6)} == {*pool.keys[1:]}
    assert {pool.choose(BANK) for _ in range(6)} == {*pool.keys}
    pool.health.advance(600.0)
    assert {pool.choose(SHOP, now=600.0) for _ in range(6)} == {*pool.keys}


def test_workers_that_share_all_exits_start_at_different_ones() -> None:
    assert [Pool(50, start=start).choose() for start in (0, 25, 50)] == ["exit-00000", "exit-00025", "exit-00000"]


@pytest.mark.parametrize("choose", CHOICES)
def test_an_exit_after_its_ban_is_handed_out_once(choose: Choice) -> None:
    pool = Pool(3, choose)
    pool.ban(pool.keys[0])
    pool.health.advance(3_600.0)
    [record] = pool.health.due({*pool.keys})
    pool.health.start_trial(record, 3_720.0)
    chosen = [pool.choose(sticky=f"text-{number}", now=3_600.0) for number in range(50)]
    assert chosen.count(pool.keys[0]) == 1


def test_the_healthiest_is_preferred_and_the_others_are_still_tried() -> None:
    pool = Pool(10, "healthiest")
    for _ in range(2_000):
        key = pool.choose()
        assert key is not None
        pool.health.measure(key, 0.1 if key == pool.keys[3] else 2.0)
        pool.health.succeed(key, SHOP, 0.0)
    counts: Counter[str] = Counter()
    for _ in range(1_000):
        key = pool.choose()
        assert key is not None
        pool.health.succeed(key, SHOP, 0.0)
        counts[key] += 1
    assert counts.most_common(1)[0][0] == pool.keys[3]
    assert counts[pool.keys[3]] > 400
    assert min(counts[key] for key in pool.keys) >= 5


def test_a_text_keeps_its_exit_until_it_cannot_be_used() -> None:
    pool = Pool(20, "sticky")
    texts = [f"text-{number}" for number in range(200)]
    before = {text: pool.choose(sticky=text) for text in texts}
    assert len(set(before.values())) == 20
    home = before["text-0"]
    assert home is not None
    pool.ban(home)
    moved = {text: pool.choose(sticky=text) for text in texts}
    assert {text for text in texts if moved[text] != before[text]} == {text for text in texts if before[text] == home}
    pool.free(home)
    assert {text: pool.choose(sticky=text, now=5.0) for text in texts} == moved  # it came back; nobody has to move
    other = moved["text-0"]
    assert other is not None
    pool.block(other)
    assert pool.choose(SHOP, "text-0", now=5.0) != other
    assert pool.choose(BANK, "text-0", now=5.0) == other
    assert pool.choose(BANK, "text-0", (other,), now=5.0) != other
    assert pool.choose(BANK, "text-0", now=5.0) == other


def test_texts_and_turns_survive_a_new_list() -> None:
    pool = Pool(20, "sticky")
    texts = [f"text-{number}" for number in range(100)]
    before = {text: pool.choose(sticky=text) for text in texts}
    keys = [*pool.keys[:19], "exit-new"]
    pool.health.list_exits(Exit(pool="homes", key=key, label=key) for key in keys)
    pool.part = pool.make_part(keys, previous=pool.part)
    after = {text: pool.choose(sticky=text) for text in texts}
    assert all(after[text] == before[text] for text in texts if before[text] != pool.keys[19])
    assert pool.keys[19] not in after.values()

    pool = Pool(4)
    used = {pool.choose(), pool.choose()}
    pool.part = pool.make_part(pool.keys, previous=pool.part)
    assert {pool.choose(), pool.choose()} == {*pool.keys} - used


@pytest.mark.parametrize("choose", CHOICES)
def test_choosing_looks_at_a_few_exits_however_many_there_are(choose: Choice) -> None:
    pool = Pool(10_000, choose)
    pool.choose(sticky="first")
    pool.visits = 0
    for number in range(1_000):
        assert pool.choose(sticky=f"text-{number}") is not None
    assert pool.visits <= 80 * 1_000
    # A host that blocks nearly all of them, one after the other, is no exception.
    for number in range(9_900):
        pool.block(pool.keys[number * 7 % 10_000])
    pool.choose(sticky="next", now=5.0)
    pool.visits = 0
    for number in range(1_000):
        assert pool.choose(sticky=f"text-{number % 50}", now=5.0) is not None
    # Each blocked exit is looked at once and then dropped from the host's rotation.
    assert pool.visits <= 10_000 + 80 * 1_000


def test_rotations_and_texts_are_bounded() -> None:
    pool = Pool(3, "sticky")
    for number in range(11_000):
        pool.choose(sticky=f"text-{number}")
    assert len(pool.part._sticky) == 10_000
    pool = Pool(3)
    for number in range(200):
        pool.block(pool.keys[0], host=f"{number}.example")
        assert pool.choose(f"{number}.example") != pool.keys[0]
    assert len(pool.part._rotations) <= 64
    assert "" in pool.part._rotations


def test_without_rotation_an_exit_is_kept_while_it_can_be_used() -> None:  # S3.6
    pool = Pool(5, rotate=False)
    first = pool.choose()
    assert first is not None
    assert {pool.choose() for _ in range(10)} == {first}
    pool.part = pool.make_part(pool.keys, rotate=False, previous=pool.part)
    assert pool.choose() == first
    pool.ban(first)
    second = pool.choose()
    assert second not in (None, first)
    assert {pool.choose() for _ in range(10)} == {second}
