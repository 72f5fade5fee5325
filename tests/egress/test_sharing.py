"""Who has which exits: parts that are equal, complete and stable, and texts that keep their exit."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.egress.sharing import Places, best_of, fixed_part, part_of, split

names = st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=40)


def parts_of(members: list[str], keys: list[str]) -> dict[str, list[str]]:
    return {member: part_of(member, members, keys) for member in members}


@given(holders=names, things=st.sets(st.text(max_size=8), max_size=60), seed=st.randoms(use_true_random=False))
def test_parts_are_complete_disjoint_and_equal_within_one(holders: set[str], things: set[str], seed: object) -> None:
    parts = split(sorted(holders), sorted(things))
    assert sorted(thing for part in parts.values() for thing in part) == sorted(things)
    sizes = {len(part) for part in parts.values()}
    assert max(sizes) - min(sizes) <= 1
    mixed = [*holders]
    seed.shuffle(mixed)  # type: ignore[attr-defined]
    assert split(mixed, [*things, *things]) == parts


def test_ten_workers_have_five_of_fifty_proxies_each() -> None:  # S3.17
    members, keys = [f"worker-{n}" for n in range(10)], [f"exit-{n}" for n in range(50)]
    parts = parts_of(members, keys)
    assert {len(part) for part in parts.values()} == {5}
    assert sorted(key for part in parts.values() for key in part) == sorted(keys)


@given(members=names, keys=names)
def test_every_worker_has_an_exit_and_every_exit_a_worker(members: set[str], keys: set[str]) -> None:  # S3.24
    parts = parts_of(sorted(members), sorted(keys))
    users = Counter(key for part in parts.values() for key in part)
    assert set(users) == keys
    assert max(users.values()) - min(users.values()) <= 1
    assert all(parts.values())
    if len(keys) >= len(members):
        assert set(users.values()) == {1}


def test_a_worker_alone_has_all_exits() -> None:
    assert part_of("me", [], ["a", "b"]) == part_of("me", ["me"], ["b", "a"]) == ["a", "b"]
    assert part_of("me", ["me"], []) == []


def test_few_exits_move_when_a_worker_goes() -> None:
    for size, workers in ((50, 10), (500, 10), (100, 3)):
        keys, members = [f"exit-{n}" for n in range(size)], [f"worker-{n}" for n in range(workers)]
        before = parts_of(members, keys)
        after = parts_of(members[1:], keys)
        stayed = sum(len(set(before[member]) & set(after[member])) for member in members[1:])
        # At least size / workers must move; without a rank of its own for each exit nearly all would.
        assert size - stayed <= 3 * size / workers


def find(places: Places, text: str, unusable: set[str] | None = None) -> str | None:
    return places.find(text, lambda key: key not in (unusable or ()), 10_000)


def test_texts_are_spread_evenly_and_only_those_of_a_lost_exit_move() -> None:
    keys = [f"exit-{n}" for n in range(20)]
    texts = [f"text-{n}" for n in range(4_000)]
    best = Counter(best_of(text, keys) for text in texts)
    assert max(best.values()) <= 1.5 * len(texts) / len(keys)
    assert min(best.values()) >= 0.5 * len(texts) / len(keys)
    places = Places(keys)
    before = {text: find(places, text) for text in texts}
    assert max(Counter(before.values()).values()) <= 1.5 * len(texts) / len(keys)
    without = Places(keys)
    without.remove(keys[0])
    without.remove("unknown")
    for places in (Places(keys[1:]), without):
        after = {text: find(places, text) for text in texts}
        assert {text for text in texts if before[text] != after[text]} == {
            text for text in texts if before[text] == keys[0]
        }


@given(keys=names, text=st.text(max_size=10), data=st.data())
def test_a_text_gets_a_usable_exit_if_there_is_one(keys: set[str], text: str, data: st.DataObject) -> None:
    unusable = data.draw(st.sets(st.sampled_from(sorted(keys))))
    found = find(Places(sorted(keys)), text, unusable)
    assert found == find(Places(sorted(keys, reverse=True)), text, unusable)
    if keys == unusable:
        assert found is None
    else:
        assert found in keys - unusable
        assert best_of(text, keys - unusable) in keys - unusable


def test_looking_for_an_exit_ends_after_a_number_of_visits() -> None:
    visited: list[str] = []

    def is_usable(key: str) -> bool:
        visited.append(key)
        return False

    assert Places([f"exit-{n}" for n in range(1_000)]).find("text", is_usable, 50) is None
    assert len(visited) == 50
    assert Places([]).find("text", lambda key: True, 50) is None


def test_fixed_parts_follow_the_list() -> None:  # S3.17, S3.24
    keys = [f"exit {number:02}" for number in range(50)]
    parts = [fixed_part(number, 10, keys) for number in range(10)]
    assert [len(part) for part in parts] == [5] * 10
    assert [key for part in parts for key in part] == keys
    assert sorted(len(fixed_part(number, 10, keys[:43])) for number in range(10)) == [4] * 7 + [5] * 3
    assert [fixed_part(number, 5, keys[:3]) for number in range(5)] == [[keys[n]] for n in (0, 1, 2, 0, 1)]
    assert fixed_part(1, 2, []) == []
