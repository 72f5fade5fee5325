"""What holds a run back, from the gates that the ledger names: one phrase, its share of the open items, and a sentence.

Some gates stop everything (a paused run, no worker); they win. Otherwise the largest group of open items names the
reason: behind their lanes, delayed, ready without anybody to take them, or simply being worked on.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.model.views import Counts, Gate
from shoal.observe.words import counted

# Gates before which nothing of the run moves, and how to name them in a few words.
_FULL_STOPS = {
    "run_paused": "the run is paused",
    "run_finished": "nothing",
    "run_cancelled": "nothing",
    "unsealed": "more items",
    "nothing_left": "nothing",
}
_NOTHING_TO_DO = ("unsealed", "nothing_left")
_LANE_STOPS = {
    "lane_paused": "paused lane",
    "lane_blocked": "blocked host",
    "lane_limit": "host limit",
    "lane_delay": "host delay",
}
_DELAYS = {
    "delayed_retry": "retries",
    "delayed_throttled": "the sites' wish to wait",
    "delayed_not_before": "a set time",
    "delayed_lane": "host delay",
}
_LANES = "lanes"


class Holdup(msgspec.Struct, frozen=True):
    """`cause` in a few words; `share` of the open items it holds, if it can be counted; `text` says it in full."""

    cause: str
    share: float | None = None
    text: str = ""


def holdup(counts: Counts, gates: Sequence[Gate]) -> Holdup:
    """The one thing to name. `gates` are those of `why_run`, the most important first."""
    by_code: dict[str, Gate] = {}
    for gate in gates:
        by_code.setdefault(gate.code, gate)
    for code, cause in _FULL_STOPS.items():
        if counts.remaining and code in _NOTHING_TO_DO:
            continue  # the gates are a moment older than the counts
        if code in by_code:
            return Holdup(cause, text=by_code[code].text)
    if counts.remaining == 0:
        return Holdup("nothing")
    if "no_worker" in by_code and counts.leased == 0:
        return Holdup("a worker", text=by_code["no_worker"].text)
    return _largest(counts, by_code)


def _largest(counts: Counts, by_code: dict[str, Gate]) -> Holdup:
    groups = {"leased": counts.leased, "ready": counts.ready, _LANES: counts.waiting}
    for code in _DELAYS:
        if code in by_code:
            # Items that keep their lane's distance stand in the same line as those behind them.
            group = _LANES if code == "delayed_lane" else code
            groups[group] = groups.get(group, 0) + (by_code[code].items or 0)
    largest = max(groups, key=lambda group: groups[group])
    # The delayed are counted up to a limit only, and the counts may be a moment older.
    share = min(1.0, groups[largest] / counts.remaining)
    match largest:
        case "leased":
            are = "is" if counts.leased == 1 else "are"
            return Holdup("nothing", text=f"{counted(counts.leased, 'item')} {are} being worked on.")
        case "ready":
            gate = by_code.get("no_worker", by_code.get("ready"))
            return Holdup("free workers", share, gate.text if gate else "")
        case "lanes":
            return _lane_holdup(by_code, share)
        case code:
            return Holdup(_DELAYS[code], share, by_code[code].text)


def _lane_holdup(by_code: dict[str, Gate], share: float) -> Holdup:
    """The busiest lane speaks for all: the ledger names it first, and a stop before a limit."""
    for code, gate in by_code.items():
        if code in _LANE_STOPS:
            return Holdup(_LANE_STOPS[code], share, gate.text)
    gate = by_code.get("delayed_lane", by_code.get("waiting", Gate(code="", text="")))
    return Holdup("host delay" if gate.code == "delayed_lane" else "host limit", share, gate.text)
