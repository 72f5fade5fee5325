"""What a page costs workers and database, as measured. Only `MEASURED` has figures; `shoal plan` computes with them.

`python -m bench --only scale` measures them again, says how far these are off, and prints the new ones.
"""

from __future__ import annotations

import msgspec


class LinearCost(msgspec.Struct, frozen=True):
    """The cost of a page: what every page costs, and what one costs more whose claim and commit are its alone."""

    page: float
    alone: float

    def of_page(self, share: float) -> float:
        """`share`: the part of the pages that are alone, see `capacity.alone_share`."""
        return self.page + self.alone * share


class LaneCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of pages that share a kind of lane.

    `wait`: seconds that a page waits in its slot besides the site's latency. `calls`: claims and commits. `database`,
    `worker`: processor seconds. `log`: bytes of PostgreSQL's write-ahead log. `enqueue`: processor seconds to store an
    item, of database and command.
    """

    wait: float
    calls: LinearCost
    database: LinearCost
    worker: LinearCost
    log: LinearCost
    enqueue: float


class PageCosts(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, and on which day.

    `no_lanes`: pages of a site of one's own; `lanes`: of hosts with a limit; `paced`: of hosts with a limit and a
    delay. `idle_*`: of a worker with nothing to do, a second: heartbeats, maintenance, looking for work.
    `worker_per_kb`: more processor seconds for each KB of a page. `worker_mb`: memory. `pooler`: how many times the
    processor time of the database is with PgBouncer in between, its own included. `connections`: of one worker, at
    most. `ledger_bytes`: disk for each item that is done, without its record. `error`: the largest factor by which
    processor time and log of the model were off in fleets that were not used to measure these.
    """

    measured_on: str
    no_lanes: LaneCosts
    lanes: LaneCosts
    paced: LaneCosts
    idle_database: float
    idle_worker: float
    idle_log: float
    worker_per_kb: float
    worker_mb: float
    pooler: float
    connections: float
    ledger_bytes: float
    error: float


# On two cores of a shared virtual machine, PostgreSQL 18 with fsync on.
MEASURED = PageCosts(
    measured_on="2026-11-18",
    no_lanes=LaneCosts(
        wait=0.0,
        calls=LinearCost(0.0, 0.901),
        database=LinearCost(2.29e-05, 0.000457),
        worker=LinearCost(0.00019, 0.000731),
        log=LinearCost(789.0, 949.0),
        enqueue=1.17e-05,
    ),
    lanes=LaneCosts(
        wait=0.0,
        calls=LinearCost(0.0, 1.15),
        database=LinearCost(5.36e-05, 0.00075),
        worker=LinearCost(0.0003, 0.00118),
        log=LinearCost(954.0, 1130.0),
        enqueue=2.5e-05,
    ),
    paced=LaneCosts(
        wait=9.7e-05,
        calls=LinearCost(0.856, 0.916),
        database=LinearCost(0.000475, 0.00131),
        worker=LinearCost(0.000546, 0.00168),
        log=LinearCost(2630.0, 1170.0),
        enqueue=2.5e-05,
    ),
    idle_database=0.00237,
    idle_worker=0.00287,
    idle_log=267.0,
    worker_per_kb=6.5e-06,
    worker_mb=74.8,
    pooler=1.42,
    connections=6.0,
    ledger_bytes=751.0,
    error=1.31,
)
