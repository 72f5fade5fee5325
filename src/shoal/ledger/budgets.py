"""Budgets on both ledgers: the rules, and what both backends share.

A call that was granted counts until it is certain that the site has counted it. `BudgetState.basis` says how many calls
there were at which time; what was granted and may reach the site later than that is subtracted. PostgreSQL has the same
rules in functions/74_budgets.sql.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from shoal.errors import InvalidSetting
from shoal.ledger.rows import Queryable, Row
from shoal.model.egress import (
    BudgetCorrection,
    BudgetGrant,
    BudgetKey,
    BudgetStop,
    BudgetView,
    GrantRequest,
    GrantUse,
)
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.url_key import check_text

# The window of a budget whose size only the site tells.
DEFAULT_WINDOW = 3_600.0
MAX_CALLS = 1_000_000_000
MAX_GRANT_SECONDS = 600.0
# A call may reach the site so long after its grant has ended, but no more than this part of the window.
LATE_SECONDS = 5.0
LATE_SHARE = 0.25
# A grant that could be used for less than this is not worth it.
MIN_GRANT_SECONDS = 0.02
# A pace is known after so many seconds.
MIN_PACE_SECONDS = 20.0
# Grants that were settled within this part of the window are kept as one.
MERGE_SHARE = 0.01


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """A budget without its grants. `calls`, `seconds`: the policy; the others: what the site said."""

    calls: int | None = None
    seconds: float = DEFAULT_WINDOW
    site_limit: int | None = None
    remaining: int | None = None
    sent_at: float = -math.inf
    reset_from: float = -math.inf
    reset_at: float = -math.inf
    rests_until: float = -math.inf

    @property
    def capacity(self) -> int | None:
        return self.site_limit if self.site_limit is not None else self.calls

    @property
    def late_seconds(self) -> float:
        return min(LATE_SECONDS, self.seconds * LATE_SHARE)

    def is_told(self, now: float) -> bool:
        """Whether the site has said what is left of the window that runs now."""
        return self.remaining is not None and now < self.reset_at

    def basis(self, now: float) -> tuple[int | None, float]:
        """(calls, time): without grants that may have reached the site after the time, so many calls would be left."""
        if self.is_told(now):
            return self.remaining, self.sent_at
        return self.capacity, max(self.reset_from, now - self.seconds)

    def corrected(self, said: BudgetCorrection, now: float) -> BudgetState:
        """What is known after a site has said something. Its answers may come in another order than it wrote them."""
        state = msgspec.structs.replace(
            self,
            rests_until=max(self.rests_until, said.rests_until or -math.inf),
            site_limit=self.site_limit if said.limit is None else said.limit,
        )
        # The window had not ended when the request was sent, and a window is no longer than the policy says.
        reset_at = said.sent_at + self.seconds if said.reset_at is None else said.reset_at
        reset_from = next((at for at in (said.reset_from, said.reset_at) if at is not None), said.sent_at)
        reset_from = max(said.sent_at, min(reset_at, reset_from))
        if said.remaining is None or reset_at <= now:
            return state
        remaining, (calls, since) = said.remaining, self.basis(now)
        if self.is_told(now):
            if reset_at < self.reset_from:
                return state  # of an earlier window
            if reset_from <= self.reset_at:
                # Of the same window: the lowest number is the latest, and was written after all these requests were
                # sent.
                remaining = min(remaining, self.remaining or 0)
                reset_from, reset_at = max(reset_from, self.reset_from), min(reset_at, self.reset_at)
        elif said.sent_at <= since and calls is not None:
            remaining = min(remaining, calls)
        return msgspec.structs.replace(
            state, remaining=remaining, sent_at=max(since, said.sent_at), reset_from=reset_from, reset_at=reset_at
        )

    def grant_seconds(self, now: float, wanted: float) -> float:
        """How long a grant may be used: not beyond the end of the window, as long as that is not just now."""
        if not self.is_told(now):
            return wanted
        ends_at = self.reset_from if self.reset_from - now > MIN_GRANT_SECONDS else self.reset_at
        return min(wanted, ends_at - now)

    def retry_at(self, now: float, first_end: float | None, first_open_end: float | None) -> float:
        """When it is worth asking again after nothing was left. `first_end`: when the first grant ends that counts;
        `first_open_end`: the first of those that may still be in use.
        """
        if self.rests_until > now:
            return self.rests_until
        if self.is_told(now):
            return self.reset_at if not self.remaining or first_open_end is None else min(self.reset_at, first_open_end)
        return now + self.seconds if first_end is None else first_end + self.seconds


class BaseBudgets(ABC):
    def __init__(self, queryable: Queryable, queries: Mapping[str, str]) -> None:
        self._queryable = queryable
        self._sql = queries

    @abstractmethod
    async def _exchange(
        self,
        budget: BudgetKey,
        request: GrantRequest | None,
        used: Sequence[GrantUse],
        said: BudgetCorrection | None,
    ) -> BudgetGrant:
        """In one transaction: apply what the site said, then what became of grants, then grant."""

    async def take(
        self,
        budget: BudgetKey,
        request: GrantRequest,
        *,
        used: Sequence[GrantUse] = (),
        said: BudgetCorrection | None = None,
    ) -> BudgetGrant:
        _check(budget)
        policy = request.policy
        if not 1 <= request.calls <= MAX_CALLS or not 0 < request.seconds <= MAX_GRANT_SECONDS:
            raise InvalidSetting(f"{request.calls} calls for {request.seconds} s cannot be taken.")
        if policy is not None and not (1 <= policy.calls <= MAX_CALLS and 0 < policy.seconds < math.inf):
            raise InvalidSetting(f"{policy.calls} calls in {policy.seconds} s are no budget.")
        return await self._exchange(budget, request, used, _bounded(said))

    async def settle(
        self, budget: BudgetKey, used: Sequence[GrantUse], *, said: BudgetCorrection | None = None
    ) -> None:
        _check(budget)
        if used or said is not None:
            await self._exchange(budget, None, used, _bounded(said))

    async def list(self, pool: str, key: str | None = None) -> list[tuple[str, BudgetView]]:
        rows = await self._queryable.fetch(self._sql["list_budgets"], pool, key)
        rests = {row["key"]: row["rests_until"] for row in rows if row["resource"] == ""}
        views = ((row["key"], _view(row, rests.get(row["key"]))) for row in rows if row["resource"] != "")
        return [(owner, view) for owner, view in views if view is not None]

    async def stops(self, pool: str) -> Sequence[BudgetStop]:
        rows = await self._queryable.fetch(self._sql["stopped_budgets"], pool)
        return [BudgetStop(key=row["key"], resource=row["resource"], seconds=row["seconds"]) for row in rows]


def state_from(row: Row, rests_until: float | None = None) -> BudgetState:
    """`rests_until`: the pause of the whole exit."""
    told = {name: row[name] for name in ("sent_at", "reset_from", "reset_at") if row[name] is not None}
    rests = [at for at in (row["rests_until"], rests_until) if at is not None]
    return BudgetState(
        calls=row["calls"],
        seconds=row["seconds"],
        site_limit=row["site_limit"],
        remaining=row["remaining"],
        rests_until=max(rests, default=-math.inf),
        **told,
    )


def _view(row: Row, rests_until: float | None) -> BudgetView | None:
    state, now = state_from(row, rests_until), row["now"]
    calls, _ = state.basis(now)
    capacity = state.capacity
    if calls is None or capacity is None:
        return None
    resting = state.rests_until > now
    free = 0 if resting else max(0, calls - row["taken"])
    left = 0 if resting else max(0, min(calls, calls - row["taken"] + row["open_calls"]))
    if resting:
        reset = state.rests_until - now
    elif state.is_told(now):
        reset = state.reset_at - now
    else:
        reset = (row["last_end"] or -math.inf) + state.seconds - now
    pace = _pace(state, row, now, capacity - left)
    view = BudgetView(
        resource=row["resource"],
        capacity=capacity,
        left=left,
        free=free,
        reset_seconds=reset if reset > 0 and (resting or left < capacity) else None,
        from_site=state.site_limit is not None or state.remaining is not None,
        resting=resting,
        per_minute=None if pace is None else round(60 * pace, 3),
    )
    return msgspec.structs.replace(view, empty_in_seconds=_empty_in(view, state, now))


def _pace(state: BudgetState, row: Row, now: float, used: int) -> float | None:
    """Calls per second of late; None when nobody can tell.

    From the grants of the last minutes. Those that a site has counted are forgotten: then it is the average since its
    window began, if the policy says how long that is.
    """
    since = now - (row["recent_from"] or now)
    if since >= MIN_PACE_SECONDS and not state.is_told(now):
        return float(row["recent_calls"]) / since
    if state.is_told(now) and state.calls is not None:
        since = state.seconds - (state.reset_at - now)
        if since >= MIN_PACE_SECONDS and used > 0:
            return used / since
    return None


def _empty_in(view: BudgetView, state: BudgetState, now: float) -> float | None:
    if not view.per_minute or view.resting:
        return None
    seconds = 60 * view.left / view.per_minute
    if state.is_told(now):
        return round(seconds, 1) if now + seconds < state.reset_at else None
    # A budget that any window respects never runs out below its own pace.
    return round(seconds, 1) if view.per_minute / 60 * state.seconds > view.capacity else None


def _check(budget: BudgetKey) -> None:
    check_text("pool", budget.pool, MAX_NAME_BYTES)
    check_text("exit", budget.key, MAX_NAME_BYTES)
    if budget.resource:
        check_text("resource", budget.resource, MAX_NAME_BYTES)


def _bounded(said: BudgetCorrection | None) -> BudgetCorrection | None:
    """Sites may say anything."""
    if said is None:
        return None
    remaining, limit = (None if n is None else max(0, min(n, MAX_CALLS)) for n in (said.remaining, said.limit))
    return msgspec.structs.replace(said, remaining=remaining, limit=limit)
