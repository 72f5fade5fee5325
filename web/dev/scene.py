"""A ledger to look at: what a small fleet did in the last 70 minutes, made through the ledger's own API.

The clock of the ledger is set by the simulation, and every choice comes from one seed, so two scenes differ in their
times only. Nothing is fetched. There are a run that goes on (records of counties: US states, sequential groups, a slow
host), one that is paused, finished ones (one with many failures), a collection, proxies, tokens and two schedules.

    python -m web.dev.scene [--port 8642]     serve a scene that goes on
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import math
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import uvicorn

from shoal.config import load_settings
from shoal.control.app import ControlOptions, build_app
from shoal.control.server import ControlServer
from shoal.ledger.sqlite.ledger import SqliteLedger, open_sqlite
from shoal.model.egress import (
    BudgetKey,
    BudgetPolicy,
    ExitReport,
    ExitSpec,
    GrantRequest,
    GrantUse,
    HealthRules,
    HostReport,
    exit_key,
)
from shoal.model.item import ClaimedItem, NewItem
from shoal.model.lane import LanePolicy, StartRequest
from shoal.model.outcome import (
    AttemptDecision,
    DecisionKind,
    FinishedAttempt,
    OutcomeClass,
    RetryPolicy,
    decide_attempt,
)
from shoal.model.run import COLLECTION_SCRAPER_PREFIX, Run, RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerReport, WorkerSpec

MINUTES = 70
TICK = 2.0
HEARTBEAT_TICKS, UPKEEP_TICKS, EGRESS_TICKS = 5, 10, 15
CODE = "7d1f02c9"
PROJECT = """
[scrapers.counties]
target = "counties.py"
schedule = "0 2 * * *"

[scrapers.catalog]
target = "catalog.py"

[scrapers.catalog.schedule]
every = "24h"

[scrapers.archive]
target = "archive.py"
"""
# A state, and how many of its records there are; the larger ones take longer.
STATES = {
    "AL": 18, "AZ": 24, "AR": 12, "CA": 96, "CO": 30, "CT": 16, "DE": 6, "FL": 72, "GA": 42, "IA": 16, "ID": 10,
    "IL": 48, "IN": 28, "KS": 14, "KY": 20, "LA": 18, "MA": 30, "MD": 26, "ME": 8, "MI": 40, "MN": 26, "MO": 28,
    "MS": 12, "MT": 8, "NC": 44, "ND": 6, "NE": 12, "NH": 8, "NJ": 38, "NM": 12, "NV": 16, "NY": 80, "OH": 46,
    "OK": 18, "OR": 20, "PA": 50, "RI": 6, "SC": 22, "SD": 6, "TN": 28, "TX": 104, "UT": 18, "VA": 36, "VT": 6,
    "WA": 34, "WI": 26, "WV": 10, "WY": 4,
}  # fmt: skip
# Sequential groups: their documents are numbered, and each needs the one before.
GROUPS = ("ca/los-angeles", "tx/harris", "fl/miami-dade", "ny/kings", "oh/franklin", "wa/king")
SLOW_HOST = "records.texas.example"
KINDS = ("Warranty", "Quitclaim", "Tax", "Trust")
TITLES = ("deed", "lien", "plat", "mortgage", "easement", "release")
PROXIES = [f"203.0.113.{n}:3128" for n in (4, 9, 17, 23, 31, 42, 58, 66, 71, 85, 90, 112)]
PROXY_HOSTS = tuple(
    f"records.{state}.example" for state in ("texas", "california", "florida", "newyork", "ohio", "maine")
)
TOKENS = ("GEO_TOKEN_1", "GEO_TOKEN_2", "GEO_TOKEN_3")


Fault = tuple[float, OutcomeClass, str]
CHALLENGE = "403 with a challenge page (captcha)"
NOT_FOUND = "404 Not Found: URL"
# The share of attempts that end so.
THROTTLE: tuple[Fault, ...] = ((0.03, OutcomeClass.THROTTLED, "429 Too Many Requests, Retry-After: 25"),)
FAULTS: tuple[Fault, ...] = (
    (0.008, OutcomeClass.PERMANENT, NOT_FOUND),
    (0.015, OutcomeClass.TRANSIENT, "Connection reset by peer"),
    (0.012, OutcomeClass.TRANSIENT, "Timed out after 30.0 s"),
    (0.01, OutcomeClass.TRANSIENT, "502 Bad Gateway"),
    (0.005, OutcomeClass.BLOCKED, CHALLENGE),
    (0.01, OutcomeClass.SKIPPED, "robots.txt forbids it"),
)
ARCHIVE_FAULTS: tuple[Fault, ...] = (
    (0.09, OutcomeClass.PERMANENT, NOT_FOUND),
    (0.07, OutcomeClass.PERMANENT, "The page has no element 'article.story': the template has changed."),
    (0.26, OutcomeClass.TRANSIENT, "Timed out after 30.0 s while reading the body"),
    (0.04, OutcomeClass.BLOCKED, CHALLENGE),
)
STAGE_FAULTS: dict[str, tuple[Fault, ...]] = {
    "index": ((0.03, OutcomeClass.TRANSIENT, "502 Bad Gateway"),),
    "member": ((0.12, OutcomeClass.PERMANENT, "exit code 1: 14 of 20 items are dead"),),
}


@dataclass
class Clock:
    """The ledger's clock: it stands where the simulation has put it, or goes on from there."""

    now: float
    began: float | None = None

    def __call__(self) -> float:
        return self.now if self.began is None else self.now + time.monotonic() - self.began

    def go_on(self) -> None:
        self.began = time.monotonic()


