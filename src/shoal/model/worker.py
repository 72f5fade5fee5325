"""Workers as the ledger knows them."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import socket
from enum import StrEnum

import msgspec

DEFAULT_LEASE_SECONDS = 30.0


class WorkerState(StrEnum):
    LIVE = "live"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which work a worker takes. Empty tuples mean all. `partitions` come first; with `steal`, the rest follows."""

    scraper: str | None = None
    run_ids: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    steal: bool = True

    def takes_from(self, run_id: str, scraper: str) -> bool:
        """Whether items of this run are among its work."""
        return self.scraper in (None, scraper) and (not self.run_ids or run_id in self.run_ids)


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


class Orders(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: go on or drain, and the newest settings version to compare with one's own."""

    state: WorkerState
    settings_version: int


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
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


def new_worker_id(node: str | None = None) -> str:
    """`hostname-pid-random`: host names and pids repeat in containers, the random part does not."""
    return f"{node or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
