"""Schedules: run the slots that are due, run one now, and read how schedules stand."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

import msgspec

from shoal.config import Settings
from shoal.config.schedules import ScheduleConfig
from shoal.config.values import AlertKind
from shoal.errors import LedgerNotMigrated, NotAllowed, NotFound, ShoalError, UsageError
from shoal.fleet.process import child_environment, stop_on_signals
from shoal.fleet.schedule.scheduler import Scheduler
from shoal.fleet.schedule.slot_runner import SlotOptions, SlotRunner
from shoal.fleet.schedule.slots import Slot, SlotReport, Timetable, next_slots, read_first_seen, read_slots
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.model.views import LockView
from shoal.model.worker import new_worker_id
from shoal.notify.delivery import check_addresses, send_text
from shoal.observe.formatting import pluralize
from shoal.observe.logs import open_logs
from shoal.service.events import Event, Host
from shoal.service.work import alerts
from shoal.wiring import ledger_context, sqlite_path

NEXT_SHOWN = 5
SLOTS_SHOWN = 10
LEDGER_FLAGS = ("ledger", "db_host", "db_port", "db_name", "db_user")


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How slots run. `at_once`: slots of this node at a time. `logs`: the folder of their log files.

    `overrides`: settings that flags gave; the processes of slots get them as variables. `reload`: reads the settings
    again, at SIGHUP.
    """

    logs: Path
    at_once: int = 8
    overrides: Mapping[str, str | None] = {}
    reload: Callable[[], Settings] | None = None


class SlotEnded(Event, frozen=True, kw_only=True):
    """A slot has ended, was skipped, or is left to another node."""

    report: SlotReport

    @property
    def text(self) -> str:
        return self.report.text


class ScheduleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at the time `now`. `seen`: a node runs it or has run it. `run_id`: of the last slot."""

    now: dt.datetime
    table: Timetable
    seen: bool = False
    last: tuple[Slot, LockView] | None = None
    run_id: str | None = None

    def next(self, number: int = 1) -> list[dt.datetime]:
        """The next slots."""
        return next_slots(self.table, self.now, number)

    @property
    def state(self) -> str | None:
        """Of the last slot."""
        return None if self.last is None else slot_state(self.last[1], self.now)

    @property
    def node(self) -> str | None:
        return None if self.last is None else slot_node(self.last[1])

    @property
    def why(self) -> str | None:
        return None if self.last is None else self.last[1].value.get("why")


def slot_state(lock: LockView, now: dt.datetime) -> str:
    """How a slot ended; `going`; or `left` when its node no longer renews its lock."""
    if lock.finished_at is not None:
        return str(lock.value.get("state"))
    return "going" if lock.until > now else "left"


def slot_node(lock: LockView) -> str:
    """The node that has, or had, a slot."""
    # The owner's name is its node's with a number and a random part behind it.
    return str(lock.value.get("node") or lock.taken_by.rsplit("-", 2)[0])


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that a node took. `state`: how it ended; `going`; or `left` when its node no longer renews its lock."""

    slot: str
    at: dt.datetime
    manual: bool
    state: str
    run_id: str | None
    node: str | None
    why: str | None
    finished_at: dt.datetime | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with its next slots and the last ones, the newest first."""

    name: str
    config: ScheduleConfig
    seen: bool
    next: tuple[dt.datetime, ...]
    slots: tuple[SlotView, ...]


def schedules_of(settings: Settings) -> dict[str, ScheduleConfig]:
    """The schedules of the configuration, by the names of their scrapers."""
    return {name: table.schedule for name, table in settings.scrapers.items() if table.schedule is not None}


def find_schedule(settings: Settings, name: str) -> ScheduleConfig:
    """Raises NotFound with the names that there are."""
    schedules = schedules_of(settings)
    if name not in schedules:
        known = f"Those that have one: {', '.join(schedules)}." if schedules else "None has one."
        raise NotFound(f"There is no schedule of {name!r}.", remedy=known)
    return schedules[name]


async def run_scheduler(settings: Settings, request: ScheduleRequest, host: Host) -> None:
    """Run the slots of all schedules as a node, until stopped. Every end of a slot is a `SlotEnded` event."""
    schedules = schedules_of(settings)
    if not schedules:
        raise UsageError(
            "No scraper has a schedule.", remedy='Write schedule = "0 2 * * *" below [scrapers.NAME] in shoal.toml.'
        )
    await check_addresses(settings)
    async with ledger_context(settings, on_waiting=host.notice) as ledger:
        logs = open_logs(
            format=settings.log_format,
            level=settings.log_level,
            file=request.logs / "schedule.log",
            stream=None,
            secrets=settings.secrets(),
        )
        sending: set[asyncio.Task[None]] = set()

        def on_slot_ended(report: SlotReport) -> None:
            host.on_event(SlotEnded(report=report))
            if report.state == "failed" and not report.value.get("run_id"):
                sending.add(asyncio.create_task(_send_slot_alert(settings, report, logs.log)))

        try:
            scheduler = Scheduler(
                ledger,
                _slot_options(settings, request),
                at_once=request.at_once,
                log=logs.log,
                print_line=host.notice,
                on_slot_ended=on_slot_ended,
            )
            scheduler.set_schedules(schedules)
            host.notice(f"Running {pluralize(len(schedules), 'schedule')}; Ctrl-C stops.")
            host.stop.attach(scheduler.stop, scheduler.stop)
            signals = stop_on_signals(host.stop.request, host.notice, _reloading(scheduler, request, host))
            with signals if host.handles_signals else nullcontext():
                # Alerts are checked here too: this process runs while no worker does.
                async with alerts(settings, logs.log):
                    await scheduler.run()
            await asyncio.gather(*sending, return_exceptions=True)
        finally:
            logs.close()


async def run_slot_now(settings: Settings, name: str, request: ScheduleRequest, host: Host) -> SlotReport:
    """Run a slot that is not in the timetable. Raises NotAllowed while another slot of the schedule is unfinished."""
    config = find_schedule(settings, name)
    options = _slot_options(settings, request)
    async with ledger_context(settings, on_waiting=host.notice) as ledger:
        slot = await _acquire_slot(ledger, name, options)
        runner = SlotRunner(slot, config, options, ledger.locks, wanted=lambda: True, resumable=False)
        host.notice(f"{name}: the slot of {slot.name} begins; its log is {runner.log_file}.")
        host.stop.attach(runner.stop, runner.stop)
        with stop_on_signals(host.stop.request, host.notice) if host.handles_signals else nullcontext():
            report = await runner.run_to_end()
    host.on_event(SlotEnded(report=report))
    return report


async def read_schedules(settings: Settings, names: Mapping[str, ScheduleConfig]) -> dict[str, ScheduleStatus]:
    """How these schedules stand. A SQLite ledger that does not exist is not created; its clock is this machine's."""
    try:
        async with ledger_context(settings, migrate=False) as ledger:
            return {name: await _read_status(ledger, name, config) for name, config in names.items()}
    except LedgerNotMigrated:
        if sqlite_path(settings.ledger) is None:
            raise
        now = dt.datetime.now(dt.UTC)
        return {name: ScheduleStatus(now=now, table=Timetable(config, now)) for name, config in names.items()}


async def list_schedules(ledger: Ledger, settings: Settings) -> list[ScheduleView]:
    """The schedules of the configuration, each with its last and next slots."""
    now = (await ledger.health.check()).clock
    views = []
    for name, config in schedules_of(settings).items():
        first_seen = await read_first_seen(ledger, name, config)
        known = await read_slots(ledger.locks, name)
        views.append(
            ScheduleView(
                name=name,
                config=config,
                seen=first_seen is not None,
                next=tuple(next_slots(Timetable(config, first_seen or now), now, NEXT_SHOWN)),
                slots=tuple([await _slot_view(ledger, slot, lock, now) for slot, lock in known.slots[:SLOTS_SHOWN]]),
            )
        )
    return views


