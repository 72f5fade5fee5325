"""Egress in words: how many exits of a pool can be used, what is left of its budgets, and when the rest comes back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from shoal.model.egress import BudgetView, ExitState, ExitView, PoolView
from shoal.observe.formatting import pluralize

NOUNS = {"proxies": ("proxy", "proxies"), "tokens": ("token", "tokens"), "tor": ("circuit", "circuits")}


def clock_text(seconds: float, now: dt.datetime | None = None) -> str:
    """The local time so many seconds from now: `14:10`, with seconds if it is near, with the date if it is far."""
    now = now or dt.datetime.now().astimezone()
    at = now + dt.timedelta(seconds=seconds)
    if seconds < 600:
        return f"{at:%H:%M:%S}"
    return f"{at:%H:%M}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M}"


def pool_text(pool: PoolView, now: dt.datetime | None = None) -> str:
    """`homes: 47 of 50 good, 3 banned until 14:10`, or `github: 3,211 of 15,000 calls left, full again at 14:05`."""
    parts = []
    if pool.budgets:
        parts += [budget_text(budget, now, several=len(pool.budgets) > 1) for budget in pool.budgets]
    if not pool.budgets or pool.good < pool.exits:
        parts.append(f"{pool.good} of {pool.exits} good")
    away = [f"{count} {word}" for count, word in ((pool.banned, "banned"), (pool.resting, "resting")) if count]
    if away:
        until = "an operator frees it" if pool.first_back is None else clock_text(pool.first_back, now)
        parts.append(f"{', '.join(away)} until {until}")
    if pool.trial:
        parts.append(f"{pool.trial} to be tried")
    return f"{pool.pool}: {', '.join(parts)}"


def budget_text(budget: BudgetView, now: dt.datetime | None = None, *, several: bool = False) -> str:
    text = f"{budget.left:,} of {budget.capacity:,} calls left"
    if several:
        text = f"{budget.resource} {text}"
    if budget.reset_seconds is not None and budget.left < budget.capacity:
        text += f", full again at {clock_text(budget.reset_seconds, now)}"
    return text


def egress_line(pools: Sequence[PoolView], now: dt.datetime | None = None) -> str:
    """All pools in one line; empty when there is none."""
    return "; ".join(pool_text(pool, now) for pool in pools)


def state_text(view: ExitView, now: dt.datetime | None = None) -> str:
    """The state of an exit, and until when."""
    match view.state:
        case ExitState.BANNED | ExitState.RESTING:
            until = "freed" if view.until is None else clock_text(view.until, now)
            return f"{view.state.value} until {until}"
        case ExitState.TRIAL:
            return "to be tried"
        case _:
            return view.state.value


def count_text(kind: str, count: int) -> str:
    """`3 proxies`."""
    one, many = NOUNS[kind]
    return pluralize(count, one, many)
