"""Begins a run: a new one, the unfinished one, or the one of an idempotency key; then stores and seals its items.

A run of an idempotency key is created once: while it is unfinished it is resumed, and once it has ended it is returned
as it is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import InvalidScraper, NotAllowed, NotFound, UsageError, WrongState
from shoal.ledger.protocols import Entry, Ledger, OnStored
from shoal.model.item import NewItem
from shoal.model.run import Run, RunSpec, RunState
from shoal.model.views import IntakeReport
from shoal.model.worker import WorkerView, new_worker_id
from shoal.wiring import sqlite_path
from shoal.worker.single_lock import hold_file_lock, hold_ledger_lock

LIST_NOTE = "list"
EXTENT_NOTE = "extent"
REPLACES_NOTE = "replaces"
UNFINISHED = (RunState.ACTIVE, RunState.PAUSED)
MAX_RUNS = 200
RECENT = dt.timedelta(seconds=10)
BEGIN_LOCK_SECONDS = 30.0
BEGIN_POLL_SECONDS = 0.1


async def do_nothing() -> None: ...


class UrlSource(Protocol):
    """Items besides those that a scraper starts from: a file of URLs, or a list that a program gives."""

    name: str

    def __aiter__(self) -> AsyncIterator[NewItem]: ...

    def describe_error(self, position: int, message: str) -> str:
        """The message about the invalid entry at this position, with where it is."""
        ...


class RunChoice(StrEnum):
    """Which run is meant: the unfinished one if there is one, the last one whatever became of it, or a new one."""

    AUTO = "auto"
    RESUME = "resume"
    FRESH = "fresh"

    @classmethod
    def of(cls, *, fresh: bool, resume: bool) -> RunChoice:
        """The choice of a program that says `fresh` or `resume`. Raises UsageError for both."""
        if fresh and resume:
            raise UsageError("fresh and resume exclude each other.", remedy="Give one of them.")
        return cls.FRESH if fresh else cls.RESUME if resume else cls.AUTO


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done. `run`: the run to resume; None means a new one. `remaining`: its open items."""

    run: Run | None
    remaining: int = 0
    unfinished: Run | None = None


async def plan_run(ledger: Ledger, scraper: Scraper, choice: RunChoice, *, ledger_name: str = "the ledger") -> RunPlan:
    """Decide which run is meant; nothing is changed.

    Raises NotFound when there is none to resume in `ledger_name`, UsageError when another period was asked for than the
    unfinished run has, unless `choice` says what to do.
    """
    latest = await ledger.runs.latest(scraper.name)
    if latest is None and choice is RunChoice.RESUME:
        raise nothing_to_resume(scraper, ledger_name)
    unfinished = latest if latest is not None and latest.state in UNFINISHED else None
    meant = latest if scraper.one_run else unfinished
    run = {RunChoice.AUTO: meant, RunChoice.RESUME: latest, RunChoice.FRESH: None}[choice]
    if run is not None:
        check_stages(scraper, run)
        if choice is RunChoice.AUTO and run.state in UNFINISHED:
            await _check_extent(ledger, scraper, run)
    remaining = (await ledger.reads.stats(run.id)).remaining if run is not None else 0
    return RunPlan(run=run, remaining=remaining, unfinished=unfinished)


def nothing_to_resume(scraper: Scraper, ledger_name: str) -> NotFound:
    return NotFound(
        f"There is no run of {scraper.name} to resume in {ledger_name}.", remedy="Omit --resume to start one."
    )


async def _check_extent(ledger: Ledger, scraper: Scraper, run: Run) -> None:
    """Raise UsageError if the operator asks for a period, or from scratch, and the run was begun otherwise."""
    own = await ledger.runs.get_note(run.id, EXTENT_NOTE) or {}
    if scraper.extent in ({}, own):
        return
    begun = f"with {_extent_text(own)}" if own else "without a period, and not from scratch"
    raise UsageError(
        f"Run {run.id} is unfinished and was begun {begun}; {_extent_text(scraper.extent)} cannot change that.",
        remedy="--resume resumes it as it was begun, --fresh starts a new one.",
    )


