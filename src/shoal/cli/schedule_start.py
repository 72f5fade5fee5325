"""How `shoal schedule start` and `shoal schedule now` let slots run: obedient to signals, each end told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.cli.children import environment_of_children, passing_signals_on
from shoal.cli.render.session import Session
from shoal.cli.watching import watched
from shoal.cli.working import INTERRUPTED
from shoal.config import Settings
from shoal.config.schedules import ScheduleConfig
from shoal.errors import NotAllowed, ShoalError
from shoal.fleet.schedule.scheduler import Scheduler
from shoal.fleet.schedule.slot_runner import STOPPED, SlotOptions, SlotRunner
from shoal.fleet.schedule.slots import Slot, read_slots
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.worker import new_worker_id
from shoal.notify.conditions import AlertKind
from shoal.notify.delivery import check_addresses, send_text
from shoal.observe.formatting import pluralize
from shoal.observe.logs import open_logs
from shoal.wiring import ledger_context

LEDGER_FLAGS = ("ledger", "db_host", "db_port", "db_name", "db_user")


def schedules_of(settings: Settings) -> dict[str, ScheduleConfig]:
    return {name: table.schedule for name, table in settings.scrapers.items() if table.schedule is not None}


async def keep_schedules(session: Session, *, at_once: int, logs: Path) -> int:
    """Until somebody says stop. Returns the exit code."""
    settings = session.settings
    await check_addresses(settings)
    telling: set[asyncio.Task[None]] = set()
    async with ledger_context(settings, on_waiting=session.note) as ledger:
        log = open_logs(
            format=settings.log_format,
            level=settings.log_level,
            file=logs / "schedule.log",
            stream=None,
            secrets=settings.secrets(),
        )

        def ended(slot: Slot, value: Mapping[str, Any]) -> None:
            _record(session, slot, value)
            if value["state"] == "failed" and not value.get("run_id"):
                telling.add(asyncio.create_task(_tell_failed(settings, slot, value, log.log)))

        try:
            scheduler = Scheduler(
                ledger,
                _ways(session, logs),
                at_once=at_once,
                log=log.log,
                print_line=session.note,
                on_slot_ended=ended,
            )
            with passing_signals_on(scheduler.stop, session.note, lambda: _reload(session, scheduler)):
                scheduler.set_schedules(schedules_of(settings))
                session.note(f"Keeping {pluralize(len(schedules_of(settings)), 'schedule')}; Ctrl-C stops.")
                async with watched(settings, log.log):  # it is there when nobody works: who else would tell of that?
                    await scheduler.run()
            await asyncio.gather(*telling, return_exceptions=True)
        finally:
            log.close()
    return INTERRUPTED


async def run_slot_now(session: Session, name: str, config: ScheduleConfig, *, logs: Path) -> int:
    """One slot that the schedule does not know of. Returns the exit code of its run."""
    options = _ways(session, logs)
    async with ledger_context(session.settings, on_waiting=session.note) as ledger:
        slot = await _taken(ledger, name, options)
        runner = SlotRunner(slot, config, options, ledger.locks, wanted=lambda: True, resumable=False)
        session.note(f"{name}: the slot of {slot.name} begins; its log is {runner.log_file}.")
        with passing_signals_on(runner.stop, session.note):
            value = await runner.run_to_end()
    run = f", run {value['run_id']}" if value.get("run_id") else ""
    why = f": {value['why']}" if value.get("why") else ""
    session.note(f"{name}: the slot of {slot.name} is {value['state']}{run}{why}.")
    _record(session, slot, value)
    return {"skipped": NotAllowed.exit_code, "lost": STOPPED}.get(value["state"], int(value.get("exit_code", 1)))


async def _taken(ledger: Ledger, name: str, options: SlotOptions) -> Slot:
    now = (await ledger.health.check()).clock
    going = (await read_slots(ledger.locks, name)).unfinished
    slot = Slot(name, now.replace(microsecond=0), manual=True)
    if going or not await ledger.locks.acquire(slot.lock_name, options.owner, options.lease):
        other, lock = going[0] if going else (slot, None)
        if lock is not None and lock.until <= now:
            raise NotAllowed(
                f"{name}: the slot of {other.name} was left unfinished by its node.",
                remedy="`shoal schedule start` goes on with it.",
            )
        raise NotAllowed(
            f"{name}: the slot of {other.name} is still going.", remedy="Wait until it has ended and try again."
        )
    return slot


def _record(session: Session, slot: Slot, value: Mapping[str, Any]) -> None:
    if session.json:
        shown = {key: fact for key, fact in value.items() if key != "behind"}
        session.record({"schedule": slot.schedule, "slot": slot.name, **shown})


def _reload(session: Session, scheduler: Scheduler) -> None:
    """Read the files anew; what cannot be read changes nothing."""
    try:
        schedules = schedules_of(session.read_settings())
    except ShoalError as error:
        session.note(f"Nothing was changed: {error.message} {error.remedy}")
        return
    scheduler.set_schedules(schedules)
    session.note(f"Keeping {pluralize(len(schedules), 'schedule')} from now on.")


def _ways(session: Session, logs: Path) -> SlotOptions:
    settings = session.settings
    return SlotOptions(
        owner=new_worker_id(),
        lease=settings.lease,
        drain=settings.drain,
        logs=logs,
        environment=_environment(session),
    )


def _environment(session: Session) -> dict[str, str]:
    """A ledger that no flag named is left to the settings: a scraper's table may name another one."""
    named = any(session.flags.get(name) is not None for name in LEDGER_FLAGS)
    return environment_of_children(session, ledger=session.settings.ledger if named else None)


async def _tell_failed(settings: Settings, slot: Slot, value: Mapping[str, Any], log: Log) -> None:
    """A slot that failed before it had a run: nothing else would tell people of it."""
    own = settings.with_scraper_table(slot.schedule)
    if not own.notify.urls or AlertKind.FAILURE not in own.notify_on.split():
        return
    why = f": {value['why']}" if value.get("why") else f" (exit code {value.get('exit_code')})"
    body = f"The slot of {slot.name} failed before its run began{why}. Its log on {value['node']} is {value['log']}."
    reasons = await send_text(own.notify.urls, f"{slot.schedule}: a slot failed", body, "failure")
    for shown, reason in zip(own.notify.shown(), reasons, strict=True):
        if reason:
            log.warning("a failed slot could not be told of", address=shown, why=reason)
