"""Workers as the ledger stores them."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import socket
from enum import StrEnum

import msgspec

from shoal.model.egress import EgressWait

DEFAULT_LEASE_SECONDS = 30.0
MAX_REPORTED_ITEMS = 100
# Locks that are places of workers (the setting worker_limit) begin so, followed by the scraper and a number.
WORKER_PLACE_PREFIX = "worker-place/"
# A pool reports this often at least; without a report for so long it is gone.
POOL_REPORT_SECONDS, POOL_LOST_SECONDS = 5.0, 20.0


class WorkerState(StrEnum):
    LIVE = "live"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


PRESENT_STATES = (WorkerState.LIVE, WorkerState.DRAINING)


class FixedPart(msgspec.Struct, frozen=True):
    """A worker's part of an egress pool with `share = "fixed"`: it is number `number` of so many `workers`."""

    pool: str
    number: int
    workers: int


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The items that a worker claims. Empty tuples mean all. `partitions` come first; with `steal`, then the others.

    `parts`: of the exits that it uses, for workers of other pools to see; claims do not depend on them.
    """

    scraper: str | None = None
    run_ids: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    steal: bool = True
    parts: tuple[FixedPart, ...] = ()

    def includes_run(self, run_id: str, scraper: str) -> bool:
        """Whether items of this run are in the scope."""
        return self.scraper in (None, scraper) and (not self.run_ids or run_id in self.run_ids)

    def includes_stage(self, run_id: str, scraper: str, stage: str) -> bool:
        """Whether items of this stage of the run are in the scope."""
        return self.includes_run(run_id, scraper) and (not self.stages or stage in self.stages)


ALL_WORK = Scope()


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that registers. `lease_seconds`: after so long without a heartbeat its leases are given to others.

    `version` is that of Shoal, `code` the fingerprint of the scraper.
    """

    id: str
    node: str
    pid: int
    version: str = ""
    code: str | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    scope: Scope = Scope()


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The reply to a heartbeat: the worker's state (live or draining), and the newest version of the settings.

    `schema_version`: of the ledger now; a migration may have changed it while the worker runs.
    """

    state: WorkerState
    settings_version: int
    schema_version: int


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's report, sent with a heartbeat.

    `running`: how many attempts are running, by run number. `items`: the items and for how many seconds, the longest
    first, at most MAX_REPORTED_ITEMS. `unstored`: finished attempts that wait for their commit. `trouble`: a sentence
    about what stops the worker. `egress`: the stages whose items it does not claim now, because no exit can be used.
    """

    running: dict[int, int] = {}
    items: tuple[tuple[int, float], ...] = ()
    unstored: int = 0
    trouble: str | None = None
    egress: tuple[EgressWait, ...] = ()

    @property
    def lists_all(self) -> bool:
        """Whether an item that is not in `items` has certainly not started."""
        return not self.unstored and sum(self.running.values()) <= len(self.items)


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker in the ledger. `state` is the stored state; `alive` compares heartbeat and lease.

    `report_seconds`: the age of its report, which may exceed `silent_seconds`, because a claim counts as a heartbeat.
    """

    id: str
    node: str
    pid: int
    version: str
    code: str | None
    state: WorkerState
    started_at: dt.datetime
    silent_seconds: float
    lease_seconds: float
    leased: int
    scope: Scope
    report: WorkerReport | None = None
    report_seconds: float | None = None

    @property
    def alive(self) -> bool:
        """Present, and its heartbeat is not older than its lease; otherwise the ledger declares it lost."""
        return self.state in PRESENT_STATES and self.silent_seconds <= self.lease_seconds


class WorkerPoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that registers. `process`: which process has the pid, so that a reused pid is not mistaken for it.

    `logs`: the folder of its log files. `by`: who started it.
    """

    id: str
    scraper: str
    run_id: str
    node: str
    pid: int
    process: str
    logs: str = ""
    by: str = ""
    wanted: int = 0


class WorkerPoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in the ledger. `workers`: processes that run. `wanted`: how many there shall be.

    `silent_seconds`: since it last reported. A pool that ended has `ended_at`, and says in `why` how.
    """

    id: str
    scraper: str
    run_id: str
    node: str
    pid: int
    process: str
    logs: str
    by: str
    workers: int
    wanted: int
    stopping: bool
    why: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    silent_seconds: float


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A machine with its registered workers: how many, how many of them are alive and draining, and what they hold.

    `versions`: of Shoal, as its workers report them.
    """

    node: str
    workers: int
    live: int
    draining: int
    leased: int
    versions: tuple[str, ...]
    started_at: dt.datetime


def new_worker_id(node: str | None = None) -> str:
    """`hostname-pid-random`: host names and pids repeat in containers, the random part does not."""
    return f"{node or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
