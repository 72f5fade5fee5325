"""Every request obeys the lane of the host it goes to, also after a redirect. The log of the site is the proof."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shoal import Http, Item, Page, Scraper, Throttled
from shoal.config import Settings
from shoal.fetch.page import Request, suspended
from shoal.ledger.protocols import Ledger
from shoal.model.item import ClaimedItem, ItemState
from shoal.model.run import Run
from shoal.model.views import ItemView
from shoal.model.worker import Scope, WorkerSpec
from shoal.observe.logs import open_logs
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker import host_slots, politeness, state
from shoal.worker.host_slots import HostSlots
from shoal.worker.lane_starts import RateLimiter
from shoal.worker.politeness import Politeness, WorkerPace
from shoal.worker.state import WorkerEvents, WorkerIdentity, WorkerOptions, boottime_seconds
from tests.support.site import HOSTS, Site, Visit, closest_starts, most_at_once, of_host

LOG = open_logs(format="console", level="error", file=None, stream=None).log
SENDERS, TARGET = HOSTS[:8], HOSTS[8]
# What may lie between the moment that a request may leave and its arrival; on a busy machine that varies.
LEEWAY = 0.04
SITE_LEEWAY = 0.06


class Crew:
    """Workers in one process, each with its own ledger and fetcher, as in several processes."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings = settings
        self.ledger = ledger
        self.scraper = Scraper("crew")
        self.run: Run | None = None

    def pages(self, **options: object) -> None:
        """A stage that fetches its items' pages."""

        async def page(page: Page) -> AsyncIterator[dict[str, str]]:
            yield {"url": page.url}

        self.scraper.stage(**options)(page)  # type: ignore[call-overload]

    def calls(self, *, check: bool = True, **options: object) -> None:
        """A stage whose items have no URL: its handler asks for one."""

        async def call(item: Item, http: Http) -> AsyncIterator[dict[str, int]]:
            page = await http.get(item.payload["url"], check=check)
            yield {"status": page.status}

        self.scraper.stage(**options)(call)  # type: ignore[call-overload]

    async def fill(self, urls: Sequence[str]) -> None:
        stage = self.scraper.first_stage
        self.run = await self.ledger.runs.create(self.scraper.run_spec())
        if stage.fetches:
            items = [stage.item(url, key=f"{n} {url}") for n, url in enumerate(urls)]
        else:
            items = [stage.item(key=str(n), payload={"url": url}) for n, url in enumerate(urls)]
        await self.ledger.intake.enqueue(self.run.id, items)
        await self.ledger.runs.seal(self.run.id, by="test")

    async def work(self, workers: int = 1, *, concurrency: int = 16, **options: object) -> None:
        async with AsyncExitStack() as stack:
            tasks = []
            for _ in range(workers):
                ledger = await stack.enter_async_context(ledger_context(self.settings))
                fetcher = build_fetcher(self.settings)
                stack.push_async_callback(fetcher.close)
                chosen = WorkerOptions(scope=Scope(scraper="crew"), concurrency=concurrency, lease=10.0, **options)  # type: ignore[arg-type]
                worker = build_worker(self.scraper, self.settings, ledger, fetcher, chosen, log=LOG)
                tasks.append(asyncio.create_task(worker.work()))
            try:
                async with asyncio.timeout(30):
                    await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def items(self) -> tuple[ItemView, ...]:
        assert self.run is not None
        return (await self.ledger.reads.items(self.run.id, limit=1_000)).rows

    async def check_all_done(self, count: int) -> None:
        items = await self.items()
        assert [item.state for item in items] == [ItemState.DONE] * count, [item.error for item in items]
        assert {item.tries for item in items} == {1}, "an item was charged for a host that was closed or full"
        assert await self.ledger.upkeep.audit() == []


@pytest.fixture(params=["sqlite", "postgres"])
async def crew(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Crew]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    settings = Settings(ledger=place, lease=10.0)
    async with ledger_context(settings, migrate=True) as ledger:
        yield Crew(settings, ledger)


def detours(site: Site, path: str, count: int) -> list[str]:
    """URLs at all other hosts that redirect to a path of the target."""
    return [f"{site.url_of(SENDERS[n % len(SENDERS)])}/elsewhere/{TARGET}{path}?{n}" for n in range(count)]


def fewest_seconds(starts: Sequence[float], delay: float) -> float:
    """By how much any number of starts comes too fast, in seconds: two, three, or all of them."""
    return max(
        (
            (last - first) * delay - (starts[last] - starts[first])
            for first in range(len(starts))
            for last in range(first + 1, len(starts))
        ),
        default=0.0,
    )


