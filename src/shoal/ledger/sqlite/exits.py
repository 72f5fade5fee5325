"""Exits on SQLite: the rules of model/exit_health.py, applied to the rows of one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.ledger.catalog import Catalog
from shoal.ledger.exits import FORGET_SECONDS, MAX_HOSTS, BaseExits
from shoal.ledger.protocols import Budgets
from shoal.ledger.sqlite.connection import Transaction, json_text, micros
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.model.egress import ExitReport, ExitSpec, ExitState, HealthRules, PoolKind
from shoal.model.exit_health import (
    ExitRecord,
    HostRecord,
    after_ban,
    after_host_report,
    after_report,
    set_by_operator,
    with_trial,
)

_EVENTS = {ExitState.GOOD: "exit.freed", ExitState.BANNED: "exit.banned", ExitState.RESTING: "exit.rested"}


class SqliteExits(BaseExits):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str], catalog: Catalog, budgets: Budgets) -> None:
        super().__init__(db, queries, catalog, budgets)
        self._db = db

    async def _register(
        self, worker_no: int, pool: str, kind: PoolKind, name: str, exits: Sequence[ExitSpec], complete: bool
    ) -> None:
        pairs, keys = json_text([(spec.key, spec.label) for spec in exits]), json_text([spec.key for spec in exits])

        def work(tx: Transaction) -> None:
            tx.run("make_pool", pool, kind)
            # The exits of a list that is stored are listed: of many workers that start at once, the first writes them.
            is_known = complete and tx.value("has_exit_list", pool, name)
            if not is_known:
                at = _change_time(tx, pool)
                tx.run("add_exits", pool, pairs)
                tx.run("relist_blocks", pool, pairs, at, tx.now)
                if tx.run("list_again", tx.value("exits_to_list", pool, pairs), at):
                    tx.run("set_pool_changed", pool, at)
                tx.run("store_exit_list", pool, name, keys, None if complete else worker_no)
            old_list = tx.value("exit_member_list", pool, worker_no, kind) or ""
            tx.run("set_exit_member", pool, worker_no, name)
            if not is_known or old_list not in ("", name):
                relist_exits(tx, pool)

        await self._db.write(work)

    async def _report(
        self, worker_no: int, pool: str, number: int, reports: Sequence[ExitReport], rules: HealthRules
    ) -> None:
        await self._db.write(lambda tx: report_exits(tx, worker_no, pool, number, reports, rules))

    async def _start_trial(self, worker_no: int, pool: str, key: str, seconds: float) -> bool:
        def work(tx: Transaction) -> bool:
            for row in tx.rows("reported_exits", pool, json_text([key])):
                trial = with_trial(_record(row), worker_no, seconds, tx.now)
                if trial is not None:
                    _store(tx, pool, [(row["id"], trial, True)])
                    return True
            return False

        return await self._db.write(work)

    async def _end_bans(self, pool: str, keys: Sequence[str]) -> None:
        def work(tx: Transaction) -> None:
            rows = [(row["id"], _record(row)) for row in tx.rows("reported_exits", pool, json_text(keys))]
            ended = [(id, after_ban(record, tx.now)) for id, record in rows]
            changed = [(id, record, True) for id, record in ended if record is not None]
            if changed:
                _store(tx, pool, changed)

        await self._db.write(work)

    async def _set(self, pool: str, key: str, state: ExitState, seconds: float | None, why: str, by: str) -> bool:
        def work(tx: Transaction) -> bool:
            for row in tx.rows("reported_exits", pool, json_text([key])):
                changed = set_by_operator(_record(row), state, seconds, why, by, tx.now)
                at = _store(tx, pool, [(row["id"], changed, True)])
                if state is ExitState.GOOD:
                    tx.run("free_hosts", row["id"], at)
                detail = {"key": key, "seconds": seconds, "why": why or None}
                told = {name: value for name, value in detail.items() if value is not None}
                tx.record_event(None, by, _EVENTS[state], f"{pool} {row['label']}", told)
                return True
            return False

        return await self._db.write(work)


def report_exits(
    tx: Transaction, worker: int, pool: str, number: int, reports: Sequence[ExitReport], rules: HealthRules
) -> None:
    """Add a worker's reports, one per exit. A report whose number is not above the last one has no effect."""
    if tx.value("pool_last_change", pool) is None or not tx.run("count_report", pool, worker, number):
        return
    rows = {row["key"]: row for row in tx.rows("reported_exits", pool, json_text([report.key for report in reports]))}
    known = [(rows[report.key], report) for report in reports if report.key in rows]
    exits = []
    for row, report in known:
        before = _record(row)
        after = after_report(before, worker, report, rules, tx.now)
        exits.append((row["id"], after, _shown(before, tx.now) != _shown(after, tx.now)))
    at = _store(tx, pool, exits)
    at_hosts = [(row["id"], host) for row, report in known for host in report.hosts]
    if not at_hosts:
        return
    found = {
        (row["exit"], row["host"]): HostRecord(
            succeeded=row["succeeded"],
            blocked=row["blocked"],
            blocks_in_row=row["blocks_in_row"],
            blocked_until=row["blocked_until"],
            error=row["error"],
        )
        for row in tx.rows("reported_hosts", json_text([(exit, host.host) for exit, host in at_hosts]))
    }
    hosts: list[tuple[Any, ...]] = []
    for exit, host in at_hosts:
        was = found.get((exit, host.host))
        if was is None and not host.blocked:
            continue  # hosts that never block need no row
        now = after_host_report(was or HostRecord(), host, rules, tx.now)
        is_new = now.blocked_until is not None and (was is None or was.blocked_until != now.blocked_until)
        counts = (now.succeeded, now.blocked, now.blocks_in_row, now.blocked_until, now.error)
        hosts.append((exit, host.host, *counts, is_new))
    if hosts:
        tx.run("store_hosts", json_text(hosts), pool, tx.now, at)
        tx.run("drop_excess_hosts", json_text(sorted({host[0] for host in hosts})), tx.now, MAX_HOSTS)
    if any(host[-1] for host in hosts):
        tx.run("set_pool_changed", pool, at)


