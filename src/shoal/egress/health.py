"""The health of a pool's exits as one worker knows it: what it saw itself, and what the ledger told. Pure rules.

All times are seconds of one monotonic clock, which the caller passes as `now`.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Collection, Iterable

from shoal.model.egress import Exit, ExitReport, ExitState, HealthRules, HostReport, PoolChanges

# Bounds of memory. What is forgotten here is learned again, or is known by the ledger.
MAX_BLOCKS = 50_000
MAX_BLOCK_ROWS = 50_000
MAX_PENDING_HOSTS = 5_000
MAX_TRIALS = 16
# Weights of the newest result in the smoothed values.
_FAILURE_WEIGHT = 0.1
_LATENCY_WEIGHT = 0.2
# What a failed request costs, compared with a slow one.
_FAILURE_SECONDS = 30.0
# Another worker tries the exit, or the ledger's clock says that its ban is not over: asked again after so long.
_TRIAL_REFUSED = 5.0
# A trial that told nothing, such as one that failed because of the site, is repeated after so long.
_TRIAL_AGAIN = 30.0
_MAX_ERROR = 300


class LocalExit:
    """One exit as this worker sees it.

    `until`: when the state changes; infinity: when an operator changes it. `own_trial`: this worker tries it;
    `handed_out`: an attempt has it for the trial. `failure_share` and `latency` are smoothed; `unanswered`: how often
    it was chosen without a result yet.
    """

    __slots__ = (
        "exit",
        "failure_share",
        "failures_in_row",
        "handed_out",
        "key",
        "latency",
        "own_trial",
        "state",
        "succeeded_at",
        "unanswered",
        "until",
        "why",
    )

    def __init__(self, exit_: Exit) -> None:
        self.exit = exit_
        self.key = exit_.key
        self.state = ExitState.GOOD
        self.until = math.inf
        self.why = ""
        self.own_trial = False
        self.handed_out = False
        self.failures_in_row = 0
        self.failure_share = 0.0
        self.latency = 0.0
        self.unanswered = 0
        self.succeeded_at = -math.inf

    @property
    def trial_is_ready(self) -> bool:
        return self.state is ExitState.TRIAL and self.own_trial and not self.handed_out

    @property
    def cost(self) -> float:
        """The expected seconds of a request, given what is under way; almost none while nothing is known."""
        return (0.001 + self.latency + _FAILURE_SECONDS * self.failure_share) * (1 + self.unanswered)

    def __repr__(self) -> str:
        return f"LocalExit({self.exit.name}, {self.state})"


class _Pending:
    """What happened to an exit since the last report."""

    __slots__ = ("decisive", "error", "errors", "failed", "hosts", "succeeded", "trial")

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.error = ""
        self.trial = False
        self.decisive = False  # its state was changed here, and the ledger does not know
        self.hosts: dict[str, list[int]] = {}  # successes and blocks
        self.errors: dict[str, str] = {}


class LocalHealth:
    """The exits of a pool by key, with their states, the hosts that block them, and what is not reported yet.

    `returns` grows when an exit may have become usable, `changes` with every change of a state. `is_urgent`: others
    should know at once.
    """

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self.records: dict[str, LocalExit] = {}
        self.returns = 0
        self.changes = 0
        self.is_urgent = False
        self.blocks: dict[str, dict[str, float]] = {}
        self.trials: dict[str, LocalExit] = {}
        self._due: dict[str, LocalExit] = {}
        self._block_rows: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._block_order: dict[tuple[str, str], None] = {}
        self._timers: list[tuple[float, str, str]] = []
        self._pending: dict[str, _Pending] = {}
        self._pending_hosts = 0

    def list_exits(self, exits: Iterable[Exit]) -> bool:
        """Replace the list of exits; those that stay keep their health. Returns whether there are new ones."""
        before, self.records = self.records, {}
        is_new = False
        for each in exits:
            record = before.pop(each.key, None)
            if record is None:
                record, is_new = LocalExit(each), True
            record.exit = each
            self.records[each.key] = record
        for key in before:
            self._due.pop(key, None)
            self.trials.pop(key, None)
        self.returns += 1
        self.changes += 1
        return is_new

    def is_usable(self, record: LocalExit, host: str) -> bool:
        if record.state is not ExitState.GOOD and not record.trial_is_ready:
            return False
        blocked = self.blocks.get(host)
        return blocked is None or record.key not in blocked

    def advance(self, now: float) -> None:
        """Apply what time alone changes. Costs nothing when nothing is due."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            until, key, host = heapq.heappop(timers)
            if host:
                if self.blocks.get(host, {}).get(key) == until:
                    self._unblock(key, host)
                continue
            record = self.records.get(key)
            if record is None or record.until != until:
                continue
            if record.state is ExitState.RESTING:
                self._set_good(record)
            elif record.state in (ExitState.BANNED, ExitState.TRIAL):
                record.handed_out = True  # an own trial that was not used is over, too
                self.trials.pop(key, None)
                self._due[key] = record
                self.changes += 1

    # What attempts report.

    def succeed(self, key: str, host: str, now: float, *, trial: bool = False) -> None:
        record = self._answered(key)
        pending = self._pending_of(key)
        pending.succeeded += 1
        self._block_rows.pop((key, host), None)
        self._count_host(pending, host, 0)
        if record is not None:
            record.succeeded_at = now
            record.failure_share -= _FAILURE_WEIGHT * record.failure_share
            self._way_worked(record, pending, trial)

    def block(self, key: str, host: str, why: str, now: float, *, trial: bool = False) -> None:
        """The host refused the exit: the way to it worked."""
        record = self._answered(key)
        pending = self._pending_of(key)
        pending.succeeded += 1
        row = self._block_rows.pop((key, host), 0) + 1
        self._block_rows[key, host] = row
        if len(self._block_rows) > MAX_BLOCK_ROWS:
            self._block_rows.popitem(last=False)
        self._count_host(pending, host, 1, error=why[:_MAX_ERROR])
        if row >= self._rules.block_after:
            self.set_block(key, host, now + self._rules.block_for)
        if record is not None:
            self._way_worked(record, pending, trial)

    def fail(self, key: str, why: str, now: float, *, trial: bool = False) -> None:
        record = self._answered(key)
        pending = self._pending_of(key)
        pending.failed += 1
        pending.error = why[:_MAX_ERROR]
        if record is None:
            return
        record.failures_in_row += 1
        record.failure_share += _FAILURE_WEIGHT * (1.0 - record.failure_share)
        failed_trial = trial and record.state is ExitState.TRIAL
        pending.trial = pending.trial or failed_trial
        if failed_trial or (record.state is ExitState.GOOD and record.failures_in_row >= self._rules.ban_after):
            self._set_state(record, ExitState.BANNED, now + self._rules.ban_for, pending.error)
            pending.decisive = self.is_urgent = True

    def measure(self, key: str, seconds: float) -> None:
        """A site answered through the exit after so long."""
        record = self.records.get(key)
        if record is not None:
            weight = _LATENCY_WEIGHT if record.latency else 1.0
            record.latency += weight * (max(seconds, 1e-6) - record.latency)

    def last_success(self, key: str) -> float:
        """When an attempt last succeeded through the exit."""
        record = self.records.get(key)
        return -math.inf if record is None else record.succeeded_at

    # Trials: one request after a ban.

    def due(self, keys: Collection[str]) -> list[LocalExit]:
        """Exits among these keys whose ban is over, as many as this worker should try now."""
        room = MAX_TRIALS - len(self.trials)
        found: list[LocalExit] = []
        for key, record in self._due.items():
            if len(found) >= room:
                break
            if key in keys:
                found.append(record)
        return found

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def start_trial(self, record: LocalExit, until: float) -> None:
        """This worker may try the exit once."""
        self._set_state(record, ExitState.TRIAL, until, record.why)
        record.own_trial = True
        self.trials[record.key] = record
        self.returns += 1

    def refuse_trial(self, record: LocalExit, now: float) -> None:
        """Another worker tries the exit, or it is too early."""
        if self._due.pop(record.key, None) is not None:
            record.until = now + _TRIAL_REFUSED
            self._add_timer(record.until, record.key, "")

    def hand_out(self, record: LocalExit) -> bool:
        """An attempt gets the exit; returns whether as a trial."""
        record.unanswered += 1
        if record.state is ExitState.TRIAL:
            record.handed_out = True
            self.trials.pop(record.key, None)
            self.changes += 1
            return True
        return False

    def give_up(self, key: str, now: float, *, trial: bool) -> None:
        """An attempt that got the exit has ended without a result. A trial is repeated soon: nobody else may try it."""
        record = self._answered(key)
        if record is not None and trial and record.state is ExitState.TRIAL and record.own_trial:
            record.until = now + min(self._rules.ban_for, _TRIAL_AGAIN)
            self._add_timer(record.until, key, "")

    # The ledger.

    def take_reports(self) -> list[ExitReport]:
        """What was not reported yet. It counts as reported."""
        reports = [self._report(key, pending) for key, pending in self._pending.items()]
        self._pending = {}
        self._pending_hosts = 0
        self.is_urgent = False
        for record in self.records.values():
            record.unanswered >>= 1  # attempts that were cancelled never answer
        return reports

    def apply(self, changes: PoolChanges, now: float) -> None:
        """What the ledger knows replaces what is known here, except what was not reported yet."""
        for told in changes.exits:
            record = self.records.get(told.key)
            pending = self._pending.get(told.key)
            if record is None or (pending is not None and pending.decisive):
                continue
            until = math.inf if told.until is None else now + told.until
            if told.state is ExitState.GOOD:
                record.failures_in_row = 0
                self._set_good(record)
            elif told.state is not ExitState.TRIAL or not record.own_trial:
                self._set_state(record, told.state, until, told.why)
        for block in changes.blocks:
            if block.seconds > 0:
                self.set_block(block.key, block.host, now + block.seconds)
            else:
                self._block_rows.pop((block.key, block.host), None)
                self._unblock(block.key, block.host)

    def set_block(self, key: str, host: str, until: float) -> None:
        if key not in self.records:
            return
        self.blocks.setdefault(host, {})[key] = until
        self._block_order.pop((key, host), None)
        self._block_order[key, host] = None
        self._add_timer(until, key, host)
        if len(self._block_order) > MAX_BLOCKS:
            self._unblock(*next(iter(self._block_order)))

    def first_return(self, records: Iterable[LocalExit], now: float) -> float | None:
        """Seconds until the first ban or rest of these exits ends; None: only an operator or a trial can tell."""
        states = (ExitState.BANNED, ExitState.RESTING)
        until = min((record.until for record in records if record.state in states), default=math.inf)
        return None if until == math.inf else max(0.0, until - now)

    # Below: parts of the above.

    def _answered(self, key: str) -> LocalExit | None:
        record = self.records.get(key)
        if record is not None and record.unanswered:
            record.unanswered -= 1
        return record

    def _way_worked(self, record: LocalExit, pending: _Pending, trial: bool) -> None:
        record.failures_in_row = 0
        if record.state is ExitState.TRIAL and (trial or record.own_trial):
            self._set_good(record)
            pending.trial = pending.decisive = self.is_urgent = True

    def _set_good(self, record: LocalExit) -> None:
        if record.state is not ExitState.GOOD:
            self._set_state(record, ExitState.GOOD, math.inf, "")
            self.returns += 1

    def _set_state(self, record: LocalExit, state: ExitState, until: float, why: str) -> None:
        record.state, record.until, record.why = state, until, why
        record.own_trial = record.handed_out = False
        self.trials.pop(record.key, None)
        self._due.pop(record.key, None)
        self.changes += 1
        if until != math.inf:
            self._add_timer(until, record.key, "")

    def _unblock(self, key: str, host: str) -> None:
        at_host = self.blocks.get(host)
        if at_host is None or at_host.pop(key, None) is None:
            return
        del self._block_order[key, host]
        self.returns += 1
        if not at_host:
            del self.blocks[host]

    def _add_timer(self, until: float, key: str, host: str) -> None:
        heapq.heappush(self._timers, (until, key, host))
        # Most timers of states that changed again are never reached.
        if len(self._timers) > 2 * (len(self._block_order) + len(self.records)) + 1_000:
            self._timers = [timer for timer in self._timers if self._is_live(*timer)]
            heapq.heapify(self._timers)

    def _is_live(self, until: float, key: str, host: str) -> bool:
        if host:
            return self.blocks.get(host, {}).get(key) == until
        record = self.records.get(key)
        return record is not None and record.until == until

    def _pending_of(self, key: str) -> _Pending:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        return pending

    def _count_host(self, pending: _Pending, host: str, which: int, error: str = "") -> None:
        counts = pending.hosts.get(host)
        if counts is None:
            # Blocks matter more than pages that came.
            if self._pending_hosts >= MAX_PENDING_HOSTS * (1 + which):
                return
            self._pending_hosts += 1
            counts = pending.hosts[host] = [0, 0]
        counts[which] += 1
        if error:
            pending.errors[host] = error

    def _report(self, key: str, pending: _Pending) -> ExitReport:
        record = self.records.get(key)
        return ExitReport(
            key=key,
            succeeded=pending.succeeded,
            failed=pending.failed,
            failures_in_row=0 if record is None else record.failures_in_row,
            error=pending.error,
            trial=pending.trial,
            hosts=tuple(
                HostReport(
                    host=host,
                    succeeded=succeeded,
                    blocked=blocked,
                    blocks_in_row=self._block_rows.get((key, host), 0),
                    error=pending.errors.get(host, ""),
                )
                for host, (succeeded, blocked) in pending.hosts.items()
            ),
        )
