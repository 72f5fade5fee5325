"""What the ledger keeps of a run over time, and the steps in which it is read.

What ended is counted in the transactions that end it, so it is exact. The state (items by state, and by what they wait
for) is sampled about once a minute while a worker or a server runs: a time without samples is a gap, not zero.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from shoal.model.latency import NO_LATENCIES, LatencyHistogram
from shoal.model.views import Counts

MINUTE_SECONDS = 60
HOUR_SECONDS = 3_600
# A run keeps minutes for so long before its newest minute, then hours.
MINUTES_KEPT_SECONDS = 2 * 86_400
HOURS_KEPT_SECONDS = 90 * 86_400
MAX_HISTORY_POINTS = 240
_STEPS = (60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run's history, which begins at `at`.

    `counts`: items by state at the last sample in this step; None when there was none. `waiting_for`: its open items by
    what they waited for, as `Bottleneck.cause` names it. The other numbers are of attempts that ended in this step:
    `retried` and `throttled` ones did not end their items. `wait`: from the time an item became claimable until its
    attempt began; `work`: from there until it ended. `seconds`: the work of all attempts together.
    """

    at: dt.datetime
    counts: Counts | None = None
    waiting_for: dict[str, int] | None = None
    done: int = 0
    dead: int = 0
    skipped: int = 0
    retried: int = 0
    throttled: int = 0
    records: int = 0
    seconds: float = 0.0
    wait: LatencyHistogram = NO_LATENCIES
    work: LatencyHistogram = NO_LATENCIES


def history_step(seconds: float) -> int:
    """The step in seconds with which a time of this length has at most 240 points, of data that is still kept."""
    least = max(seconds / MAX_HISTORY_POINTS, HOUR_SECONDS if seconds > MINUTES_KEPT_SECONDS else MINUTE_SECONDS)
    return next((step for step in _STEPS if step >= least), _STEPS[-1])
