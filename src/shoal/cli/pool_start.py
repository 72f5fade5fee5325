"""How `shoal pool` begins: every check in a line, then the plan, then a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import typer

from shoal.autoscale.rules import Bounds
from shoal.cli.pool_shown import how_many, print_check, print_plan
from shoal.cli.pool_work import Start, work_off
from shoal.cli.render.confirm import says_yes
from shoal.cli.render.session import Session
from shoal.cli.scrapers import load, tell_complaints, tell_paused, url_file
from shoal.cli.working import make_room
from shoal.config import Settings
from shoal.define.scraper import Scraper
from shoal.errors import InvalidSetting, LedgerNotMigrated, ShoalError, UsageError
from shoal.feeds.url_file import UrlFile
from shoal.fleet.partitions import PartitionAssignment
from shoal.fleet.plan import PartitionAssigner, Workload, plan_workers, read_workload
from shoal.fleet.pool import PoolOptions
from shoal.ledger.protocols import Entry, Ledger
from shoal.model.item import NewItem
from shoal.model.run import Run
from shoal.notify.delivery import check_addresses
from shoal.observe.doctor import Check
from shoal.observe.formatting import pluralize
from shoal.observe.logs import open_logs
from shoal.service.begin import (
    FillProgress,
    RunChoice,
    RunPlan,
    check_has_start_items,
    check_list_is_complete,
    fill_run,
    open_run,
    plan_run,
    remove_empty,
)
from shoal.wiring import ledger_context, sqlite_path
from shoal.worker.hooks import call_start_hooks
from shoal.worker.single_lock import hold_file_lock

BY = "shoal pool"
MOST_COUNTED = 100_000


class PoolWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the options asked for. `first`: start only so many workers of the plan. `kept`: options as they were typed
    that hold for the rest of the run too.
    """

    target: str
    choice: str
    run_id: str | None
    urls_file: str | None
    workers: int | None
    bounds: Bounds | None
    cores: int
    assign: Path | None
    partitions: tuple[str, ...]
    only: bool
    first: int | None
    kept: str
    stagger: tuple[float, float]
    max_restarts: int
    logs: Path
    asks: bool
    dry_run: bool


async def run_pool(session: Session, wish: PoolWish) -> int:
    """Returns the exit code. Raises typer.Exit when a check failed; then nothing was started."""
    with _check(session, "settings") as say:
        say(f"ledger {session.settings.shown()['ledger']} (from {session.settings.origins['ledger']})")
    with _check(session, "scraper") as say:
        scraper, settings = load(session, wish.target)
        urls = url_file(scraper, wish.urls_file, None)
        say(f"{scraper.name}, {pluralize(len(scraper.stages), 'stage')}, mode {settings.mode}")
    if settings.notify:
        with _check(session, "alerts") as say:
            await check_addresses(settings)
            say(f"go to {settings.notify}")
    if wish.dry_run:
        await _preview(session, scraper, settings, urls, wish)
        return 0
    async with AsyncExitStack() as held:
        with _check(session, "ledger") as say:
            ledger = await held.enter_async_context(ledger_context(settings, on_waiting=session.note))
            say("answers, its schema is this version's")
        with _check(session, "logs") as say:
            _make_folder(wish.logs)
            say(str(wish.logs))
        with _check(session, "run") as say:
            if (file := sqlite_path(settings.ledger)) is not None:
                held.enter_context(hold_file_lock(scraper.name, file))
            run, is_new = await _run_with_items(session, scraper, settings, ledger, urls, wish)
            workload = await read_workload(ledger, run.id)
            _check_there_are_items(workload, run.id)
            say(f"{run.id}, {workload.done} of {pluralize(workload.total, 'item')} done")
        assigner = _dealer(session, scraper, wish, lambda: read_workload(ledger, run.id))
        assignment = await _dealt(session, assigner, workload, wish)
        only = _keeps_to_its_own(wish, assignment)
        print_plan(session, plan_workers(workload, assignment, only=only), workload, wish.bounds, only=only)
        if wish.asks and not says_yes(session, f"{how_many(len(assignment), wish.bounds)} will work on run {run.id}."):
            if is_new:
                await ledger.runs.remove(run.id, by=BY)
            session.complain("Nothing was started." if is_new else f"Nothing was started; run {run.id} is as it was.")
            return 1
        start = Start(
            target=wish.target,
            assignment=assignment,
            logs=wish.logs,
            options=PoolOptions(stagger=wish.stagger, max_restarts=wish.max_restarts, drain=settings.drain, only=only),
            bounds=wish.bounds,
            kept=wish.kept,
        )
        return await work_off(session, scraper, settings, ledger, run, assigner, start)


@contextmanager
def _check(session: Session, name: str) -> Iterator[Callable[[str], None]]:
    """One check: what it said when it passes; its error with the remedy when it fails, and the error's exit code."""
    said: list[str] = []
    try:
        yield said.append
    except ShoalError as error:
        print_check(session, Check(name=name, ok=False, text=error.message, fix=error.remedy))
        raise typer.Exit(error.exit_code) from None
    print_check(session, Check(name=name, ok=True, text=" ".join(said)))


