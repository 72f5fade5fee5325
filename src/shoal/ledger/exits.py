"""Exits on both ledgers: arguments are checked and exits read here; the backends change them."""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec

from shoal.errors import InvalidSetting, NotFound, UsageError
from shoal.ledger.catalog import Catalog
from shoal.ledger.protocols import Budgets
from shoal.ledger.rows import MAX_PAGE, Queryable, array_from, check_limit, exit_from, exit_until
from shoal.model.egress import (
    BlockedCell,
    BudgetView,
    EgressMatrix,
    ExitBlock,
    ExitHealth,
    ExitReport,
    ExitSpec,
    ExitState,
    ExitView,
    HealthRules,
    HostHealth,
    HostReport,
    MatrixRow,
    PoolChanges,
    PoolKind,
    PoolView,
)
from shoal.model.exit_health import merge_reports
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.outcome import clean_error
from shoal.model.url_key import check_text
from shoal.model.views import CursorPage

MAX_SHOWN_HOSTS = 100
# So many hosts that blocked it are remembered of an exit.
MAX_HOSTS = 200
# Exits that nobody lists, and hosts that an exit has not visited, are forgotten after so long.
FORGET_SECONDS = 7 * 86_400.0
MAX_SECONDS = 10 * 365 * 86_400.0


