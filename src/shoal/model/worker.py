"""Workers as the ledger knows them."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import socket
from enum import StrEnum

import msgspec

DEFAULT_LEASE_SECONDS = 30.0
MAX_REPORTED_ITEMS = 100


class WorkerState(StrEnum):
    LIVE = "live"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


PRESENT_STATES = (WorkerState.LIVE, WorkerState.DRAINING)


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which work a worker takes. Empty tuples mean all. `partitions` come first; with `steal`, the rest follows."""

    scraper: str | None = None
    run_ids: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    steal: bool = True

    def includes_run(self, run_id: str, scraper: str) -> bool:
        """Whether items of this run are among its work."""
        return self.scraper in (None, scraper) and (not self.run_ids or run_id in self.run_ids)

    def includes_stage(self, run_id: str, scraper: str, stage: str) -> bool:
        """Whether items of this stage of the run are among its work."""
        return self.includes_run(run_id, scraper) and (not self.stages or stage in self.stages)


ALL_WORK = Scope()


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who registers. `lease_seconds`: after so long without a heartbeat its work goes to others.

    `version` is Shoal's, `code` the fingerprint of the scraper that it works for.
    """

    id: str
    node: str
    pid: int
    version: str = ""
    code: str | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    scope: Scope = Scope()


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: go on or drain, and the newest settings version to compare with one's own."""

    state: WorkerState
    settings_version: int


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker says about itself with a heartbeat.

    `running`: how many attempts are under way, by the number of their run. `items`: which, and for how many seconds,
    the longest first; at most MAX_REPORTED_ITEMS of them. `unstored`: attempts that have ended and wait for their
    commit. `trouble`: what keeps the worker from going on, a sentence.
    """

    running: dict[int, int] = {}
    items: tuple[tuple[int, float], ...] = ()
    unstored: int = 0
    trouble: str | None = None

    @property
    def lists_all(self) -> bool:
        """Whether an item that is not among `items` has surely not begun."""
        return not self.unstored and sum(self.running.values()) <= len(self.items)


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as the ledger knows it. `state` is what was written down last; `alive` compares heartbeat and lease.

    `report_seconds`: how old its report is. A claim counts as a sign of life, so that may be more than it was silent.
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
        """Present, with a heartbeat that is not older than its lease: the rule by which the ledger gives it up."""
        return self.state in PRESENT_STATES and self.silent_seconds <= self.lease_seconds


def new_worker_id(node: str | None = None) -> str:
    """`hostname-pid-random`: host names and pids repeat in containers, the random part does not."""
    return f"{node or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