@pytest.mark.parametrize("workers", [1, 3])
async def test_the_rate_holds_for_a_host_reached_by_redirects_only(crew: Crew, workers: int) -> None:
    crew.pages(rate="20/s")
    with Site() as site:
        await crew.fill(detours(site, "/page/1", 24))
        await crew.work(workers)
        visits = of_host(site.visits(), TARGET)
    starts = sorted(visit.arrived for visit in visits)
    assert len([visit for visit in visits if visit.path != "/robots.txt"]) == 24
    assert fewest_seconds(starts, 0.05) <= SITE_LEEWAY, "starts came faster than the rate"
    await crew.check_all_done(24)


async def test_the_limit_of_a_host_reached_by_redirects_only_holds_over_all_workers(crew: Crew) -> None:
    crew.pages(concurrency=3)
    with Site() as site:
        await crew.fill(detours(site, "/slow/0.1/x", 30))
        await crew.work(6, concurrency=8)
        visits = site.visits()
    assert most_at_once(visits, TARGET) == 3
    await crew.check_all_done(30)


async def test_redirected_requests_and_items_of_a_host_share_its_limit(crew: Crew) -> None:
    crew.pages(concurrency=3)
    with Site() as site:
        own = [f"{site.url_of(TARGET)}/slow/0.1/own/{n}" for n in range(12)]
        await crew.fill([*own, *detours(site, "/slow/0.1/sent", 12)])
        await crew.work(3, concurrency=8)
        visits = site.visits()
    assert most_at_once(visits, TARGET) == 3
    await crew.check_all_done(24)


async def test_a_429_blocks_the_host_that_answered_and_not_the_one_that_redirected(crew: Crew) -> None:
    crew.pages()
    with Site() as site:
        pages = [f"{site.url_of(sender)}/slow/0.05/{n}" for sender in SENDERS for n in range(6)]
        await crew.fill([*detours(site, "/throttle/4", 24), *pages])
        await crew.work(3)
        visits = site.visits()
    refused = [visit for visit in of_host(visits, TARGET) if visit.status == 429]
    first = refused[0]
    assert len(refused) <= 3 * 8, "what was under way when it answered, no more"
    heard = (first.end or first.start) + 2.0
    assert [visit.path for visit in of_host(visits, TARGET) if heard < visit.start < first.start + 3.9] == []
    meanwhile = [visit for visit in visits if visit.host in SENDERS and heard < visit.start < first.start + 3.9]
    assert meanwhile or max(visit.start for visit in visits if "/slow/" in visit.path) < heard, (
        "the senders were not blocked"
    )
    lanes = [await crew.ledger.lanes.get(f"{sender}:{site.port}") for sender in SENDERS]
    assert {lane.blocked_why for lane in lanes} == {None}
    await crew.check_all_done(24 + len(pages))


@pytest.mark.parametrize("check", [True, False])
async def test_an_api_that_answers_429_gets_no_more_requests(crew: Crew, check: bool) -> None:
    """60 items without a URL: running ones get the 429, the others wait without a request and are not charged."""
    crew.calls(check=check)
    with Site() as site:
        await crew.fill([f"{site.url_of(TARGET)}/throttle/2"] * 60)
        await crew.work(2, concurrency=32)
        visits = [visit for visit in site.visits() if "/throttle/" in visit.path]
    refused = [visit for visit in visits if visit.status == 429]
    assert 1 <= len(refused) <= 8, "the limit of a host, once"
    between = [visit for visit in visits if (refused[-1].end or 0) < visit.start < refused[0].start + 1.9]
    assert between == []
    await crew.check_all_done(60)


async def test_a_slot_is_not_passed_on_at_a_host_that_has_just_answered_429(crew: Crew) -> None:
    """A request waits for the only slot while another one gets the 429: it is not sent."""
    crew.calls()
    await crew.fill([f"http://{TARGET}/"] * 2)
    await crew.ledger.lanes.set(TARGET, limit=1)
    await crew.ledger.workers.register(WorkerSpec(id="one", node="n", pid=1))
    first, second = await crew.ledger.claims.claim("one", Scope(scraper="crew"), 2)
    identity = WorkerIdentity(WorkerEvents())
    identity.register_as("one")
    slots = HostSlots(crew.ledger.lanes, identity)
    pool = slots.pool_for(TARGET)
    try:
        async with asyncio.timeout(20):
            slot = await pool.acquire(first, None)
            waiting = asyncio.create_task(pool.acquire(second, None))
            await asyncio.sleep(0)
            pool.release(slot)
            pool.close_for(60, "429 Too Many Requests")
            with pytest.raises(Throttled, match="is closed for 60 s: 429 Too Many Requests"):
                await waiting
    finally:
        await slots.close()