def _extent_text(extent: Mapping[str, Any]) -> str:
    """As the command's options."""
    return " ".join(
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in extent.items()
    )


async def open_run(ledger: Ledger, scraper: Scraper, plan: RunPlan, spec: RunSpec, *, by: str) -> Run:
    """The run of the plan, active. The unfinished run that a new one replaces goes on until `set_replaced_aside`.

    The extent of a new run is stored with it; of one that is resumed it becomes that of the scraper.
    """
    if plan.run is None:
        run = await ledger.runs.create(spec)
        if plan.unfinished is not None:
            await ledger.runs.put_note(run.id, REPLACES_NOTE, {"run": plan.unfinished.id, "done": False})
        if scraper.extent:
            await ledger.runs.put_note(run.id, EXTENT_NOTE, scraper.extent)
        return run
    scraper.extent = await ledger.runs.get_note(plan.run.id, EXTENT_NOTE) or {}
    if plan.run.state is not RunState.ACTIVE:
        await ledger.runs.resume(plan.run.id, by=by)
    return await ledger.runs.get(plan.run.id)


async def set_replaced_aside(ledger: Ledger, run: Run, *, by: str) -> list[Run]:
    """Pause the unfinished runs that this one replaces, so that they hold no place in any lane. Returns them.

    Called when the run has items, because until then the call may be refused. If the process is killed before, the call
    that resumes the run does it.
    """
    replaced: list[Run] = []
    newer = run.id
    with suppress(NotFound):  # one of them was removed
        while (note := await ledger.runs.get_note(newer, REPLACES_NOTE)) is not None and not note["done"]:
            older = await ledger.runs.get(note["run"])
            if older.state in UNFINISHED:
                with suppress(WrongState):  # it has ended meanwhile
                    if older.state is RunState.ACTIVE:
                        await ledger.runs.pause(older.id, by=by, because="a new run replaces it")
                    replaced.append(older)
            await ledger.runs.put_note(newer, REPLACES_NOTE, {**note, "done": True})
            newer = older.id
    return replaced


class FillProgress(msgspec.Struct):
    """What has been stored so far: of the list of URLs, and of what the scraper starts from."""

    listed: IntakeReport | None = None
    seeds: IntakeReport | None = None

    def list_is_stored(self) -> bool:
        return self.listed is not None

    @property
    def enqueued(self) -> int:
        return sum(report.enqueued for report in (self.listed, self.seeds) if report is not None)

    @property
    def duplicates(self) -> int:
        return sum(report.duplicates for report in (self.listed, self.seeds) if report is not None)

    @property
    def invalid(self) -> int:
        return sum(report.invalid for report in (self.listed, self.seeds) if report is not None)

    @property
    def nothing_was_valid(self) -> bool:
        return bool(self.invalid and not self.enqueued and not self.duplicates)

    def wrong_source(self, urls: UrlSource | None) -> str:
        """Where the first item came from that was refused."""
        has_list = urls is not None and self.listed is not None and self.listed.invalid
        return urls.name if urls is not None and has_list else "the items given to start()"

    def first_error(self, urls: UrlSource | None) -> str:
        """What is wrong with the first item that was refused, and which one that is."""
        if urls is not None and self.listed is not None and self.listed.invalid_entries:
            return urls.describe_error(*self.listed.invalid_entries[0])
        return self.seeds.invalid_entries[0][1] if self.seeds is not None and self.seeds.invalid_entries else ""