class BaseExits(ABC):
    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog, budgets: Budgets) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog
        self._budgets = budgets

    @abstractmethod
    async def _register(
        self, worker_no: int, pool: str, kind: PoolKind, name: str, exits: Sequence[ExitSpec], complete: bool
    ) -> None:
        """Store exits, and the worker's list under this name."""

    @abstractmethod
    async def _report(
        self, worker_no: int, pool: str, number: int, reports: Sequence[ExitReport], rules: HealthRules
    ) -> None: ...

    @abstractmethod
    async def _start_trial(self, worker_no: int, pool: str, key: str, seconds: float) -> bool: ...

    @abstractmethod
    async def _end_bans(self, pool: str, keys: Sequence[str]) -> None: ...

    @abstractmethod
    async def _set(self, pool: str, key: str, state: ExitState, seconds: float | None, why: str, by: str) -> bool:
        """Change an exit for an operator. False when there is no such exit."""

    async def register(
        self, worker: str, pool: str, kind: PoolKind, exits: Sequence[ExitSpec], *, complete: bool = True
    ) -> None:
        check_text("pool", pool, MAX_NAME_BYTES)
        if kind not in get_args(PoolKind):
            raise InvalidSetting(f"{kind!r} is not a kind of pool.")
        by_key = {spec.key: spec for spec in exits}
        for spec in by_key.values():
            check_text("key of an exit", spec.key, MAX_NAME_BYTES)
            check_text("label of an exit", spec.label, MAX_NAME_BYTES)
            if " " in spec.key or not spec.key.isprintable():
                raise InvalidSetting("The key of an exit contains a space.")
        worker_no = await self._catalog.worker_no(worker)
        # Every worker of a pool registers the same list, some of them every few minutes: usually it is stored already.
        name = _list_name(by_key) if complete else f"worker {worker_no}"
        if complete:
            stored = await self._queryable.fetch(self._sql["exit_member_list"], pool, worker_no, kind)
            if stored and stored[0]["list"] == name:
                return
        specs = [by_key[key] for key in sorted(by_key)]
        await self._register(worker_no, pool, kind, name, specs, complete)

    async def report(
        self,
        worker: str,
        pool: str,
        reports: Sequence[ExitReport],
        rules: HealthRules,
        *,
        number: int | None = None,
    ) -> None:
        if not reports:
            return
        worker_no = await self._catalog.worker_no(worker)
        checked = merge_reports(map(_cleaned, reports))
        # A worker is one process, whose monotonic clock orders its reports.
        await self._report(worker_no, pool, time.monotonic_ns() if number is None else number, checked, rules)

    async def changes(self, worker: str, pool: str, since: float | None = None) -> PoolChanges:
        if since is None:
            rows = await self._queryable.fetch(self._sql["pool_state"], pool)
        else:
            rows = await self._queryable.fetch(self._sql["pool_changes"], pool, float(since))
        if not rows:
            return PoolChanges(at=0.0)
        row = rows[0]
        return PoolChanges(
            at=row["at"],
            exits=tuple(
                ExitHealth(key=key, state=ExitState(state), until=exit_until(state, until, trial), why=why or "")
                for key, state, until, trial, why in array_from(row["exits"])
            ),
            blocks=tuple(
                ExitBlock(key=key, host=host, seconds=max(0.0, seconds))
                for key, host, seconds in array_from(row["blocks"])
            ),
            members=tuple(array_from(row["members"])),
        )

    async def start_trial(self, worker: str, pool: str, key: str, seconds: float) -> bool:
        return await self._start_trial(await self._catalog.worker_no(worker), pool, key, _checked_seconds(seconds))

    async def end_bans(self, pool: str, keys: Sequence[str]) -> None:
        if keys:
            await self._end_bans(pool, sorted(set(keys)))

    async def pools(self) -> list[PoolView]:
        pools = []
        for row in await self._queryable.fetch(self._sql["list_pools"]):
            values = dict(row)
            values["good"] = values["exits"] - values["banned"] - values["resting"] - values["trial"]
            if values["kind"] == "tokens":
                values["budgets"] = await self._pool_budgets(values["pool"])
            pools.append(PoolView(**values))
        return pools

    async def list(
        self, pool: str | None = None, *, state: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[ExitView]:
        check_limit(limit)
        if state is not None and state not in tuple(ExitState):
            raise UsageError(f"{state!r} is not a state of exits; they are {', '.join(ExitState)}.")
        query = "list_exits" if state in (None, ExitState.GOOD) else "list_exits_not_good"
        after = ("" if pool is None else pool, "", "") if cursor is None else _place(cursor)
        rows = await self._queryable.fetch(self._sql[query], pool, *after, state, limit)
        exits = tuple(exit_from(row) for row in rows)
        last = exits[-1] if len(exits) == limit else None
        return CursorPage(exits, None if last is None else f"{last.pool} {last.key} {last.label}")

    async def get(self, pool: str, key: str) -> ExitView:
        rows = await self._queryable.fetch(self._sql["get_exit"], pool, key)
        if not rows:
            raise NotFound(f"There is no exit {key!r} in the pool {pool!r}.", remedy="`shoal proxies ls` lists them.")
        hosts = await self._queryable.fetch(self._sql["exit_hosts"], rows[0]["id"], MAX_SHOWN_HOSTS)
        return msgspec.structs.replace(
            exit_from(rows[0]),
            hosts=tuple(HostHealth(**dict(host)) for host in hosts),
            budgets=tuple(budget for _, budget in await self._budgets.list(pool, key)),
        )

    async def matrix(self, pool: str, *, hosts: int = 30, exits: int = 50) -> EgressMatrix:
        check_limit(hosts)
        check_limit(exits)
        # One more of each, to know whether some are left out.
        found = await self._queryable.fetch(self._sql["exit_matrix"], pool, hosts + 1, exits + 1)
        shown = [row for row in found if row["host_place"] <= hosts and row["exit_place"] <= exits]
        names = {row["host_place"]: row["host"] for row in shown}
        cells: dict[str, list[BlockedCell]] = {}
        for row in shown:
            cell = BlockedCell(host=row["host"], blocked=row["blocked"], succeeded=row["succeeded"], until=row["until"])
            cells.setdefault(row["key"], []).append(cell)
        owners = {row["key"]: row for row in shown}
        return EgressMatrix(
            pool=pool,
            hosts=tuple(names[place] for place in sorted(names)),
            exits=tuple(
                MatrixRow(key=key, label=owners[key]["label"], state=ExitState(owners[key]["state"]), cells=tuple(each))
                for key, each in cells.items()
            ),
            complete=len(shown) == len(found),
        )

    async def rest(self, pool: str, key: str, seconds: float | None, *, by: str = "") -> ExitView:
        return await self._change(pool, key, ExitState.RESTING, seconds, "", by)

    async def ban(self, pool: str, key: str, seconds: float | None, why: str, *, by: str = "") -> ExitView:
        return await self._change(pool, key, ExitState.BANNED, seconds, why, by)

    async def free(self, pool: str, key: str, *, by: str = "") -> ExitView:
        return await self._change(pool, key, ExitState.GOOD, None, "", by)

    async def _pool_budgets(self, pool: str) -> tuple[BudgetView, ...]:
        """The budgets of the listed exits, summed by resource. What is left of a token that is banned or rests is of
        no use now.
        """
        away = (ExitState.BANNED, ExitState.RESTING)
        usable = {row.key for row in (await self.list(pool, limit=MAX_PAGE)).rows if row.state not in away}
        summed: dict[str, BudgetView] = {}
        for key, budget in await self._budgets.list(pool):
            if key in usable:
                before = summed.get(budget.resource)
                summed[budget.resource] = budget if before is None else _added(before, budget)
        return tuple(summed[resource] for resource in sorted(summed))

    async def _change(
        self, pool: str, key: str, state: ExitState, seconds: float | None, why: str, by: str
    ) -> ExitView:
        seconds = None if seconds is None else _checked_seconds(seconds)
        if await self._set(pool, key, state, seconds, clean_error(why) or "", by):
            return await self.get(pool, key)
        raise NotFound(f"There is no exit {key!r} in the pool {pool!r}.", remedy="`shoal proxies ls` lists them.")


def _list_name(by_key: Mapping[str, ExitSpec]) -> str:
    """A hash of a list, whatever its order."""
    text = "\0".join(f"{key}\0{by_key[key].label}" for key in sorted(by_key))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _checked_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and 0 <= seconds <= MAX_SECONDS):
        raise InvalidSetting(f"{seconds!r} is not a number of seconds from 0 to {MAX_SECONDS:g}.")
    return float(seconds)


