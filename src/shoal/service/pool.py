"""Prepares a pool: checks everything, makes the run with its items, and plans which worker gets which partitions.

`pool_run.run_pool` starts the workers of a prepared pool; a caller may ask the operator in between. `preview_pool`
makes the same plan and changes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from shoal.autoscale.rules import Bounds
from shoal.config import Settings
from shoal.config.settings import ASSIGN_NONE
from shoal.define.scraper import Scraper
from shoal.errors import InvalidSetting, LedgerNotMigrated, NotFound, ShoalError, UsageError
from shoal.feeds.url_file import UrlFile
from shoal.fleet.autoscale import (
    AUTO,
    set_desired_size,
)
from shoal.fleet.plan import (
    PartitionAssigner,
    PartitionAssignment,
    PlannedWorker,
    Workload,
    plan_workers,
    read_workload,
)
from shoal.ledger.protocols import Entry, Ledger
from shoal.model.item import NewItem
from shoal.model.run import Run
from shoal.model.worker import FixedPart
from shoal.notify.delivery import check_addresses
from shoal.observe.doctor import Check
from shoal.observe.formatting import pluralize
from shoal.observe.logs import Logs, open_logs
from shoal.service.begin import (
    RunChoice,
    RunPlan,
    check_has_sources,
    check_start_items,
    open_run,
    plan_run,
    removed_if_refused,
)
from shoal.service.egress import PlannedExits, check_egress, check_parts_are_free, plan_exits
from shoal.service.events import CheckFinished, Host
from shoal.service.lookup import find_run_of
from shoal.service.run import fill_and_report, report_plan, set_aside_and_report
from shoal.service.work import MetricsAddress, free_local_ledger
from shoal.wiring import check_pools_exist, ledger_context, sqlite_path
from shoal.worker.hooks import call_preflight
from shoal.worker.single_lock import hold_file_lock

BY = "shoal pool"
MAX_COUNTED = 100_000


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and with how many workers.

    `target`: the scraper as `shoal worker` finds it. `choice`, `run_id`: which run. `urls`: items besides those of the
    scraper. `workers`: how many; None leaves it to the assignment file, the setting `workers`, or the number of cores.
    `bounds`: the pool chooses within them. `assign`: the assignment file, else that of the settings. `partitions`:
    those to assign, none for all. `only`: workers take nothing but their own partitions. `first`: start only so many
    workers of the plan. `overrides`: settings that flags gave; workers get them as variables. `reload`: reads the
    settings again. `metrics`: where worker 0 exports its metrics; the others have the ports after it.
    """

    target: str
    logs: Path
    choice: RunChoice = RunChoice.AUTO
    run_id: str | None = None
    urls: UrlFile | None = None
    workers: int | None = None
    bounds: Bounds | None = None
    assign: Path | None = None
    partitions: tuple[str, ...] = ()
    only: bool = False
    first: int | None = None
    stagger: tuple[float, float] = (2.0, 5.0)
    max_restarts: int = 5
    overrides: Mapping[str, str | None] = {}
    reload: Callable[[], Settings] | None = None
    metrics: MetricsAddress | None = None


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker gets what. `run`: None when it would be a new one. `only`: workers keep to their own partitions.

    `egress`: the pools of exits that the stages use. `places`: how many workers fixed parts of exits are divided by.
    """

    run: Run | None
    workload: Workload
    assignment: PartitionAssignment
    only: bool
    bounds: Bounds | None = None
    egress: tuple[PlannedExits, ...] = ()
    places: int = 0

    @property
    def workers(self) -> list[PlannedWorker]:
        return plan_workers(self.workload, self.assignment, only=self.only)

    @property
    def parts(self) -> tuple[FixedPart, ...]:
        """The fixed parts of exits that its workers may have."""
        most = len(self.assignment) if self.bounds is None else self.bounds.most
        idle = {number for number, share in enumerate(self.assignment) if self.only and not share}
        fixed = [planned.pool for planned in self.egress if planned.fixed]
        return tuple(FixedPart(pool, n, self.places) for pool in fixed for n in range(most) if n not in idle)


class PreparedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its items, and the plan for it. `is_new`: the run was made for this pool."""

    scraper: Scraper
    settings: Settings
    request: PoolRequest
    ledger: Ledger
    run: Run
    is_new: bool
    plan: PoolPlan
    assigner: PartitionAssigner

    async def discard(self) -> None:
        """Remove a run that was made for this pool; one that was there before stays as it is."""
        if self.is_new:
            await self.ledger.runs.remove(self.run.id, by=BY)


