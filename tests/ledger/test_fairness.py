"""Who goes first."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from shoal.ledger.fairness import QueueGroup, QueueHeads, QueueRow, limit_queues, order_queues


def row(
    queue: int, run: int = 1, stage: str = "a", partition: str = "", span: tuple[int, int] = (0, 0), head: int = 0
) -> QueueRow:
    return QueueRow(queue, run, f"run{run}", stage, partition, 4, *span, head)


def flat(groups: list[QueueGroup]) -> list[QueueRow]:
    return [queue for group in groups for queue in group.queues]


def firsts(rows: list[QueueRow], turns: int, own: frozenset[str] = frozenset()) -> list[int]:
    return [flat(order_queues(rows, own, turn))[0].id for turn in range(turns)]


def test_runs_and_stages_take_turns() -> None:
    rows = [row(1, run=1), row(2, run=2), row(3, run=2, stage="b")]
    assert firsts(rows, 6) == [1, 2, 3, 1, 2, 3]


def test_a_run_with_many_partitions_has_no_more_turns_than_one_with_few() -> None:
    rows = [row(n, run=1, partition=f"p{n}") for n in range(50)] + [row(99, run=2)]
    assert Counter(queue == 99 for queue in firsts(rows, 100)) == {False: 50, True: 50}


def test_partitions_of_a_run_take_turns_too() -> None:
    rows = [row(n, partition=f"p{n}") for n in range(4)]
    assert firsts(rows, 8) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_own_partitions_come_before_all_others() -> None:
    rows = [row(n, run=n % 3, partition=f"p{n}") for n in range(9)]
    own = frozenset({"p4", "p7"})
    for turn in range(12):
        order = [found.partition for found in flat(order_queues(rows, own, turn))]
        assert set(order[:2]) == own
        assert len(order) == 9


def test_without_stealing_there_are_only_own_ones() -> None:
    rows = [row(1, partition="x"), row(2, partition="y")]
    assert [found.id for found in flat(order_queues(rows, frozenset({"y"}), 0, steal=False))] == [2]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), st.sampled_from("xyz")), unique=True, max_size=20),
    st.sets(st.sampled_from("xyz")),
    st.integers(0, 1000),
)
def test_every_queue_is_visited_once(places: list[tuple[int, str, str]], own: set[str], turn: int) -> None:
    rows = [row(n, run, stage, partition) for n, (run, stage, partition) in enumerate(places)]
    order = flat(order_queues(rows, frozenset(own), turn))
    assert sorted(found.id for found in order) == list(range(len(rows)))


def test_queues_of_different_priorities_are_merged_within_their_run_only() -> None:
    rows = [
        row(1, run=1, span=(5, 5), head=5),
        row(2, run=2),
        row(3, run=1, stage="b", span=(1, 9), head=3),
        row(4, run=2),
    ]
    for turn in range(6):
        groups = order_queues(rows, frozenset(), turn)
        assert sorted(([queue.id for queue in group.queues], group.merged) for group in groups) in (
            [([2, 4], False), ([3, 1], True)],
            [([3, 1], True), ([4, 2], False)],
        ), groups
    assert set(firsts(rows, 6)) == {2, 3, 4}, "the runs still take turns"


def test_of_many_queues_those_with_the_smallest_heads_are_kept() -> None:
    rows = [row(n, partition=f"p{n}", span=(0, 100), head=100 - n) for n in range(100)]
    for turn in range(5):
        kept = flat(limit_queues(order_queues(rows, frozenset(), turn), 10))
        assert sorted(queue.head for queue in kept) == list(range(1, 11))


@given(
    st.lists(st.lists(st.integers(-3, 3), max_size=30).map(sorted), min_size=1, max_size=6),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_shares_take_the_smallest_priorities(queues: list[list[int]], depth: int, limit: int) -> None:
    seen = [queue[:depth] for queue in queues]
    taken = QueueHeads(seen, [len(queue) >= depth for queue in seen]).quotas(limit)
    assert sum(taken) <= limit
    if any(queues):
        assert sum(taken) >= min(limit, depth, sum(map(len, queues))), "a claim never comes back with next to nothing"
    got = [priority for queue, share in zip(queues, taken, strict=True) for priority in queue[:share]]
    left = [priority for queue, share in zip(queues, taken, strict=True) for priority in queue[share:]]
    assert not got or not left or max(got) <= min(left)
