"""Budgets on PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.ledger.budgets import DEFAULT_WINDOW, BaseBudgets
from shoal.ledger.postgres.database import PostgresDatabase
from shoal.model.egress import BudgetCorrection, BudgetGrant, BudgetKey, GrantRequest, GrantUse


class PostgresBudgets(BaseBudgets):
    def __init__(self, db: PostgresDatabase, queries: Mapping[str, str]) -> None:
        super().__init__(db, queries)
        self._db = db

    async def _exchange(
        self,
        budget: BudgetKey,
        request: GrantRequest | None,
        used: Sequence[GrantUse],
        said: BudgetCorrection | None,
    ) -> BudgetGrant:
        words = said or BudgetCorrection(sent_at=0.0)
        policy = None if request is None else request.policy
        row = await self._db.row(
            self._sql["exchange_budget"],
            budget.pool,
            budget.key,
            budget.resource,
            None if request is None else request.calls,
            None if policy is None else policy.calls,
            DEFAULT_WINDOW if policy is None else policy.seconds,
            0 if request is None else request.grant,
            0.0 if request is None else request.seconds,
            [use.grant for use in used],
            [use.made for use in used],
            [-1 if use.answered is None else max(0, use.made - len(use.answered)) for use in used],
            [use.grant for use in used for _ in use.answered or ()],
            [at for use in used for at in use.answered or ()],
            said is not None,
            words.sent_at,
            words.remaining,
            words.limit,
            words.reset_from,
            words.reset_at,
            words.rests_until,
        )
        return BudgetGrant(
            calls=row["granted"],
            seconds=row["seconds"],
            left=row["calls_left"],
            at=row["at"],
            resting=row["resting"],
        )