@contextmanager
def run_check(name: str, host: Host) -> Iterator[Callable[[str], None]]:
    """Emit `CheckFinished` at the end of the block; what its function was given is the text.

    A ShoalError is emitted as a failed check, and raised.
    """
    texts: list[str] = []
    try:
        yield texts.append
    except ShoalError as error:
        host.on_event(CheckFinished(check=Check(name=name, ok=False, text=error.message, fix=error.remedy)))
        raise
    host.on_event(CheckFinished(check=Check(name=name, ok=True, text=" ".join(texts))))


async def preview_pool(scraper: Scraper, settings: Settings, request: PoolRequest, host: Host) -> PoolPlan:
    """The checks and the plan; the ledger is not changed."""
    await _check_alerts(settings, host)
    _check_sessions(scraper, host)
    await _check_preflight(scraper, settings, host)
    run: Run | None = None
    ledger: Ledger | None = None
    async with AsyncExitStack() as held:
        with run_check("ledger", host) as passed:
            try:
                ledger = await held.enter_async_context(ledger_context(settings, migrate=False))
                run = (await _choose_run(ledger, scraper, request)).run
                workload = Workload(waiting={}) if run is None else await read_workload(ledger, run.id)
                passed("answers, its schema is this version's")
            except LedgerNotMigrated:
                if sqlite_path(settings.ledger) is None:
                    raise
                passed("will be created")
        with run_check("run", host) as passed:
            if run is None:
                check_has_sources(scraper, request.urls)
                workload = await _count_start_items(scraper, request.urls)
            _check_has_items(workload, run.id if run else "to be made")
            passed("a new one" if run is None else _describe_run(run, workload))

        async def read() -> Workload:
            return workload

        assigner = _assigner(scraper, settings, request, read)
        limited = _limit_text(scraper, settings, request)
        plan = await _make_plan(assigner, run, workload, request, host, limited=limited)
        return await _with_egress(plan, scraper, settings, host, ledger)


@asynccontextmanager
async def prepare_pool(
    scraper: Scraper, settings: Settings, request: PoolRequest, host: Host
) -> AsyncIterator[PreparedPool]:
    """Check everything, create or resume the run with its items, and plan; nothing is started.

    The ledger stays open, and a SQLite ledger locked for this scraper, until the block ends. Every check is a
    `CheckFinished` event; the first that fails raises its error.
    """
    await _check_alerts(settings, host)
    _check_sessions(scraper, host)
    await _check_preflight(scraper, settings, host)
    async with AsyncExitStack() as held:
        with run_check("ledger", host) as passed:
            ledger = await held.enter_async_context(ledger_context(settings, on_waiting=host.notice))
            passed("answers, its schema is this version's")
        with run_check("logs", host) as passed:
            _make_folder(request.logs)
            passed(str(request.logs))
        with run_check("run", host) as passed:
            if (file := sqlite_path(settings.ledger)) is not None:
                held.enter_context(hold_file_lock(scraper.name, file))
            chosen, run = await _open_run_with_items(ledger, scraper, settings, request, host)
            workload = await read_workload(ledger, run.id)
            async with removed_if_refused(ledger, chosen, run, by=BY):
                if run.sealed or request.run_id is None:  # workers of an open run wait for its items
                    _check_has_items(workload, run.id)
            passed(_describe_run(run, workload))
        assigner = _assigner(scraper, settings, request, partial(read_workload, ledger, run.id))
        async with removed_if_refused(ledger, chosen, run, by=BY):
            limited = _limit_text(scraper, settings, request)
            plan = await _make_plan(assigner, run, workload, request, host, limited=limited)
            plan = await _with_egress(plan, scraper, settings, host, ledger)
        await set_aside_and_report(ledger, run, host, by=BY)
        yield PreparedPool(
            scraper=scraper,
            settings=settings,
            request=request,
            ledger=ledger,
            run=run,
            is_new=chosen.run is None,
            plan=plan,
            assigner=assigner,
        )


