"""An hour of chaos in one command: a large run on several nodes, faults all the time, and a report at its end.

    python -m tests.chaos.campaign --minutes 60 --items 1000000 --report chaos.json

Workers on three nodes (network namespaces) scrape through PgBouncer, on a PostgreSQL with fsync; beside them two small
runs go out through proxies and through Tor. Faults come one after another, each once before any comes again:
`faults.py`. The logs of the sites say whether limits and delays were kept: `site_log.py`. `make test` runs a small one.
The exit code is 1 when anything was lost, stored twice, impolite or unexplained: docs/design/chaos.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import asyncpg
import msgspec

from shoal.config import Settings
from shoal.errors import ShoalError
from shoal.ledger.protocols import Ledger
from shoal.model.run import RunState
from shoal.wiring import ledger_context
from tests.chaos import judging
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.hostile_site import KINDS
from tests.chaos.logged_site import DELAY, NARROW_LIMIT, PER_HOST, PROXIED_DELAY, LoggedSite
from tests.chaos.report import CampaignReport, Recovery, RunReport
from tests.chaos.scene import Scene, Team
from tests.chaos.side_runs import HOMES, HOMES_SETTINGS, ONION, TOR_DELAY, Proxies, TorSide, enqueue
from tests.chaos.site_log import TOLERANCE
from tests.chaos.waits import WaitCheck
from tests.support import MissingPartError
from tests.support.node_lab import Fleet, Lab
from tests.support.project import Project
from tests.support.tor_network import TorNetwork

LEASE = 6.0
SLOTS, SIDE_SLOTS = 16, 4
WORKERS_PER_NODE = 2
# The rest of the budget is for the end: faults stop, and what is left is worked off.
SHARE_WITH_FAULTS = 0.75
# When less than this share of its items is left while there are faults, the large run gets as many more.
SHARE_TO_ADD = 0.1
COMMAND_SECONDS = 300.0
# Hosts with a limit of time have items for this share of it: faults stop them, too.
SHARE_OF_SLOW_HOSTS = 0.55
# A run that does nothing for this long after a fault has stalled.
STALL_SECONDS = 120.0
SCRAPER = """
    shop = Scraper("shop", retries=200, backoff_factor=1.5, backoff_cap=3)
    KINDS = {kinds}

    @shop.stage(concurrency={per_host}, timeout=10)
    async def page(page: Page):
        yield {{"title": page.css("h1::text").get()}}
        kind, number = page.url.rsplit("/", 2)[1:]
        if kind == "page" and number.isdecimal() and int(number) % {every} == 0:
            which = KINDS[int(number) // {every} % len(KINDS)]
            yield hostile.item(f"{url}/{{which}}/{{number}}")

    @shop.stage(retries={retries}, timeout=4, concurrency=8)
    async def hostile(page: Page):
        yield {{"title": page.css("h1::text").get(), "links": len(page.links())}}
"""


class Hostile(NamedTuple):
    """Kinds of hostile pages. Each `every`th page, a multiple of 20, leads to one, which has so many `retries`."""

    kinds: Sequence[str] = tuple(KINDS)
    every: int = 2_500
    retries: int = 6


class Campaign:
    """One large run and two small ones under faults, from their begin to the report."""

    def __init__(
        self,
        *,
        minutes: float,
        items: int,
        seed: int,
        faults: Collection[str],
        pause: tuple[float, float] = (1.0, 4.0),
        hostile: Hostile = Hostile(),  # noqa: B008 - it is immutable
        proxied: int | None = None,
        adds: int | None = None,
    ) -> None:
        """`pause`: the least and the most seconds between two faults.

        `proxied`: how many pages are fetched through proxies; None: as many as fit into the time. `adds`: how often the
        large run gets more items; None: whenever few are left, so that it lasts as long as the faults.
        """
        self._pause = pause
        self._seconds = minutes * 60
        self._items = items
        self._random = random.Random(seed)
        self.faults = [fault for fault in FAULTS if fault.name in faults]
        self._next_faults: list[Fault] = []
        self._hostile = hostile
        self._proxied = self._in_time(1 / PROXIED_DELAY, 20) if proxied is None else proxied
        self._adds = sys.maxsize if adds is None else adds
        # Seconds that a request may seem to have come too soon.
        self.tolerance = TOLERANCE
        self._first_number = 0
        self.report = CampaignReport(seed=seed, minutes=minutes)

    def execute(self, lab: Lab, folder: Path, tor_network: TorNetwork | None = None) -> CampaignReport:
        """Whatever ends it before its end, the report says so and has what is known by then."""
        self.report.interrupted = "the campaign had not begun"
        try:
            self._execute(lab, folder, tor_network)
        except BaseException as error:
            self.report.interrupted = f"{type(error).__name__} after {self.report.minutes_taken:.1f} minutes"
            raise
        self.report.interrupted = ""
        return self.report

    def _execute(self, lab: Lab, folder: Path, tor_network: TorNetwork | None) -> None:
        with ExitStack() as stack:
            site = stack.enter_context(LoggedSite(lab.site_node))
            fleet = stack.enter_context(Fleet(lab, folder))
            proxies = stack.enter_context(Proxies(lab.exit_node))
            tor = None if tor_network is None else stack.enter_context(TorSide(tor_network, fleet, folder))
            (folder / "feeder").mkdir()
            feeder = stack.enter_context(Project(folder / "feeder", fleet.operator.ledger))
            teams = self._begin(fleet, site, proxies, tor, feeder)
            scene = stack.enter_context(Scene(fleet, teams, lease=LEASE, proxies=proxies, tor=tor))
            began = time.monotonic()
            try:
                asyncio.run(self._steer(scene, began, site, feeder))
            finally:
                took = time.monotonic() - began
                self.report.minutes_taken = round(took / 60, 1)
            scene.stop()
            _say("all workers have stopped; judging")
            self.report.pooler_crashes = scene.pooler_crashes
            asyncio.run(judging.judge_runs(scene, self.report))
            self.report.politeness = asyncio.run(judging.judge_visits(scene, site, proxies, self.tolerance))
            self.report.tor = None if tor is None else tor.judge()
            self.report.pages_per_second = round(sum(run.done for run in self.report.runs.values()) / took, 1)

    def _begin(
        self, fleet: Fleet, site: LoggedSite, proxies: Proxies, tor: TorSide | None, feeder: Project
    ) -> dict[str, Team]:
        """Write the scrapers and enqueue their runs."""
        projects = [fleet.operator, feeder, *fleet.nodes, *([tor.project] if tor is not None else [])]
        code = SCRAPER.format(
            kinds=list(self._hostile.kinds),
            every=self._hostile.every,
            retries=self._hostile.retries,
            per_host=PER_HOST,
            url=site.url(site.hostile),
        )
        for project in projects:
            project.write(code)
            project.write(HOMES, "homes.py")
            project.write(ONION, "onion.py")
            (project.folder / "shoal.toml").write_text(HOMES_SETTINGS + (tor.settings if tor is not None else ""))
            addresses = project.folder / "proxies.txt"
            addresses.write_text(proxies.list)
            addresses.chmod(0o600)
        options = Scene.settings(LEASE)
        shop = list(dict.fromkeys(self._urls(site)))
        proxied = self._proxied
        teams = {
            "shop": Team(
                "shop",
                enqueue(fleet.operator, "shop", shop, "--keep-open"),
                fleet.nodes * WORKERS_PER_NODE,
                *options,
                slots=SLOTS,
            ),
            "homes": Team(
                "homes",
                enqueue(fleet.operator, "homes", (f"{site.url(site.proxied)}/page/{n}" for n in range(proxied))),
                fleet.nodes[:2],
                *options,
                slots=SIDE_SLOTS,
            ),
        }
        self.report.runs = {"shop": RunReport(items=self._all_items(shop)), "homes": RunReport(items=proxied)}
        if tor is not None:
            number = self._in_time(1 / TOR_DELAY, 10)
            run_id = enqueue(tor.project, "onion", (f"{tor.urls}/page/{n}" for n in range(number)))
            teams["onion"] = Team("onion", run_id, [tor.project], *options, slots=SIDE_SLOTS)
            self.report.runs["onion"] = RunReport(items=number)
        for host in site.paced:
            fleet.operator.shoal("lanes", "set", site.host(host), "--delay", f"{DELAY:g}", "--limit", "1")
        for host in site.narrow:
            fleet.operator.shoal("lanes", "set", site.host(host), "--limit", str(NARROW_LIMIT))
        return teams

    def _in_time(self, per_second: float, least: int) -> int:
        """How many pages of a slow host fit into the campaign."""
        return max(least, int(self._seconds * SHARE_OF_SLOW_HOSTS * per_second))

    def _urls(self, site: LoggedSite) -> Iterator[str]:
        """Paced and narrow hosts get what fits into the time, and no more than a tenth; the fast ones the rest."""
        paced = min(self._items // 20, self._in_time(len(site.paced) / DELAY, 1))
        narrow = min(self._items // 20, self._in_time(site.narrow_pages_per_second, 1))
        for number in range(paced):
            yield f"{site.url(site.paced[number % len(site.paced)])}/page/p{number}"
        for number in range(narrow):
            yield f"{site.url(site.narrow[number % len(site.narrow)])}/slow/{number}"
        yield from self._fast_urls(site, self._items - paced - narrow)

    def _fast_urls(self, site: LoggedSite, count: int) -> Iterator[str]:
        """The next so many pages of the fast hosts."""
        kinds = ("page",) * 16 + ("unsteady", "throttled", "moved", "missing")
        first, self._first_number = self._first_number, self._first_number + count
        for number in range(first, first + count):
            host = site.fast[number % len(site.fast)]
            yield f"{site.url(host)}/{kinds[number % len(kinds)]}/{number}"

    def _all_items(self, urls: Sequence[str]) -> int:
        """How many items these pages become, with the hostile ones that they lead to."""
        return len(urls) + sum(map(self._leads_to_hostile, urls))

    def _leads_to_hostile(self, url: str) -> bool:
        """As the scraper has it."""
        kind, number = url.rsplit("/", 2)[1:]
        return kind == "page" and number.isdecimal() and int(number) % self._hostile.every == 0

    async def _steer(self, scene: Scene, began: float, site: LoggedSite, feeder: Project) -> None:
        """Faults until their time is over or the runs have finished, with a look at what waits between them."""
        async with (
            ledger_context(Settings(ledger=scene.fleet.operator.ledger), migrate=False) as ledger,
            asyncio.TaskGroup() as tasks,
        ):
            until = began + self._seconds * SHARE_WITH_FAULTS
            tasks.create_task(self._add_items(ledger, scene.main, site, feeder, until))
            waits = WaitCheck(ledger, scene)
            while time.monotonic() - began < self._seconds and not await self._is_finished(ledger, scene):
                if time.monotonic() < until:
                    await self._strike(ledger, scene)
                else:
                    scene.keep_workers()
                    await asyncio.sleep(1)
                known = len(waits.false)
                await waits.look()
                for text in waits.false[known:]:
                    _say(text)
            self.report.waits_checked, self.report.unexplained = waits.checked, waits.false

    async def _add_items(self, ledger: Ledger, team: Team, site: LoggedSite, feeder: Project, until: float) -> None:
        """Enqueue more items whenever few are left, also in the middle of a fault; then the run may finish."""
        count = int(self._items * SHARE_TO_ADD)
        while time.monotonic() < until and self._adds > 0:
            if await _remaining(ledger, team) < count:
                urls = list(self._fast_urls(site, count))
                _say(f"enqueue {count} more items")
                more = ("enqueue", f"{team.name}.py", "--resume", "--keep-open", "--urls-file", feeder.urls(urls))
                await self._repeat(feeder, *more)
                self.report.runs[team.name].items += self._all_items(urls)
                self._adds -= 1
            await asyncio.sleep(1)
        await self._repeat(feeder, "runs", "seal", team.run_id)

    async def _repeat(self, project: Project, *command: str) -> None:
        """Run a command until it succeeds: what it had stored before it failed must not be stored again."""
        while (code := await asyncio.to_thread(lambda: project.start(*command).wait(COMMAND_SECONDS))) != 0:
            self.report.repeated_commands += 1
            _say(f"shoal {command[0]} ended with {code}, and is repeated")
            await asyncio.sleep(1)

    def _next_fault(self, scene: Scene) -> Fault:
        """Each fault comes once, in random order, before any of them comes again."""
        while True:
            if not self._next_faults:
                self._next_faults = self._random.sample(self.faults, len(self.faults))
            fault = self._next_faults.pop()
            team = scene.teams.get(fault.team)
            if team is not None and not team.is_finished:
                return fault
            if not any(not scene.teams[each.team].is_finished for each in self.faults if each.team in scene.teams):
                return fault

    async def _strike(self, ledger: Ledger, scene: Scene) -> None:
        await asyncio.sleep(self._random.uniform(*self._pause))
        scene.keep_workers()
        fault = self._next_fault(scene)
        team = scene.teams[fault.team]
        held = await _leases(scene, team)
        _say(f"{fault.name} ({await _done(ledger, scene.main)} done)")
        try:
            await asyncio.to_thread(fault.strike, scene, self._random)
        except Exception as error:
            # The campaign goes on: an hour is long, and the report says it.
            self.report.failed_faults.append(f"{fault.name}: {error}")
            _say(self.report.failed_faults[-1])
            await asyncio.to_thread(scene.mend)
        ended, before = time.monotonic(), await _done(ledger, team)
        first: float | None = None
        is_over = False  # the run has nothing left but what takes its time: its pace says nothing any more
        while first is None or held:
            scene.keep_workers()
            if first is None and await _done(ledger, team) > before:
                first = time.monotonic() - ended
            held &= await _leases(scene, team)
            is_over = await self._is_finished(ledger, scene) or team.is_finished or await _is_ending(ledger, team)
            if is_over:
                break
            if time.monotonic() - ended > STALL_SECONDS:
                self.report.stalls.append(await asyncio.to_thread(_describe, scene, fault))
                _say(self.report.stalls[-1])
                break
            await asyncio.sleep(0.1)
        seconds = round(time.monotonic() - ended, 2)
        self.report.faults[fault.name] = self.report.faults.get(fault.name, 0) + 1
        if not is_over:
            self.report.recoveries.append(Recovery(fault.name, seconds if first is None else round(first, 2), seconds))

    async def _is_finished(self, ledger: Ledger, scene: Scene) -> bool:
        for team in scene.teams.values():
            if not team.is_finished:
                try:
                    team.is_finished = (await ledger.runs.get(team.run_id)).state is RunState.FINISHED
                except ShoalError:
                    return False
        return all(team.is_finished for team in scene.teams.values())


async def _leases(scene: Scene, team: Team) -> set[tuple[int, int]]:
    """The leases of a run, without those of hostile pages, which take as long as they may."""
    statement = """
        select s.item, s.epoch from shoal.lease s join shoal.queue q on q.id = s.queue
        join shoal.stage g on g.id = q.stage join shoal.run r on r.no = s.run where r.id = $1 and g.name = 'page'
    """
    while True:
        try:
            connection = await asyncpg.connect(scene.fleet.operator.ledger, timeout=5)
            try:
                return {(row[0], row[1]) for row in await connection.fetch(statement, team.run_id)}
            finally:
                await connection.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            await asyncio.sleep(0.2)


async def _done(ledger: Ledger, team: Team) -> int:
    try:
        return (await ledger.reads.stats(team.run_id)).done
    except ShoalError:
        return sys.maxsize  # the database is away: nothing is known


async def _is_ending(ledger: Ledger, team: Team) -> bool:
    """Whether the workers of a run could hold all that is left of it."""
    return await _remaining(ledger, team) < team.slots


async def _remaining(ledger: Ledger, team: Team) -> int:
    try:
        return (await ledger.reads.stats(team.run_id)).remaining
    except ShoalError:
        return sys.maxsize  # the database is away: nothing is known


def _describe(scene: Scene, fault: Fault) -> str:
    """What an operator sees of a run that has stalled, and what its workers said last."""
    operator, team = scene.fleet.operator, scene.teams[fault.team]
    seen = [operator.shoal(*command).stdout for command in (("items", "why", team.run_id), ("workers", "ls"))]
    said = [worker.stderr[-400:] for worker in team.workers()]
    return "\n".join([f"after: {fault.name}", *seen, *said])


def _commit() -> str:
    """Of the code that runs, marked when it has changes that are not committed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.chaos.campaign", description=__doc__)
    options.add_argument("--minutes", type=float, default=60.0, help="the time budget (default: %(default)s)")
    options.add_argument("--items", type=int, default=1_000_000, help="pages to scrape (default: %(default)s)")
    options.add_argument("--seed", type=int, default=None, help="the order of faults; default: a random one")
    options.add_argument("--fault", action="append", help="only these faults, by name")
    options.add_argument("--no-tor", action="store_true", help="without the run that goes out through Tor")
    options.add_argument("--report", type=Path, help="write the report as JSON, also when it is interrupted")
    chosen = options.parse_args()
    # What it has started ends with it, also in the background of a shell.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    seed = random.SystemRandom().randrange(1 << 31) if chosen.seed is None else chosen.seed
    campaign = Campaign(
        minutes=chosen.minutes,
        items=chosen.items,
        seed=seed,
        faults=chosen.fault or [fault.name for fault in FAULTS],
    )
    report = campaign.report
    report.commit = _commit()
    try:
        with ExitStack() as stack:
            network = None
            if not chosen.no_tor:
                try:
                    network = stack.enter_context(TorNetwork())
                except MissingPartError as error:
                    report.left_out.append(f"without Tor: {error}")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-chaos-"))
            lab = stack.enter_context(Lab(fsync=True))
            campaign.execute(lab, Path(folder), network)
        if report.minutes_taken < SHARE_WITH_FAULTS * report.minutes:
            report.left_out.append(f"all items had ended after {report.minutes_taken:g} of {report.minutes:g} minutes")
        never = [fault.name for fault in campaign.faults if fault.name not in report.faults]
        if never:
            report.left_out.append(f"faults that never came: {', '.join(never)}")
    finally:
        if chosen.report is not None:
            chosen.report.parent.mkdir(parents=True, exist_ok=True)
            chosen.report.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    print(report.table())
    for text in (*report.politeness.examples, *report.unexplained, *report.audit, *report.failed_faults):
        print(text, file=sys.stderr)
    for problem in report.problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