async def fill_run(  # noqa: PLR0913 - most by keyword
    ledger: Ledger,
    run: Run,
    scraper: Scraper,
    urls: UrlSource | None,
    progress: FillProgress,
    *,
    by: str,
    in_lanes: bool = True,
    seal: bool = True,
    on_stored: OnStored = do_nothing,
) -> None:
    """Store the URLs, then the scraper's start items, then (with `seal`) seal the run: no more items will follow.

    A run that was sealed before has its start items; only the URLs are new to it. Duplicates are dropped. The URLs come
    first, because they may not be readable a second time, while the scraper's sources are.
    `progress` says how far it got. `on_stored` is awaited when the first items are stored, and at the end: from then on
    the run is accepted. Raises UsageError when a new run gets nothing because nothing was valid or the URLs are none,
    or when it has no items and the scraper says what to do about that (`start_remedy`).
    """
    if urls is not None:
        await ledger.runs.put_note(run.id, LIST_NOTE, {"name": urls.name, "complete": False})
        entries = _with_lanes(aiter(urls), in_lanes=in_lanes)
        progress.listed = await ledger.intake.enqueue(run.id, entries, on_stored=on_stored)
        await ledger.runs.put_note(run.id, LIST_NOTE, {"name": urls.name, "complete": True})
    if not run.sealed:
        entries = _with_lanes(scraper.seeds(), in_lanes=in_lanes)
        progress.seeds = await ledger.intake.enqueue(run.id, entries, on_stored=on_stored)
    if progress.nothing_was_valid:
        which = "The only item" if progress.invalid == 1 else f"None of the {progress.invalid} items"
        valid = "not valid" if progress.invalid == 1 else "valid"
        raise UsageError(
            f"{which} to start from is {valid}: {progress.first_error(urls)}",
            remedy=f"Correct {progress.wrong_source(urls)}; nothing was stored.",
        )
    if urls is not None and seal and not run.sealed and await _is_empty(ledger, run, progress):
        raise UsageError(f"{urls.name} has no URLs.", remedy="Write one in each line; nothing was stored.")
    if scraper.start_remedy and not run.sealed and await _is_empty(ledger, run, progress):
        raise _nothing_to_start(scraper)
    await on_stored()
    if seal:
        await ledger.runs.seal(run.id, by=by)


@asynccontextmanager
async def removed_if_refused(
    ledger: Ledger, plan: RunPlan, run: Run, progress: FillProgress | None = None, *, by: str
) -> AsyncIterator[None]:
    """When the block is refused, a new run is removed, and its idempotency key is free; a paused one is paused again.

    With `progress` a run that got items stays: some may have been worked on, and the same call adds the others.
    """
    try:
        yield
    except (UsageError, NotAllowed):
        if plan.run is None and (progress is None or await _is_empty(ledger, run, progress)):
            await ledger.runs.remove(run.id, by=by)
        elif plan.run is not None and plan.run.state is RunState.PAUSED and not (progress and progress.enqueued):
            await ledger.runs.pause(run.id, by=by, because="the call that resumed it was refused")
        raise


async def _is_empty(ledger: Ledger, run: Run, progress: FillProgress) -> bool:
    return not progress.enqueued and not (await ledger.reads.stats(run.id)).total


async def check_start_items(ledger: Ledger, scraper: Scraper, plan: RunPlan, urls: UrlSource | None) -> None:
    """Raise UsageError if the run has nothing to start from, or its URL list was stored only in part and is not given
    again.
    """
    if urls is not None or (plan.run is not None and plan.run.sealed):
        return
    noted = None if plan.run is None else await ledger.runs.get_note(plan.run.id, LIST_NOTE)
    if noted is None:
        check_has_sources(scraper, urls)
    elif plan.run is not None and not noted["complete"]:
        name = noted["name"]
        raise UsageError(
            f"The run {plan.run.id} was stopped before all of {name} was stored.",
            remedy=f"Pass it again with --urls-file {shlex.quote(name)} (duplicates are dropped), or use --fresh.",
        )


async def pause_abandoned_runs(
    ledger: Ledger, keep: str, was_abandoned: Callable[[str], bool], *, by: str
) -> list[Run]:
    """Pause active runs whose process has ended, so that their items release the lane slots that this run needs.

    `was_abandoned` says whether the process that owned a scraper has ended. Runs that wait for their first
    worker, and those that a worker serves, are let alone.
    """
    workers = [worker for worker in await ledger.workers.list() if worker.alive]
    served = {run_id for worker in workers for run_id in worker.scope.run_ids}
    scrapers = {worker.scope.scraper for worker in workers if not worker.scope.run_ids}
    paused = []
    for run in (await ledger.runs.list(limit=200)).rows:
        if run.state is not RunState.ACTIVE or run.id == keep or run.id in served:
            continue
        if run.scraper in scrapers or None in scrapers or not was_abandoned(run.scraper):
            continue
        await ledger.runs.pause(run.id, by=by, because=f"nobody worked on it when the run {keep} needed its hosts")
        if was_abandoned(run.scraper):
            paused.append(run)
        else:
            await ledger.runs.resume(run.id, by=by)  # a process for it began meanwhile, and saw it active
    return paused