async def scale_pools(settings: Settings, scraper: str, workers: int | None, *, by: str) -> int:
    """Ask the running pools of a scraper for so many workers; None lets pools with bounds choose again.

    Returns how many workers of the scraper are running. Raises NotFound when there are none, so no pool.
    """
    async with ledger_context(settings, migrate=False) as ledger:
        return await scale_pools_on(ledger, scraper, workers, by=by)


async def scale_pools_on(ledger: Ledger, scraper: str, workers: int | None, *, by: str) -> int:
    """As `scale_pools`, on an open ledger. The change is an event."""
    present = await count_pool_workers(ledger, scraper)
    await set_desired_size(ledger, scraper, AUTO if workers is None else workers, by=by)
    run = await ledger.runs.latest(scraper)
    detail = {"workers": workers, "present": present}
    await ledger.runs.record_event(None if run is None else run.id, "pool.scaled", scraper, detail, by=by)
    return present


async def count_pool_workers(ledger: Ledger, scraper: str) -> int:
    """How many workers of the scraper are running. Raises NotFound when there are none."""
    present = sum(worker.alive and worker.scope.scraper == scraper for worker in await ledger.workers.list())
    if not present:
        raise NotFound(
            f"No worker of {scraper} is running, so there is no pool to scale.",
            remedy="Start one with `shoal pool`.",
        )
    return present


async def _with_egress(
    plan: PoolPlan, scraper: Scraper, settings: Settings, host: Host, ledger: Ledger | None
) -> PoolPlan:
    """The plan with the exits of its workers. `ledger`: None for one that does not exist yet.

    Raises UsageError for a pool that no worker could use, and for fixed parts that workers of another pool have.
    """
    pools = {stage.egress for stage in scraper.stages.values() if stage.egress is not None}
    browser = any(stage.client == "browser" for stage in scraper.stages.values())
    if not pools and not browser:
        return plan
    workers = len(plan.assignment) if plan.bounds is None else plan.bounds.most
    with run_check("egress", host) as passed:
        check_pools_exist(scraper, settings)
        passed(", ".join(sorted(pools)) or "direct, with a browser")
    for check in await check_egress(settings, pools, workers=workers, browser=browser):
        host.on_event(CheckFinished(check=check))
        if not check.ok:
            raise UsageError(f"{check.name}: {check.text}.", remedy=check.fix)
    plan = msgspec.structs.replace(plan, egress=await plan_exits(settings, pools, workers))
    if plan.parts and ledger is not None:
        with run_check("exits", host) as passed:
            await check_parts_are_free(ledger, settings, plan.parts, notice=host.notice)
            passed("no worker of another pool has those of this one")
    return plan


async def _check_alerts(settings: Settings, host: Host) -> None:
    if settings.notify:
        with run_check("alerts", host) as passed:
            await check_addresses(settings)
            passed(f"go to {settings.notify}")


def _check_sessions(scraper: Scraper, host: Host) -> None:
    """Raises UsageError when the sessions that workers share have no key."""
    if any(login.shared for login in scraper.logins):
        from shoal.worker.session_store import session_cipher

        with run_check("sessions", host) as passed:
            session_cipher(scraper.find_secret)
            passed("shared by all workers, encrypted in the ledger")


async def _check_preflight(scraper: Scraper, settings: Settings, host: Host) -> None:
    """The scraper's own checks, each named after its function."""
    if scraper.preflight_hooks:
        logs = open_logs(
            format=settings.log_format, level=settings.log_level, file=None, stream=None, secrets=settings.secrets()
        )
        try:
            for function in scraper.preflight_hooks:
                with run_check(function.__name__.replace("_", " "), host) as passed:
                    passed(await call_preflight(function, scraper, logs.log))
        finally:
            logs.close()


async def _choose_run(ledger: Ledger, scraper: Scraper, request: PoolRequest) -> RunPlan:
    if request.run_id is None:
        return await plan_run(ledger, scraper, request.choice)
    run = await find_run_of(ledger, scraper.name, request.run_id)
    if run.scraper != scraper.name:
        raise UsageError(f"The run {run.id} belongs to {run.scraper}, not to {scraper.name}.")
    return RunPlan(run=run, remaining=(await ledger.reads.stats(run.id)).remaining)


