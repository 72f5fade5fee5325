"""How long each read of the control plane takes on a large ledger, made by `bench.control_ledger`.

    python -m bench.control_reads LEDGER [--times 30]

Prints the median and the 95th percentile of each read in milliseconds; the target is 100 ms for the latter.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

from bench.figures import percentile
from bench.places import open_ledger
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.run import Run
from shoal.model.views import ItemFilter
from shoal.service import inspect
from shoal.service.failures import list_failure_groups
from shoal.service.lanes import list_lane_progress, read_lane_timeline
from shoal.service.steer import preview_retry
from shoal.service.workers import list_nodes, list_worker_page

TARGET_MILLISECONDS = 100.0
# A search that reads everything stops after about this time, with a cursor.
SEARCH_SECONDS = 0.05

Read = Callable[[], Awaitable[object]]


async def reads_of(ledger: Ledger, run: Run) -> dict[str, Read]:
    """Each list, filter and count of the dashboard, by name."""
    page = (await ledger.reads.items(run.id, ItemFilter(states=(ItemState.DEAD,)), limit=50)).rows
    waiting = (await ledger.reads.items(run.id, ItemFilter(states=(ItemState.WAITING,)), limit=50)).rows
    group = (await list_failure_groups(ledger, run.id)).rows[0]
    slow = (await ledger.lanes.progress(run_id=run.id, slowest=True, limit=1)).rows[0]
    middle = str(page[0].id + 2_000_000)

    def items(cursor: str | None = None, **fields: object) -> Read:
        which = ItemFilter(**fields)  # type: ignore[arg-type]
        return lambda: inspect.list_items(ledger, run.id, which, cursor=cursor, seconds=SEARCH_SECONDS)

    def count(**fields: object) -> Read:
        which = ItemFilter(**fields)  # type: ignore[arg-type]
        return lambda: inspect.count_items(ledger, run.id, which)

    async def explained() -> object:
        return await inspect.explain_items(ledger, run.id, [item.id for item in (*page[:25], *waiting[:25])])

    return {
        "items": items(),
        "items, from the middle": items(middle),
        "items, done": items(states=(ItemState.DONE,)),
        "items, waiting": items(states=(ItemState.WAITING,)),
        "items, dead": items(states=(ItemState.DEAD,)),
        "items, ready of a partition": items(states=(ItemState.READY,), partition="p07"),
        "items of a lane": items(lane="h7.example"),
        "items of a lane, dead": items(lane="h7.example", states=(ItemState.DEAD,)),
        "items of a lane, waiting": items(lane="h7.example", states=(ItemState.WAITING,)),
        "items of a failure": items(failure=group.id),
        "items by URL": items(text=page[0].url),
        "items by text, none": items(text="nothing has this"),
        "items by text, dead": items(text="/p/4", states=(ItemState.DEAD,)),
        "items by error, none": items(error="nothing has this", states=(ItemState.DEAD,)),
        "count, dead": count(states=(ItemState.DEAD,)),
        "count, lane": count(lane="h7.example"),
        "count, failure": count(failure=group.id),
        "count, text": count(text="/p/4"),
        "count, error": count(error="timed out", states=(ItemState.DEAD,)),
        "preview of a retry": lambda: preview_retry(ledger, run.id, ItemFilter(failure=group.id)),
        "why of 50 items": explained,
        "why of one item": lambda: inspect.explain_item(ledger, run.id, id=waiting[0].id),
        "why of the run": lambda: inspect.explain_run(ledger, run.id),
        "children": lambda: inspect.list_children(ledger, run.id, page[0].id // 50 * 50),
        "failure groups": lambda: list_failure_groups(ledger, run.id),
        "failures of status": lambda: inspect.list_failures(ledger, run.id),
        "lanes by name": lambda: list_lane_progress(ledger, run=run.id),
        "lanes by prefix": lambda: list_lane_progress(ledger, run=run.id, prefix="h99"),
        "lanes, slowest": lambda: list_lane_progress(ledger, run=run.id, order="slowest"),
        "shared lanes": lambda: list_lane_progress(ledger),
        "timeline of lanes": lambda: read_lane_timeline(ledger, run.id),
        "timeline of a lane": lambda: read_lane_timeline(ledger, run.id, lanes=[slow.lane.key]),
        "partitions": lambda: inspect.list_partitions(ledger, run.id),
        "workers": lambda: list_worker_page(ledger),
        "workers of a node": lambda: list_worker_page(ledger, node="node-07"),
        "nodes": lambda: list_nodes(ledger),
        "egress matrix": lambda: ledger.exits.matrix("datacenter"),
        "egress pools": ledger.exits.pools,
        "events": lambda: inspect.list_events(ledger),
        "events of an actor": lambda: inspect.list_events(ledger, run=run.id, actor="operator3"),
        "events, none": lambda: inspect.list_events(ledger, actor="nobody"),
    }


async def measure(address: str, times: int) -> dict[str, tuple[float, float]]:
    """Median and 95th percentile of each read, in milliseconds. The reads take turns."""
    ledger = await open_ledger(address)
    try:
        run = (await ledger.runs.list(scraper="shop")).rows[0]
        reads = await reads_of(ledger, run)
        taken: dict[str, list[float]] = {name: [] for name in reads}
        for _ in range(times):
            for name, read in reads.items():
                begun = time.perf_counter()
                await read()
                taken[name].append(1_000 * (time.perf_counter() - begun))
    finally:
        await ledger.close()
    return {name: (percentile(each, 50), percentile(each, 95)) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.control_reads", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("ledger", help="postgresql://... or a path")
    parser.add_argument("--times", type=int, default=30)
    given = parser.parse_args()
    for name, (median, high) in asyncio.run(measure(given.ledger, given.times)).items():
        mark = "" if high <= TARGET_MILLISECONDS else "  MISS"
        print(f"{name:32} p50 {median:8.1f} ms   p95 {high:8.1f} ms{mark}")


if __name__ == "__main__":
    main()