@dataclass
class Going:
    """An attempt: when it ends, and what it ends with."""

    claimed: ClaimedItem
    claimed_at: float
    start: float
    end: float
    outcome: OutcomeClass | None
    error: str


@dataclass
class Crew:
    """A worker: what it has claimed and not committed."""

    id: str
    node: str
    slots: int
    scope: Scope
    going: list[tuple[float, int, Going]] = field(default_factory=list)


@dataclass
class Scene:
    ledger: SqliteLedger
    clock: Clock
    rng: random.Random
    folder: Path
    crews: list[Crew] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    ticks: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def tick(self) -> None:
        """Two seconds of the fleet."""
        if self.clock.began is None:
            self.clock.now += TICK
        self.ticks += 1
        now = self.clock()
        for crew in self.crews:
            await self._work(crew, now)
        if self.ticks % HEARTBEAT_TICKS == 0:
            for crew in self.crews:
                await self._heartbeat(crew, now)
        if self.ticks % EGRESS_TICKS == 0:
            await self._report_egress()
        if self.ticks % UPKEEP_TICKS == 0:
            await self.ledger.upkeep.run_once()

    async def _work(self, crew: Crew, now: float) -> None:
        """Claims come before commits, so that an item waits for a worker for a moment."""
        await self._claim(crew, now)
        ended: list[FinishedAttempt] = []
        while crew.going and crew.going[0][0] <= now:
            _, _, going = heapq.heappop(crew.going)
            ended.append(self._end(going))
        if ended:
            await self.ledger.commits.commit(crew.id, ended)

    async def _claim(self, crew: Crew, now: float) -> None:
        room = crew.slots - len(crew.going)
        claimed = await self.ledger.claims.claim(crew.id, crew.scope, room) if room > 0 else []
        started = [item.lease for item in claimed if not item.paced]
        if started:
            await self.ledger.claims.mark_started(crew.id, started)
        for item in claimed:
            wait = 0.0
            if item.paced and item.lane is not None:
                reserved = await self.ledger.lanes.reserve(
                    crew.id, item.lane, StartRequest(leases=(item.lease,)), run_id=item.run_id
                )
                wait = reserved.waits[0]
            outcome, error = self._fault(item)
            start = now + wait
            going = Going(item, now, start, start + self._seconds(item, error), outcome, error)
            heapq.heappush(crew.going, (going.end, next(self.numbers), going))

    async def _heartbeat(self, crew: Crew, now: float) -> None:
        running: dict[int, int] = {}
        items: list[tuple[int, float]] = []
        for _, _, going in crew.going:
            if going.start <= now:
                running[going.claimed.run_no] = running.get(going.claimed.run_no, 0) + 1
                items.append((going.claimed.item, now - going.start))
        items.sort(key=lambda pair: -pair[1])
        await self.ledger.workers.heartbeat(crew.id, WorkerReport(running=running, items=tuple(items)))

    def _seconds(self, item: ClaimedItem, error: str) -> float:
        """How long an attempt takes: some are slow, and the slow host is slow for everyone."""
        if error.startswith("Timed out"):
            return 30.0
        median = {"index": 1.2, "record": 1.6, "document": 3.5, "member": 90.0}.get(item.stage, 1.0)
        if SLOW_HOST in (item.url or ""):
            median *= 2.2
        return median * math.exp(self.rng.gauss(0, 0.45))

    def _end(self, going: Going) -> FinishedAttempt:
        item, rng = going.claimed, self.rng
        seconds = going.end - going.start
        waited = None if item.waited is None else item.waited + going.start - going.claimed_at
        egress = {"egress": f"residential {rng.choice(PROXIES)}"} if item.stage in ("record", "document") else None
        if going.outcome is not None:
            decision = decide_attempt(
                going.outcome,
                tries=item.tries,
                max_attempts=item.max_attempts,
                error=going.error,
                policy=RetryPolicy(factor=3.0),
                rng=rng,
                retry_after=25.0 if going.outcome is OutcomeClass.THROTTLED else None,
            )
            return FinishedAttempt(lease=item.lease, decision=decision, seconds=seconds, waited=waited, detail=egress)
        records, follow_ups = self._output(item)
        return FinishedAttempt(
            lease=item.lease,
            decision=AttemptDecision(DecisionKind.DONE, OutcomeClass.DONE),
            records=tuple(msgspec.json.encode(record).decode() for record in records),
            follow_ups=tuple(follow_ups),
            seconds=seconds,
            waited=waited,
            detail=egress,
        )

    def _fault(self, item: ClaimedItem) -> tuple[OutcomeClass | None, str]:
        """Most attempts succeed. The archive's template has changed, and its host is slow; the slow host throttles."""
        draw, url = self.rng.random(), item.url or ""
        if "archive" in self.runs and item.run_id == self.runs["archive"].id:
            faults = ARCHIVE_FAULTS
        elif item.stage in STAGE_FAULTS:
            faults = STAGE_FAULTS[item.stage]
        else:
            faults = (*THROTTLE, *FAULTS) if SLOW_HOST in url else FAULTS
        for share, outcome, error in faults:
            if draw < share:
                return outcome, error.replace("URL", url)
            draw -= share
        return None, ""

    def _output(self, item: ClaimedItem) -> tuple[list[dict[str, object]], list[NewItem]]:
        rng = self.rng
        if item.stage == "index":
            number = int((item.url or "/0").rpartition("/")[2])
            return [], counties_found(item.partition, number, rng)
        if item.stage == "member":
            dead = int(rng.random() < 0.2) * rng.randrange(1, 4)
            status = "warning" if dead else "success"
            done = rng.randrange(40, 160)
            report = {
                "member": item.key,
                "status": status,
                "reason": f"{dead} dead" if dead else "",
                "done": done,
                "dead": dead,
            }
            return [{**report, "records": done - rng.randrange(6), "seconds": round(rng.uniform(40, 160), 1)}], []
        record: dict[str, object] = {
            "id": item.item,
            "kind": rng.choice(TITLES),
            "title": f"{rng.choice(KINDS)} {rng.choice(TITLES)} of lot {rng.randrange(1, 400)}",
            "state": item.partition or None,
            "price": round(rng.lognormvariate(12, 0.6)) if rng.random() < 0.82 else None,
            "filed": f"2026-0{rng.randrange(1, 6)}-{rng.randrange(10, 28)}",
            "pages": rng.randrange(1, 24),
        }
        return [record], []

    def _host_report(self, n: int, h: int, host: str) -> HostReport:
        """Some hosts block some proxies now, others have done so before."""
        keeps_out, is_wary = (n * 5 + h * 3) % 4 == 0, (n * 2 + h) % 4 == 0
        return HostReport(
            host=host,
            succeeded=0 if keeps_out else self.rng.randrange(2, 9),
            blocked=3 if keeps_out else int(is_wary),
            blocks_in_row=3 if keeps_out else 0,
            error=CHALLENGE if keeps_out or is_wary else "",
        )

    async def _report_egress(self) -> None:
        crew, rng = self.crews[0], self.rng
        reports = []
        for n, key in enumerate(map(exit_key, PROXIES)):
            if n == 5:  # refuses connections
                reports.append(
                    ExitReport(key=key, failed=4, failures_in_row=4 * self.ticks, error="connection refused")
                )
                continue
            hosts = [self._host_report(n, h, host) for h, host in enumerate(PROXY_HOSTS) if (n + h) % 4]
            reports.append(
                ExitReport(key=key, succeeded=rng.randrange(3, 12), failed=int(rng.random() < 0.2), hosts=tuple(hosts))
            )
        await self.ledger.exits.report(crew.id, "residential", reports, HealthRules(ban_for=7_200.0))
        for n, token in enumerate(TOKENS):
            for resource, calls, window in (("geocode", 5_000, 14_400.0), ("search", 1_800, 14_400.0)):
                budget = BudgetKey("geo", exit_key(token), resource)
                taken = (2 + n * 3 + rng.randrange(3)) * (4 if resource == "geocode" else 1)
                number = rng.getrandbits(60)
                grant = await self.ledger.budgets.take(
                    budget, GrantRequest(grant=number, calls=taken, seconds=20.0, policy=BudgetPolicy(calls, window))
                )
                used = GrantUse(grant=number, made=grant.calls, answered=(self.clock(),) * grant.calls)
                await self.ledger.budgets.settle(budget, [used])