async def _open_run_with_items(
    ledger: Ledger, scraper: Scraper, settings: Settings, request: PoolRequest, host: Host
) -> tuple[RunPlan, Run]:
    """What was chosen, and the run of it, which has its items."""
    plan = await _choose_run(ledger, scraper, request)
    if request.run_id is None:
        await check_start_items(ledger, scraper, plan, request.urls)
    run = await open_run(ledger, scraper, plan, scraper.run_spec(), by=BY)
    await report_plan(ledger, plan, host.on_event)
    await free_local_ledger(settings, ledger, run, host, by=BY)
    if request.run_id is None:
        logs = open_pool_log(settings, request, settings.log_names(scraper.name).of_pool())
        try:
            await fill_and_report(ledger, scraper, plan, run, request.urls, host, logs.log, by=BY)
        finally:
            logs.close()
    return plan, run


async def _make_plan(
    assigner: PartitionAssigner, run: Run | None, workload: Workload, request: PoolRequest, host: Host, *, limited: str
) -> PoolPlan:
    with run_check("partitions", host) as passed:
        assignment = await assigner.assign()
        if request.only and not any(assignment):
            raise UsageError("The items of the run have no partitions.", remedy="Leave --only out.")
        partitions = sum(1 for name in workload.waiting if name)
        passed(f"{pluralize(partitions, 'partition')}, {pluralize(len(assignment), 'worker')}{limited}")
        if assigner.unknown:
            passed(f"(no items of {', '.join(assigner.unknown)} in the run)")
    # A test of a run without partitions takes any item.
    only = request.only or (request.first is not None and any(assignment))
    return PoolPlan(
        run=run, workload=workload, assignment=assignment, only=only, bounds=request.bounds, places=assigner.places
    )


def _limit_text(scraper: Scraper, settings: Settings, request: PoolRequest) -> str:
    """Why there are fewer workers than were asked for."""
    wanted = request.workers or settings.workers
    if request.bounds is not None or not wanted or not settings.worker_limit or wanted <= settings.worker_limit:
        return ""
    return f" ({wanted} wanted, worker_limit of {scraper.name} is {settings.worker_limit})"


def _assigner(
    scraper: Scraper, settings: Settings, request: PoolRequest, read: Callable[[], Awaitable[Workload]]
) -> PartitionAssigner:
    def limited(workers: int) -> int:
        """A worker beyond the setting `worker_limit` would only wait for a place."""
        return min(workers, settings.worker_limit) if settings.worker_limit else workers

    def configured() -> int:
        """How many workers the settings ask for now; one per core when they do not say."""
        if request.reload is None:
            return limited(settings.workers or _cores())
        return limited(request.reload().for_scraper(scraper.name, mode=scraper.mode).workers or _cores())

    assignment, workers = request.assign, request.workers
    assigns = assignment is not None or settings.assign != ASSIGN_NONE
    if assignment is None and settings.assign and assigns:
        # Both are settings, so the number of workers does not follow from the file.
        assignment, workers = Path(settings.assign), workers or settings.workers or None
    if request.bounds is not None:
        workers = request.bounds.least
    return PartitionAssigner(
        read,
        assignment=assignment,
        workers=workers and limited(workers),
        configured=configured,
        partitions=request.partitions,
        first=request.first,
        assigns=assigns or bool(request.partitions),
        most=0 if request.bounds is None else request.bounds.most,
    )


async def _count_start_items(scraper: Scraper, urls: UrlFile | None) -> Workload:
    """What a new run would begin with; at most MAX_COUNTED items of each source are counted."""
    waiting: Counter[str] = Counter()
    sources: list[AsyncIterable[Entry]] = [scraper.seeds(), *([urls] if urls is not None else [])]
    for source in sources:
        async for entry in source:
            waiting[entry.partition if isinstance(entry, NewItem) else ""] += 1
            if waiting.total() >= MAX_COUNTED:
                break
    return Workload(waiting=waiting, total=waiting.total())


def _check_has_items(workload: Workload, run_id: str) -> None:
    if not workload.total:
        raise UsageError(f"The run {run_id} has no items.", remedy="Give it some: start(...), or --urls-file.")


def _describe_run(run: Run, workload: Workload) -> str:
    return f"{run.id}, {workload.done} of {pluralize(workload.total, 'item')} done"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"The folder {folder} cannot be created: {error.strerror}.", remedy="Choose another with --log-dir."
        ) from None


def open_pool_log(settings: Settings, request: PoolRequest, name: str) -> Logs:
    return open_logs(
        format=settings.log_format,
        level=settings.log_level,
        file=request.logs / name,
        stream=None,
        secrets=settings.secrets(),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
