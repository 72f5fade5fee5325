"""Budgets on SQLite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from shoal.ledger.budgets import DEFAULT_WINDOW, MERGE_SHARE, MIN_GRANT_SECONDS, BaseBudgets, BudgetState, state_from
from shoal.ledger.sqlite.connection import MICRO, Transaction
from shoal.ledger.sqlite.database import SqliteDatabase
from shoal.model.egress import BudgetCorrection, BudgetGrant, BudgetKey, GrantRequest, GrantUse


class SqliteBudgets(BaseBudgets):
    def __init__(self, db: SqliteDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _exchange(
        self,
        budget: BudgetKey,
        request: GrantRequest | None,
        used: Sequence[GrantUse],
        said: BudgetCorrection | None,
    ) -> BudgetGrant:
        def work(tx: Transaction) -> BudgetGrant:
            now = tx.now / MICRO
            names = (budget.pool, budget.key, budget.resource)
            tx.run("make_budget", *names)
            row = tx.rows("find_budget", *names)[0]
            state = state_from(row)
            if request is not None:
                policy = request.policy
                calls, window = (None, DEFAULT_WINDOW) if policy is None else (policy.calls, policy.seconds)
                state = msgspec.structs.replace(state, calls=calls, seconds=window)
            if said is not None:
                state = state.corrected(said, now)
            _store(tx, row["id"], state, now)
            _settle(tx, row["id"], state, used, now)
            if request is None:
                return BudgetGrant(at=now)
            rests_until = max(state.rests_until, row["exit_rests_until"] or -math.inf)
            state = msgspec.structs.replace(state, rests_until=rests_until)
            return _grant(tx, row["id"], state, request, now)

        return await self._db.write(work)


def _store(tx: Transaction, budget: int, state: BudgetState, now: float) -> None:
    times = (state.sent_at, state.reset_from, state.reset_at, state.rests_until)
    stored = (None if at == -math.inf else at for at in times)
    tx.run("set_budget", budget, state.calls, state.seconds, state.site_limit, state.remaining, *stored, now)


def _settle(tx: Transaction, budget: int, state: BudgetState, used: Sequence[GrantUse], now: float) -> None:
    _, since = state.basis(now)
    for use in used:
        if use.answered is None:
            tx.run("shrink_grant", budget, use.grant, use.made)
            continue
        # Calls that were answered before are in the numbers that the site told.
        counting = sum(at >= since for at in use.answered) + max(0, use.made - len(use.answered))
        ended = min(now, max(use.answered, default=now))
        if not tx.run("settle_grant", budget, use.grant, counting, ended):
            continue
        target = tx.value("merge_target", budget, use.grant, now - state.seconds * MERGE_SHARE)
        if state.is_told(now) or target is None:
            tx.run("start_merging", use.grant, now)
        else:
            tx.run("merge_grant", target, use.grant, ended)
            tx.run("remove_grant", use.grant)
    tx.run("remove_ended_grants", budget, since)


def _grant(tx: Transaction, budget: int, state: BudgetState, request: GrantRequest, now: float) -> BudgetGrant:
    total, _ = state.basis(now)
    taken, first_end, first_open_end = tx.rows("budget_taken", budget)[0]
    left = None if total is None else max(0, total - taken)
    for calls, expires_at in tx.rows("find_grant", request.grant):
        return BudgetGrant(calls=calls, seconds=max(0.0, expires_at - now), left=left, at=now)
    resting = state.rests_until > now
    usable = state.grant_seconds(now, request.seconds)
    calls = 0 if resting or usable < MIN_GRANT_SECONDS else request.calls if left is None else min(request.calls, left)
    if calls == 0:
        retry_at = state.retry_at(now, first_end, first_open_end)
        return BudgetGrant(seconds=max(MIN_GRANT_SECONDS, retry_at - now), left=left, at=now, resting=resting)
    tx.run("insert_grant", request.grant, budget, calls, now, now + usable, now + usable + state.late_seconds)
    return BudgetGrant(calls=calls, seconds=usable, left=None if left is None else left - calls, at=now)
