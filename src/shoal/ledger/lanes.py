"""Lanes on both ledgers: arguments are checked and lanes read here; the backends change them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress

from shoal.errors import InvalidSetting, LedgerError, NotFound, UsageError
from shoal.ledger.catalog import Catalog
from shoal.ledger.rows import Queryable, Row, array_from, check_limit, cursor_parts, lane_from
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.lane import (
    HostSlotReply,
    LanePolicy,
    LaneProgress,
    LaneSpan,
    LaneView,
    ReservedStarts,
    StartRequest,
)
from shoal.model.url_key import check_text
from shoal.model.views import CursorPage

DelayRange = tuple[float, float]
# So many of the slowest lanes are ranked, for each run and for the shared lanes.
RANKED_LANES = 500
# Without workers nobody ranks the lanes: after so many seconds a list does it.
RANKS_VALID_SECONDS = 30.0
# A run with more lanes than this finds them by walking through the shared lanes, so many at a time.
FEW_LANES = 1_000
LANES_WALKED = 2_000
# The items of a page of lanes are counted up to here in all, and of each lane within these limits.
COUNT_BUDGET, MIN_COUNTED, MAX_COUNTED = 50_000, 200, 10_000
MAX_TIMELINE_LANES = 30
MAX_SPANS = 1_000
_LAST_CHARACTER = "\U0010ffff"
LaneRows = tuple[Sequence[Row], str | None]


class BaseLanes(ABC):
    def __init__(self, queryable: Queryable, queries: Mapping[str, str], catalog: Catalog) -> None:
        self._queryable = queryable
        self._sql = queries
        self._catalog = catalog

    @abstractmethod
    async def _set(
        self, run_no: int, key: str, limit: int | None, delay: DelayRange | None, paused: bool | None, by: str
    ) -> bool:
        """Change the lane; a shared lane is created if needed. False when the run has no such lane."""

    @abstractmethod
    async def _block(self, run_no: int, key: str, seconds: float, why: str, by: str) -> bool: ...

    @abstractmethod
    async def _declare(self, key: str, delay: DelayRange) -> None: ...

    @abstractmethod
    async def _set_delay_floor(self, run_no: int, key: str, delay: float, why: str) -> bool: ...

    @abstractmethod
    async def _reserve(self, run_no: int, key: str, worker_no: int, request: StartRequest) -> ReservedStarts: ...

    @abstractmethod
    async def _request_slot(self, worker_no: int, stage: int, key: str, slot: int) -> HostSlotReply: ...

    @abstractmethod
    async def _release_slots(self, slots: Sequence[int]) -> None: ...

    @abstractmethod
    async def _block_host(self, stage: int, key: str, seconds: float, why: str) -> None: ...

    async def get(self, key: str, *, run_id: str | None = None) -> LaneView:
        rows = await self._queryable.fetch(self._sql["get_lanes"], await self._run_no(run_id), key, None, 1)
        if not rows:
            raise NotFound(f"There is no lane {key!r}.", remedy="Check the name; a lane exists from its first item on.")
        return lane_from(rows[0])

    async def list(
        self, *, run_id: str | None = None, cursor: str | None = None, limit: int = 50
    ) -> CursorPage[LaneView]:
        check_limit(limit)
        rows = await self._queryable.fetch(self._sql["get_lanes"], await self._run_no(run_id), None, cursor, limit)
        lanes = tuple(lane_from(row) for row in rows)
        return CursorPage(lanes, lanes[-1].key if len(lanes) == limit else None)

    @abstractmethod
    async def _rank(self) -> None:
        """Rank the slowest lanes now."""

    async def progress(
        self,
        *,
        run_id: str | None = None,
        slowest: bool = False,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 50,
    ) -> CursorPage[LaneProgress]:
        check_limit(limit)
        run_no = await self._run_no(run_id)
        if slowest:
            rows, next_cursor = await self._slowest(run_no, prefix, cursor, limit)
        elif run_id is None:
            rows = await self._queryable.fetch(
                self._sql["lanes_from"], 0, prefix, prefix + _LAST_CHARACTER, cursor, limit
            )
            next_cursor = rows[-1]["key"] if len(rows) == limit else None
        else:
            rows, next_cursor = await self._of_run(run_no, prefix, cursor, limit)
        return CursorPage(await self._counted(None if run_id is None else run_no, rows), next_cursor)

    async def timeline(
        self, run_id: str, lanes: Sequence[str], *, minutes: int = 60, spans: int = 100
    ) -> dict[str, tuple[LaneSpan, ...]]:
        check_limit(spans)
        if len(lanes) > MAX_TIMELINE_LANES or spans > MAX_SPANS or not 1 <= minutes <= 10_080:
            raise InvalidSetting(
                f"A timeline has at most {MAX_TIMELINE_LANES} lanes, {MAX_SPANS} attempts of each, and a week."
            )
        run_no = await self._run_no(run_id)
        names: dict[int, str] = {}
        for name in lanes:
            names |= {row["id"]: name for row in await self._queryable.fetch(self._sql["lanes_named"], run_no, name)}
        found: dict[str, list[LaneSpan]] = {name: [] for name in lanes}
        for row in await self._queryable.fetch(self._sql["lane_spans"], run_no, list(names), minutes, spans):
            found[names[row["lane"]]].append(
                LaneSpan(
                    item=row["item"],
                    name=row["name"] or "",
                    begin=row["began_at"],
                    end=row["ended_at"],
                    outcome=row["outcome"],
                )
            )
        return {
            name: tuple(sorted(each, key=lambda span: (span.begin, span.item))[-spans:]) for name, each in found.items()
        }

    async def rank(self) -> None:
        """Upkeep: rank the slowest lanes."""
        await self._rank()

    async def _slowest(self, run_no: int, prefix: str, cursor: str | None, limit: int) -> LaneRows:
        age = await self._queryable.value(self._sql["ranked_seconds_ago"])
        if age is None or not -1.0 < age < RANKS_VALID_SECONDS:
            with suppress(LedgerError):  # a ledger that cannot be written can still be read
                await self._rank()
        place, last = cursor_parts(cursor, 2) if cursor is not None else (None, None)
        rows = await self._queryable.fetch(
            self._sql["slow_lanes"], run_no, RANKED_LANES, prefix, prefix + _LAST_CHARACTER, place, last, limit
        )
        return rows, f"{rows[-1]['place']}.{rows[-1]['id']}" if len(rows) == limit else None

    async def _of_run(self, run_no: int, prefix: str, cursor: str | None, limit: int) -> LaneRows:
        """Lanes that a run uses, by name. The cursor is the kind of lane (0: shared, 1: of the run) and its name."""
        kind, _, after = (cursor or "").partition(" ")
        if cursor is not None and kind not in ("0", "1"):
            raise UsageError(
                f"{cursor!r} is not a cursor of this list.", remedy="Use the cursor of the previous page, or none."
            )
        after_key, after_run = (None, 0) if cursor is None else (after, run_no if kind == "1" else 0)
        until = prefix + _LAST_CHARACTER
        lanes = array_from((await self._queryable.row(self._sql["run_lanes"], run_no, FEW_LANES + 1))["lanes"])
        walked_to = None
        if len(lanes) > FEW_LANES:
            # All that matter are the next ones: shared lanes with items of the run, and the run's own.
            begin = max(after_key or "", prefix)
            walk = await self._queryable.row(self._sql["walk_lanes"], run_no, begin, until, LANES_WALKED)
            own = await self._queryable.fetch(
                self._sql["lanes_from"], run_no, prefix, until, after_key if kind == "1" else None, limit
            )
            lanes = [*array_from(walk["lanes"]), *(row["id"] for row in own)]
            walked_to = walk["last_key"] if walk["seen"] == LANES_WALKED else None
        rows = await self._queryable.fetch(
            self._sql["lanes_by_name"], lanes, prefix, until, after_key, after_run, limit
        )
        if walked_to is not None:
            rows = [row for row in rows if row["key"] <= walked_to]
        if len(rows) == limit:
            return rows, f"{1 if rows[-1]['run'] else 0} {rows[-1]['key']}"
        return rows, None if walked_to is None else f"1 {walked_to}"

    async def _counted(self, run_no: int | None, rows: Sequence[Row]) -> tuple[LaneProgress, ...]:
        if not rows:
            return ()
        most = max(MIN_COUNTED, min(MAX_COUNTED, COUNT_BUDGET // len(rows)))
        ids = [row["id"] for row in rows]
        counts = {
            row["lane"]: row for row in await self._queryable.fetch(self._sql["lane_counts"], run_no, ids, most + 1)
        }
        leases = dict(map(tuple, await self._queryable.fetch(self._sql["lane_leases"], run_no, ids)))
        return tuple(
            _progress(row, counts[row["id"]], leases.get(row["id"], 0), most) for row in rows if row["id"] in counts
        )

    async def set(
        self,
        key: str,
        *,
        run_id: str | None = None,
        limit: int | None = None,
        delay: DelayRange | None = None,
        paused: bool | None = None,
        by: str = "",
    ) -> LaneView:
        _check_change(key, limit, delay)
        if not await self._set(await self._run_no(run_id), key, limit, delay, paused, by):
            raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
        return await self.get(key, run_id=run_id)

    async def block(self, key: str, seconds: float, why: str, *, run_id: str | None = None, by: str = "") -> LaneView:
        _check_change(key, None, (0.0, seconds))
        if not await self._block(await self._run_no(run_id), key, seconds, why, by):
            raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
        return await self.get(key, run_id=run_id)

    async def clock(self) -> float:
        return float(await self._queryable.value(self._sql["clock_seconds"]))

    async def reserve(
        self, worker: str, key: str, request: StartRequest, *, run_id: str | None = None
    ) -> ReservedStarts:
        _check_change(key, None, None)
        worker_no = await self._catalog.worker_no(worker)
        return await self._reserve(await self._run_no(run_id), key, worker_no, request.checked())

    async def request_slot(self, worker: str, key: str, slot: int, *, run_id: str, stage: str) -> HostSlotReply:
        _check_change(key, None, None)
        worker_no = await self._catalog.worker_no(worker)
        return await self._request_slot(worker_no, (await self._catalog.run(run_id)).stage_id(stage), key, slot)

    async def release_slots(self, slots: Sequence[int]) -> None:
        if slots:
            await self._release_slots(slots)

    async def block_host(self, key: str, seconds: float, why: str, *, run_id: str, stage: str) -> None:
        _check_change(key, None, (0.0, seconds))
        await self._block_host((await self._catalog.run(run_id)).stage_id(stage), key, float(seconds), why)

    async def declare(self, key: str, delay: DelayRange) -> None:
        _check_change(key, None, delay)
        await self._declare(key, (float(delay[0]), float(delay[1])))

    async def set_delay_floor(self, key: str, delay: float, why: str, *, run_id: str | None = None) -> LaneView:
        _check_change(key, None, (0.0, delay))
        run_no = await self._run_no(run_id)
        # Every worker that reads robots.txt calls this. Usually the floor is set already, and no lock is needed.
        for row in await self._queryable.fetch(self._sql["get_lanes"], run_no, key, None, 1):
            if row["floor"] == delay and (delay == 0 or row["floor_why"] == why):
                return lane_from(row)
        if not await self._set_delay_floor(run_no, key, delay, why):
            raise NotFound(f"There is no lane {key!r} in the run {run_id}.")
        return await self.get(key, run_id=run_id)

    async def _run_no(self, run_id: str | None) -> int:
        return 0 if run_id is None else (await self._catalog.run(run_id)).no


def _progress(row: Row, count: Row, leased: int, most: int) -> LaneProgress:
    waiting, total = count["waiting"], count["total"]
    # The counter of a lane that no other run waits for is that of this run, however many there are.
    exact = count["alone"] or waiting <= most
    waiting = row["waiting"] if count["alone"] else min(waiting, most)
    ended = None
    if total is not None:
        # Of the items that hold a slot, those that are neither leased nor delayed are ready.
        ready = max(0, row["taken"] - leased - count["slotted"])
        ended = max(0, total - waiting - leased - ready - count["slotted"] - count["unslotted"])
    return LaneProgress(
        lane=lane_from(row),
        waiting=waiting,
        leased=leased,
        ended=ended if ended or (total is not None and total <= most) else None,
        waiting_is_at_least=not exact,
        ended_is_at_least=bool(ended) and total > most,
    )


def _check_change(key: str, limit: int | None, delay: DelayRange | None) -> None:
    check_text("lane", key, MAX_NAME_BYTES)
    delay_min, delay_max = delay if delay is not None else (0.0, 0.0)
    LanePolicy(limit=1 if limit is None else limit, delay_min=delay_min, delay_max=delay_max).checked()
