"""Attempts go out as identities of a pool: which one, what happens when it is blocked or fails, and who waits.

The pool is scripted; its exits are told apart by a header, which the site logs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shoal import Blocked, Http, Item, Page, Scraper
from shoal.config import Settings
from shoal.config.egress import EgressConfig
from shoal.errors import EgressUnavailable, ExitFailed, InvalidSetting, Transient, WorkerLost
from shoal.fetch.browser import BrowserFetcher
from shoal.fetch.chromium import BrowserMissing
from shoal.fetch.page import Page as FetchedPage
from shoal.ledger.protocols import Ledger
from shoal.model.egress import EgressWait, Exit, PoolKind, ProxyAddress
from shoal.model.item import ItemState
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_egress, build_fetcher, build_worker, ledger_context
from shoal.worker.state import WorkerOptions, WorkSummary
from tests.support.website.wire import seconds_in_kernel

LOG = open_logs(format="console", level="error", file=None, stream=None).log
HEADER = "X-Exit"


class ScriptedIdentity:
    """An exit that is a header. `events` of its pool: what was recorded about it."""

    trial = False
    proxy: ProxyAddress | None = None

    def __init__(self, pool: ScriptedPool, key: str) -> None:
        self._pool = pool
        self.key = f"{pool.name}/{key}"
        self.exit = Exit(pool=pool.name, key=key, label=f"exit {key}")

    @property
    def works_for_others(self) -> bool:
        return self._pool.works_for_others

    async def judge(self, error: Transient) -> Transient:
        return error

    async def choose_exit(self, url: str) -> Exit:
        return self.exit

    async def take_exit(self, url: str) -> bool:
        return True

    async def before_request(self, url: str, hop: int) -> Mapping[str, str]:
        if self.exit.key in self._pool.failing:
            raise ExitFailed(f"exit {self.exit.key} refused the connection")
        return {HEADER: self.exit.key}

    def on_response(self, url: str, status: int, headers: Mapping[str, str]) -> None:
        self._pool.events.append((self.exit.key, "response", str(status)))

    def should_repeat(self, page: FetchedPage) -> bool:
        return False

    def release(self) -> None:
        self._pool.events.append((self.exit.key, "released", ""))

    def record_success(self, host: str) -> None:
        self._pool.events.append((self.exit.key, "success", host))

    def record_block(self, host: str, why: str) -> None:
        self._pool.events.append((self.exit.key, "block", host))

    def record_failure(self, why: str) -> None:
        self._pool.events.append((self.exit.key, "failure", why))


class ScriptedPool:
    """Exits in turn. `unusable`: why none can be used. `failing`: those whose way fails."""

    kind: PoolKind = "proxies"
    needs_sync = False

    def __init__(self, name: str, keys: str = "abcdef") -> None:
        self.name = name
        self._keys = list(keys)
        self._turn = 0
        self.events: list[tuple[str, str, str]] = []
        self.failing: set[str] = set()
        self.unusable: str | None = None
        self.blocked_at: str | None = None
        self.works_for_others = True
        self.choices: list[str] = []
        self.synced: list[str] = []
        self.closed = False

    async def start(self) -> None:
        return None

    def choose(self, host: str, *, sticky: str = "", avoid: Collection[str] = ()) -> ScriptedIdentity:
        self.choices.append(sticky)
        if self.unusable is not None:
            raise EgressUnavailable(self.unusable, retry_after=0.05)
        if self.blocked_at == host:
            self.blocked_at = None
            raise EgressUnavailable(f"every exit is blocked at {host}", retry_after=0.05)
        rest = [key for key in self._keys if key not in avoid] or self._keys
        self._turn += 1
        return ScriptedIdentity(self, rest[self._turn % len(rest)])

    def wait(self) -> EgressWait | None:
        return None if self.unusable is None else EgressWait(stage="", pool=self.name, why=self.unusable)

    async def sync(self, ledger: Ledger, worker: str) -> None:
        self.synced.append(worker)

    async def close(self) -> None:
        self.closed = True


class HeaderSite:
    """A site that logs what each request went out as. `answer`: the status for an exit and a path.

    It shares the loop of the workers: when a request arrived is known from the kernel, to a few milliseconds.
    """

    def __init__(self) -> None:
        self.log: list[tuple[str, str, str, float]] = []  # exit, path, cookies, when it arrived
        self.agents: dict[str, str] = {}
        self.answer: Callable[[str, str], int] = lambda _exit, _path: 200
        self.port = 0

    async def __aenter__(self) -> HeaderSite:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.cleanup()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def exits(self, path: str) -> list[str]:
        return [exit_key for exit_key, seen, *_ in self.log if seen == path]

    @property
    def direct(self) -> list[str]:
        """The paths of requests that no exit sent."""
        return [path for exit_key, path, *_ in self.log if not exit_key]

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        exit_key, path = request.headers.get(HEADER, ""), request.path
        assert request.transport is not None
        arrived = time.monotonic() - seconds_in_kernel(request.transport)
        self.log.append((exit_key, path, request.headers.get("Cookie", ""), arrived))
        self.agents[path] = request.headers["User-Agent"]
        if path == "/robots.txt":
            return web.Response(text="User-agent: *\nDisallow: /private")
        if path.startswith("/from/"):
            return web.Response(status=302, headers={"Location": path.replace("/from/", "/to/")})
        response = web.Response(text="<p>page</p>", content_type="text/html", status=self.answer(exit_key, path))
        response.set_cookie("owner", exit_key)
        return response


class Setup:
    """A scraper whose stages go out through one pool, on a ledger."""

    def __init__(self, settings: Settings, ledger: Ledger, pool: ScriptedPool) -> None:
        self.settings = settings
        self.ledger = ledger
        self.pool = pool

    async def run(self, scraper: Scraper, *, concurrency: int = 4) -> WorkSummary:
        run = await self.ledger.runs.create(scraper.run_spec())
        await self.ledger.intake.enqueue(run.id, scraper.seeds())
        await self.ledger.runs.seal(run.id)
        self.run_id = run.id
        return await self.work(scraper, concurrency=concurrency)

    async def work(self, scraper: Scraper, *, concurrency: int = 4) -> WorkSummary:
        fetcher = build_fetcher(self.settings)
        options = WorkerOptions(scope=Scope(run_ids=(self.run_id,)), concurrency=concurrency, lease=5.0)
        try:
            worker = build_worker(scraper, self.settings, self.ledger, fetcher, options, log=LOG)
            async with asyncio.timeout(60):
                return await worker.work()
        finally:
            await fetcher.close()


@pytest.fixture
async def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Setup]:
    pool = ScriptedPool("homes")
    monkeypatch.setattr("shoal.wiring.build_pool", lambda *_args, **_kwargs: pool)
    settings = Settings(ledger=str(tmp_path / "ledger.db"), egress={"homes": EgressConfig(name="homes", kind="tor")})
    async with ledger_context(settings) as ledger:
        yield Setup(settings, ledger, pool)


@pytest.fixture
async def site() -> AsyncIterator[HeaderSite]:
    async with HeaderSite() as site:
        yield site


def shop(**options: Any) -> Scraper:
    scraper = Scraper("shop", **{name: options.pop(name) for name in ("cookies",) if name in options})

    @scraper.stage(egress="homes", **{"retries": 0, **options})
    async def product(page: Page) -> Any:
        return {"path": page.url.rpartition("/")[2]}

    return scraper


async def test_every_request_of_an_attempt_goes_out_as_its_identity(setup: Setup, site: HeaderSite) -> None:
    scraper = Scraper("shop")

    @scraper.stage(egress="homes")
    async def product(page: Page, http: Http) -> Any:
        await http.get(site.url("/api"))
        return {"path": page.url}

    scraper.start(product.item(site.url("/from/1")))
    summary = await setup.run(scraper)
    assert summary.done == 1
    assert [path for _, path, *_ in site.log] == ["/robots.txt", "/from/1", "/to/1", "/api"]
    assert len({exit_key for exit_key, *_ in site.log}) == 1
    assert site.direct == []
    attempt = (await setup.ledger.reads.attempts(setup.run_id, 1))[0]
    assert attempt.detail is not None
    assert attempt.detail["egress"] == f"homes exit {site.log[0][0]}"


@pytest.mark.parametrize("egress", ["homes", None])
async def test_a_stage_may_look_like_chrome(setup: Setup, site: HeaderSite, egress: str | None) -> None:
    """All requests but that for robots.txt, which is obeyed, and asked for under Shoal's own name."""
    scraper = Scraper("shop")

    @scraper.stage(client="chrome", egress=egress)
    async def product(page: Page, http: Http) -> Any:
        await http.get(site.url("/api"))
        return {"path": page.url}

    scraper.start(product.item(site.url("/from/1")), product.item(site.url("/private")))
    summary = await setup.run(scraper, concurrency=1)
    assert (summary.done, summary.skipped) == (1, 1)
    assert {path for path, agent in site.agents.items() if "Chrome/" in agent} == {"/from/1", "/to/1", "/api"}
    assert site.agents["/robots.txt"].startswith("shoal")
    assert "/private" not in site.agents
    assert site.direct == ([] if egress else [path for _, path, *_ in site.log])