@pytest.mark.parametrize("own_url", [True, False])
async def test_a_request_that_waits_for_its_start_is_not_sent_after_a_429(crew: Crew, own_url: bool) -> None:
    """One request at a time has a start; the next one was reserved before the first got the 429."""
    crew.scraper = Scraper("crew", robots=False)
    if own_url:
        crew.pages(delay=1)
    else:
        crew.calls()
    with Site() as site:
        await crew.fill([f"{site.url_of(TARGET)}/throttle/2"] * 3)
        await crew.ledger.lanes.set(f"{TARGET}:{site.port}", delay=(1, 1), limit=4)
        await crew.work(concurrency=4)
        statuses = [visit.status for visit in site.visits()]
    assert statuses == [429] + [200] * 3
    await crew.check_all_done(3)


async def test_why_names_the_host_that_an_item_waits_for(crew: Crew) -> None:
    crew.calls()
    with Site() as site:
        await crew.fill([f"{site.url_of(TARGET)}/status/429?retry-after=600"] * 12)
        await crew.work(stop_when_idle=True)
        assert crew.run is not None
        for item in await crew.items():
            gates = await crew.ledger.reads.why_item(crew.run.id, item.id)
            assert any(f"{TARGET}:{site.port}" in gate.text for gate in gates), gates
    assert len([visit for visit in site.visits() if visit.path != "/robots.txt"]) <= 8


