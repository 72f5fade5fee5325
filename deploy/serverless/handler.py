"""A scraper as a cloud function: each call works one claim's worth of items within its time limit, then leaves.

`lambda_handler` is for AWS Lambda, `cloud_function` for Google Cloud Functions. The environment says which scraper
(`SCRAPER`, as on the command line) and which ledger (`SHOAL_LEDGER`, or `DB_HOST` and so on). The call may say more, as
JSON: `run_id`, `stages`, `limit`. The answer says what was done, and in `left` whether runs have not ended yet.

A call that is cut off in the middle loses nothing: its items go to others when the lease ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import msgspec

from shoal import Scraper
from shoal.config import Settings, load_settings
from shoal.errors import NotFound, UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.service.blocking import run_to_end
from shoal.service.events import StopRequest
from shoal.service.lookup import check_stage_names, load_configured
from shoal.wiring import build_fetcher, build_worker, ledger_context, sqlite_path, worker_options
from shoal.worker.claim import has_open_runs
from shoal.worker.hooks import call_finish_hooks
from shoal.worker.state import StopReason, WorkSummary

# Kept at the end of a call for giving back, storing and closing connections.
RESERVE_SECONDS = 3.0
LEAST_SECONDS = 6.0
# What Google gives an HTTP function unless it is told otherwise; it does not tell the function.
CLOUD_FUNCTION_SECONDS = 60.0
RUNS_LOOKED_AT = 20


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call may ask for. The scraper is not among it: a caller must not choose which code is loaded."""

    run_id: str | None = None
    stages: tuple[str, ...] = ()
    limit: int | None = None


class LambdaContext(Protocol):
    def get_remaining_time_in_millis(self) -> int: ...


class JsonRequest(Protocol):
    def get_json(self, *, silent: bool) -> Any: ...


def lambda_handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """AWS Lambda. A schedule needs a constant JSON text as its input, such as {}."""
    return work(event or {}, seconds=context.get_remaining_time_in_millis() / 1000)


def cloud_function(request: JsonRequest) -> tuple[dict[str, Any], int]:
    """Google Cloud Functions, by HTTP. Its time limit is to be repeated in TIMEOUT_SECONDS if it is not 60."""
    try:
        seconds = float(os.environ.get("TIMEOUT_SECONDS", CLOUD_FUNCTION_SECONDS))
        return work(request.get_json(silent=True) or {}, seconds=seconds), 200
    except (UsageError, NotFound) as error:
        return {"error": error.message, "remedy": error.remedy}, 404 if isinstance(error, NotFound) else 400


def work(event: Any, *, seconds: float) -> dict[str, Any]:
    """Do what the call asks for within so many seconds. Raises ShoalError when it cannot be done."""
    order = _order(event)
    if seconds < LEAST_SECONDS:
        raise UsageError(
            f"{seconds:g} s are too short to work in.", remedy="Give the function a time limit of 30 s or more."
        )
    usable = seconds - RESERVE_SECONDS
    scraper, settings = _load(usable)
    check_stage_names(scraper, order.stages)
    return run_to_end(lambda: _work(scraper, settings, order, usable), StopRequest())


def _order(event: Any) -> Order:
    try:
        order = msgspec.convert(event, Order)
    except msgspec.ValidationError as error:
        raise UsageError(f"The call cannot be read: {error}.", remedy="Known are run_id, stages and limit.") from None
    if order.limit is not None and order.limit < 1:
        raise UsageError(f"The limit is {order.limit}.", remedy="Give 1 or more, or leave it out.")
    return order


def _load(usable: float) -> tuple[Scraper, Settings]:
    target = os.environ.get("SCRAPER")
    if not target:
        raise UsageError("No scraper is named.", remedy="Set SCRAPER to its file, to module:scraper or to its name.")
    scraper, settings = load_configured(target, load_settings({}, environ=os.environ, folder=Path.cwd()))
    if sqlite_path(settings.ledger) is not None:
        raise UsageError(
            f"The ledger {settings.ledger} would be gone with the function.",
            remedy="Set SHOAL_LEDGER=postgresql://user@host/database, or DB_HOST and so on.",
        )
    # What runs when time is up gets a third of the call at most; nobody waits for the ledger longer than the call.
    within = {"drain": min(settings.drain, usable / 3), "patience": min(settings.patience, usable / 3)}
    return scraper, msgspec.structs.replace(settings, **within)


async def _work(scraper: Scraper, settings: Settings, order: Order, usable: float) -> dict[str, Any]:
    deadline = asyncio.get_running_loop().time() + usable - settings.drain
    scope = Scope(
        scraper=scraper.name, run_ids=(order.run_id,) if order.run_id is not None else (), stages=order.stages
    )
    logs = open_logs(format="json", level=settings.log_level, file=None, stream=sys.stderr, secrets=settings.secrets())
    try:
        async with ledger_context(settings) as ledger:
            if order.run_id is not None:
                await ledger.runs.get(order.run_id)
            report = await _one_claim(scraper, settings, ledger, scope, order.limit, deadline, logs.log)
            await _call_finish_hooks(scraper, ledger, scope, logs.log)
            left = await has_open_runs(ledger, scope)
    finally:
        logs.close()
    return {**msgspec.to_builtins(report), "left": left}


async def _one_claim(
    scraper: Scraper,
    settings: Settings,
    ledger: Ledger,
    scope: Scope,
    limit: int | None,
    deadline: float,
    log: Log,
) -> WorkSummary:
    most = settings.batch_size if limit is None else limit
    options = worker_options(scraper, settings, scope, limit=most, stop_when_idle=True)
    fetcher = build_fetcher(settings)
    worker = build_worker(scraper, settings, ledger, fetcher, options, log=log)
    time_up = asyncio.get_running_loop().call_at(deadline, worker.drain, StopReason.TIMED_OUT)
    try:
        return await worker.work()
    finally:
        time_up.cancel()
        await fetcher.close()


async def _call_finish_hooks(scraper: Scraper, ledger: Ledger, scope: Scope, log: Log) -> None:
    """Whoever sees that a run has finished first calls the author's hooks."""
    run_ids = scope.run_ids or [
        run.id for run in (await ledger.runs.list(scraper=scraper.name, limit=RUNS_LOOKED_AT)).rows
    ]
    for run_id in run_ids:
        await call_finish_hooks(scraper, ledger, run_id, log)