async def test_a_worker_without_a_browser_stops_and_harms_no_item(
    setup: Setup, site: HeaderSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def missing(_browser: BrowserFetcher) -> None:
        raise BrowserMissing("No Chromium was found.")

    monkeypatch.setattr(BrowserFetcher, "_current", missing)
    scraper = shop(client="browser")
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    with pytest.raises(BrowserMissing):
        await setup.run(scraper)
    (item,) = (await setup.ledger.reads.items(setup.run_id)).rows
    assert (item.state, item.tries) == (ItemState.READY, 0)


async def test_a_blocked_item_gets_another_identity_without_being_charged(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    site.answer = lambda exit_key, path: 403 if exit_key in "ab" else 200
    scraper.start(*(scraper.stages["product"].item(site.url(f"/{n}")) for n in range(6)))
    summary = await setup.run(scraper, concurrency=1)
    assert (summary.done, summary.dead, summary.retried) == (6, 0, 0)
    host = f"127.0.0.1:{site.port}"
    assert {event for event in setup.pool.events if event[1] == "block"} <= {("a", "block", host), ("b", "block", host)}
    assert any(event[1] == "block" for event in setup.pool.events)
    for n in range(6):
        tried = site.exits(f"/{n}")
        assert len(set(tried)) == len(tried), "never the same exit twice"


async def test_a_block_that_the_author_recognizes_is_tried_again_too(setup: Setup, site: HeaderSite) -> None:
    scraper = Scraper("shop")
    seen: list[str] = []

    @scraper.stage(egress="homes", retries=0)
    async def product(page: Page, item: Item) -> Any:
        seen.append(item.key)
        if len(seen) < 3:
            raise Blocked("an empty shelf")
        return {"ok": True}

    scraper.start(product.item(site.url("/1")))
    assert (await setup.run(scraper)).done == 1
    assert len(set(site.exits("/1"))) == 3
    kinds = Counter(kind for _, kind, _ in setup.pool.events if kind in ("block", "success"))
    assert kinds == {"block": 2, "success": 1}


async def test_an_item_that_every_identity_is_blocked_for_is_charged_in_the_end(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    site.answer = lambda *_: 403
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    summary = await setup.run(scraper)
    assert summary.dead == 1
    assert len(site.exits("/1")) == 4


async def test_a_blocked_item_waits_for_the_next_start_at_its_host_and_is_charged_in_the_end(
    setup: Setup, site: HeaderSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not returned because the next start is far ahead: it would be blocked and returned for ever."""
    monkeypatch.setattr("shoal.worker.politeness.MAX_START_WAIT_SECONDS", 0.01)
    scraper = shop(delay=0.8)
    site.answer = lambda *_: 403
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    summary = await setup.run(scraper)
    assert (summary.dead, len(site.exits("/1"))) == (1, 4)
    sent = [when for _, path, _, when in site.log if path == "/1"]
    assert all(after - before > 0.2 for before, after in pairwise(sent)), "the pace of the host holds over all exits"


async def test_the_site_s_own_failures_count_against_nobody(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    site.answer = lambda _exit, path: 404 if path == "/1" else 500
    scraper.start(*(scraper.stages["product"].item(site.url(f"/{n}")) for n in (1, 2)))
    assert (await setup.run(scraper)).dead == 2
    assert {kind for _, kind, _ in setup.pool.events} == {"response", "success", "released"}
    assert len(site.exits("/1")) == 1


async def test_an_item_whose_handler_ignored_its_timeout_is_not_run_again(
    setup: Setup, site: HeaderSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended as timed out; that it was blocked comes too late."""
    monkeypatch.setattr("shoal.worker.slots.OVERDUE_CHECK_SECONDS", 0.05)
    scraper = Scraper("shop")
    ended = asyncio.Event()

    @scraper.stage(egress="homes", retries=0, timeout=3)
    async def product(page: Page) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
            ended.set()
            raise Blocked("late") from None

    @scraper.stage(retries=0)
    async def other(item: Item) -> Any:
        await ended.wait()
        await asyncio.sleep(0.3)
        return {}

    scraper.start(product.item(site.url("/1")), other.item(key="other"))
    summary = await setup.run(scraper)
    assert (summary.done, summary.dead) == (1, 1)
    assert len(site.exits("/1")) == 1


async def test_a_success_before_a_failure_does_not_count_after_it(setup: Setup, site: HeaderSite) -> None:
    scraper = Scraper("shop")

    @scraper.stage(egress="homes", retries=0)
    async def product(page: Page, http: Http) -> Any:
        setup.pool.failing = set("abcdef")
        await http.get(site.url("/api"))

    scraper.start(product.item(site.url("/1")))
    assert (await setup.run(scraper)).dead == 1
    first = setup.pool.events[0][0]
    kinds = [kind for key, kind, _ in setup.pool.events if key == first]
    assert kinds[-3:] == ["success", "failure", "released"]


async def test_a_worker_that_was_declared_dead_goes_on_with_its_next_id(
    setup: Setup, site: HeaderSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = WorkerLost("There is no live worker.")
    failures = [lost, lost]
    sync = setup.pool.sync

    async def fail_first(ledger: Ledger, worker: str) -> None:
        if failures:
            raise failures.pop()
        await sync(ledger, worker)

    monkeypatch.setattr(setup.pool, "sync", fail_first)
    scraper = shop()
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    assert (await setup.run(scraper)).done == 1
    assert failures == []


async def test_an_exit_that_fails_is_replaced_at_once(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    setup.pool.failing = {"a", "b", "c"}
    scraper.start(*(scraper.stages["product"].item(site.url(f"/{n}")) for n in range(8)))
    summary = await setup.run(scraper, concurrency=1)
    assert (summary.done, summary.dead) == (8, 0)
    assert site.direct == []
    assert any(kind == "failure" for _, kind, _ in setup.pool.events)


async def test_items_whose_exits_all_fail_wait_and_are_not_charged(
    setup: Setup, site: HeaderSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.worker.attempt_runner.FAILED_EXITS_SECONDS", 0.01)
    monkeypatch.setattr("shoal.worker.attempt_runner.OTHER_HOST_JITTER", 0.01)
    scraper = shop()
    setup.pool.failing = set("abcdef")
    setup.pool.works_for_others = False
    scraper.start(scraper.stages["product"].item(site.url("/1")))

    async def mend() -> None:
        while sum(kind == "failure" for _, kind, _ in setup.pool.events) < 12:  # noqa: ASYNC110 - the pool logs
            await asyncio.sleep(0.01)
        setup.pool.failing.clear()

    mending = asyncio.create_task(mend())
    summary = await setup.run(scraper)
    await mending
    assert (summary.done, summary.dead) == (1, 0)
    assert summary.throttled >= 2, "it waited more often than it has attempts"


async def test_an_item_that_breaks_good_exits_is_charged(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    setup.pool.failing = set("abcdef")
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    summary = await setup.run(scraper)
    assert summary.dead == 1


async def test_stages_without_a_usable_exit_are_not_claimed_and_others_go_on(setup: Setup, site: HeaderSite) -> None:
    scraper = shop(concurrency=50)

    @scraper.stage(retries=0)
    async def plain(page: Page) -> Any:
        return {"path": page.url}

    product = scraper.stages["product"]
    scraper.start(*(product.item(site.url(f"/product/{n}")) for n in range(20)))
    scraper.start(*(plain.item(site.url(f"/plain/{n}")) for n in range(5)))
    setup.pool.unusable = "all 3 exits of homes are banned"

    async def mend() -> list[ItemState]:
        while len([path for path in site.direct if path.startswith("/plain")]) < 5:  # noqa: ASYNC110 - the site logs
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        states = [view.state for view in (await setup.ledger.reads.items(setup.run_id)).rows]
        setup.pool.unusable = None
        return states

    mending = asyncio.create_task(mend())
    summary = await setup.run(scraper)
    states = Counter(await mending)
    assert states[ItemState.DONE] == 5
    assert states[ItemState.LEASED] == 0, "what waits is not claimed again and again"
    assert (summary.done, summary.dead, summary.throttled) == (25, 0, 0)
    assert [path for path in site.direct if path.startswith("/product")] == []


async def test_workers_report_which_stages_wait(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    setup.pool.unusable = "all 3 exits of homes are banned"
    scraper.start(scraper.stages["product"].item(site.url("/1")))

    async def read() -> list[EgressWait]:
        while True:
            for worker in await setup.ledger.workers.list():
                if worker.report is not None and worker.report.egress:
                    setup.pool.unusable = None
                    return list(worker.report.egress)
            await asyncio.sleep(0.05)

    reading = asyncio.create_task(read())
    await setup.run(scraper)
    (wait,) = await reading
    assert (wait.stage, wait.pool, wait.why) == ("product", "homes", "all 3 exits of homes are banned")


async def test_an_item_whose_host_no_exit_may_visit_waits_uncharged(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    setup.pool.blocked_at = f"127.0.0.1:{site.port}"
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    summary = await setup.run(scraper)
    assert (summary.done, summary.throttled, summary.dead) == (1, 1, 0)
    waited = (await setup.ledger.reads.attempts(setup.run_id, 1))[0]
    assert waited.error == f"every exit is blocked at 127.0.0.1:{site.port}"


async def test_cookies_belong_to_the_identity(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    scraper.start(*(scraper.stages["product"].item(site.url(f"/{n}")) for n in range(30)))
    assert (await setup.run(scraper)).done == 30
    sent = {(exit_key, cookies) for exit_key, _, cookies, _ in site.log if cookies}
    assert sent
    assert {cookies for exit_key, cookies in sent if cookies != f"owner={exit_key}"} == set()


async def test_the_pace_of_an_identity_counts_per_exit_and_survives_a_restart(setup: Setup, site: HeaderSite) -> None:
    """S3.15: each exit keeps its own distance to a host."""
    scraper = shop(delay=0.8, pace="identity", concurrency=20)
    product = scraper.stages["product"]
    scraper.start(*(product.item(site.url(f"/{n}")) for n in range(18)))
    run = await setup.ledger.runs.create(scraper.run_spec())
    await setup.ledger.intake.enqueue(run.id, scraper.seeds())
    await setup.ledger.runs.seal(run.id)
    setup.run_id = run.id
    fetcher = build_fetcher(setup.settings)
    for limit in (9, None):
        options = WorkerOptions(scope=Scope(run_ids=(run.id,)), concurrency=20, lease=5.0, limit=limit)
        worker = build_worker(scraper, setup.settings, setup.ledger, fetcher, options, log=LOG)
        async with asyncio.timeout(60):
            await worker.work()
    await fetcher.close()
    times: dict[str, list[float]] = {}
    for exit_key, _, _, when in site.log:
        times.setdefault(exit_key, []).append(when)
    assert len(times) == 6
    for starts in times.values():
        # A loop that stands still sends a request later than it was allowed to, and the next one in time.
        assert all(after - before > 0.2 for before, after in pairwise(sorted(starts)))
    everything = sorted(when for starts in times.values() for when in starts)
    assert min(after - before for before, after in pairwise(everything)) < 0.2, "exits do not wait for each other"


async def test_the_pace_of_a_worker_counts_over_its_exits_and_not_for_others(setup: Setup, site: HeaderSite) -> None:
    """S3.15: each worker waits between its own requests, whatever exit they go out through."""
    scraper = shop(delay=(0.5, 0.55), pace="worker", concurrency=20)
    scraper.robots = False
    product = scraper.stages["product"]
    scraper.start(*(product.item(site.url(f"/{n}")) for n in range(10)))
    run = await setup.ledger.runs.create(scraper.run_spec())
    await setup.ledger.intake.enqueue(run.id, scraper.seeds())
    await setup.ledger.runs.seal(run.id)
    setup.run_id = run.id
    fetcher = build_fetcher(setup.settings)
    options = WorkerOptions(scope=Scope(run_ids=(run.id,)), concurrency=1, batch_size=1, lease=5.0)
    workers = [build_worker(scraper, setup.settings, setup.ledger, fetcher, options, log=LOG) for _ in range(2)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(worker.work() for worker in workers))
    await fetcher.close()
    when = {path: at for _, path, _, at in site.log}
    by_worker: dict[str, list[float]] = {}
    for item in range(1, 11):
        (attempt,) = await setup.ledger.reads.attempts(run.id, item)
        key = (await setup.ledger.reads.item(run.id, id=item)).url or ""
        by_worker.setdefault(attempt.worker or "", []).append(when[key.removeprefix(site.url("").rstrip("/"))])
    assert len(by_worker) == 2
    # Gaps are kept as requests are allowed; on a busy machine one may be sent a little later.
    for starts in by_worker.values():
        assert all(after - before > 0.125 for before, after in pairwise(sorted(starts)))
    everything = sorted(at for starts in by_worker.values() for at in starts)
    assert min(after - before for before, after in pairwise(everything)) < 0.35, "workers do not wait for each other"
    assert len({exit_key for exit_key, *_ in site.log}) > 2


async def test_pools_are_synchronized_and_closed(setup: Setup, site: HeaderSite) -> None:
    scraper = shop()
    scraper.start(scraper.stages["product"].item(site.url("/1")))
    summary = await setup.run(scraper)
    assert setup.pool.synced[0] == summary.worker
    assert len(setup.pool.synced) >= 2, "before the first claim, and at the end"
    assert setup.pool.closed


def test_a_pool_that_is_not_configured_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"The stage product goes out through egress 'homes', .*there is: none"):
        build_egress(shop(), Settings(), log=LOG)


def test_a_scraper_without_egress_has_no_pools() -> None:
    scraper = Scraper("plain")

    @scraper.stage
    async def product(page: Page) -> None: ...

    assert build_egress(scraper, Settings(), log=LOG) is None