async def test_hosts_that_redirect_to_each_other(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request holds the only slot of one host and waits for that of the other: one gives up, and all succeed."""
    monkeypatch.setattr(host_slots, "STUCK_SECONDS", (0.1, 0.4))
    monkeypatch.setattr(host_slots, "NO_SLOT_DELAY_SECONDS", (0.05, 0.3))
    crew.pages(concurrency=1)
    one, two = HOSTS[:2]
    with Site() as site:
        crossing = [
            f"{site.url_of(source)}/elsewhere/{target}/slow/0.05/{n}"
            for n in range(4)
            for source, target in ((one, two), (two, one))
        ]
        await crew.fill(crossing)
        await crew.work(2, concurrency=4)
        visits = site.visits()
    assert max(most_at_once(visits, host) for host in (one, two)) == 1
    await crew.check_all_done(len(crossing))


async def test_the_slots_of_a_dead_worker_are_free_again(crew: Crew) -> None:
    crew.pages(concurrency=1)
    with Site() as site:
        await crew.fill(detours(site, "/slow/0.05/x", 4))
        assert crew.run is not None
        key = f"{TARGET}:{site.port}"
        await crew.ledger.workers.register(WorkerSpec(id="ghost", node="n", pid=1, lease_seconds=1.0))
        answer = await crew.ledger.lanes.request_slot("ghost", key, 7, run_id=crew.run.id, stage="page")
        assert answer.granted
        await crew.work()
    await crew.check_all_done(4)


class Suspension:
    """The clock jumps, as for a process that was stopped in the middle of an attempt, until `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = 0.0
        self.ended_at = 0.0
        monkeypatch.setattr(state, "boottime_seconds", lambda: boottime_seconds() + self._seconds)

    def begin(self) -> None:
        self.ended_at = math.inf
        self._seconds = 3600.0

    def end(self) -> None:
        self.ended_at = time.monotonic()
        self._seconds = 0.0


def of_page(site: Site) -> list[Visit]:
    return [visit for visit in site.visits() if visit.path == "/page/1"]


async def test_a_worker_that_was_stopped_sends_nothing_until_its_lease_is_confirmed(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspension = Suspension(monkeypatch)
    crew.pages()

    @crew.scraper.before_request
    async def stop(request: Request) -> None:
        suspension.begin()
        asyncio.get_running_loop().call_later(0.3, suspension.end)

    with Site() as site:
        await crew.fill([f"{site.url}/page/1"])
        await crew.work()
        (visit,) = of_page(site)
    assert visit.start >= suspension.ended_at
    await crew.check_all_done(1)


async def test_a_worker_that_was_stopped_sends_nothing_for_an_item_that_it_has_lost(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has declared it dead meanwhile: the next attempt makes the request, and it is not made twice."""
    suspension = Suspension(monkeypatch)
    crew.pages()
    tasks: list[asyncio.Task[None]] = []
    attempts = 0

    async def end_when_registered_again(before: str) -> None:
        while {worker.id for worker in await crew.ledger.workers.list()} <= {before}:  # noqa: ASYNC110 - the ledger is asked
            await asyncio.sleep(0.01)
        suspension.end()

    @crew.scraper.before_request
    async def stop(request: Request) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            (worker,) = await crew.ledger.workers.list()
            await crew.ledger.workers.stop(worker.id)
            suspension.begin()
            tasks.append(asyncio.create_task(end_when_registered_again(worker.id)))

    with Site() as site:
        await crew.fill([f"{site.url}/page/1"])
        await crew.work()
        for task in tasks:  # a worker that has ended may never have been listed beside the first one
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [end for end in ends if isinstance(end, Exception)] == []
        assert (attempts, len(of_page(site))) == (2, 1)
    assert [item.state for item in await crew.items()] == [ItemState.DONE]


def intervals(visits: Sequence[Visit]) -> list[float]:
    starts = sorted(visit.arrived for visit in visits)
    return sorted(later - earlier for earlier, later in itertools.pairwise(starts))


@pytest.mark.parametrize("rate", [20, 50])
async def test_the_rate_that_was_asked_for_is_reached_and_never_exceeded(crew: Crew, rate: int) -> None:
    """Where the machine has time, starts are as far apart as asked, within 5 %. Where it has none, they are farther.

    How much time it has is told by a loop beside it that only sleeps: each start waits for more than one such sleep.
    """
    crew.pages(rate=f"{rate}/s")
    naps: list[float] = []

    async def only_sleep() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(1 / rate)
            naps.append(time.monotonic() - began)

    with Site() as site:
        await crew.fill([f"{site.url}/page/{n}" for n in range(1, 41)])
        sleeper = asyncio.create_task(only_sleep())
        await crew.work()
        sleeper.cancel()
        visits = [visit for visit in site.visits() if visit.path != "/robots.txt"]
    assert fewest_seconds(sorted(visit.arrived for visit in visits), 1 / rate) <= SITE_LEEWAY
    between = intervals(visits)
    assert between[len(between) // 2] >= 1 / rate - 0.002
    disturbed = max(0.0, sorted(naps)[len(naps) // 2] - 1 / rate - 0.002)
    assert between[len(between) // 4] <= 1.05 / rate + 3 * disturbed
    await crew.check_all_done(40)


async def test_starts_of_several_workers_are_never_too_close(crew: Crew) -> None:
    """On one clock, when requests are sent: more exact than the log of a site."""
    crew.pages(delay=0.03)
    await crew.fill([])
    assert crew.run is not None
    await crew.ledger.lanes.set("host", delay=(0.03, 0.03), limit=20)
    left: list[float] = []

    async def visit(starts: RateLimiter, count: int) -> None:
        for _ in range(count):
            start = starts.reservation("host", None, None)
            try:
                await start.reserve(None, None)
                await start.before_send()
                left.append(boottime_seconds())
                start.after_send()
            finally:
                start.close()

    async with AsyncExitStack() as stack:
        visitors = []
        for name in ("one", "two", "three"):
            ledger = await stack.enter_async_context(ledger_context(crew.settings))
            await ledger.workers.register(WorkerSpec(id=name, node="n", pid=1))
            identity = WorkerIdentity(WorkerEvents())
            identity.register_as(name)
            starts = RateLimiter(ledger.lanes, identity)
            visitors += [visit(starts, 5) for _ in range(2)]
        async with asyncio.timeout(20):
            await asyncio.gather(*visitors)
    between = sorted(later - earlier for earlier, later in itertools.pairwise(left))
    assert len(left) == 30
    assert between[3] >= 0.03 - 0.001
    assert between[0] >= 0.03 - 0.01, "this process may be preempted between its last reading of the clock and ours"


async def test_a_limit_counts_items_with_an_attempt(crew: Crew) -> None:
    """An item that is returned because the site asks for a delay does not count."""
    crew.pages()
    with Site(robots="User-agent: *\nCrawl-delay: 0.3\n") as site:
        await crew.fill([f"{site.url}/page/{n}" for n in range(1, 6)])
        await crew.work(limit=1)
        assert len([visit for visit in site.visits() if visit.path != "/robots.txt"]) == 1
        await crew.work(limit=2)
        visits = site.visits()
    assert len([visit for visit in visits if visit.path != "/robots.txt"]) == 3
    assert closest_starts(visits[:2]) >= 0.3 - LEEWAY


async def test_requests_of_a_worker_keep_their_distance_when_one_is_sent_late() -> None:  # S3.15
    """After its turn a request may have to wait for its lane: the next one counts from when it was sent."""
    pace, sent = WorkerPace(random.Random(1)), []
    may_send, has_turn = asyncio.Event(), asyncio.Event()

    async def send(event: asyncio.Event | None = None) -> None:
        async with asyncio.timeout(60) as deadline:
            pause = await pace.wait("shop", (0.2, 0.2), deadline)
            await pace.before_send("shop", pause, deadline)
            if event is not None:
                has_turn.set()
                await event.wait()
            sent.append(time.monotonic())
            pace.sent("shop", pause)

    first = asyncio.create_task(send(may_send))
    await has_turn.wait()
    second = asyncio.create_task(send())
    await asyncio.sleep(0.15)
    may_send.set()
    await asyncio.gather(first, second)
    assert sent[1] - sent[0] >= 0.2


async def test_requests_of_a_worker_keep_their_distance_when_one_connects_late() -> None:  # S3.15
    """What counts is when requests are sent: the second does not make up for the time that the first one connected."""
    pace, sent = WorkerPace(random.Random(1)), []
    first_is_connected, second_is_ready = asyncio.Event(), asyncio.Event()

    async def send(connected: asyncio.Event, ready: asyncio.Event | None = None) -> None:
        async with asyncio.timeout(60) as deadline:
            pause = await pace.wait("shop", (0.2, 0.2), deadline)
            if ready is not None:
                ready.set()
            await connected.wait()
            await pace.before_send("shop", pause, deadline)
            sent.append(time.monotonic())
            pace.sent("shop", pause)

    at_once = asyncio.Event()
    at_once.set()
    first = asyncio.create_task(send(first_is_connected))
    await asyncio.sleep(0)
    second = asyncio.create_task(send(at_once, second_is_ready))
    await second_is_ready.wait()
    first_is_connected.set()
    await asyncio.gather(first, second)
    assert abs(sent[1] - sent[0]) >= 0.2


class Paced:
    """Requests of one worker, and when they were sent."""

    def __init__(self, delay: float, *, time_limit: float = 60.0) -> None:
        self.pace = WorkerPace(random.Random(1))
        self.delay = delay
        self.time_limit = time_limit
        self.sent: list[float] = []

    async def send(self, host: str = "shop") -> float:
        async with asyncio.timeout(self.time_limit) as deadline:
            pause = await self.pace.wait(host, (self.delay, self.delay), deadline)
            await self.pace.before_send(host, pause, deadline)
            self.sent.append(time.monotonic())
            self.pace.sent(host, pause)
        return self.sent[-1]

    @property
    def between(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.sent)]


async def test_a_request_that_stops_waiting_for_its_turn_takes_none() -> None:  # S3.15
    """A handler that gives up again and again sends its second request when one pause has passed."""
    paced = Paced(1.0)
    await paced.send()
    for _ in range(10):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(paced.send(), 0.05)
    await paced.send()
    assert 1.0 <= paced.between[0] < 8.0, "with ten turns it would have been after 11 s"


async def test_requests_behind_those_that_were_cancelled_move_up() -> None:  # S3.15
    """As when a lease is lost: its attempts are cancelled together, wherever they are in the queue."""
    paced = Paced(0.4)
    await paced.send()
    waiting = [asyncio.create_task(paced.send()) for _ in range(100)]
    await asyncio.sleep(0.1)
    kept = waiting[50], waiting[99]
    for task in waiting:
        if task not in kept:
            task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert len(paced.sent) == 3
    assert min(paced.between) >= 0.4
    assert max(paced.between) < 10.0, "their turns were after 20 s and 40 s"


async def test_requests_of_a_worker_keep_their_distance_whoever_is_cancelled() -> None:  # S3.15
    """Before its turn, while it connects, and right before it is sent."""
    paced, chance = Paced(0.05), random.Random(2)

    async def send() -> None:
        async with asyncio.timeout(60) as deadline:
            pause = await paced.pace.wait("shop", (0.05, 0.05), deadline)
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.08)))
            await paced.pace.before_send("shop", pause, deadline)
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.03)))
            paced.sent.append(time.monotonic())
            paced.pace.sent("shop", pause)

    tasks = [asyncio.create_task(send()) for _ in range(60)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.03)
        waiting = [task for task in tasks if not task.done()]
        if waiting and chance.random() < 0.5:
            chance.choice(waiting).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 10 < len(paced.sent) < 60
    assert min(paced.between) >= 0.05


async def test_waiting_for_a_turn_uses_up_no_timeout() -> None:  # S3.15
    paced = Paced(0.4, time_limit=0.3)
    await asyncio.gather(*(paced.send() for _ in range(4)))
    assert len(paced.sent) == 4
    assert min(paced.between) >= 0.4


async def test_a_worker_that_visits_very_many_hosts_keeps_the_pace_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts whose pause has passed are forgotten, not those that it visited first, or visits all the time."""
    monkeypatch.setattr(politeness, "MAX_KEYS", 10)
    paced = Paced(0.5)
    first = [await paced.send(f"host-{number}") for number in range(40)]
    waiting = asyncio.create_task(paced.send("host-0"))
    again = [await paced.send(f"host-{number}") for number in range(1, 40)]
    assert all(later - before >= 0.5 for before, later in zip(first, [await waiting, *again], strict=True))
    for _ in range(3):
        await asyncio.sleep(0.6)
        await asyncio.gather(*(paced.send(f"host-{number}") for number in random.sample(range(10_000), 30)))
    assert len(paced.pace._hosts) < 100, "none was forgotten"


async def test_waiting_for_a_slot_and_a_start_uses_up_no_timeout(crew: Crew) -> None:
    crew.calls()
    await crew.fill([f"http://{TARGET}/"])
    await crew.ledger.lanes.set(TARGET, limit=1, delay=(1, 1))
    await crew.ledger.workers.register(WorkerSpec(id="one", node="n", pid=1))
    (claimed,) = await crew.ledger.claims.claim("one", Scope(scraper="crew"), 1)
    identity = WorkerIdentity(WorkerEvents())
    identity.register_as("one")
    slots, starts = HostSlots(crew.ledger.lanes, identity), RateLimiter(crew.ledger.lanes, identity)
    pool = slots.pool_for(TARGET)
    try:
        taken = await pool.acquire(claimed, None)
        asyncio.get_running_loop().call_later(0.6, pool.release, taken)
        async with asyncio.timeout(0.3) as deadline:
            pool.release(await pool.acquire(claimed, deadline))
        for _ in range(2):
            async with asyncio.timeout(0.3) as deadline:
                start = starts.reservation(TARGET, None, deadline)
                await start.reserve(None, None)
    finally:
        await slots.close()


async def test_waiting_for_the_lease_to_be_confirmed_uses_up_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of the ledger charges no item."""
    suspension = Suspension(monkeypatch)
    identity = WorkerIdentity(WorkerEvents())
    identity.lease = 60.0
    claimed = ClaimedItem(1, 1, 1, "run", "stage", "", 0, None, "key", None, None, 0, 0, 3)
    async with asyncio.timeout(0.3) as deadline:
        gate = Politeness(None, identity=identity).gate(claimed, time.monotonic(), lane_run_id=None, deadline=deadline)
        assert gate is not None
        suspension.begin()
        asyncio.get_running_loop().call_later(0.6, suspension.end)
        await gate.before_send(0)
    assert suspension.ended_at < math.inf


async def test_the_timeout_of_an_attempt_stands_still_while_several_requests_wait() -> None:
    async def wait(seconds: float) -> None:
        with suspended(deadline):
            await asyncio.sleep(seconds)

    now = asyncio.get_running_loop().time
    began = now()
    async with asyncio.timeout(20) as deadline:
        before = deadline.when()
        await asyncio.gather(wait(0.1), wait(0.3), wait(0.2))
        assert before is not None
        assert (deadline.when() or 0.0) - before >= now() - began - 0.01
    async with asyncio.timeout(None) as deadline:
        await wait(0)
        assert deadline.when() is None


async def test_a_request_that_waits_longer_than_its_attempt_lives_is_cancelled_as_any_other() -> None:
    async def wait() -> None:
        with suspended(deadline):
            await asyncio.Event().wait()

    async with asyncio.timeout(20) as deadline:
        waiting = [asyncio.create_task(wait()) for _ in range(2)]
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [asyncio.CancelledError] * 2
