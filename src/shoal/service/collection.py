"""Collections: run a folder of scrapers, each in a process, as one run whose items are the scrapers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from decimal import Decimal
from pathlib import Path

import msgspec

from shoal.config import DeadLimit, Settings
from shoal.define.load import load_scraper
from shoal.define.yaml_scraper import is_yaml_file
from shoal.errors import LedgerNotMigrated, NotFound, ShoalError, UsageError
from shoal.fleet.collection.member_runner import MemberDefaults, MemberRunner
from shoal.fleet.collection.members import CollectionPlan, Member, MemberFilter, discover, plan_members, syntax_problem
from shoal.fleet.collection.scraper import PAGE, Summary, collection_scraper, summarize
from shoal.fleet.process import EXIT_SECONDS, ProcessLimits, child_environment, give_up_on_signals, setting_variables
from shoal.ledger.protocols import Ledger
from shoal.model.item import OPEN_STATES, ItemState
from shoal.model.outcome import OutcomeClass
from shoal.model.run import COLLECTION_KEY_PREFIX, COLLECTION_SCRAPER_PREFIX, Run
from shoal.model.views import Counts, ItemFilter, ItemView
from shoal.notify.conditions import coverage_rules
from shoal.notify.delivery import check_addresses
from shoal.observe.formatting import pluralize
from shoal.service.begin import FillProgress, RunChoice, RunPlan, begin_lock, plan_owned_run
from shoal.service.events import Event, Host, ignore
from shoal.service.lookup import MAX_RUNS_READ, is_collection_member, read_period
from shoal.service.run import RunRequest, begin_run, execute_run
from shoal.wiring import ledger_context, sqlite_path
from shoal.worker.state import StopReason

NO_DEAD = DeadLimit(Decimal(0), False)
MAX_COLLECTIONS = 50
MAX_MEMBERS = 500
NO_EXTENT = {"since": "", "until": "", "from_scratch": "no"}


class CollectionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which scrapers of a folder to run.

    `name`: of the collection. `target`: how the operator named it. `all`: everything in the folder, which is required
    unless `members` chooses. `failed`: those that failed in the last run. `sequential`: members in the foreground.
    `overrides`: settings that flags gave; members get them as variables. `run`: as for one scraper.
    """

    name: str
    target: str
    folder: Path
    logs: Path
    all: bool = False
    members: MemberFilter = MemberFilter()
    failed: bool = False
    sequential: bool = False
    overrides: Mapping[str, str | None] = {}
    run: RunRequest = RunRequest()


class CollectionView(msgspec.Struct, frozen=True, kw_only=True):
    """A collection in its last run. `target`: its folder, when the configuration here names it.

    `summary`: its members and groups; None when only the run was read.
    """

    name: str
    run: Run
    counts: Counts
    target: str | None = None
    summary: Summary | None = None


def _members(groups: Sequence[int]) -> str:
    return "member" if max(groups) == 1 else "members"


class CollectionPlanned(Event, frozen=True, kw_only=True):
    """What was found in the folder. `groups`: how many members each group has. `at_once`: processes at a time."""

    singles: int
    groups: tuple[int, ...]
    at_once: int

    @property
    def text(self) -> str:
        groups = (
            f"{pluralize(len(self.groups), 'group')} ({', '.join(map(str, self.groups))} {_members(self.groups)})"
            if self.groups
            else "no groups"
        )
        return (
            f"{pluralize(self.singles + sum(self.groups), 'configuration')}: {pluralize(self.singles, 'single')}, "
            f"{groups}; at most {self.at_once} at once."
        )

    @classmethod
    def of(cls, plan: CollectionPlan, at_once: int) -> CollectionPlanned:
        groups = tuple(len(members) for members in plan.groups.values())
        return cls(singles=len(plan.singles), groups=groups, at_once=at_once)


class CollectionReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a collection ended. `refused`: members that the ledger did not accept; they are in no summary."""

    run: Run
    summary: Summary
    settings: Settings
    seconds: float
    timed_out: bool = False
    refused: int = 0


async def list_collections(ledger: Ledger, settings: Settings) -> list[CollectionView]:
    """Return the collections with a recent run, and those of the configuration that ever ran, the newest run first."""
    newest: dict[str, Run] = {}
    for run in (await ledger.runs.list(limit=MAX_RUNS_READ)).rows:
        if run.scraper.startswith(COLLECTION_SCRAPER_PREFIX):
            found: Run | None = run
        elif is_collection_member(run):
            # Its members may be more than the runs that are read: each names the run of its collection.
            found = await _collection_of(ledger, run, known=newest.values())
        else:
            continue
        if found is not None:
            newest.setdefault(found.scraper, found)
    for name in settings.scrapers:
        scraper = COLLECTION_SCRAPER_PREFIX + name
        if scraper not in newest and (latest := await ledger.runs.latest(scraper)) is not None:
            newest[scraper] = latest
    runs = sorted(newest.values(), key=lambda run: -run.no)[:MAX_COLLECTIONS]
    return [await _collection_view(ledger, settings, run) for run in runs]


async def read_collection(ledger: Ledger, settings: Settings, name: str) -> CollectionView:
    """Return a collection with the groups and members of its last run, at most 500 members. Raises NotFound."""
    run = await ledger.runs.latest(COLLECTION_SCRAPER_PREFIX + name)
    if run is None:
        raise NotFound(f"There is no run of a collection {name!r}.", remedy="Run it first: shoal run FOLDER --all")
    view = await _collection_view(ledger, settings, run)
    return msgspec.structs.replace(view, summary=await summarize(ledger, run, most=MAX_MEMBERS))


async def _collection_of(ledger: Ledger, member: Run, *, known: Iterable[Run]) -> Run | None:
    run_id = (member.idempotency_key or "").removeprefix(COLLECTION_KEY_PREFIX).partition(" ")[0]
    if any(run.id == run_id for run in known):
        return None
    try:
        return await ledger.runs.get(run_id)
    except NotFound:  # it was removed
        return None


async def _collection_view(ledger: Ledger, settings: Settings, run: Run) -> CollectionView:
    name = run.scraper.removeprefix(COLLECTION_SCRAPER_PREFIX)
    return CollectionView(
        name=name, run=run, counts=await ledger.reads.stats(run.id), target=settings.scraper(name).target
    )


def collection_settings(settings: Settings, name: str) -> Settings:
    """Those of the collection itself, which is shared between machines where the ledger can be.

    The mode is a setting of scrapers, and each member keeps its own.
    """
    can_be_shared = sqlite_path(settings.with_scraper_table(name).ledger) is None
    return settings.for_scraper(name, mode="distributed" if can_be_shared else None)


async def preview_collection(settings: Settings, request: CollectionRequest) -> CollectionPlan:
    """Which members would run, each with what is wrong with it; nothing is run and nothing is changed."""
    chosen = request.members
    members = [_with_problem(member) if chosen.matches(member) else member for member in _discover(request)]
    plan = plan_members(members, chosen)
    if request.run.choice is RunChoice.RESUME:
        plan = plan.only(await _keys_to_resume(request, settings))
    return plan


async def run_collection(settings: Settings, request: CollectionRequest, host: Host) -> CollectionReport:
    """Run the members to their end, or until stopped.

    Raises RunAlreadyEnded or RunBusy for an idempotency key, UsageError when an unfinished run has other members.
    """
    all_members = _discover(request)
    plan = plan_members(all_members, request.members)
    await check_addresses(settings)
    async with ledger_context(settings, on_waiting=host.notice) as ledger, AsyncExitStack() as held:
        extent: dict[str, str] = {}

        def environment(member: str) -> dict[str, str]:
            given = {**settings.for_member(request.name, member), **request.overrides}
            return child_environment(given, ledger=settings.ledger, exclude=("concurrency",)) | extent

        member_runner = MemberRunner(ledger, environment, _member_defaults(request, settings))
        scraper = collection_scraper(request.name, all_members, plan, member_runner, retries=settings.member_retries)
        scraper.since, scraper.until = read_period(settings)
        scraper.from_scratch = settings.from_scratch
        async with begin_lock(ledger, settings, scraper.name):
            try:
                run_plan = await plan_owned_run(
                    *(ledger, scraper, settings),
                    choice=request.run.choice,
                    idempotency_key=request.run.idempotency_key,
                    held=held,
                    on_waiting=host.notice,
                )
            except NotFound as error:
                error.remedy = _run_all_remedy(request)
                raise
            if run_plan.run is not None:
                run_plan = await _resume_members(ledger, run_plan, run_plan.run, plan, request, host)
            if not request.failed:
                host.on_event(CollectionPlanned.of(plan, settings.concurrency))
            run = await begin_run(ledger, scraper, run_plan, request.run, host)
            extent |= setting_variables({**NO_EXTENT, **scraper.extent})  # of a resumed run its own
        # A stop reaches the members at once and they get the drain time. One failed member is too many for the
        # collection, while a member may have dead items.
        run_request = msgspec.structs.replace(request.run, prefetch=False)
        own = msgspec.structs.replace(settings, drain=0.0, max_dead=NO_DEAD)
        progress = FillProgress()
        # Members that run in the foreground have the terminal for themselves.
        work_host = msgspec.structs.replace(host, on_event=ignore, log_stream=None) if request.sequential else host
        work = await execute_run(ledger, scraper, own, run_plan, run, run_request, progress, work_host)
        seconds = work.seconds
        for _ in range(settings.group_retries):
            if work.stop_reason is not StopReason.NOTHING_LEFT or not await _retry_groups(
                ledger, run, host, request.run.by
            ):
                break
            run_plan = msgspec.structs.replace(run_plan, run=run)
            work = await execute_run(ledger, scraper, own, run_plan, run, run_request, progress, work_host)
            seconds += work.seconds
        await _wait_for_members(member_runner, host)
        run = await ledger.runs.get(run.id)
        return CollectionReport(
            run=run,
            summary=await summarize(ledger, run),
            settings=settings,
            seconds=seconds,
            timed_out=work.stop_reason is StopReason.TIMED_OUT,
            refused=progress.invalid,
        )


def _discover(request: CollectionRequest) -> list[Member]:
    if not (request.all or request.failed or request.members.is_set):
        raise UsageError(
            f"{request.folder} is a folder of scrapers.",
            remedy="Add --all to run them all, or choose with --where, --include and --exclude.",
        )
    return discover(request.folder)


def _with_problem(member: Member) -> Member:
    """With what is wrong with it, as far as that is found without running its code."""
    try:
        if is_yaml_file(member.path.name):
            load_scraper(str(member.path), {}, Path.cwd())
        elif (problem := syntax_problem(member.path)) is not None:
            return msgspec.structs.replace(member, broken=problem)
    except ShoalError as error:
        return msgspec.structs.replace(member, broken=member.broken or error.message)
    except Exception as error:  # the code that a YAML file names may raise anything when it is loaded
        return msgspec.structs.replace(member, broken=f"{type(error).__name__}: {error}")
    return member


async def _keys_to_resume(request: CollectionRequest, settings: Settings) -> set[str]:
    """The members that --resume or --failed would run. Raises NotFound without a run."""
    states = (ItemState.DEAD,) if request.failed else OPEN_STATES
    scraper = COLLECTION_SCRAPER_PREFIX + request.name
    try:
        async with ledger_context(settings, migrate=False) as ledger:
            run = await ledger.runs.latest(scraper)
            if run is not None:
                return {item.key or "" for item in await _items(ledger, run, states)}
    except LedgerNotMigrated:
        pass
    raise NotFound(
        f"There is no run of {scraper} to resume in {settings.shown()['ledger']}.", remedy=_run_all_remedy(request)
    )


def _run_all_remedy(request: CollectionRequest) -> str:
    return f"Run it first: shoal run {shlex.quote(request.target)} --all"


async def _items(ledger: Ledger, run: Run, states: tuple[ItemState, ...]) -> list[ItemView]:
    found: list[ItemView] = []
    cursor = None
    while True:
        page = await ledger.reads.items(run.id, ItemFilter(states=states), cursor=cursor, limit=PAGE)
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            return found


def _member_defaults(request: CollectionRequest, settings: Settings) -> MemberDefaults:
    return MemberDefaults(
        limits=ProcessLimits(
            timeout=settings.member_timeout, stale=settings.member_stale, memory=settings.member_memory
        ),
        stop_timeout=settings.drain + EXIT_SECONDS,
        max_dead=settings.max_dead,
        logs=request.logs,
        pause=settings.member_pause,
        foreground=request.sequential,
        output=Path(settings.member_output).expanduser() if settings.member_output else None,
        coverage=coverage_rules(settings),
    )


async def _resume_members(
    ledger: Ledger, run_plan: RunPlan, run: Run, plan: CollectionPlan, request: CollectionRequest, host: Host
) -> RunPlan:
    """Before a run is resumed: retry failed members, if these were asked for.

    An unfinished run with other members than those chosen now is resumed only when that was asked for.
    """
    if request.run.choice is RunChoice.AUTO and request.run.idempotency_key is None:
        present = {member.member for member in (await summarize(ledger, run)).members}
        if present and present != {member.key for member in plan.members}:
            raise UsageError(
                f"Run {run.id} of this collection is unfinished and has other members than those chosen now.",
                remedy="--resume resumes it, --fresh starts a new one.",
            )
    if request.failed:
        keys = {member.key for member in plan.members}
        ids = tuple(item.id for item in await _items(ledger, run, (ItemState.DEAD,)) if item.key in keys)
        retried = await ledger.steering.retry(run.id, ItemFilter(ids=ids), by=request.run.by) if ids else 0
        host.notice(f"{pluralize(retried, 'scraper')} that failed {'is' if retried == 1 else 'are'} tried again.")
    return msgspec.structs.replace(run_plan, remaining=(await ledger.reads.stats(run.id)).remaining)


async def _retry_groups(ledger: Ledger, run: Run, host: Host, by: str) -> int:
    """Queue the failed members of groups again, in their order. Returns how many there are.

    Those whose file cannot be used are not: they would fail again.
    """
    ids = tuple(
        item.id
        for item in await _items(ledger, run, (ItemState.DEAD,))
        if (item.payload or {}).get("group") is not None and item.outcome != OutcomeClass.PERMANENT
    )
    retried = await ledger.steering.retry(run.id, ItemFilter(ids=ids), by=by) if ids else 0
    if retried:
        host.notice(f"Groups are tried again: {pluralize(retried, 'member')} failed.")
    return retried


async def _wait_for_members(member_runner: MemberRunner, host: Host) -> None:
    """After a stop: until the processes of all members have ended."""
    if not member_runner.running:
        return
    host.notice(f"Waiting for {pluralize(member_runner.running, 'scraper')} to finish what runs.")
    if not host.handles_signals:
        host.stop.attach(_do_nothing, member_runner.stop_now)
    with give_up_on_signals(member_runner.stop_now, host.notice) if host.handles_signals else nullcontext():
        await member_runner.wait_stopped()


def _do_nothing() -> None:
    """Members were drained when the work was stopped."""
