"""What a ledger can do, by role. Both backends implement these; callers ask for the roles they need.

All calls are safe to make again after an error: they either took effect once or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shoal.model.item import ClaimedItem, Lease, NewItem
from shoal.model.lane import HostSlotReply, LaneView, ReservedStarts, StartRequest
from shoal.model.outcome import FinishedAttempt
from shoal.model.run import Run, RunSpec
from shoal.model.views import (
    AttemptView,
    AuditEvent,
    CommitReport,
    Counts,
    CursorPage,
    FailedItem,
    Finding,
    HealthReport,
    IntakeReport,
    ItemFilter,
    ItemView,
    LockView,
    PartitionProgress,
    RecentActivity,
    ResultRow,
    StaleClaim,
    UpkeepReport,
    WaitReason,
    WorkerProgress,
)
from shoal.model.worker import ALL_WORK, HeartbeatReply, Scope, WorkerReport, WorkerSpec, WorkerView

ALL_ITEMS = ItemFilter()
Entry = str | bytes | NewItem
Entries = Iterable[Entry] | AsyncIterable[Entry]
# Hears how many items a move of many has done with so far.
OnProgress = Callable[[int], object]


class Runs(Protocol):
    async def create(self, spec: RunSpec) -> Run:
        """A new, unsealed, active run. Its id is the ledger's time, with a suffix when that is taken.

        With an idempotency key for which a run was made already (and not removed), that one is returned as it is.
        """

    async def by_idempotency_key(self, idempotency_key: str) -> Run | None:
        """The run that was made for an idempotency key."""

    async def get(self, run_id: str) -> Run: ...

    async def latest(self, scraper: str) -> Run | None:
        """The scraper's newest run that was not removed: what `resume` goes on with."""

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> CursorPage[Run]:
        """Newest first."""

    async def seal(self, run_id: str, *, by: str = "") -> None:
        """No more items come from outside: the run finishes when nothing remains."""

    async def pause(self, run_id: str, *, by: str = "") -> None:
        """Claims stop at once; what is leased may end; places in lanes that others wait for are given up."""

    async def resume(self, run_id: str, *, by: str = "") -> None:
        """Active again, from paused, finished or cancelled. The id stays.

        A run that had ended takes items again and must be sealed again to finish.
        """

    async def cancel(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> int:
        """End every open item as cancelled, leased ones too. Returns how many.

        The run is cancelled at once, its items in small steps. When the caller dies meanwhile, any worker's upkeep, or
        the same call again, goes on.
        """

    async def remove(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> None:
        """Forget the run and all that belongs to it. Hidden at once, deleted in small steps, gone on with likewise."""

    async def put_note(self, run_id: str, name: str, value: Mapping[str, Any]) -> None:
        """Keep something with the run under a name; what stood there is replaced. It goes when the run is removed."""

    async def get_note(self, run_id: str, name: str) -> dict[str, Any] | None: ...

    async def acquire_once(self, run_id: str, name: str) -> bool:
        """True for the first caller who asks for this name, False for everybody after."""

    async def record_event(
        self, run_id: str, action: str, subject: str, detail: Mapping[str, Any], *, by: str = ""
    ) -> None:
        """Leave an event with the run: what happened to whom, for people who ask later."""


class Intake(Protocol):
    async def enqueue(self, run_id: str, entries: Entries, *, stage: str | None = None) -> IntakeReport:
        """Store items in constant memory, duplicates and invalid ones counted. `stage` defaults to the first.

        What the report counts as enqueued is durable. After an error part of the entries may be stored:
        hand them in again, duplicates are dropped.
        """


class Claims(Protocol):
    async def claim(self, worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
        """Up to `limit` leases. An empty list means: nothing is claimable now."""

    async def mark_started(self, worker: str, leases: Sequence[Lease]) -> set[int]:
        """Say that these items are started. Returns the items whose lease was lost.

        Call it before running an item that has been rescued (it tells poison from bystanders). Items that are `paced`
        reserve their start instead (`Lanes.reserve`). Others need no call.
        """

    async def return_leases(self, worker: str, leases: Sequence[Lease]) -> int:
        """Return what was not started, or not finished. Nothing is charged."""

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        """Give back what the ledger has leased to this worker beyond what it knows of.

        Call it after a claim that was cancelled or failed: it may have taken items nobody heard of.
        """


class Commits(Protocol):
    async def commit(self, worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        """Results, follow-ups, attempts, outcomes, lanes and counts of these attempts, in one transaction."""


class Workers(Protocol):
    async def register(self, spec: WorkerSpec) -> None: ...

    async def heartbeat(self, worker: str, report: WorkerReport | None = None) -> HeartbeatReply:
        """Sign of life, with what the worker says about itself; None leaves what it said before.

        Raises WorkerLost when the worker was declared dead meanwhile.
        """

    async def drain(self, worker: str, *, by: str = "") -> None:
        """Tell a worker, at its next heartbeat, to finish what it has and leave."""

    async def stop(self, worker: str) -> int:
        """The worker leaves; what it still holds goes back. Returns how many leases that were."""

    async def mark_dead(self, worker: str) -> UpkeepReport:
        """Somebody saw this worker die: rescue its items now instead of after its lease."""

    async def list(self, *, present: bool = True) -> list[WorkerView]: ...


class Lanes(Protocol):
    async def clock(self) -> float:
        """The ledger's clock, in seconds. Quick, so that a worker knows how its own clock differs."""

    async def get(self, key: str, *, run_id: str | None = None) -> LaneView: ...

    async def list(
        self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[LaneView]:
        """Shared lanes, or those of one run."""

    async def set(
        self,
        key: str,
        *,
        run_id: str | None = None,
        limit: int | None = None,
        delay: tuple[float, float] | None = None,
        paused: bool | None = None,
        by: str = "",
    ) -> LaneView:
        """Change a lane, or make a shared one. What is set here outranks what stages declare."""

    async def block(self, key: str, seconds: float, why: str, *, run_id: str | None = None, by: str = "") -> LaneView:
        """Nothing of the lane starts for so long; 0 lifts a block."""

    async def reserve(
        self, worker: str, key: str, request: StartRequest, *, run_id: str | None = None
    ) -> ReservedStarts:
        """The next starts of a lane, for requests of this worker; sleep until each and send.

        Every request on a lane with a delay needs one, the first of an item too. A lane that does not exist or has no
        delay costs no wait, except for what is left of a block. A start that is not used delays the others, one that
        could not be used in time has lapsed: ask again.
        """

    async def request_slot(self, worker: str, key: str, visit: int, *, run_id: str, stage: str) -> HostSlotReply:
        """A request to a host that its item's own lane does not speak for asks for a place in the host's lane.

        `visit` is a number of the caller's choice, by which it may ask again while it waits, and leaves. A lane that is
        not there is made with the policy of the stage. Visits and the lane's items share one limit; visits go first,
        because they hold a place elsewhere already. They are given up with their worker, as leases are.
        """

    async def release_slots(self, visits: Sequence[int]) -> None:
        """These visits are over, or no longer wanted."""

    async def block_host(self, key: str, seconds: float, why: str, *, run_id: str, stage: str) -> None:
        """A host asked to wait: nothing goes there for so long, nor for less than was asked before."""

    async def set_delay_floor(self, key: str, delay: float, why: str, *, run_id: str | None = None) -> LaneView:
        """From now on the lane's delay is at least so many seconds (robots.txt's crawl-delay); 0 lifts it.

        A floor under what stages declare; what an operator set outranks it. Makes a shared lane if there is none.
        Saying the same again is cheap.
        """


class StoredSettings(Protocol):
    async def put(self, scope: str, value: Mapping[str, Any], *, by: str = "") -> int:
        """Store a new version for a scope such as `global` or `scraper:india`. Returns the version."""

    async def get(self, scope: str) -> tuple[int, dict[str, Any]] | None:
        """Newest version and value. Heartbeats carry the newest version of all scopes."""


class Locks(Protocol):
    """Things that one of many processes is to do, once: taken for a while, kept as long as it takes, finished.

    `by` names the taker and must be its own. Whoever dies loses its lock when its time is up.
    """

    async def acquire(self, name: str, by: str, seconds: float) -> bool:
        """True: it is yours for so long. False: it is finished, or somebody else's whose time is not up."""

    async def renew(self, name: str, by: str, seconds: float) -> bool:
        """Yours for so long from now on. False: it no longer is."""

    async def complete(self, name: str, by: str, value: Mapping[str, Any] | None = None) -> bool:
        """Done, with what came of it; nobody can take it any more. False: it was no longer yours."""

    async def release(self, name: str, by: str) -> bool:
        """Give it up: anybody may take it at once. False: it was no longer yours."""

    async def get(self, name: str) -> LockView | None: ...

    async def list(self, prefix: str, *, limit: int = 50) -> list[LockView]:
        """Those whose names begin so, the last name first."""


class Steering(Protocol):
    async def release(self, *, older_than: float, run_id: str | None = None, by: str = "") -> int:
        """Take away leases claimed more than so many seconds ago; their holders can no longer commit."""

    async def retry(
        self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "", on_progress: OnProgress = int
    ) -> int:
        """Another life for dead (or cancelled) items, in small steps; `limit` tries a few first."""

    async def cancel(
        self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "", on_progress: OnProgress = int
    ) -> int:
        """End open items as cancelled, leased ones too, in small steps."""


class Reads(Protocol):
    async def stats(self, run_id: str, *, stage: str | None = None) -> Counts: ...

    async def partitions(self, run_id: str) -> list[PartitionProgress]: ...

    async def workers(self, run_id: str, *, minutes: int = 60) -> list[WorkerProgress]:
        """Leased now, done and dead in the last minutes, per worker, most done first."""

    async def recent(self, run_id: str, *, minutes: int = 5) -> RecentActivity:
        """What ended in the last minutes, the current one included, and since when nothing has."""

    async def items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ItemView]:
        """In the order they were enqueued. A page may be short, even empty, while its cursor says that more follow."""

    async def item(
        self, run_id: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> ItemView:
        """By id, or by key within a stage (the first one unless given)."""

    async def attempts(self, run_id: str, item: int) -> list[AttemptView]: ...

    async def failed(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]: ...

    async def stale(self, *, older_than: float = 1800.0, limit: int = 100) -> list[StaleClaim]: ...

    async def results(
        self, run_id: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[ResultRow]:
        """By item and n. With `stage` a page may be short, even empty, while its cursor says that more follow."""

    async def result_span(self, run_id: str) -> tuple[int, int] | None:
        """The first and the last item of a run that have a record; None when none has."""

    async def events(
        self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[AuditEvent]:
        """Newest first."""

    async def why_item(self, run_id: str, item: int) -> list[WaitReason]: ...

    async def why_run(self, run_id: str) -> list[WaitReason]: ...


class Upkeep(Protocol):
    async def run_once(self) -> UpkeepReport:
        """What any worker does now and then: wake the due, reap the dead, fold counts, finish runs. Cheap to overdo.

        Done in short transactions, for about a second at most; what is left then is done by the next round, of anybody.
        """

    async def next_due(self, scope: Scope = ALL_WORK) -> float | None:
        """Seconds until a delayed item of this scope may come due; None when none is delayed. It may be too few."""

    async def wait(self, seconds: float) -> None:
        """Sleep until there may be work, at most so long. Only a hint: it may return early or late."""

    async def audit(self, *, content: bool = False) -> list[Finding]:
        """Check every rule the tables must keep. Reads everything: for tests and `shoal db check --deep`.

        `content`: where the database does not do so by itself, check also that what is stored is whole and readable.
        """


class Schema(Protocol):
    async def version(self) -> int | None:
        """The schema's version; None when there is none."""

    async def migrate(self) -> tuple[int, int]:
        """Bring the schema to this code's version. Returns the versions before and after."""

    async def require_current(self) -> None:
        """Raise LedgerNotMigrated or LedgerTooNew unless schema and code have the same version."""


class Health(Protocol):
    async def check(self) -> HealthReport:
        """The ledger's clock and the state of its server, for `shoal doctor`."""

    def set_warning_handler(self, warn: Callable[[str], object]) -> None:
        """Say what the ledger notices by itself while it is used, such as that its server has no connection left."""


@runtime_checkable
class Backup(Protocol):
    """A ledger that copies itself. A database server has its own tools for that."""

    async def back_up(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """A consistent copy in a new file while others work on. `progress` hears of pages left and pages in all."""


class Ledger(Protocol):
    """All roles on one database."""

    @property
    def runs(self) -> Runs: ...
    @property
    def intake(self) -> Intake: ...
    @property
    def claims(self) -> Claims: ...
    @property
    def commits(self) -> Commits: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def lanes(self) -> Lanes: ...
    @property
    def settings(self) -> StoredSettings: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def steering(self) -> Steering: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def health(self) -> Health: ...

    async def close(self) -> None: ...