def state_host(state: str) -> str:
    names = {"TX": "texas", "CA": "california", "FL": "florida", "OH": "ohio", "ME": "maine", "NY": "newyork"}
    return f"records.{names.get(state, state.lower())}.example"


def counties_found(state: str, number: int, rng: random.Random) -> list[NewItem]:
    """What an index page leads to: records of any order, and numbered documents of a county."""
    host = state_host(state)
    base = 100 * number
    found = [
        NewItem(url=f"https://{host}/record/{base + n}", stage="record", partition=state, lane=host)
        for n in range(rng.randrange(16, 24))
    ]
    groups = [group for group in GROUPS if group.startswith(state.lower() + "/")]
    for group in groups:
        found += [
            NewItem(url=f"https://{host}/{group}/doc/{base + n}", stage="document", partition=state, lane=group)
            for n in range(40)
        ]
    return found


async def open_scene(
    folder: Path, *, seed: int = 7, minutes: float = MINUTES, said: Callable[[str], object] = str
) -> Scene:
    """Fill a new ledger in the folder with so many minutes, the last of which is now."""
    (folder / "shoal.toml").write_text(PROJECT)
    clock = Clock(math.floor(time.time()) - minutes * 60)
    ledger = await open_sqlite(folder / "ledger.db", clock=clock, readers=4)
    await ledger.schema.migrate()
    scene = Scene(ledger, clock, random.Random(seed), folder)
    await _begin(scene)
    ticks = round(minutes * 60 / TICK)
    for done in range(ticks):
        await _direct(scene, done * TICK / 60)
        await scene.tick()
        if done % 150 == 0:
            said(f"{done * 100 // ticks} % of the scene")
    for crew in scene.crews:
        await scene._heartbeat(crew, clock())
    while (await ledger.upkeep.run_once()).more:
        pass
    return scene


