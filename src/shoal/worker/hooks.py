"""The author's hooks: called once when a run begins, once when it has finished."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from shoal.define.inject import HOOK_WISHES, Shape, Wish, read_signature, where
from shoal.define.scraper import Scraper
from shoal.errors import UsageError
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.run import Run, RunState


async def call_start_hooks(scraper: Scraper, ledger: Ledger, run: Run, log: Log) -> None:
    """Raises UsageError when a hook fails: a run whose preparation failed does not begin."""
    for hook in scraper.start_hooks:
        try:
            await _call(hook, scraper, ledger, run, log)
        except Exception as error:
            log.error("a start hook failed", hook=hook.__name__, exc_info=error)
            raise UsageError(
                f"The start hook {where(hook)} failed: {type(error).__name__}: {error}.",
                remedy="Correct it and run the scraper again.",
            ) from error


async def call_finish_hooks(scraper: Scraper, ledger: Ledger, run_id: str, log: Log) -> bool:
    """Call the hooks if the run has finished and nobody else has called them for this end of it.

    A hook that fails is told and stops neither the others nor the run. Returns whether they were called here.
    """
    run = await ledger.runs.get(run_id)
    if not scraper.finish_hooks or run.state is not RunState.FINISHED or run.finished_at is None:
        return False
    # A run that was resumed finishes again, and then its hooks are called again.
    if not await ledger.runs.take(run.id, f"finish hooks {run.finished_at.isoformat()}"):
        return False
    for hook in scraper.finish_hooks:
        try:
            await _call(hook, scraper, ledger, run, log)
        except Exception as error:
            log.error("a finish hook failed", hook=hook.__name__, error=f"{type(error).__name__}: {error}")
    return True


async def _call(hook: Callable[..., Any], scraper: Scraper, ledger: Ledger, run: Run, log: Log) -> None:
    signature = read_signature(hook, HOOK_WISHES, scraper.settings_type)
    given: dict[str, Any] = {}
    for name, wish in signature.wishes:
        match wish:
            case Wish.RUN:
                given[name] = run
            case Wish.COUNTS:
                given[name] = await ledger.reads.stats(run.id)
            case Wish.LOG:
                given[name] = log.bind(hook=hook.__name__)
            case _:
                given[name] = scraper.settings
    if signature.shape is Shape.PLAIN:
        answer = await asyncio.to_thread(hook, **given)
        if inspect.isawaitable(answer):
            await answer
    else:
        await hook(**given)
