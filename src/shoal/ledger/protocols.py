"""The interface of a ledger, by role. Both backends implement all roles; callers depend on those they need.

Every call may be repeated after an error: it took effect once or not at all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from shoal.ledger.schema import SqlView
from shoal.model.access import AccessGrant, AccessToken, Role
from shoal.model.changes import (
    EVERY_RECORD,
    LOG_BEGIN,
    ChangedRecord,
    ChangeFilter,
    ChangeLag,
    ChangePage,
    ChangePosition,
    DeadLetter,
    RecordRef,
    ResultCursor,
)
from shoal.model.egress import (
    BudgetCorrection,
    BudgetGrant,
    BudgetKey,
    BudgetStop,
    BudgetView,
    EgressMatrix,
    ExitReport,
    ExitSpec,
    ExitView,
    GrantRequest,
    GrantUse,
    HealthRules,
    PoolChanges,
    PoolKind,
    PoolView,
    SessionView,
    SharedSession,
)
from shoal.model.failures import FailurePage, FailureView
from shoal.model.history import HistoryPoint
from shoal.model.item import ClaimedItem, Lease, NewItem, PreparedItem
from shoal.model.lane import HostSlotReply, LaneProgress, LaneSpan, LaneView, ReservedStarts, StartRequest
from shoal.model.outcome import FinishedAttempt, RedirectReply, RedirectVisit
from shoal.model.run import Run, RunSpec
from shoal.model.views import (
    AttemptError,
    AttemptView,
    AuditEvent,
    ChildItem,
    CommitReport,
    Counts,
    CursorPage,
    FailedItem,
    Finding,
    HealthReport,
    HeldItem,
    IntakeReport,
    ItemCount,
    ItemFilter,
    ItemView,
    LockView,
    OldestLease,
    PartitionProgress,
    RecentActivity,
    ReplayReport,
    ResultRow,
    SortedResult,
    StaleClaim,
    StoredSettingsView,
    UpkeepReport,
    WaitReason,
    WorkerProgress,
)
from shoal.model.worker import (
    ALL_WORK,
    HeartbeatReply,
    NodeView,
    Scope,
    WorkerPoolSpec,
    WorkerPoolView,
    WorkerReport,
    WorkerSpec,
    WorkerView,
)

ALL_ITEMS = ItemFilter()
# Before the names of notes that are not Shoal's own.
OWN_NOTE = "own:"
Entry = str | bytes | NewItem | PreparedItem
Entries = Iterable[Entry] | AsyncIterable[Entry]
# Called with the number of items that a bulk change has processed so far.
OnProgress = Callable[[int], object]
OnStored = Callable[[], Awaitable[None]]


class Runs(Protocol):
    async def create(self, spec: RunSpec) -> Run:
        """Create an active, unsealed run. Its id is the ledger's time, with a suffix when that id exists.

        If a run with this idempotency key exists and was not removed, it is returned unchanged.
        """

    async def by_idempotency_key(self, idempotency_key: str) -> Run | None:
        """The run with this idempotency key."""

    async def get(self, run_id: str) -> Run: ...

    async def latest(self, scraper: str) -> Run | None:
        """The scraper's newest run that was not removed: the one that `resume` continues."""

    async def list(self, *, scraper: str | None = None, cursor: str | None = None, limit: int = 50) -> CursorPage[Run]:
        """Newest first. The number of a run is the cursor of those before it."""

    async def seal(self, run_id: str, *, by: str = "") -> None:
        """No more items will be enqueued from outside: the run finishes when no open items remain."""

    async def pause(self, run_id: str, *, by: str = "", because: str = "") -> None:
        """Stop claims at once. Leased items may end; slots in lanes that other runs wait for are released.

        `because`: why, for the event.
        """

    async def resume(self, run_id: str, *, by: str = "") -> None:
        """Make a paused, finished or cancelled run active again. The id stays.

        A run that had ended accepts items again and must be sealed again to finish.
        """

    async def cancel(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> int:
        """End every open item as cancelled, leased ones too. Returns how many.

        The run is cancelled at once, its items in small steps. If the caller dies meanwhile, any worker's upkeep, or
        the same call again, continues.
        """

    async def remove(self, run_id: str, *, by: str = "", on_progress: OnProgress = int) -> None:
        """Delete the run and its data. It is hidden at once and deleted in small steps, continued as for `cancel`."""

    async def put_note(self, run_id: str, name: str, value: Mapping[str, Any]) -> None:
        """Store a value with the run under a name, replacing an earlier one. It is deleted with the run."""

    async def get_note(self, run_id: str, name: str) -> dict[str, Any] | None: ...

    async def acquire_once(self, run_id: str, name: str) -> bool:
        """True for the first call with this name, False for all later ones."""

    async def record_event(
        self, run_id: str | None, action: str, subject: str, detail: Mapping[str, Any], *, by: str = ""
    ) -> None:
        """Store an event of the run, or with None one that concerns no run."""


class Intake(Protocol):
    async def enqueue(
        self, run_id: str, entries: Entries, *, stage: str | None = None, on_stored: OnStored | None = None
    ) -> IntakeReport:
        """Store items in constant memory; count duplicates and invalid ones. `stage` defaults to the first.

        `on_stored` is awaited once, as soon as the first valid items are durable.

        Items counted as enqueued are durable. After an error some entries may be stored: enqueue them again,
        duplicates are dropped.
        """


class Claims(Protocol):
    async def claim(self, worker: str, scope: Scope, limit: int) -> list[ClaimedItem]:
        """Up to `limit` leases. An empty list means that nothing is claimable now."""

    async def mark_started(self, worker: str, leases: Sequence[Lease]) -> set[int]:
        """Mark items as started. Returns the items whose lease was lost.

        Needed before an item that has been rescued is run, so that only items that ran count as causes of a crash.
        Items that are `paced` reserve their start instead (`Lanes.reserve`). Others need no call.
        """

    async def return_leases(self, worker: str, leases: Sequence[Lease]) -> int:
        """Return items that were not started or not finished. No attempt is charged."""

    async def reconcile(self, worker: str, known: Sequence[Lease]) -> int:
        """Return leases of this worker that it does not know.

        Call it after a claim that was cancelled or failed: the ledger may have leased items whose answer was lost.
        """


class Commits(Protocol):
    async def commit(self, worker: str, finished: Sequence[FinishedAttempt]) -> CommitReport:
        """Results, follow-ups, attempts, outcomes, lanes and counts of these attempts, in one transaction."""

    async def visit_redirect(self, worker: str, visit: RedirectVisit) -> RedirectReply:
        """Decide whether an attempt may request the target of a redirect: each page is visited by one item.

        A new target becomes an alias of the item: an item that has ended as skipped, so that links to it are
        duplicates. If the target is the page of another item, this item ends as skipped; committing it again is
        reported as repeated.
        """


class Changes(Protocol):
    """The log of what stored results, in the order in which readers see it, and named cursors into it.

    A reader that continues at the end of each page misses nothing while others commit, and gets a record once more only
    when the records of its item were replaced. Removing a run removes its changes; cursors stay valid.
    """

    async def read(
        self,
        after: ChangePosition = LOG_BEGIN,
        which: ChangeFilter = EVERY_RECORD,
        *,
        limit: int = 1_000,
        max_bytes: int = 8 << 20,
        until: ChangePosition | None = None,
    ) -> ChangePage:
        """The next records as they are now; at most `limit`, and no more after `max_bytes` (on disk).

        `until`: as if the log ended with this change.
        """

    async def replaced_items(self, after: ChangePosition, until: ChangePosition) -> set[tuple[str, int]]:
        """The items (run id and number) whose records were replaced between two positions.

        A reader gets their records at each of their changes, as they are now.
        """

    async def lag(self, after: ChangePosition, which: ChangeFilter = EVERY_RECORD) -> ChangeLag:
        """How many records were stored behind a position, and since when. Costs the same however many."""

    async def end(self) -> ChangePosition:
        """The end of the log now."""

    async def open_cursor(self, name: str, start: ChangePosition = LOG_BEGIN) -> ResultCursor:
        """The cursor with this name, created at `start` if there is none."""

    async def cursor(self, name: str) -> ResultCursor | None: ...

    async def cursors(self, prefix: str = "") -> list[ResultCursor]:
        """Cursors whose names have this prefix, by name; 1,000 at most."""

    async def move(
        self,
        name: str,
        start: ChangePosition,
        end: ChangePosition,
        *,
        delivered: int = 0,
        dead: Mapping[RecordRef, str] | None = None,
    ) -> bool:
        """Move a cursor if it is still at `start`, and store what was refused, with the reasons, in one transaction.

        False: another process has moved it. Clears the error of the cursor.
        """

    async def keep_state(self, name: str, at: ChangePosition, before: str, state: str) -> bool:
        """Store a text with a cursor if it is still at this position and its text is still `before`."""

    async def fail(self, name: str, error: str) -> None:
        """Record why a cursor does not move, and since when."""

    async def reset(self, name: str, to: ChangePosition = LOG_BEGIN) -> bool:
        """Set a cursor to a position wherever it is. False: there is no such cursor."""

    async def drop_cursor(self, name: str) -> bool:
        """Remove a cursor and its dead letters."""

    async def dead_letters(self, name: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[DeadLetter]:
        """What was refused under this cursor, oldest run first."""

    async def remove_dead_letters(self, name: str, refs: Sequence[RecordRef]) -> int: ...

    async def records(self, refs: Sequence[RecordRef]) -> list[ChangedRecord]:
        """These records, as far as they exist."""


class Workers(Protocol):
    async def register(self, spec: WorkerSpec) -> None: ...

    async def heartbeat(self, worker: str, report: WorkerReport | None = None) -> HeartbeatReply:
        """Record a heartbeat, with a report; None keeps the last report.

        Raises WorkerLost when the worker was declared dead.
        """

    async def drain(self, worker: str, *, by: str = "") -> None:
        """Ask a worker, with the reply to its next heartbeat, to finish its items and stop."""

    async def stop(self, worker: str) -> int:
        """Stop a worker and return its leases. Returns how many."""

    async def mark_dead(self, worker: str) -> UpkeepReport:
        """The caller knows that this worker is dead: rescue its items now instead of after its lease."""

    async def list(self, *, present: bool = True) -> list[WorkerView]: ...

    async def page(
        self, *, present: bool = True, node: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[WorkerView]:
        """Newest first, of all nodes or of one. A page may be short while its cursor says that more follow."""

    async def nodes(self) -> tuple[NodeView, ...]:
        """The machines of registered workers, by name; 1,000 at most."""

    async def held_items(self, items: Sequence[int]) -> dict[int, HeldItem]:
        """The names and runs of leased items; those that are not leased any more are left out."""


class Lanes(Protocol):
    async def clock(self) -> float:
        """The ledger's clock, in seconds. Fast, so that a worker can compare it with its own clock."""

    async def get(self, key: str, *, run_id: str | None = None) -> LaneView: ...

    async def list(
        self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[LaneView]:
        """Shared lanes, or those of one run."""

    async def progress(
        self,
        *,
        run_id: str | None = None,
        slowest: bool = False,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 50,
    ) -> CursorPage[LaneProgress]:
        """Shared lanes, or with `run_id` the lanes that its items use, shared or not, with its items in them.

        By name; or with `slowest` those that will take longest first: only lanes with waiting items, some hundreds at
        most. `prefix`: only lanes whose names begin so. A page may be short while its cursor says that more follow.
        """

    async def timeline(
        self, run_id: str, lanes: Sequence[str], *, minutes: int = 60, spans: int = 100
    ) -> dict[str, tuple[LaneSpan, ...]]:
        """Recent attempts on the items of these lanes of a run (30 at most), each in the order of their beginning."""

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
        """Change a lane; a shared lane is created if needed. These values override what stages declare."""

    async def block(self, key: str, seconds: float, why: str, *, run_id: str | None = None, by: str = "") -> LaneView:
        """No item of the lane starts for so many seconds; 0 lifts a block."""

    async def reserve(
        self, worker: str, key: str, request: StartRequest, *, run_id: str | None = None
    ) -> ReservedStarts:
        """Reserve the next starts of a lane for requests of this worker, which sleeps until each.

        Every request on a lane with a delay needs one, including the first of an item. For a lane that does not exist
        or has no delay the wait is 0, or the rest of a block. An unused start delays other workers; a start that was
        missed has expired and must be reserved again.
        """

    async def request_slot(self, worker: str, key: str, slot: int, *, run_id: str, stage: str) -> HostSlotReply:
        """Request a slot in the lane of a host other than the lane of the item that sends the request.

        `slot` is an id chosen by the caller, for repeating the request while it waits and for releasing the slot. A
        missing lane is created with the policy of the stage. Slots and the lane's items share one limit; slots come
        first, because their items already hold a slot of another lane. Slots of a dead worker are released.
        """

    async def release_slots(self, slots: Sequence[int]) -> None:
        """Release slots, or withdraw requests for them."""

    async def block_host(self, key: str, seconds: float, why: str, *, run_id: str, stage: str) -> None:
        """A host asked to wait: no request for so many seconds; an existing longer block stays."""

    async def declare(self, key: str, delay: tuple[float, float]) -> None:
        """Give a shared lane this delay, unless an operator set one; it is created if needed. Repeating it is cheap.

        For a lane that no item has, such as that of an identity at a host.
        """

    async def set_delay_floor(self, key: str, delay: float, why: str, *, run_id: str | None = None) -> LaneView:
        """Set the minimum delay of a lane in seconds (robots.txt's crawl-delay); 0 removes it.

        It raises the delay that stages declare, not one that an operator set. A shared lane is created if needed.
        Repeating the call is cheap.
        """


class Exits(Protocol):
    """The health of exits (proxies, tokens, Tor), shared by all workers. An exit is known by its pool and its key."""

    async def register(
        self, worker: str, pool: str, kind: PoolKind, exits: Sequence[ExitSpec], *, complete: bool = True
    ) -> None:
        """Make exits known, and the worker a member of the pool.

        `complete`: this is the worker's list; otherwise they are added to its list. Exits are listed while they are in
        the list of a member, and after the last one has left. Repeating a complete list is cheap. A worker that stopped
        or died is no member any more.
        """

    async def report(
        self,
        worker: str,
        pool: str,
        reports: Sequence[ExitReport],
        rules: HealthRules,
        *,
        number: int | None = None,
    ) -> None:
        """Add what happened to exits, and ban those that failed too often.

        A report of success ends a row of failures. A successful trial makes an exit good again, and so does one that a
        host answered with a block; a failed one bans it anew. States that an operator set are not changed. Hosts are
        remembered from their first block on.

        `number`: a caller that repeats a report after an error gives it the same number again, and it counts once. A
        worker's numbers for a pool ascend; give one with every report, or with none.
        """

    async def changes(self, worker: str, pool: str, since: float | None = None) -> PoolChanges:
        """The exits and blocks that changed since a time (`PoolChanges.at`), and the members of the pool.

        None: all that are not good now. Changes may be repeated; none is left out. What only time changes is no change:
        see `ExitHealth.until`.
        """

    async def start_trial(self, worker: str, pool: str, key: str, seconds: float) -> bool:
        """True for one worker: the exit's ban is over, and the worker may try it with one request.

        When it does not report within so many seconds, another one may. True again for the worker that has the trial.
        """

    async def end_bans(self, pool: str, keys: Sequence[str]) -> None:
        """What these exits were banned for may be over, such as a wrong password: each may be tried now.

        Bans that an operator set stay.
        """

    async def pools(self) -> list[PoolView]:
        """Every pool that has exits, by name."""

    async def list(
        self, pool: str | None = None, *, state: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ExitView]:
        """Listed exits by pool and label, without hosts and budgets."""

    async def get(self, pool: str, key: str) -> ExitView:
        """One exit with its hosts, the most blocked first and 100 at most, and its budgets. Raises NotFound."""

    async def matrix(self, pool: str, *, hosts: int = 30, exits: int = 50) -> EgressMatrix:
        """Which exits of a pool are blocked at which hosts, the most blocked hosts and exits first."""

    async def rest(self, pool: str, key: str, seconds: float | None, *, by: str = "") -> ExitView:
        """Nobody uses the exit for so many seconds, or until it is freed; then it is good, without a trial."""

    async def ban(self, pool: str, key: str, seconds: float | None, why: str, *, by: str = "") -> ExitView:
        """Nobody uses the exit for so many seconds, or until it is freed; then it is tried first."""

    async def free(self, pool: str, key: str, *, by: str = "") -> ExitView:
        """Make the exit good at once, at every host, and forget its failures in a row."""


class Budgets(Protocol):
    """Budgets of calls that many workers spend together. `key` is the exit, `resource` the kind of call.

    Within any window the ledger grants no more calls than the budget has, whoever dies, repeats a call or is late: a
    call counts until it is certain that the site has counted it in an earlier window. Until the site has said when its
    window ends, every window of the policy's length is respected.
    """

    async def take(
        self,
        budget: BudgetKey,
        request: GrantRequest,
        *,
        used: Sequence[GrantUse] = (),
        said: BudgetCorrection | None = None,
    ) -> BudgetGrant:
        """Take calls ahead, up to those of the request; the same id is the same grant.

        What the site said outranks the policy; with neither, everything is granted. `used`, `said`: as `settle`.
        """

    async def settle(
        self, budget: BudgetKey, used: Sequence[GrantUse], *, said: BudgetCorrection | None = None
    ) -> None:
        """Report what became of grants, and what the site said. Grants that nobody reports count as made.

        A pause that the site asked for holds for the resource, and with an empty one for all of the exit. Repeating the
        call changes nothing.
        """

    async def list(self, pool: str, key: str | None = None) -> list[tuple[str, BudgetView]]:
        """The budgets of a pool's exits, by key and resource; without those whose size nobody has said."""

    async def stops(self, pool: str) -> Sequence[BudgetStop]:
        """Budgets of which nothing remains, and pauses, that a site has told. A cheap read."""


class Sessions(Protocol):
    """Sessions of identities that all workers share: cookies and storage, encrypted by the caller."""

    async def put(self, scraper: str, identity: str, content: bytes, *, before: int) -> int | None:
        """Store a session if the newest version is still `before` (0: there is none).

        Returns the new version, which no other session of this identity ever had; None when nothing was stored.
        """

    async def get(self, scraper: str, identity: str) -> SharedSession | None:
        """The newest version."""

    async def remove(self, scraper: str, identity: str) -> bool:
        """Remove a session. False: there was none."""

    async def list(self, *, scraper: str | None = None, limit: int = 1000) -> list[SessionView]:
        """The sessions by scraper and identity, without their content."""


class Access(Protocol):
    """Tokens and browser sessions of `shoal serve`, each known by the digest of its secret, which is not stored.

    The clock of the ledger decides when they end.
    """

    async def add_token(
        self, name: str, role: Role, digest: bytes, *, seconds: float | None = None, by: str = ""
    ) -> AccessToken | None:
        """Add a token that is valid for so many seconds, or until it is removed. None: the name is in use."""

    async def tokens(self) -> list[AccessToken]:
        """All tokens by name, expired ones too; 1,000 at most."""

    async def has_token(self) -> bool:
        """Whether any token is valid."""

    async def remove_token(self, name: str, *, by: str = "") -> bool:
        """Remove a token and end its sessions. False: there is none."""

    async def find_token(self, digest: bytes) -> AccessGrant | None:
        """What the token with this digest gives; None when there is none or it has expired."""

    async def start_session(
        self, token_id: int, digest: bytes, *, seconds: float, idle_seconds: float, by: str = ""
    ) -> AccessGrant | None:
        """Start a session that ends after so many seconds, or as many without use. None: the token is not valid."""

    async def find_session(self, digest: bytes) -> AccessGrant | None:
        """What the session with this digest gives; None when there is none or it has ended."""

    async def record_use(self, token_id: int, session: bytes | None = None) -> None:
        """Record that a token, and its session, are in use; at most one write a minute."""

    async def end_session(self, digest: bytes, *, by: str = "") -> bool:
        """End a session. False: there is none."""


class StoredSettings(Protocol):
    async def put(self, scope: str, value: Mapping[str, Any], *, by: str = "") -> int:
        """Store a new version for a scope such as `global` or `scraper:india`. Returns the version."""

    async def get(self, scope: str) -> tuple[int, dict[str, Any]] | None:
        """Newest version and value. Heartbeats carry the newest version of all scopes."""

    async def list(self, *, limit: int = 200) -> list[StoredSettingsView]:
        """The newest version of each scope, by scope."""


class WorkerPools(Protocol):
    """Pools of workers, each a process that supervises them on one machine."""

    async def register(self, spec: WorkerPoolSpec) -> None:
        """Make a pool known. Pools that ended or fell silent a week ago are forgotten."""

    async def report(self, pool: str, *, workers: int, wanted: int, stopping: bool) -> bool:
        """Record that the pool is there, and its size. False: it has ended, or is not known."""

    async def end(self, pool: str, why: str = "") -> bool:
        """Record that the pool has ended. False: it had ended before, or is not known."""

    async def get(self, pool: str) -> WorkerPoolView | None: ...

    async def list(self, *, scraper: str | None = None, ended: bool = False, limit: int = 100) -> list[WorkerPoolView]:
        """Newest first; with `ended` also those that have ended."""


class Locks(Protocol):
    """Named locks for work that one of many processes does once: acquired for a time, renewed, completed.

    `by` identifies the owner and must be unique. A lock whose owner dies expires.
    """

    async def acquire(self, name: str, by: str, seconds: float) -> bool:
        """True: the caller owns the lock for so many seconds. False: it is completed, or another owner's."""

    async def renew(self, name: str, by: str, seconds: float) -> bool:
        """Extend the lock to so many seconds from now. False: the caller no longer owns it."""

    async def complete(self, name: str, by: str, value: Mapping[str, Any] | None = None) -> bool:
        """Complete the lock with a result; it cannot be acquired again. False: the caller no longer owned it."""

    async def release(self, name: str, by: str) -> bool:
        """Release the lock at once. False: the caller no longer owned it."""

    async def get(self, name: str) -> LockView | None: ...

    async def list(self, prefix: str, *, limit: int = 50) -> list[LockView]:
        """Locks whose names have this prefix, in descending order."""


class Steering(Protocol):
    async def release(self, *, older_than: float, run_id: str | None = None, by: str = "") -> int:
        """End leases claimed more than so many seconds ago; their workers can no longer commit."""

    async def retry(
        self, run_id: str, which: ItemFilter, *, limit: int | None = None, by: str = "", on_progress: OnProgress = int
    ) -> int:
        """Make dead items ready again, in small steps; `limit` for a trial of a few.

        Skipped and cancelled items only if `which.states` names these states.
        """

    async def cancel(
        self,
        run_id: str,
        which: ItemFilter,
        *,
        limit: int | None = None,
        by: str = "",
        reason: str | None = None,
        on_progress: OnProgress = int,
    ) -> int:
        """End open items as cancelled, leased ones too, in small steps. `reason`: their error; default: who did it."""

    async def replay(self, finished: FinishedAttempt) -> ReplayReport:
        """Replace the results of an item that is done or dead by those of this further attempt; then it is done.

        In one transaction, with its follow-ups: those that are new make a run that has ended active again. `finished`
        is done, and its lease has the item's current epoch; nothing changes when the item has another one by now.
        """


class FailureGroups(Protocol):
    """Dead items of a run that failed alike. An item that is retried or replayed leaves its group.

    Upkeep puts dead items into groups some time after their death; until then they are counted as ungrouped.
    """

    async def group(self, run_id: str, *, at_most: int = 1_000) -> int:
        """Put up to so many ungrouped items into groups now. Returns how many."""

    async def list(
        self, run_id: str, *, muted: bool | None = None, cursor: str | None = None, limit: int = 50
    ) -> FailurePage:
        """The groups that have items, the one with the newest death first; only muted ones, or only others."""

    async def get(self, run_id: str, failure: int) -> FailureView: ...

    async def mute(self, run_id: str, failure: int, *, by: str = "") -> FailureView:
        """Hide a group in lists. Alerts do not change."""

    async def unmute(self, run_id: str, failure: int, *, by: str = "") -> FailureView: ...

    async def ungrouped(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]:
        """Dead items that are in no group yet."""


class Reads(Protocol):
    async def stats(self, run_id: str, *, stage: str | None = None) -> Counts: ...

    async def records_elsewhere(self, run_id: str, stage: str) -> int:
        """How many records the stage of this name has in other runs of the same scraper, without removed ones."""

    async def author_counts(self, run_id: str) -> dict[str, int]:
        """What the handlers of a run have counted (`Counters`), by name; at most 200 names."""

    async def partitions(self, run_id: str) -> list[PartitionProgress]: ...

    async def partition_page(
        self, run_id: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[PartitionProgress]:
        """Partitions by stage and name, with their rates of the last minutes."""

    async def workers(self, run_id: str, *, minutes: int = 60) -> list[WorkerProgress]:
        """Per worker: leased now, done, dead and skipped in the last minutes; most done first."""

    async def recent(self, run_id: str, *, minutes: int = 5, stage: str | None = None) -> RecentActivity:
        """What ended in the last minutes, including the current one, and when something last ended."""

    async def items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ItemView]:
        """In the order they were enqueued. A page may be short, even empty, while its cursor says that more follow."""

    async def count_items(
        self, run_id: str, which: ItemFilter = ALL_ITEMS, *, at_most: int = 10_000, seconds: float = 0.05
    ) -> ItemCount:
        """How many items match, counted up to `at_most` and for so many seconds.

        Exact, however many, for a filter by states, stage and partition only.
        """

    async def children(self, run_id: str, item: int, *, limit: int = 50) -> tuple[ChildItem, ...]:
        """Items that this one enqueued, in the order of their numbers."""

    async def item(
        self, run_id: str, *, id: int | None = None, key: str | None = None, stage: str | None = None
    ) -> ItemView:
        """By id, or by key within a stage (the first one unless given)."""

    async def finished_elsewhere(
        self,
        run_id: str,
        stage: str,
        key_hashes: Sequence[bytes],
        *,
        failed: bool = False,
        in_finished_runs: bool = False,
    ) -> set[bytes]:
        """Those of the keys whose items of this stage are done or skipped in another run of the run's scraper.

        With `failed` those that died of a permanent error, in runs with the code of this one. `in_finished_runs`: runs
        that have not finished do not count.
        """

    async def attempts(self, run_id: str, item: int) -> list[AttemptView]: ...

    async def failed(self, run_id: str, *, cursor: str | None = None, limit: int = 50) -> CursorPage[FailedItem]: ...

    async def errors(self, run_id: str, *, limit: int = 20, final: bool = False) -> list[AttemptError]:
        """The attempts that failed last, newest first; with `final` only those after which the item is dead."""

    async def stale(self, *, older_than: float = 1800.0, limit: int = 100) -> list[StaleClaim]: ...

    async def oldest_leases(self, run_id: str, *, limit: int = 1000) -> list[OldestLease]:
        """Of each worker that has items of the run the one that it has had longest, the oldest first."""

    async def results(
        self, run_id: str, *, stage: str | None = None, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[ResultRow]:
        """By item and n. With `stage` a page may be short, even empty, while its cursor says that more follow."""

    async def item_results(self, run_id: str, item: int, *, limit: int = 20) -> tuple[ResultRow, ...]:
        """The first records of an item."""

    async def results_by_record_key(
        self, run_id: str, *, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[SortedResult]:
        """The records whose key is unique in the run, sorted by the hash of their key."""

    async def results_by_item_key(
        self, run_id: str, *, stage: str, cursor: str | None = None, limit: int = 1000
    ) -> CursorPage[SortedResult]:
        """The records of a stage without a key, sorted by the hash of their item's key, then by n.

        A page may be short, even empty, while its cursor says that more follow.
        """

    async def result_span(self, run_id: str) -> tuple[int, int] | None:
        """The first and the last item of a run that have a record; None when none has."""

    async def events(
        self,
        *,
        run_id: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> CursorPage[AuditEvent]:
        """Newest first. `actor` as stored; `action` with a dot at its end means all that begin so (`run.`).

        With `actor` or `action` a page may be short, even empty, while its cursor says that more follow.
        """

    async def last_pause(self, run: Run) -> AuditEvent | None:
        """Who paused a run that is paused, when and why; None for others, and when that was thousands of events ago."""

    async def history(
        self, run_id: str, *, seconds: float, step: int, until: dt.datetime | None = None
    ) -> list[HistoryPoint]:
        """The run over the last `seconds` before `until` (now): a point for every `step` (whole minutes), oldest first.

        Minutes are kept for two days of a run, then hours for 90 days: use `history_step`.
        """

    async def waiting_lanes(self, run_id: str, *, limit: int = 100) -> list[LaneView]:
        """Lanes that items of the run wait for, those with most waiting items, of all runs, first.

        All of them, or some hundreds when there are more: one with a hundredth of the run's items is among them.
        """

    async def why_item(self, run_id: str, item: int) -> list[WaitReason]: ...

    async def why_items(
        self, run_id: str, items: Sequence[int], *, workers: Sequence[WorkerView] | None = None
    ) -> dict[int, WaitReason]:
        """The first reason of each of these items, 200 at most, without its place in the queue.

        `workers`: the present ones, if the caller has just read them; a thousand take a while.
        """

    async def why_run(self, run_id: str, *, workers: Sequence[WorkerView] | None = None) -> list[WaitReason]:
        """What limits a run, the most important reason first. `workers` as for `why_items`."""


class Upkeep(Protocol):
    async def run_once(self) -> UpkeepReport:
        """Periodic work of every worker: promote due items, reap dead workers, fold counts, finish runs. Cheap to call.

        It takes about a second at most, in short transactions; the next round of any worker continues.
        """

    async def sample(self) -> int:
        """Store how the open runs stand, for their history: about once a minute, whoever of many processes calls.

        Part of `run_once`. For a process that reads while no worker lives. Returns how many runs were sampled.
        """

    async def next_due(self, scope: Scope = ALL_WORK) -> float | None:
        """Seconds until a delayed item of this scope may be due, or less; None when none is delayed."""

    async def wait(self, seconds: float) -> None:
        """Sleep until there may be work, at most so long. Only a hint: it may return early or late."""

    async def audit(self, *, content: bool = False) -> list[Finding]:
        """Check every rule that the tables must keep. Reads everything: for tests and `shoal db check --deep`.

        `content`: also check that stored values are complete and readable, where the database does not do so itself.
        """


class Schema(Protocol):
    async def version(self) -> int | None:
        """The schema's version; None when there is none."""

    @property
    def known_version(self) -> int:
        """The version that this code knows: that of its newest migration."""

    async def pending(self) -> list[str]:
        """The names of the migrations that `migrate` would apply, such as `0002_notes`. Raises LedgerTooNew."""

    async def migrate(self) -> tuple[int, int]:
        """Migrate the schema to this code's version. Returns the versions before and after."""

    async def require_current(self) -> None:
        """Raise LedgerNotMigrated or LedgerTooNew unless schema and code have the same version."""

    @property
    def dialect(self) -> Literal["postgres", "sqlite"]:
        """Which SQL the views of a scraper are written in."""

    async def put_views(self, views: Sequence[SqlView]) -> bool:
        """Create or replace views of a scraper, where people look first (on PostgreSQL the default schema).

        Returns False when they exist already as they are. Raises InvalidScraper when a select is wrong, and when a name
        belongs to something that Shoal did not make.
        """


class Health(Protocol):
    async def check(self) -> HealthReport:
        """The ledger's clock and the state of its server, for `shoal doctor`."""

    async def size_bytes(self) -> int:
        """How large the database is."""

    def set_warning_handler(self, warn: Callable[[str], object]) -> None:
        """Set the function for warnings, such as that the database server has no connection left."""


@runtime_checkable
class Backup(Protocol):
    """A ledger that can copy itself. A database server has its own tools for that."""

    async def back_up(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Write a consistent copy to a new file while others work. `progress` gets pages left and pages in total."""


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
    def changes(self) -> Changes: ...
    @property
    def workers(self) -> Workers: ...
    @property
    def lanes(self) -> Lanes: ...
    @property
    def exits(self) -> Exits: ...
    @property
    def budgets(self) -> Budgets: ...
    @property
    def sessions(self) -> Sessions: ...
    @property
    def access(self) -> Access: ...
    @property
    def settings(self) -> StoredSettings: ...
    @property
    def pools(self) -> WorkerPools: ...
    @property
    def locks(self) -> Locks: ...
    @property
    def steering(self) -> Steering: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def failures(self) -> FailureGroups: ...
    @property
    def upkeep(self) -> Upkeep: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def health(self) -> Health: ...

    async def close(self) -> None: ...