async def _begin(scene: Scene) -> None:
    ledger = scene.ledger
    before = await ledger.runs.create(
        RunSpec(scraper="counties", stages=_stages(), settings={"concurrency": 24}, code_version="41be90aa")
    )
    scene.runs["before"] = before
    await ledger.intake.enqueue(before.id, [_index(state, n) for state in list(STATES)[:12] for n in range(1)])
    await ledger.runs.seal(before.id)
    for node, number in (("node-a", 2), ("node-b", 2), ("node-c", 1)):
        for n in range(number):
            await _add_worker(scene, node, n)
    for crew in scene.crews:
        await _use_egress(scene, crew)
    await ledger.exits.rest("residential", exit_key(PROXIES[-1]), 5_400.0, by="ann@desk")


async def _use_egress(scene: Scene, crew: Crew) -> None:
    proxies = [ExitSpec(exit_key(label), label) for label in PROXIES]
    await scene.ledger.exits.register(crew.id, "residential", "proxies", proxies)
    tokens = [ExitSpec(exit_key(name), name) for name in TOKENS]
    await scene.ledger.exits.register(crew.id, "geo", "tokens", tokens)


def _stages() -> tuple[StageSpec, ...]:
    return (
        StageSpec("index", lane=LanePolicy(limit=2)),
        StageSpec("record", lane=LanePolicy(limit=3, delay_min=9.0, delay_max=14.0)),
        StageSpec("document", lane=LanePolicy(limit=1, ordered=True, shared=False)),
    )


def _index(state: str, n: int) -> NewItem:
    return NewItem(url=f"https://{state_host(state)}/index/{n}", stage="index", partition=state)


async def _add_worker(scene: Scene, node: str, n: int) -> None:
    name = f"{node}-{4000 + 137 * len(scene.crews)}-{scene.rng.getrandbits(32):08x}"
    crew = Crew(name, node, slots=8, scope=Scope())
    await scene.ledger.workers.register(
        WorkerSpec(id=name, node=node, pid=4000 + 137 * len(scene.crews), version="1.0", code=CODE)
    )
    scene.crews.append(crew)


