"""Stages that go out through real proxies, on real ledgers. The site logs which address each request came from.

Nothing may come from 127.0.0.1: that would be a direct request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal import Page, Scraper
from shoal.config import Settings
from shoal.config.egress import EgressConfig
from shoal.egress.proxies import ProxyPool
from shoal.fetch.http import HttpFetcher
from shoal.ledger.protocols import Ledger
from shoal.model.egress import ExitState, ExitView
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_worker, ledger_context
from shoal.worker.state import WorkerOptions, WorkSummary
from tests.support import MissingPartError, missing
from tests.support.faulty_proxy import FaultyProxy
from tests.support.limiting_site import LimitedVisit, LimitingSite
from tests.support.proxies import MicroSocks, MicroSocksGroup, Squid, TinyProxy

LOG = open_logs(format="console", level="error", file=None, stream=None).log
SYNC_SECONDS = 0.2


class AddressSite:
    """A site that logs the address and user agent of each request. `answer`: a status for an address and a path."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, str]] = []
        self.answer: Callable[[str, str], int] = lambda _address, _path: 200
        self.port = 0

    async def __aenter__(self) -> AddressSite:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def urls(self, count: int, folder: str = "page") -> list[str]:
        return [f"http://{self.host}/{folder}/{number}" for number in range(count)]

    def addresses(self, since: int = 0) -> Counter[str]:
        """How many requests came from each address."""
        return Counter(address for address, *_ in self.log[since:])

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        address = request.remote or ""
        self.log.append((address, request.path, request.headers.get("User-Agent", "")))
        text = f"<h1>product</h1><p>{'x' * 3_000}</p>"  # more than a proxy lets through that cuts after 1 KB
        return web.Response(text=text, content_type="text/html", status=self.answer(address, request.path))


class Fleet:
    """Workers of this process on one ledger, each with a pool of its own over one list of proxies."""

    def __init__(self, ledger: Ledger, settings: Settings, path: Path) -> None:
        self.ledger = ledger
        self.settings = settings
        self.path = path
        self.run_id = ""
        self.syncs: Counter[ProxyPool] = Counter()
        self._workers: list[asyncio.Task[WorkSummary]] = []

    async def until(self, is_there: Callable[[], bool]) -> None:
        """Wait for what the workers do; an error of theirs is raised here."""
        async with asyncio.timeout(60):
            while not is_there():
                for worker in self._workers:
                    if worker.done() and not worker.cancelled():
                        worker.result()
                await asyncio.sleep(0.01)

    async def synced(self) -> None:
        """Every running worker has told the ledger all that happened, and has heard what it knows."""
        before = Counter(self.syncs)
        await self.until(
            lambda: (
                all(self.syncs[pool] >= before[pool] + 2 for pool in before)
                or all(worker.done() for worker in self._workers)
            )
        )

    def write(self, *lines: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.path)

    def configure(self, **options: Any) -> None:
        homes = {"ban_after": 3, "ban_for": 60.0, "block_after": 2, "block_for": 60.0, **options}
        config = EgressConfig(name="homes", kind="proxies", file=str(self.path), **homes)
        self.settings = msgspec.structs.replace(self.settings, egress={"homes": config})

    async def begin(self, scraper: Scraper, urls: list[str]) -> None:
        run = await self.ledger.runs.create(scraper.run_spec())
        await self.ledger.intake.enqueue(run.id, [scraper.stages["product"].item(url) for url in urls])
        await self.ledger.runs.seal(run.id)
        self.run_id = run.id

    def start(self, scraper: Scraper, *, name: str = "shoal", concurrency: int = 4) -> asyncio.Task[WorkSummary]:
        """One more worker; `name` is its user agent."""
        settings = msgspec.structs.replace(self.settings, user_agent=name)
        task = asyncio.create_task(self._work(scraper, settings, concurrency))
        self._workers.append(task)
        return task

    async def run(self, scraper: Scraper, urls: list[str], **options: Any) -> WorkSummary:
        await self.begin(scraper, urls)
        return await self.start(scraper, **options)

    async def _work(self, scraper: Scraper, settings: Settings, concurrency: int) -> WorkSummary:
        fetcher = HttpFetcher(
            user_agent=settings.user_agent, connections=concurrency, connect_timeout=2.0, idle_timeout=2.0
        )
        options = WorkerOptions(scope=Scope(run_ids=(self.run_id,)), concurrency=concurrency, lease=20.0)
        try:
            worker = build_worker(scraper, settings, self.ledger, fetcher, options, log=LOG)
            async with asyncio.timeout(90):
                return await worker.work()
        finally:
            await fetcher.close()

    async def exits(self) -> dict[str, ExitView]:
        """The exits by the address of the proxy."""
        page = await self.ledger.exits.list("homes", limit=100)
        return {view.label.partition("://")[2].rpartition(":")[0]: view for view in page.rows}

    async def wait_for_state(self, address: str, *states: ExitState) -> ExitView:
        async with asyncio.timeout(60):
            while True:
                view = (await self.exits()).get(address)
                if view is not None and view.state in states:
                    return view
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)