def _cleaned(report: ExitReport) -> ExitReport:
    """A report whose texts can be stored. Hosts that no URL can have are left out."""
    hosts = tuple(
        msgspec.structs.replace(host, error=clean_error(host.error) or "") for host in report.hosts if _is_host(host)
    )
    return msgspec.structs.replace(report, error=clean_error(report.error) or "", hosts=hosts)


def _is_host(report: HostReport) -> bool:
    return 0 < len(report.host) <= MAX_NAME_BYTES and report.host.isascii() and report.host.isprintable()


def _added(one: BudgetView, other: BudgetView) -> BudgetView:
    resets = [budget.reset_seconds for budget in (one, other) if budget.reset_seconds is not None]
    paces = [budget.per_minute for budget in (one, other) if budget.per_minute is not None]
    per_minute = sum(paces) if paces else None
    left = one.left + other.left
    # Together they last until all are empty; as long as one of them lasts for ever, so do they.
    runs_out = per_minute and None not in (one.empty_in_seconds, other.empty_in_seconds)
    return BudgetView(
        resource=one.resource,
        capacity=one.capacity + other.capacity,
        left=left,
        free=one.free + other.free,
        reset_seconds=max(resets, default=None),
        from_site=one.from_site or other.from_site,
        resting=one.resting and other.resting,
        per_minute=per_minute,
        empty_in_seconds=round(60 * left / per_minute, 1) if per_minute and runs_out else None,
    )


def _place(cursor: str) -> tuple[str, str, str]:
    """The pool, label and key that a cursor names."""
    parts = cursor.split(" ", 2)
    if len(parts) != 3:
        raise UsageError(
            f"{cursor!r} is not a cursor of this list.", remedy="Use the cursor of the previous page, or none."
        )
    return parts[0], parts[2], parts[1]