async def _direct(scene: Scene, minute: float) -> None:
    """What people do, at their minutes."""
    ledger, runs = scene.ledger, scene.runs
    if minute >= 6 and "papers" not in runs:
        member = StageSpec("member", lane=LanePolicy(limit=1, ordered=True, shared=False))
        runs["papers"] = await ledger.runs.create(
            RunSpec(scraper=COLLECTION_SCRAPER_PREFIX + "papers", stages=(member,), max_attempts=1, code_version=CODE)
        )
        members = [
            NewItem(key=f"{group or 'daily'}/{name}", lane=group, payload={"group": group})
            for group, name in itertools.product((None, "north", "south"), ("gazette", "herald", "post", "times"))
        ]
        await ledger.intake.enqueue(runs["papers"].id, members)
        await ledger.runs.seal(runs["papers"].id)
    if minute >= 12 and "counties" not in runs:
        run = await ledger.runs.create(
            RunSpec(scraper="counties", stages=_stages(), settings={"concurrency": 24}, code_version=CODE)
        )
        runs["counties"] = run
        pages = [_index(state, n) for state, count in STATES.items() for n in range(count // 4 + 1)]
        scene.rng.shuffle(pages)
        await ledger.intake.enqueue(run.id, pages)
        await ledger.runs.seal(run.id)
        await ledger.lanes.set(SLOW_HOST, limit=1, delay=(20.0, 30.0), by="ann@desk")
    if minute >= 20 and "catalog" not in runs:
        run = await ledger.runs.create(
            RunSpec(scraper="catalog", stages=(StageSpec("record", lane=LanePolicy(limit=6)),), code_version="90aa12fe")
        )
        runs["catalog"] = run
        items = [
            NewItem(
                url=f"https://shop.example/p/{n}", lane="shop.example", partition=("garden", "kitchen", "toys")[n % 3]
            )
            for n in range(4_200)
        ]
        await ledger.intake.enqueue(run.id, items)
    if minute >= 28 and "archive" not in runs:
        runs["archive"] = archive = await ledger.runs.create(
            RunSpec(
                scraper="archive",
                stages=(StageSpec("record", max_attempts=3, lane=LanePolicy(limit=4)),),
                settings={"concurrency": 12, "retries": 2},
                code_version="c03d55e1",
            )
        )
        urls = [
            NewItem(url=f"https://{host}/story/{n}", stage="record", lane=host)
            for n in range(420)
            for host in ("news.example", "gazette.example", "herald.example")
        ]
        await ledger.intake.enqueue(archive.id, urls)
        await ledger.runs.seal(archive.id)
    if minute >= 34 and len(scene.crews) == 5:
        await _add_worker(scene, "node-c", 2)
        await _use_egress(scene, scene.crews[-1])
        detail = {"from": 5, "to": 6, "most": 8, "what": "workers", "why": "ann@desk asked for it"}
        await ledger.runs.record_event(runs["counties"].id, "scaled", "pool node-c", detail, by="ann@desk")
    if minute >= 41 and runs.get("catalog") and (await ledger.runs.get(runs["catalog"].id)).state == "active":
        await ledger.runs.pause(runs["catalog"].id, by="bob@desk")
    if minute >= 52 and "faster" not in runs:
        runs["faster"] = runs["counties"]
        await ledger.lanes.set(SLOW_HOST, limit=2, delay=(12.0, 16.0), by="ann@desk")


@asynccontextmanager
async def served(scene: Scene, port: int = 0) -> AsyncIterator[str]:
    """Serve the scene; yields the address."""
    settings = load_settings({"ledger": str(scene.folder / "ledger.db")}, environ={}, folder=scene.folder)
    app = build_app(settings, ControlOptions(port=port), opened=lambda: scene.ledger)
    server = ControlServer(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on", ws="websockets-sansio")
    )
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.05)
        bound: Sequence[object] = server.servers[0].sockets[0].getsockname()
        yield f"http://127.0.0.1:{bound[1]}/"
    finally:
        server.should_exit = True
        await task


async def _serve(port: int) -> None:
    with tempfile.TemporaryDirectory(prefix="shoal-scene-") as folder:
        scene = await open_scene(Path(folder), said=print)
        scene.clock.go_on()
        async with served(scene, port) as url:
            print(url, flush=True)
            while True:
                await scene.tick()
                await asyncio.sleep(TICK)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8642)
    asyncio.run(_serve(parser.parse_args().port))
