"""Lanes on both ledgers: arguments are checked and lanes read here; the backends change them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from shoal.errors import NotFound
from shoal.ledger.catalog import Catalog
from shoal.ledger.rows import Queryable, check_limit, lane_from
from shoal.model.item import MAX_NAME_BYTES
from shoal.model.lane import HostSlotReply, LanePolicy, LaneView, ReservedStarts, StartRequest
from shoal.model.url_key import check_text
from shoal.model.views import CursorPage

DelayRange = tuple[float, float]


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


def _check_change(key: str, limit: int | None, delay: DelayRange | None) -> None:
    check_text("lane", key, MAX_NAME_BYTES)
    delay_min, delay_max = delay if delay is not None else (0.0, 0.0)
    LanePolicy(limit=1 if limit is None else limit, delay_min=delay_min, delay_max=delay_max).checked()
