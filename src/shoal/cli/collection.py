"""`shoal run FOLDER`: many small scrapers, each in a process of its own, and what became of every one of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import msgspec

from shoal.cli.children import environment_of_children, giving_up_on_signals
from shoal.cli.collection_shown import print_members, print_plan, tell_plan
from shoal.cli.idempotency_key import print_already_ended, print_busy
from shoal.cli.render.session import Session
from shoal.cli.render.summary import EXIT_INTERRUPTED, EXIT_TIMED_OUT
from shoal.cli.scrapers import command_line, overrule
from shoal.config import DeadLimit, Settings
from shoal.define.load import load_scraper
from shoal.define.yaml_scraper import is_yaml_file
from shoal.errors import LedgerNotMigrated, NotFound, ShoalError, UsageError
from shoal.fleet.collection.member_runner import MemberDefaults, MemberLimits, MemberRunner
from shoal.fleet.collection.members import CollectionPlan, Member, MemberFilter, discover, plan_members
from shoal.fleet.collection.scraper import collection_scraper
from shoal.fleet.collection.summary import PAGE, summarize
from shoal.ledger.protocols import Ledger
from shoal.model.item import OPEN_STATES, ItemState
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, Run
from shoal.model.views import ItemFilter, ItemView
from shoal.notify.delivery import check_addresses
from shoal.observe.formatting import pluralize
from shoal.service.begin import FillProgress, RunAlreadyEnded, RunBusy, RunChoice, RunPlan, begin_lock, plan_owned_run
from shoal.service.console import Console
from shoal.service.events import Host, OnEvent
from shoal.service.run import RunRequest, begin_run, execute_run
from shoal.wiring import ledger_context, sqlite_path
from shoal.worker.options import StopReason

EXIT_SECONDS = 10.0
NO_DEAD = DeadLimit(Decimal(0), False)


class CollectionWish(msgspec.Struct, frozen=True, kw_only=True):
    """What the options asked for. `all`: everything in the folder, which has to be said unless something is chosen."""

    name: str
    folder: Path
    all: bool
    members: MemberFilter
    failed: bool
    sequential: bool
    dry_run: bool
    logs: Path
    target: str
    request: RunRequest


async def run_collection(session: Session, wanted: CollectionWish, overrides: Mapping[str, object | None]) -> int:
    """From the plan to the summary; returns the exit code. `overrides` are settings that options gave."""
    overrule(session, overrides)
    # The mode is that of scrapers, each of which keeps its own; a collection itself is shared where it can be.
    can_be_shared = sqlite_path(session.settings.with_scraper_table(wanted.name).ledger) is None
    settings = session.settings.for_scraper(wanted.name, mode="distributed" if can_be_shared else None)
    all_members = _discovered(wanted)
    chosen = plan_members(all_members, wanted.members)
    if wanted.dry_run:
        matches = wanted.members.matches
        checked = plan_members(
            [_checked(member) if matches(member) else member for member in all_members], wanted.members
        )
        if wanted.request.choice is RunChoice.RESUME:
            checked = checked.only(await _keys_to_run(wanted, settings))
        print_plan(session, checked, wanted.folder, settings.concurrency)
        return 1 if any(member.broken for member in checked.members) else 0
    await check_addresses(settings)
    async with ledger_context(settings, on_waiting=session.note) as ledger:
        environment = environment_of_children(session, ledger=settings.ledger, own=("concurrency",))
        member_runner = MemberRunner(ledger, environment, _terms(wanted, settings))
        scraper = collection_scraper(wanted.name, all_members, chosen, member_runner, retries=settings.member_retries)
        async with AsyncExitStack() as held:
            console = held.enter_context(
                Console(quiet=session.quiet or wanted.sequential, print_note=session.note, print_error=session.complain)
            )
            host = console.host()
            async with begin_lock(ledger, settings, scraper.name):
                try:
                    begun = await plan_owned_run(
                        *(ledger, scraper, settings),
                        choice=wanted.request.choice,
                        idempotency_key=wanted.request.idempotency_key,
                        held=held,
                        on_waiting=session.note,
                    )
                except RunAlreadyEnded as ended:
                    print_already_ended(session, ended.run)
                    return 0
                except RunBusy as busy:
                    print_busy(session, busy)
                    raise
                except NotFound as error:
                    error.remedy = _run_it_first(wanted)
                    raise
                if begun.run is not None:
                    begun = await _taken_up(session, ledger, begun, begun.run, chosen, wanted)
                if not wanted.failed:
                    tell_plan(session, chosen, settings.concurrency)
                run = await begin_run(ledger, scraper, begun, wanted.request, Host(on_event=_notes(session)))
            # Who is told to stop hands the order on to its members at once; they have the time to finish. And one that
            # failed is one too many, while a member itself may have a few dead items.
            request = msgspec.structs.replace(wanted.request, prefetch=False)
            own = msgspec.structs.replace(settings, drain=0.0, max_dead=NO_DEAD)
            progress = FillProgress()
            report = await execute_run(ledger, scraper, own, begun, run, request, progress, host)
            await _wait_for(session, member_runner)
            run = await ledger.runs.get(run.id)
            summary = await summarize(ledger, run)
        if_stopped = EXIT_TIMED_OUT if report.stop_reason is StopReason.TIMED_OUT else EXIT_INTERRUPTED
        print_members(*(session, run, summary, settings, wanted.target), if_stopped=if_stopped, seconds=report.seconds)
        # A member that the ledger refused is in no summary.
        return summary.exit_code(if_stopped) or int(progress.invalid > 0)


async def _keys_to_run(wanted: CollectionWish, settings: Settings) -> set[str]:
    """The members that --resume or --failed would run, from the ledger as it is. Raises NotFound without a run."""
    states = (ItemState.DEAD,) if wanted.failed else OPEN_STATES
    try:
        async with ledger_context(settings, migrate=False) as ledger:
            run = await ledger.runs.latest(COLLECTION_SCRAPER_PREFIX + wanted.name)
            if run is not None:
                return {item.key or "" for item in await _items(ledger, run, states)}
    except LedgerNotMigrated:
        pass
    raise NotFound(
        f"There is no run of {COLLECTION_SCRAPER_PREFIX}{wanted.name} to resume in {settings.shown()['ledger']}.",
        remedy=_run_it_first(wanted),
    )


def _run_it_first(wanted: CollectionWish) -> str:
    return f"Run it first: {command_line()} run {shlex.quote(wanted.target)} --all"


async def _items(ledger: Ledger, run: Run, states: tuple[ItemState, ...]) -> list[ItemView]:
    found: list[ItemView] = []
    cursor = None
    while True:
        page = await ledger.reads.items(run.id, ItemFilter(states=states), cursor=cursor, limit=PAGE)
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            return found


def _discovered(wanted: CollectionWish) -> list[Member]:
    if not (wanted.all or wanted.failed or wanted.members.is_set):
        raise UsageError(
            f"{wanted.folder} is a folder of scrapers.",
            remedy="Add --all to run them all, or choose with --country, --include and --exclude.",
        )
    return discover(wanted.folder)


def _checked(member: Member) -> Member:
    """With what is wrong with it, as far as that is seen without running its code."""
    try:
        if is_yaml_file(member.path.name):
            load_scraper(str(member.path), {}, Path.cwd())
        else:
            compile(member.path.read_bytes(), member.path, "exec", dont_inherit=True)
    except ShoalError as error:
        return msgspec.structs.replace(member, broken=member.broken or error.message)
    except OSError as error:
        return msgspec.structs.replace(member, broken=f"{member.path} cannot be read: {error.strerror}.")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return msgspec.structs.replace(member, broken=f"it is not valid Python: {error}")
    except Exception as error:  # its template may do anything when it is loaded
        return msgspec.structs.replace(member, broken=f"{type(error).__name__}: {error}")
    return member


def _terms(wanted: CollectionWish, settings: Settings) -> MemberDefaults:
    return MemberDefaults(
        limits=MemberLimits(
            timeout=settings.member_timeout,
            stale=settings.member_stale,
            memory=settings.member_memory,
            stop_timeout=settings.drain + EXIT_SECONDS,
        ),
        max_dead=settings.max_dead,
        logs=wanted.logs,
        pause=settings.member_pause,
        foreground=wanted.sequential,
        output=Path(settings.member_output).expanduser() if settings.member_output else None,
    )


async def _taken_up(
    session: Session, ledger: Ledger, begun: RunPlan, run: Run, chosen: CollectionPlan, wanted: CollectionWish
) -> RunPlan:
    """With --failed another attempt for those that failed; the run comes back to life with them.

    An unfinished run with other members than those that are chosen now is not taken up by accident.
    """
    if wanted.request.choice is RunChoice.AUTO and wanted.request.idempotency_key is None:
        has = {member.member for member in (await summarize(ledger, run)).members}
        if has and has != {member.key for member in chosen.members}:
            raise UsageError(
                f"Run {run.id} of this collection is unfinished and has other members than those chosen now.",
                remedy="--resume goes on with it, --fresh starts a new one.",
            )
    if wanted.failed:
        keys = {member.key for member in chosen.members}
        ids = tuple(item.id for item in await _items(ledger, run, (ItemState.DEAD,)) if item.key in keys)
        revived = await ledger.steering.retry(run.id, ItemFilter(ids=ids), by="shoal run") if ids else 0
        session.note(f"{pluralize(revived, 'scraper')} that failed {'is' if revived == 1 else 'are'} tried again.")
    return msgspec.structs.replace(begun, remaining=(await ledger.reads.stats(run.id)).remaining)


def _notes(session: Session) -> OnEvent:
    return lambda event: session.note(event.text)


async def _wait_for(session: Session, member_runner: MemberRunner) -> None:
    if member_runner.running:
        session.note(f"Waiting for {pluralize(member_runner.running, 'scraper')} to finish what runs.")
        with giving_up_on_signals(member_runner.stop_now, session.note):
            await member_runner.wait_stopped()