async def _slot_view(ledger: Ledger, slot: Slot, lock: LockView, now: dt.datetime) -> SlotView:
    run_id = lock.value.get("run_id")
    if run_id is None and lock.finished_at is None:
        run = await ledger.runs.by_idempotency_key(slot.idempotency_key)
        run_id = None if run is None else run.id
    return SlotView(
        slot=slot.name,
        at=slot.at,
        manual=slot.manual,
        state=slot_state(lock, now),
        run_id=run_id,
        node=slot_node(lock),
        why=lock.value.get("why"),
        finished_at=lock.finished_at,
    )


async def _read_status(ledger: Ledger, name: str, config: ScheduleConfig) -> ScheduleStatus:
    now = (await ledger.health.check()).clock
    first_seen = await read_first_seen(ledger, name, config)
    known = await read_slots(ledger.locks, name)
    # An unfinished slot says more than those that were skipped because of it.
    last = known.unfinished[0] if known.unfinished else known.slots[0] if known.slots else None
    run_id = None
    if last is not None:
        run = await ledger.runs.by_idempotency_key(last[0].idempotency_key)
        run_id = run.id if run is not None else last[1].value.get("run_id")
    return ScheduleStatus(
        now=now, table=Timetable(config, first_seen or now), seen=first_seen is not None, last=last, run_id=run_id
    )


async def _acquire_slot(ledger: Ledger, name: str, options: SlotOptions) -> Slot:
    now = (await ledger.health.check()).clock
    unfinished = (await read_slots(ledger.locks, name)).unfinished
    slot = Slot(name, now.replace(microsecond=0), manual=True)
    if unfinished or not await ledger.locks.acquire(slot.lock_name, options.owner, options.lease):
        other, lock = unfinished[0] if unfinished else (slot, None)
        if lock is not None and lock.until <= now:
            raise NotAllowed(
                f"{name}: the slot of {other.name} is unfinished: its node died or was disconnected.",
                remedy="`shoal schedule start` resumes it.",
            )
        raise NotAllowed(
            f"{name}: the slot of {other.name} is still running.", remedy="Wait until it has ended and try again."
        )
    return slot


def _reloading(scheduler: Scheduler, request: ScheduleRequest, host: Host) -> Callable[[], None] | None:
    if (read_settings := request.reload) is None:
        return None

    def reload() -> None:
        try:
            schedules = schedules_of(read_settings())
        except ShoalError as error:
            host.notice(f"Nothing was changed: {error.message} {error.remedy}")
            return
        scheduler.set_schedules(schedules)
        host.notice(f"Running {pluralize(len(schedules), 'schedule')} from now on.")

    return reload


def _slot_options(settings: Settings, request: ScheduleRequest) -> SlotOptions:
    # A ledger that no flag named is left to the settings: a scraper's table may name another one.
    named = any(request.overrides.get(name) is not None for name in LEDGER_FLAGS)
    return SlotOptions(
        owner=new_worker_id(),
        lease=settings.lease,
        drain=settings.drain,
        logs=request.logs,
        environment=child_environment(request.overrides, ledger=settings.ledger if named else None),
    )


async def _send_slot_alert(settings: Settings, report: SlotReport, log: Log) -> None:
    """For a slot that failed before it had a run: no alert of a run would say so."""
    slot, value = report.slot, report.value
    own = settings.with_scraper_table(slot.schedule)
    if not own.notify.urls or AlertKind.FAILURE not in own.notify_on.split():
        return
    why = f": {value['why']}" if value.get("why") else f" (exit code {value.get('exit_code')})"
    body = f"The slot of {slot.name} failed before its run began{why}. Its log on {value['node']} is {value['log']}."
    reasons = await send_text(own.notify.urls, f"{slot.schedule}: a slot failed", body, "failure")
    for shown, reason in zip(own.notify.shown(), reasons, strict=True):
        if reason:
            log.warning("slot alert not delivered", address=shown, why=reason)
