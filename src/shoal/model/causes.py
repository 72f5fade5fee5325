"""What open items wait for, in a few words: the causes that bottlenecks, progress lines and charts name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.model.views import Counts, WaitReason

RUN_PAUSED = "the run is paused"
DISK_FULL = "space on the ledger's disk"
NO_WORKER = "a live worker"
DEAD_WORKERS = "items of dead workers"
FREE_WORKERS = "free workers"
EGRESS = "egress"
LOGIN = "a login"
ANY_LANE = "their lanes"
# Only where items are counted: being worked on is no bottleneck, and not every delayed item is looked at.
RUNNING = "being worked on"
OTHER_DELAYS = "other delays"
# By the codes of wait reasons. The last two lists are in the order of importance.
RUN_CAUSES = {
    "run_paused": RUN_PAUSED,
    "run_finished": "nothing",
    "run_cancelled": "nothing",
    "unsealed": "more items",
    "nothing_left": "nothing",
}
LANE_CAUSES = {
    "lane_paused": "paused lane",
    "lane_blocked": "rate limit of the site",
    "lane_order": "earlier items of their groups",
    "lane_workers": FREE_WORKERS,
    "lane_limit": "host limit",
    "lane_delay": "host delay",
}
DELAY_CAUSES = {
    "delayed_retry": "retries",
    "delayed_throttled": "rate limit of the site",
    "delayed_egress": EGRESS,
    "delayed_not_before": "a set time",
    "delayed_blocked": "rate limit of the site",
    "delayed_order": "earlier items of their groups",
    "delayed_lane": "host delay",
}


def egress_cause(reason: WaitReason) -> str:
    """The cause of a wait for egress: with the pool, or a login."""
    return f"{EGRESS} {reason.pool}" if reason.pool else LOGIN


def open_items_by_cause(
    counts: Counts, reasons: Sequence[WaitReason], waiting_lanes: Mapping[str, int]
) -> dict[str, int]:
    """How many open items wait for what, without zeros; the sum is `counts.remaining`.

    `reasons`: of the run, from `why_run`. `waiting_lanes`: of lanes that its items wait for, how many items wait by the
    codes of `LANE_CAUSES`; other codes are unknown causes. All of the lanes, or a sample: only the shares count.
    """
    first = {reason.code: reason for reason in reversed(reasons)}
    dead = min(counts.leased, _items(first.get("held_by_dead")))
    by_cause = {RUNNING: counts.leased - dead, DEAD_WORKERS: dead}
    held = _run_cause(first, counts.leased <= dead)
    if held is not None:
        by_cause[held] = counts.pending
        return _without_zeros(by_cause)
    ready, waiting = counts.ready, counts.waiting
    for reason in reasons:
        if reason.code == EGRESS:  # items without an exit are ready or wait for their lanes
            taken = min(_items(reason), ready + waiting)
            from_ready = min(taken, ready)
            ready, waiting = ready - from_ready, waiting - (taken - from_ready)
            _add(by_cause, egress_cause(reason), taken)
    _add(by_cause, NO_WORKER if "no_worker" in first else FREE_WORKERS, ready)
    for code, items in _shares(waiting, waiting_lanes).items():
        # Only the reasons of the run compare the places of lanes with workers.
        wants_workers = code == "lane_limit" and "lane_workers" in first
        _add(by_cause, FREE_WORKERS if wants_workers else LANE_CAUSES.get(code, ANY_LANE), items)
    delayed = counts.delayed
    for code, cause in DELAY_CAUSES.items():
        some = min(delayed, _items(first.get(code)))
        delayed -= some
        _add(by_cause, cause, some)
    _add(by_cause, OTHER_DELAYS, delayed)
    return _without_zeros(by_cause)


def _run_cause(first: Mapping[str, WaitReason], none_runs: bool) -> str | None:
    """What holds all items back."""
    if "run_paused" in first:
        return RUN_PAUSED
    if "ledger_full" in first:
        return DISK_FULL
    return NO_WORKER if "no_worker" in first and none_runs else None


def _shares(items: int, weights: Mapping[str, int]) -> dict[str, int]:
    """The items divided in the ratio of the weights, in whole numbers that add up."""
    total = sum(weights.values())
    if items == 0 or total == 0:
        return {"": items}
    shares = {code: items * weight // total for code, weight in weights.items()}
    largest = max(shares, key=lambda code: shares[code])
    shares[largest] += items - sum(shares.values())
    return shares


def _items(reason: WaitReason | None) -> int:
    return 0 if reason is None else reason.items or 0


def _add(by_cause: dict[str, int], cause: str, items: int) -> None:
    by_cause[cause] = by_cause.get(cause, 0) + items


def _without_zeros(by_cause: dict[str, int]) -> dict[str, int]:
    return {cause: items for cause, items in by_cause.items() if items > 0}