async def _dealt(
    session: Session, assigner: PartitionAssigner, workload: Workload, wish: PoolWish
) -> PartitionAssignment:
    with _check(session, "partitions") as say:
        assignment = await assigner.assign()
        if wish.only and not any(assignment):
            raise UsageError("The items of the run have no partitions.", remedy="Leave --only out.")
        partitions = sum(1 for name in workload.waiting if name)
        say(f"{pluralize(partitions, 'partition')}, {pluralize(len(assignment), 'worker')}")
        if assigner.unknown:
            say(f"(no items of {', '.join(assigner.unknown)} in the run)")
    return assignment


async def _run_with_items(
    session: Session, scraper: Scraper, settings: Settings, ledger: Ledger, urls: UrlFile | None, wish: PoolWish
) -> tuple[Run, bool]:
    """The run, and whether it was made for this pool."""
    plan = await _planned(ledger, scraper, wish)
    if wish.run_id is None:
        check_has_start_items(scraper, urls, plan)
        await check_list_is_complete(ledger, plan, urls)
    run = await open_run(ledger, scraper, plan, scraper.run_spec(), by=BY)
    tell_paused(session, plan)
    await make_room(session, settings, ledger, run, by=BY)
    if wish.run_id is None:
        await _fill(session, scraper, settings, ledger, plan, run, urls, wish)
    return run, plan.run is None


async def _planned(ledger: Ledger, scraper: Scraper, wish: PoolWish) -> RunPlan:
    if wish.run_id is None:
        return await plan_run(ledger, scraper, RunChoice(wish.choice))
    run = await ledger.runs.get(wish.run_id)
    if run.scraper != scraper.name:
        raise UsageError(f"The run {run.id} belongs to {run.scraper}, not to {scraper.name}.")
    return RunPlan(run=run, remaining=(await ledger.reads.stats(run.id)).remaining)


async def _fill(
    session: Session,
    scraper: Scraper,
    settings: Settings,
    ledger: Ledger,
    plan: RunPlan,
    run: Run,
    urls: UrlFile | None,
    wish: PoolWish,
) -> None:
    file = wish.logs / f"{scraper.name}_pool.log"
    logs = open_logs(
        format=settings.log_format, level=settings.log_level, file=file, stream=None, secrets=settings.secrets()
    )
    try:
        await call_start_hooks(scraper, ledger, run, logs.log.bind(run=run.id))
    finally:
        logs.close()
    progress = FillProgress()
    try:
        await fill_run(ledger, run, scraper, urls, progress, by=BY)
    except UsageError:
        await remove_empty(ledger, plan, run, progress, by=BY)
        raise
    finally:
        tell_complaints(session, urls, progress)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"The folder {folder} cannot be made: {error.strerror}.", remedy="Choose another with --log-dir."
        ) from None


def _check_there_are_items(workload: Workload, run_id: str) -> None:
    if not workload.total:
        raise UsageError(f"The run {run_id} has no items.", remedy="Give it some: start(...), or --urls-file.")


async def _preview(
    session: Session, scraper: Scraper, settings: Settings, urls: UrlFile | None, wish: PoolWish
) -> None:
    """The checks and the plan without a trace in the ledger."""
    run: Run | None = None
    with _check(session, "ledger") as say:
        try:
            async with ledger_context(settings, migrate=False) as ledger:
                run = (await _planned(ledger, scraper, wish)).run
                workload = Workload(waiting={}) if run is None else await read_workload(ledger, run.id)
            say("answers, its schema is this version's")
        except LedgerNotMigrated:
            if sqlite_path(settings.ledger) is None:
                raise
            say("will be created")
    with _check(session, "run") as say:
        if run is None:
            check_has_start_items(scraper, urls, RunPlan(run=None))
            workload = await _expected(scraper, urls)
        _check_there_are_items(workload, run.id if run else "to be made")
        say("a new one" if run is None else f"{run.id}, {workload.done} of {pluralize(workload.total, 'item')} done")

    async def look() -> Workload:
        return workload

    assignment = await _dealt(session, _dealer(session, scraper, wish, look), workload, wish)
    only = _keeps_to_its_own(wish, assignment)
    print_plan(session, plan_workers(workload, assignment, only=only), workload, wish.bounds, only=only)


def _dealer(
    session: Session, scraper: Scraper, wish: PoolWish, look: Callable[[], Awaitable[Workload]]
) -> PartitionAssigner:
    return PartitionAssigner(
        look,
        assignment=wish.assign,
        workers=wish.workers,
        configured=partial(_configured, session, scraper, wish),
        partitions=wish.partitions,
        first=wish.first,
    )


def _keeps_to_its_own(wish: PoolWish, assignment: PartitionAssignment) -> bool:
    """Whether workers take nothing but their own partitions. A test of a run without partitions takes what there is."""
    return wish.only or (wish.first is not None and any(assignment))


def _configured(session: Session, scraper: Scraper, wish: PoolWish) -> int:
    """How many workers the settings ask for as they stand now; one per core when they do not say."""
    return session.read_settings().for_scraper(scraper.name, mode=scraper.mode).workers or wish.cores


async def _expected(scraper: Scraper, urls: UrlFile | None) -> Workload:
    """What a new run would begin with, as far as one can count in a moment."""
    waiting: Counter[str] = Counter()
    sources: list[AsyncIterable[Entry]] = [scraper.seeds(), *([urls] if urls is not None else [])]
    for source in sources:
        async for entry in source:
            waiting[entry.partition if isinstance(entry, NewItem) else ""] += 1
            if waiting.total() >= MOST_COUNTED:
                break
    return Workload(waiting=waiting, total=waiting.total())