async def mark_local_dead_workers(ledger: Ledger) -> None:
    """Workers of this machine whose process is gone: their items need not wait for the lease to end.

    Only for a ledger that lies on this machine: elsewhere another machine may have the same name.
    """
    for worker in await ledger.workers.list():
        if is_local_dead_worker(worker):
            await ledger.workers.mark_dead(worker.id)


def is_local_dead_worker(worker: WorkerView) -> bool:
    return worker.node == socket.gethostname() and not _is_alive(worker.pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # a process of another user
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state not in "ZX"  # a zombie: it has exited and was not reaped


def check_has_sources(scraper: Scraper, urls: object | None) -> None:
    """Raise UsageError if a new run would have nothing to start from."""
    if not scraper.has_sources and urls is None:
        raise _nothing_to_start(scraper)


def _nothing_to_start(scraper: Scraper) -> UsageError:
    return UsageError(
        f"{scraper.name} has no items to start with.",
        remedy=scraper.start_remedy or f"Call {scraper.name}.start(...) in its code, or give --urls-file.",
    )


def check_stages(scraper: Scraper, run: Run) -> None:
    missing = [name for name in scraper.stages if name not in run.stages]
    if missing:
        raise InvalidScraper(
            f"The run {run.id} was created when {scraper.name} had no stage {missing[0]!r}.",
            remedy="Start a new run with --fresh.",
        )


async def _with_lanes(seeds: AsyncIterator[NewItem], *, in_lanes: bool) -> AsyncIterator[Entry]:
    async for seed in seeds:
        yield seed if in_lanes else _without_lane(seed)


def _without_lane(entry: Entry) -> Entry:
    """No request is sent, so no rate limit applies."""
    return msgspec.structs.replace(entry, lane=None) if isinstance(entry, NewItem) else entry


@asynccontextmanager
async def begin_lock(ledger: Ledger, settings: Settings, scraper: str, *, owned: bool = True) -> AsyncIterator[None]:
    """Of several processes that begin a run of a scraper at the same time, one creates it and the others find it.

    `owned`: on SQLite one process owns the scraper, which needs no lock.
    """
    if owned and sqlite_path(settings.ledger) is not None:
        yield
        return
    lock, owner = f"begin:{scraper}", new_worker_id()
    while not await ledger.locks.acquire(lock, owner, BEGIN_LOCK_SECONDS):  # noqa: ASYNC110
        await asyncio.sleep(BEGIN_POLL_SECONDS)
    try:
        yield
    finally:
        await ledger.locks.release(lock, owner)


async def plan_owned_run(
    ledger: Ledger,
    scraper: Scraper,
    settings: Settings,
    *,
    choice: RunChoice,
    idempotency_key: str | None,
    held: AsyncExitStack,
    on_waiting: Callable[[str], None],
) -> RunPlan:
    """Which run it will be. In single mode this process owns the scraper from now on, as long as `held` is open.

    Raises NotAllowed when another process owns it, RunAlreadyEnded when the run of the idempotency key has ended.
    """
    file = sqlite_path(settings.ledger)
    is_single = file is not None or settings.mode == "single"
    if is_single:
        try:
            if file is not None:
                held.enter_context(hold_file_lock(scraper.name, file))
            else:
                await held.enter_async_context(hold_ledger_lock(scraper.name, ledger, on_waiting))
        except NotAllowed as error:
            if idempotency_key is None:
                raise
            raise await _owned_elsewhere(ledger, scraper.name, idempotency_key) from error
    if idempotency_key is None:
        return await plan_run(ledger, scraper, choice, ledger_name=settings.shown()["ledger"])
    if file is not None:
        await mark_local_dead_workers(ledger)
    return await plan_by_idempotency_key(ledger, scraper, idempotency_key, owned=is_single)


class RunAlreadyEnded(Exception):
    """The run of an idempotency key has ended: there is nothing to do."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.id)
        self.run = run


class RunBusy(NotAllowed):
    """Another run of the scraper is active, or another process owns it. `own`: it is the idempotency key's own run."""

    def __init__(self, scraper: str, run: Run | None, *, own: bool) -> None:
        what = f"Run {run.id} of {scraper} is still active" if run is not None else f"{scraper} is being run"
        super().__init__(f"{what}, and must not be changed while it runs.", remedy="Wait until it has ended.")
        self.scraper, self.run, self.own = scraper, run, own


async def plan_by_idempotency_key(
    ledger: Ledger, scraper: Scraper, idempotency_key: str, *, for_workers: bool = False, owned: bool = False
) -> RunPlan:
    """The run of the key, or a new one. Raises RunAlreadyEnded when it has ended, RunBusy when another run is active.

    `for_workers` and `owned` as in `find_keyed_runs`.
    """
    found = await find_keyed_runs(ledger, scraper.name, idempotency_key, for_workers=for_workers, owned=owned)
    if found.existing is not None and found.is_finished:
        raise RunAlreadyEnded(found.existing)
    if found.conflicting is not None:
        raise RunBusy(scraper.name, found.conflicting, own=False)
    return await plan_keyed_run(ledger, scraper, found)


async def _owned_elsewhere(ledger: Ledger, scraper: str, idempotency_key: str) -> RunBusy:
    """The error when another process owns the scraper, which may be at work on this very idempotency key."""
    own = await ledger.runs.by_idempotency_key(idempotency_key)
    if own is not None and own.state not in UNFINISHED:
        raise RunAlreadyEnded(own)
    return RunBusy(scraper, own or await ledger.runs.latest(scraper), own=own is not None)


class KeyedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that matter for an idempotency key.

    `existing`: the run that was made for it. `conflicting`: while there is none, another run that must not be
    disturbed. `abandoned`: one that nobody works on.
    """

    existing: Run | None = None
    conflicting: Run | None = None
    abandoned: Run | None = None

    @property
    def is_finished(self) -> bool:
        return self.existing is not None and self.existing.state not in UNFINISHED


async def find_keyed_runs(
    ledger: Ledger, scraper: str, idempotency_key: str, *, for_workers: bool, owned: bool
) -> KeyedRuns:
    """Read only; nothing is changed.

    A run conflicts when a live worker serves it. `for_workers`: an active run waits for workers that start later, so it
    conflicts without any. `owned`: no other process can be about to work on the scraper, so a run that was created a
    moment ago and has no worker is abandoned. Raises UsageError when the idempotency key is another scraper's.
    """
    own = await ledger.runs.by_idempotency_key(idempotency_key)
    if own is not None:
        if own.scraper != scraper:
            raise UsageError(
                f"The run {own.id} with the key {idempotency_key!r} belongs to {own.scraper}, not to {scraper}.",
                remedy="Give another idempotency key.",
            )
        return KeyedRuns(existing=own)
    runs = (await ledger.runs.list(scraper=scraper, limit=MAX_RUNS)).rows
    active = [run for run in runs if run.state is RunState.ACTIVE]
    workers = await ledger.workers.list() if active else []
    now = (await ledger.health.check()).clock
    going = next(
        (run for run in active if for_workers or _is_served(run, workers) or (not owned and _is_recent(run, now))), None
    )
    return KeyedRuns(conflicting=going, abandoned=active[0] if active and going is None else None)


async def plan_keyed_run(ledger: Ledger, scraper: Scraper, found: KeyedRuns) -> RunPlan:
    """The idempotency key's own run, or a new one, for which a run that nobody works on is paused."""
    if found.existing is not None:
        check_stages(scraper, found.existing)
    remaining = (await ledger.reads.stats(found.existing.id)).remaining if found.existing is not None else 0
    return RunPlan(run=found.existing, remaining=remaining, unfinished=found.abandoned)


def _is_recent(run: Run, now: dt.datetime) -> bool:
    """Its creator may not have registered a worker yet."""
    return now - run.created_at < RECENT


def _is_served(run: Run, workers: Sequence[WorkerView]) -> bool:
    return any(worker.alive and worker.scope.includes_run(run.id, run.scraper) for worker in workers)
