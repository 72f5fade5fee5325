"""How `shoal pool` lets its workers work: shown while they do, obedient to signals, summed up at the end."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shoal.cli.pool_shown import print_work
from shoal.cli.scrapers import command_line, ledger_flag
from shoal.cli.session import Session
from shoal.cli.summary import exit_code, print_summary
from shoal.cli.working import INTERRUPTED, beside
from shoal.config import Settings
from shoal.config.settings import ENV_PREFIX, NAMES
from shoal.define.scraper import Scraper
from shoal.fleet.child import Launcher
from shoal.fleet.place import Ended
from shoal.fleet.plan import Dealer
from shoal.fleet.pool import Pool, PoolOptions
from shoal.fleet.roll import Roll
from shoal.fleet.shares import Shares
from shoal.fleet.wish import follow_wishes, newest_wish
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run, RunState
from shoal.observe.logs import open_logs
from shoal.observe.progress import Show, follow, showing
from shoal.observe.words import counted
from shoal.worker.hooks import call_finish_hooks
from shoal.worker.options import Ending, WorkReport

LAST_LOOK_SECONDS = 1.0
_STDERR = 2


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the pool begins with."""

    target: str
    shares: Shares
    logs: Path
    options: PoolOptions


async def work_off(
    session: Session, scraper: Scraper, settings: Settings, ledger: Ledger, run: Run, dealer: Dealer, start: Start
) -> int:
    """Until all workers have left. Returns the exit code."""
    began = time.monotonic()
    roll = Roll(ledger, run.id, since=(await ledger.health.examine()).clock)
    launcher = Launcher(start.target, run.id, _environment(session, settings), start.logs, scraper.name)
    logs = open_logs(
        format=settings.log_format,
        level=settings.log_level,
        file=start.logs / f"{scraper.name}_pool.log",
        stream=None,
        secrets=settings.secrets(),
    )
    log = logs.log.bind(run=run.id)
    try:
        with showing(session.note, quiet=session.quiet, title=f"{scraper.name} {run.id}") as show:
            log.info("the pool begins", workers=len(start.shares))
            pool = Pool(launcher, roll, dealer.shares, start.options, log=log, tell=show.tell)
            await _supervise(ledger, run, pool, start.shares, show)
        await ledger.upkeep.tend()
        await call_finish_hooks(scraper, ledger, run.id, log)
        run = await ledger.runs.get(run.id)
        tallies = await roll.tallies([(place.number, pid) for place in pool.places for pid in place.pids])
        log.info(
            "the pool ends",
            state=run.state.value,
            workers={str(number): msgspec.to_builtins(tally) for number, tally in tallies.items()},
        )
    finally:
        logs.close()
    print_work(session, pool.places, tallies)
    report = WorkReport(
        ending=Ending.STOPPED if pool.stopping else Ending.ORDERED,
        attempts=sum(tally.done + tally.dead for tally in tallies.values()),
        seconds=time.monotonic() - began,
    )
    if run.state is RunState.FINISHED:
        report.ending = Ending.NOTHING_LEFT
    await print_summary(session, ledger, run, report, settings, None)
    return await _farewell(session, ledger, run, pool, report, settings, start)


async def _supervise(ledger: Ledger, run: Run, pool: Pool, shares: Shares, show: Show) -> None:
    async def show_run() -> None:
        await follow(ledger, run.id, show)
        pool.start_no_more()

    seen, _ = await newest_wish(ledger, run.scraper)
    following = asyncio.create_task(show_run())
    others = (following, asyncio.create_task(follow_wishes(ledger, run.scraper, pool, seen)))
    try:
        with _obeying_signals(pool, show.tell):
            await beside(pool.run(shares), *others)
        await asyncio.wait((following,), timeout=LAST_LOOK_SECONDS)
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def _obeying_signals(pool: Pool, tell: Callable[[str], None]) -> Iterator[None]:
    """As `shoal run` does; SIGHUP replaces the workers, unless it says that the terminal is gone: then they leave."""
    loop = asyncio.get_running_loop()
    count, on_terminal = 0, os.isatty(_STDERR)
    reloads: set[asyncio.Task[None]] = set()

    def on_stop() -> None:
        nonlocal count
        count += 1
        if count == 1:
            tell("Stopping: what runs is finished, the rest goes back. Press Ctrl-C again to give up at once.")
        elif count == 2:
            tell("Giving back what runs.")
        else:
            # The workers see that the pool is gone, and leave.
            os._exit(INTERRUPTED)
        pool.stop()

    def on_hangup() -> None:
        if on_terminal and not os.isatty(_STDERR):
            pool.stop()
            return
        task = asyncio.create_task(pool.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    handlers = {signal.SIGINT: on_stop, signal.SIGTERM: on_stop, signal.SIGHUP: on_hangup}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def _farewell(
    session: Session, ledger: Ledger, run: Run, pool: Pool, report: WorkReport, settings: Settings, start: Start
) -> int:
    failed = sum(place.ended in (Ended.GAVE_UP, Ended.BROKEN) for place in pool.places)
    if run.state is RunState.ACTIVE:
        again = f"pool {shlex.quote(start.target)} --run-id {run.id}"
        session.note(f"Go on with: {command_line()} {again}{ledger_flag(settings)}")
        if failed and not pool.stopping:
            session.complain(f"The run has not ended: {counted(failed, 'worker')} failed.")
            return 1
    return exit_code(run, await ledger.reads.stats(run.id), report, settings)


def _environment(session: Session, settings: Settings) -> dict[str, str]:
    """What the workers find: the pool's own environment and, as variables, what its flags said.

    Passwords on a command line could be seen by everybody on the machine.
    """
    said = {name: value for name, value in session.flags.items() if value is not None and name in NAMES}
    return {
        **os.environ,
        **{ENV_PREFIX + name.upper(): value for name, value in said.items()},
        ENV_PREFIX + "LEDGER": settings.ledger,
        ENV_PREFIX + "LOG_DIR": "",  # each has a file of its own already
        "PYTHONUNBUFFERED": "1",
    }