@asynccontextmanager
async def open_fleet(ledger_url: str, folder: Path) -> AsyncIterator[Fleet]:
    settings = Settings(ledger=ledger_url, robots=False)
    async with ledger_context(settings, migrate=True) as ledger:
        fleet = Fleet(ledger, settings, folder / "proxies.txt")
        fleet.configure()
        try:
            yield fleet
        finally:
            await fleet.close()


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async with open_fleet(str(tmp_path / "ledger.db"), tmp_path) as fleet:
        count_syncs(fleet, monkeypatch)
        yield fleet


@pytest.fixture
async def postgres_fleet(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    async with open_fleet(postgres_url, tmp_path) as fleet:
        count_syncs(fleet, monkeypatch)
        yield fleet


@pytest.fixture(params=["fleet", "postgres_fleet"])
def any_fleet(request: pytest.FixtureRequest) -> Fleet:
    found: Fleet = request.getfixturevalue(request.param)
    return found


def count_syncs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, close = ProxyPool.sync, ProxyPool.close

    async def counted_sync(pool: ProxyPool, ledger: Ledger, worker: str) -> None:
        await sync(pool, ledger, worker)
        fleet.syncs[pool] += 1

    async def counted_close(pool: ProxyPool) -> None:
        await close(pool)
        fleet.syncs[pool] += 1_000_000  # nothing to wait for

    monkeypatch.setattr("shoal.worker.attempt_runner.FAILED_EXITS_SECONDS", 0.1)
    monkeypatch.setattr("shoal.worker.heartbeat.MAX_INTERVAL_SECONDS", SYNC_SECONDS)
    monkeypatch.setattr(ProxyPool, "sync", counted_sync)
    monkeypatch.setattr(ProxyPool, "close", counted_close)


@pytest.fixture
async def site() -> AsyncIterator[AddressSite]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(AddressSite())


@pytest.fixture(scope="module")
def fifty() -> Iterator[MicroSocksGroup]:
    try:
        with MicroSocksGroup(50) as group:
            yield group
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def faulty() -> Iterator[Callable[..., FaultyProxy]]:
    """Makes proxies of our own."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(FaultyProxy(**options))


def shop(**options: Any) -> Scraper:
    scraper = Scraper("shop")

    @scraper.stage(egress="homes", **{"concurrency": 50, "retries": 0, "backoff_cap": 0.1, **options})
    async def product(page: Page) -> Any:
        return {"name": page.css("h1::text").get()}

    return scraper


def lines(*proxies: MicroSocks | TinyProxy | Squid) -> list[str]:
    return [proxy.url for proxy in proxies]


async def test_a_site_that_limits_each_address_gives_as_much_as_there_are_addresses(
    fleet: Fleet, site: AddressSite, microsocks: MicroSocks, tinyproxy: TinyProxy, squid: Squid
) -> None:
    limit, proxies = 10, (microsocks, tinyproxy, squid)

    def answer(address: str, _path: str) -> int:
        return 200 if site.addresses()[address] <= limit else 403

    site.answer = answer
    for used in ((microsocks,), proxies):
        site.log.clear()
        fleet.write(*lines(*used))
        summary = await fleet.run(shop(), site.urls(limit * len(used)), concurrency=3)
        assert (summary.done, summary.dead, summary.retried) == (limit * len(used), 0, 0)
        assert site.addresses() == {proxy.source: limit for proxy in used}
    # One more is too much for every address.
    summary = await fleet.run(shop(), site.urls(1, "more"), concurrency=3)
    assert (summary.done, summary.dead) == (0, 1)


async def test_a_pace_for_each_proxy_keeps_the_limit_of_each_address(fleet: Fleet, fifty: MicroSocksGroup) -> None:
    proxies = fifty.proxies[:6]
    fleet.write(*lines(*proxies))
    try:
        limiting = LimitingSite(rate=10, burst=2)
    except MissingPartError as error:
        missing(str(error))
    with limiting as site:
        paced = shop(pace="identity", rate="5/s")
        summary = await fleet.run(paced, site.urls(36), concurrency=12)
        assert (summary.done, summary.dead) == (36, 0)
        assert set(site.visits()) == {LimitedVisit(proxy.source, 200) for proxy in proxies}
        assert len(site.visits()) == 36
        # The same proxies without a pace are too fast for it.
        await fleet.begin(shop(), site.urls(200, "more"))
        fleet.start(shop(), concurrency=50)
        await fleet.until(lambda: any(visit.status == 429 for visit in site.visits()))


async def test_ten_workers_have_five_of_fifty_proxies_each(
    postgres_fleet: Fleet, site: AddressSite, fifty: MicroSocksGroup
) -> None:  # S3.17
    fleet = postgres_fleet
    fleet.configure(share="split")
    fleet.write(*lines(*fifty.proxies))
    run = await fleet.ledger.runs.create(shop().run_spec())
    fleet.run_id = run.id
    workers = [fleet.start(shop(), name=f"worker-{number}") for number in range(10)]
    await fleet.until(lambda: len(fleet.syncs) == 10)
    await fleet.synced()
    assert [pool.members for pool in await fleet.ledger.exits.pools()] == [10]
    product = shop().stages["product"]
    await fleet.ledger.intake.enqueue(run.id, [product.item(url) for url in site.urls(400)])
    await fleet.ledger.runs.seal(run.id)
    done = sum(summary.done for summary in await asyncio.gather(*workers))
    assert done == 400
    used: dict[str, set[str]] = {}
    for address, _, agent in site.log:
        used.setdefault(agent, set()).add(address)
    assert all(len(addresses) <= 5 for addresses in used.values())
    assert sum(map(len, used.values())) == len(set.union(*used.values())), "no proxy has two workers"
    assert set.union(*used.values()) <= {proxy.source for proxy in fifty.proxies}
    for agent, addresses in used.items():
        counts = Counter(address for address, _, name in site.log if name == agent)
        assert max(counts.values()) - min(counts[address] for address in addresses) <= 1, "round robin"


async def test_broken_proxies_are_banned_and_harm_no_item(
    fleet: Fleet,
    site: AddressSite,
    faulty: Callable[..., FaultyProxy],
    tinyproxy: TinyProxy,
    microsocks: MicroSocks,
) -> None:
    closed = faulty()
    closed.close()
    broken = {
        "resets": faulty(fault="reset"),
        "closes": faulty(fault="close"),
        "is no proxy": faulty(fault="garbage"),
        "cuts": faulty(fault="cut"),
        "is silent": faulty(fault="silent"),
        "wants another password": faulty(username="ann", password="right-password"),
        "refuses": closed,
    }
    wrong = broken["wants another password"]
    good = (tinyproxy, microsocks)
    fleet.write(
        *(proxy.url() for what, proxy in broken.items() if proxy is not wrong),
        f"{wrong.source}:{wrong.port}:ann:wrong-password",
        *lines(*good),
    )
    # A connection that breaks in the middle of a page may be the site's fault: that is retried.
    summary = await fleet.run(shop(retries=3), site.urls(60))
    assert (summary.done, summary.dead) == (60, 0)
    exits = await fleet.exits()
    for what, proxy in broken.items():
        assert exits[proxy.source].state is ExitState.BANNED, what
        assert exits[proxy.source].failures_in_row >= 3, what
    for working in good:
        assert exits[working.source].state is ExitState.GOOD
        assert exits[working.source].failed == 0
    passed = {proxy.source for proxy in good} | {broken["cuts"].source}
    assert set(site.addresses()) <= passed
    stored = b"".join(path.read_bytes() for path in fleet.path.parent.glob("ledger.db*"))
    for secret in ("wrong-password", tinyproxy.password, microsocks.password):
        assert secret.encode() not in stored


async def test_a_captive_portal_is_a_block_at_this_host(
    fleet: Fleet, site: AddressSite, faulty: Callable[..., FaultyProxy], tinyproxy: TinyProxy
) -> None:
    portal = faulty(fault="portal")
    fleet.write(portal.url(), *lines(tinyproxy))
    scraper = shop(blocked=lambda page: page.css("h1").get() is None)
    summary = await fleet.run(scraper, site.urls(20), concurrency=1)
    assert (summary.done, summary.dead) == (20, 0)
    assert len(portal.visits) == 2  # block_after
    view = (await fleet.exits())[portal.source]
    assert view.state is ExitState.GOOD
    view = await fleet.ledger.exits.get("homes", view.key)
    assert [(host.host, host.blocked) for host in view.hosts] == [(site.host, 2)]
    assert view.hosts[0].blocked_seconds > 0


async def test_a_list_that_changes_is_used_by_a_running_worker(
    fleet: Fleet, site: AddressSite, fifty: MicroSocksGroup
) -> None:
    before, after = fifty.proxies[:3], fifty.proxies[2:5]
    fleet.write(*lines(*before))
    gate = asyncio.Event()
    scraper = Scraper("shop")

    @scraper.stage(egress="homes", concurrency=50)
    async def product(page: Page) -> Any:
        if len(site.log) > 20:
            await gate.wait()
        return {"name": page.css("h1::text").get()}

    await fleet.begin(scraper, site.urls(100))
    work = fleet.start(scraper)
    await fleet.until(lambda: len(site.log) > 20)
    fleet.write(*lines(*after))
    await fleet.wait_for_state(after[2].source, ExitState.GOOD)
    await fleet.synced()
    changed = len(site.log)
    gate.set()
    assert (await work).done == 100
    assert set(site.addresses()) == {proxy.source for proxy in (*before, *after)}
    assert set(site.addresses(changed + 4)) == {proxy.source for proxy in after}


async def test_items_wait_while_all_proxies_are_dead_and_go_on_when_one_is_back(
    fleet: Fleet, site: AddressSite, faulty: Callable[..., FaultyProxy]
) -> None:
    ban_for = 1.0
    proxies = [faulty() for _ in range(3)]
    fleet.configure(ban_for=ban_for)
    fleet.write(*(proxy.url() for proxy in proxies))
    await fleet.begin(shop(retries=3), site.urls(60))

    def answer(_address: str, _path: str) -> int:
        if len(site.log) == 20:
            for proxy in proxies:
                proxy.fault = "reset"
                proxy.cut_connections()
        return 200

    site.answer = answer
    work = fleet.start(shop(retries=3))
    for proxy in proxies:
        await fleet.wait_for_state(proxy.source, ExitState.BANNED, ExitState.TRIAL)
    await fleet.synced()
    seen, began = len(site.log), time.monotonic()
    before = {proxy: proxy.connections for proxy in proxies}
    await fleet.until(lambda: all(proxy.connections >= before[proxy] + 2 for proxy in proxies))
    # Each ban is followed by one request, not by sixty.
    bans = (time.monotonic() - began) / ban_for + 1
    assert all(proxy.connections - before[proxy] <= bans + 1 for proxy in proxies)
    assert len(site.log) == seen
    [pool] = fleet.syncs
    await fleet.until(lambda: (wait := pool.wait()) is not None and wait.why.startswith("all 3 proxies of homes are"))
    proxies[1].fault = None
    summary = await work
    assert (summary.done, summary.dead) == (60, 0)
    assert set(site.addresses()) <= {proxy.source for proxy in proxies}
    assert set(site.addresses(seen)) == {proxies[1].source}


async def test_a_ban_of_one_worker_holds_for_all_and_after_a_restart(
    any_fleet: Fleet, site: AddressSite, faulty: Callable[..., FaultyProxy], fifty: MicroSocksGroup
) -> None:
    fleet, dead = any_fleet, faulty(fault="reset")
    fleet.write(dead.url(), *lines(*fifty.proxies[:2]))
    # So many that the first worker gets its part, however slow it is.
    await fleet.begin(shop(delay=0.02), site.urls(400))
    workers = []
    for ban_after in (6, 1_000):  # only the first one bans
        fleet.configure(ban_after=ban_after)
        workers.append(fleet.start(shop(delay=0.02), concurrency=2))
    view = await fleet.wait_for_state(dead.source, ExitState.BANNED)
    assert "failures in a row: proxy" in view.why
    await fleet.synced()
    tried = dead.connections
    summaries = await asyncio.gather(*workers)
    assert sum(summary.done for summary in summaries) == 400
    assert (await fleet.run(shop(), site.urls(20, "again"))).done == 20
    assert dead.connections == tried
    assert set(site.addresses()) == {proxy.source for proxy in fifty.proxies[:2]}


async def test_an_operator_rests_bans_and_frees_a_proxy_of_a_running_worker(
    any_fleet: Fleet, site: AddressSite, fifty: MicroSocksGroup
) -> None:
    fleet, proxies = any_fleet, fifty.proxies[:3]
    fleet.write(*lines(*proxies))
    await fleet.begin(shop(delay=0.01), site.urls(2_000))
    work = fleet.start(shop(delay=0.01))
    await fleet.until(lambda: len(site.log) > 10)
    exits, chosen = fleet.ledger.exits, proxies[0].source
    key = (await fleet.exits())[chosen].key

    async def is_used() -> bool:
        await fleet.synced()
        seen = len(site.log)
        await fleet.until(lambda: len(site.log) > seen + 6)
        return chosen in site.addresses(seen)

    assert await is_used()
    await exits.rest("homes", key, None, by="ann")
    assert not await is_used()
    await exits.free("homes", key, by="ann")
    assert await is_used()
    await exits.ban("homes", key, None, "too slow", by="ann")
    assert not await is_used()
    work.cancel()


async def test_everything_that_an_attempt_sends_goes_through_its_proxy(
    fleet: Fleet, site: AddressSite, tinyproxy: TinyProxy, microsocks: MicroSocks
) -> None:
    fleet.settings = msgspec.structs.replace(fleet.settings, robots=True)
    fleet.write(*lines(tinyproxy, microsocks))
    assert (await fleet.run(shop(), site.urls(10))).done == 10
    assert {"/robots.txt", "/page/0"} <= {path for _, path, _ in site.log}
    assert set(site.addresses()) == {tinyproxy.source, microsocks.source}