def relist_exits(tx: Transaction, pool: str) -> None:
    """Forget members that have ended, and lists that no member has; exits that are in no list are not listed."""
    tx.run("drop_ended_members", pool)
    tx.run("drop_unused_lists", pool)
    tx.run("unlist_exits", pool, tx.now)
    tx.run("update_pool", pool, tx.now)


def tidy_exits(tx: Transaction, most: int) -> bool:
    """Drop members that have ended, exits that nobody lists, and old hosts. False when no more are left."""
    old = tx.now - micros(FORGET_SECONDS)
    more = False
    for (pool,) in tx.rows("pools_to_tidy", old):
        relist_exits(tx, pool)
        doomed = tx.value("forgettable_exits", pool, old, tx.now, most)
        tx.run("forget_hosts", doomed)
        more = tx.run("forget_exits", doomed) == most or more
        tx.run("update_pool", pool, tx.now)
        tx.run("forget_pool", pool, old)
    return tx.run("tidy_hosts", old, tx.now, most) == most or more


def _change_time(tx: Transaction, pool: str) -> int:
    """The time for changes in a pool: later than all before it."""
    return max(tx.now, (tx.value("pool_last_change", pool) or 0) + 1)


def _store(tx: Transaction, pool: str, exits: Sequence[tuple[int, ExitRecord, bool]]) -> int:
    """Store records (id, record, whether others must know). Returns the time of the change."""
    at = _change_time(tx, pool)
    rows = [
        (
            id,
            record.state.value,
            record.until,
            record.why,
            record.by,
            record.trial_by,
            record.trial_until,
            record.succeeded,
            record.failed,
            record.failures_in_row,
            record.error,
            record.used_at,
            changed,
        )
        for id, record, changed in exits
    ]
    tx.run("store_exits", json_text(rows), at)
    if any(changed for _, _, changed in exits):
        tx.run("set_pool_changed", pool, at)
    return at


def _record(row: Any) -> ExitRecord:
    return ExitRecord(
        state=ExitState(row["state"]),
        until=row["until"],
        why=row["why"],
        by=row["set_by"],
        trial_by=row["trial_by"],
        trial_until=row["trial_until"],
        succeeded=row["succeeded"],
        failed=row["failed"],
        failures_in_row=row["failures_in_row"],
        error=row["error"],
        used_at=row["used_at"],
    )


def _shown(record: ExitRecord, now: int) -> tuple[object, ...]:
    """What other workers must know about an exit."""
    state = record.state_at(now)
    return state, None if state is ExitState.GOOD else record.until, record.trial_until
