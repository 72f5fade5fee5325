"""Calls an author's hooks: before a pool starts, once when a run begins, once when it has finished."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.define.providers import FunctionKind, Signature, function_location
from shoal.define.scraper import Scraper
from shoal.errors import CheckFailed, LedgerError, NotFound, ShoalError, UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run, RunState
from shoal.model.views import Counts
from shoal.model.worker import Scope
from shoal.threads import ThreadRunner
from shoal.worker.claim import runs_in_scope
from shoal.worker.providers import WorkerProviders, WorkerValues

WATCH_SECONDS = 2.0
RUNS_WATCHED = 20


async def call_start_hooks(scraper: Scraper, ledger: Ledger, run: Run, log: Log) -> None:
    """Call the start hooks. The run does not begin when one refuses (CheckFailed) or fails (UsageError)."""
    for hook in scraper.start_hooks:
        try:
            await _call(hook, scraper, ledger, run, log)
        except CheckFailed:
            raise
        except Exception as error:
            log.error("start hook failed", hook=hook.__name__, exc_info=error)
            raise UsageError(
                f"The start hook {function_location(hook)} failed: {type(error).__name__}: {error}.",
                remedy="Correct it and run the scraper again.",
            ) from error


async def call_preflight(function: Callable[..., Any], scraper: Scraper, log: Log) -> str:
    """What a preflight function returns, as text. Raises CheckFailed, also for any other error of the function."""
    signature = scraper.providers.preflight_signature(function)
    values = WorkerValues(scraper.settings, log.bind(hook=function.__name__))
    try:
        found = await _call_with(function, scraper, signature, values, log)
    except ShoalError:
        raise
    except Exception as error:
        log.error("preflight failed", hook=function.__name__, exc_info=error)
        raise CheckFailed(f"{function_location(function)} failed: {type(error).__name__}: {error}.") from error
    return "" if found is None else str(found)


async def call_finish_hooks(scraper: Scraper, ledger: Ledger, run_id: str, log: Log) -> bool:
    """Call the finish hooks if the run has finished and no other process has called them for this end.

    A hook that fails is logged; the others are called. Returns whether they were called here.
    """
    try:
        run = await ledger.runs.get(run_id)
        if not scraper.finish_hooks or run.state is not RunState.FINISHED or run.finished_at is None:
            return False
        # A resumed run finishes again, and its hooks are called again.
        if not await ledger.runs.acquire_once(run.id, f"finish hooks {run.finished_at.isoformat()}"):
            return False
    except NotFound:  # the run was removed
        return False
    for hook in scraper.finish_hooks:
        try:
            await _call(hook, scraper, ledger, run, log)
        except Exception as error:
            log.error("finish hook failed", hook=hook.__name__, error=f"{type(error).__name__}: {error}")
    return True


async def watch_finished_runs(
    scraper: Scraper, ledger: Ledger, scope: Scope, log: Log, *, until: asyncio.Event, every: float = WATCH_SECONDS
) -> None:
    """Call the finish hooks of the runs of this scope as they finish, and a last time when `until` is set."""
    seen: set[tuple[str, object]] = set()
    while scraper.finish_hooks:
        last = until.is_set()
        try:
            for run in await runs_in_scope(ledger, scope, newest=RUNS_WATCHED):
                # A resumed run finishes again, at another time.
                end = (run.id, run.finished_at)
                if run.state is RunState.FINISHED and end not in seen:
                    await call_finish_hooks(scraper, ledger, run.id, log)
                    seen.add(end)
        except LedgerError as error:
            if last:
                raise
            log.warning("finished runs unknown: ledger unreachable, retrying", error=error.message)
        if last:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(every):
                await until.wait()


class HookValues(msgspec.Struct):
    """What built-in providers read for a hook."""

    run: Run
    counts: Counts | None
    settings: Any
    log: Log


async def _call(hook: Callable[..., Any], scraper: Scraper, ledger: Ledger, run: Run, log: Log) -> None:
    """Call one hook. Providers that it asks for are set up for this call."""
    signature = scraper.providers.hook_signature(hook)
    counts = await ledger.reads.stats(run.id) if Counts in signature.types else None
    values = HookValues(run, counts, scraper.settings, log.bind(hook=hook.__name__))
    await _call_with(hook, scraper, signature, values, log)


async def _call_with(
    hook: Callable[..., Any], scraper: Scraper, signature: Signature, values: object, log: Log
) -> object:
    threads = ThreadRunner("shoal-hook")
    providers = WorkerProviders(scraper, threads, log)
    try:
        arguments = await providers.arguments(signature, values)
        if signature.kind is FunctionKind.PLAIN:
            answer = await threads.run(lambda: hook(**arguments))
            return await answer if inspect.isawaitable(answer) else answer
        return await hook(**arguments)
    finally:
        await providers.close()
        threads.close()
