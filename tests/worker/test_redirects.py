"""Redirects in a crawl: each page is fetched and stored once, whichever links lead to it. The site's log tells."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shoal import Http, Item, Page, Scraper
from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.item import ItemState
from shoal.model.run import Run
from shoal.model.views import ItemView
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.testing.harness import InjectedFault
from shoal.wiring import build_fetcher, build_worker, ledger_context
from shoal.worker.state import WorkerOptions

LOG = open_logs(format="console", level="error", file=None, stream=None).log


class MovingSite:
    """Answers by a table: a path leads to a redirect (status, target), a page (links) or a function of the request.

    `log`: the requests as (method, path with query). `port` is that of 127.0.0.1 and 127.0.0.2.
    """

    def __init__(self, routes: Mapping[str, Any]) -> None:
        self.routes = routes
        self.log: list[tuple[str, str]] = []
        self.port = 0

    async def __aenter__(self) -> MovingSite:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, max_line_size=20_000)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        await web.TCPSite(self._runner, "127.0.0.2", self.port).start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._runner.cleanup()

    @property
    def visits(self) -> Counter[str]:
        return Counter(path for _, path in self.log)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.log.append((request.method, request.path_qs))
        found = self.routes[request.path]
        if callable(found):
            found = await found(request)
        if isinstance(found, web.StreamResponse):
            return found
        if isinstance(found, tuple):
            status, target = found
            return web.Response(status=status, headers={"Location": target.format(port=self.port)})
        links = "".join(f'<a href="{link}">{link}</a>' for link in found)
        return web.Response(text=f"<title>{request.path}</title>{links}", content_type="text/html")


class Crawl:
    """A scraper on a ledger, run to its end by one worker in this process."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings = settings
        self.ledger = ledger
        self.scraper = Scraper("crawl", cookies=True)
        self.run: Run | None = None

    def pages(self, **options: Any) -> None:
        async def page(page: Page, item: Item) -> AsyncIterator[dict[str, object]]:
            yield {"url": page.url, "depth": item.depth}

        self.scraper.stage(**options)(page)

    async def start(self, site: MovingSite, *paths: str, **options: Any) -> None:
        self.run = await self.ledger.runs.create(self.scraper.run_spec())
        stage = self.scraper.first_stage
        await self.ledger.intake.enqueue(self.run.id, [stage.item(site.url(path), **options) for path in paths])
        await self.ledger.runs.seal(self.run.id, by="test")

    async def work(self, *, from_store: bool = False, **options: Any) -> None:
        fetcher = build_fetcher(self.settings, from_store=from_store)
        chosen = WorkerOptions(scope=Scope(scraper="crawl"), lease=10.0, **options)
        worker = build_worker(self.scraper, self.settings, self.ledger, fetcher, chosen, log=LOG, from_store=from_store)
        try:
            async with asyncio.timeout(60):
                await worker.work()
        finally:
            await fetcher.close()

    async def items(self) -> dict[str, ItemView]:
        """By path."""
        assert self.run is not None
        rows = (await self.ledger.reads.items(self.run.id, limit=1_000)).rows
        return {"/" + (row.url or "").split("/", 3)[3]: row for row in rows}

    async def states(self) -> dict[str, str]:
        return {path: item.state.value for path, item in (await self.items()).items()}

    async def stored(self) -> list[str]:
        """The URLs of the records."""
        assert self.run is not None
        rows = (await self.ledger.reads.results(self.run.id)).rows
        return sorted("/" + json.loads(row.record)["url"].split("/", 3)[3] for row in rows)

    async def check(self) -> None:
        assert self.run is not None
        assert (await self.ledger.reads.stats(self.run.id)).remaining == 0
        assert await self.ledger.upkeep.audit() == []


@pytest.fixture(params=["sqlite", "postgres"])
async def crawl(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Crawl]:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    settings = Settings(ledger=place, lease=10.0, robots=False)
    async with ledger_context(settings, migrate=True) as ledger:
        yield Crawl(settings, ledger)


async def test_a_page_reached_both_ways_is_fetched_and_stored_once(crawl: Crawl) -> None:
    """/old leads to /new; one page links to the old URL, another to the new one, in both orders."""
    routes = {
        "/": ["/first", "/a"],
        "/first": (301, "/second"),
        "/second": ["/"],
        "/a": ["/second", "/b"],
        "/b": ["/c"],
        "/c": (302, "/b"),
    }
    crawl.pages(follow=True)
    async with MovingSite(routes) as site:
        await crawl.start(site, "/")
        await crawl.work(concurrency=1)
    assert site.visits == {"/": 1, "/first": 1, "/second": 1, "/a": 1, "/b": 1, "/c": 1}
    assert await crawl.stored() == ["/", "/a", "/b", "/second"]
    items = await crawl.items()
    assert {path: item.state.value for path, item in items.items()} == {
        "/": "done",
        "/first": "done",
        "/second": "skipped",
        "/a": "done",
        "/b": "done",
        "/c": "skipped",
    }
    assert items["/second"].error == f"the same page as item {items['/first'].id}, which redirects to it"
    assert items["/c"].error == f"redirects to {site.url('/b')}, the same page as item {items['/b'].id}"
    await crawl.check()


async def test_a_chain_of_redirects_is_one_page(crawl: Crawl) -> None:
    routes = {"/": ["/1", "/2", "/3", "/4"], "/1": (301, "/2"), "/2": (302, "/3"), "/3": (307, "/4"), "/4": ["/"]}
    crawl.pages(follow=True)
    async with MovingSite(routes) as site:
        await crawl.start(site, "/")
        await crawl.work(concurrency=1)
    assert await crawl.stored() == ["/", "/4"]
    assert site.visits["/4"] == 1
    states = await crawl.states()
    assert sorted(states[f"/{n}"] for n in (1, 2, 3, 4)) == ["done", "skipped", "skipped", "skipped"]
    await crawl.check()


async def test_a_redirect_to_the_same_key_asks_no_ledger(crawl: Crawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted parameters, a fragment, and a cookie that is tested with the same URL."""

    async def tested(request: web.Request) -> Any:
        if "seen" in request.cookies:
            return []
        answer = web.Response(status=302, headers={"Location": "/page?b=2&a=1#top"})
        answer.set_cookie("seen", "1")
        return answer

    crawl.pages(follow=True)
    async with MovingSite({"/page": tested}) as site:
        await crawl.start(site, "/page?a=1&b=2")
        calls: list[object] = []
        monkeypatch.setattr(crawl.ledger.commits, "visit_redirect", calls.append)
        await crawl.work()
    assert calls == []
    assert await crawl.states() == {"/page?a=1&b=2": "done"}
    await crawl.check()


async def test_a_site_that_sends_every_visitor_to_one_page_first_loses_none(crawl: Crawl) -> None:
    """Each page redirects to /welcome at first, which leads back to it: /welcome is nobody's page."""
    asked: list[str] = []

    async def page(request: web.Request) -> Any:
        asked.append(request.path)
        return [] if asked.count(request.path) > 1 else (302, "/welcome")

    async def welcome(request: web.Request) -> Any:
        answer = web.Response(status=302, headers={"Location": asked[-1]})
        answer.set_cookie("welcomed", "1")  # so that the way back is no loop
        return answer

    names = [f"/p{n}" for n in range(4)]
    crawl.pages(follow=True)
    async with MovingSite({**dict.fromkeys(names, page), "/welcome": welcome}) as site:
        await crawl.start(site, *names)
        await crawl.work(concurrency=1)
    assert site.visits == {**dict.fromkeys(names, 2), "/welcome": 4}
    assert await crawl.states() == {**dict.fromkeys(names, "done"), "/welcome": "skipped"}
    assert await crawl.stored() == names
    await crawl.check()


async def test_many_old_links_to_one_page(crawl: Crawl) -> None:
    names = [f"/old{n}" for n in range(20)]
    crawl.pages(follow=True, concurrency=8)
    async with MovingSite({"/": names, **dict.fromkeys(names, (301, "/new")), "/new": []}) as site:
        await crawl.start(site, "/")
        await crawl.work()
    assert site.visits["/new"] == 1
    assert await crawl.stored() == ["/", "/new"]
    assert Counter((await crawl.states()).values()) == {"done": 2, "skipped": 20}
    await crawl.check()


async def test_to_another_host_in_its_own_lane(crawl: Crawl) -> None:
    crawl.pages(follow=True)
    async with MovingSite({"/": ["/away"], "/away": (302, "http://127.0.0.2:{port}/there"), "/there": []}) as site:
        await crawl.start(site, "/")
        await crawl.work()
        items = await crawl.items()
        assert (items["/there"].lane, items["/there"].state) == (f"127.0.0.2:{site.port}", ItemState.SKIPPED)
        assert (items["/there"].parent, items["/there"].depth) == (items["/away"].id, items["/away"].depth)
    await crawl.check()


async def test_a_form_that_leads_to_a_page(crawl: Crawl) -> None:
    """POST, 303, GET: the page has the key of its URL. With 307 the form is sent on, and that is another item."""
    crawl.pages(dedupe_redirects=True)
    routes = {"/search": (303, "/found"), "/found": [], "/moved": (307, "/search")}
    async with MovingSite(routes) as site:
        await crawl.start(site, "/search", form={"q": "x"})
        assert crawl.run is not None
        await crawl.work()
        await crawl.ledger.runs.resume(crawl.run.id)
        stage = crawl.scraper.first_stage
        more = [stage.item(site.url("/found")), stage.item(site.url("/moved"), form={"q": "x"})]
        report = await crawl.ledger.intake.enqueue(crawl.run.id, more)
        assert (report.enqueued, report.duplicates) == (1, 1)
        await crawl.ledger.runs.seal(crawl.run.id)
        await crawl.work()
    assert site.log == [("POST", "/search"), ("GET", "/found"), ("POST", "/moved")]
    assert await crawl.stored() == ["/found"]
    assert (await crawl.states())["/moved"] == "skipped"
    await crawl.check()


@pytest.mark.parametrize(("options", "fetched"), [({}, 2), ({"dedupe_redirects": True}, 1)])
async def test_a_list_of_urls_gets_a_record_for_each_unless_asked(
    crawl: Crawl, options: dict[str, bool], fetched: int
) -> None:
    crawl.pages(**options)
    async with MovingSite({"/a": (302, "/b"), "/b": []}) as site:
        await crawl.start(site, "/a", "/b")
        await crawl.work()
    assert len(await crawl.stored()) == site.visits["/b"] == fetched
    await crawl.check()


async def test_a_target_that_cannot_or_must_not_be_stored_is_visited(crawl: Crawl) -> None:
    """A URL beyond the limit, and one that repeats a secret."""
    secret, long = "s3cr3t-of-the-author", "x" * 8_200
    crawl.scraper.headers["Authorization"] = f"Bearer {secret}"
    crawl.pages(follow=True)
    routes = {"/a": (302, f"/b?key={secret}"), "/b": [], "/c": (302, f"/d?{long}"), "/d": []}
    async with MovingSite(routes) as site:
        await crawl.start(site, "/a", "/c")
        await crawl.work()
    assert await crawl.states() == {"/a": "done", "/c": "done"}
    assert site.visits == {"/a": 1, "/c": 1, f"/b?key={secret}": 1, f"/d?{long}": 1}
    await crawl.check()


async def test_pages_from_the_store_are_told_apart_too(crawl: Crawl, tmp_path: Path) -> None:
    """Without any request: the stored page remembers where it came from."""
    crawl.settings = msgspec.structs.replace(crawl.settings, store=str(tmp_path / "pages"))
    crawl.pages(follow=True)
    async with MovingSite({"/": ["/old"], "/old": (301, "/new"), "/new": ["/new", "/"]}) as site:
        await crawl.start(site, "/")
        await crawl.work(concurrency=1)
        fetched, stored = len(site.log), await crawl.stored()
        assert stored == ["/", "/new"]
        await crawl.start(site, "/")
        await crawl.work(concurrency=1, from_store=True)
        assert len(site.log) == fetched
    assert await crawl.stored() == stored
    assert sorted((await crawl.states()).values()) == ["done", "done", "skipped"]
    await crawl.check()


async def test_links_that_a_handler_follows(crawl: Crawl) -> None:
    """By its own rules, to its own stage and to another; also on a page that it asked for itself."""

    async def listing(page: Page, http: Http) -> AsyncIterator[object]:
        yield page.follow_links(deny="/item/|/more", depth=2)
        for item in page.follow_links(to="product", allow="/item/"):
            yield item
        if page.url.endswith("/"):
            yield (await http.get(page.join("/more"))).follow_links(to=crawl.scraper.stages["product"])

    async def product(page: Page, item: Item) -> AsyncIterator[dict[str, object]]:
        yield {"url": page.url, "depth": item.depth}

    crawl.scraper.stage(dedupe_redirects=True)(listing)
    crawl.scraper.stage(product)
    routes = {
        "/": ["/1", "/old", "/item/a", "http://127.0.0.2/elsewhere"],
        "/1": ["/2", "/item/b"],
        "/old": (301, "/1"),
        "/2": ["/3", "/item/c"],
        "/more": ["/item/d"],
        **{f"/item/{name}": [] for name in "abcd"},
    }
    async with MovingSite(routes) as site:
        await crawl.start(site, "/")
        await crawl.work()
    assert site.visits == {**dict.fromkeys(routes, 1)}
    assert await crawl.stored() == [f"/item/{name}" for name in "abcd"]
    items = await crawl.items()
    assert {path: items[path].depth for path in ("/", "/1", "/2", "/item/a", "/item/d", "/item/c")} == {
        "/": 0,
        "/1": 1,
        "/2": 2,
        "/item/a": 1,
        "/item/d": 1,
        "/item/c": 3,
    }
    assert {item.lane for item in items.values()} == {f"127.0.0.1:{site.port}"}
    await crawl.check()


async def test_a_retry_visits_its_own_target_again(crawl: Crawl) -> None:
    failures = iter([500, 500])

    async def shaky(request: web.Request) -> Any:
        status = next(failures, None)
        return [] if status is None else web.Response(status=status)

    crawl.pages(follow=True, backoff_factor=1.0)
    async with MovingSite({"/a": (302, "/b"), "/b": shaky}) as site:
        await crawl.start(site, "/a")
        await crawl.work()
    assert site.visits == {"/a": 3, "/b": 3}
    assert await crawl.states() == {"/a": "done", "/b": "skipped"}
    await crawl.check()


async def test_a_lost_answer_of_the_ledger_loses_nothing(crawl: Crawl, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call about each target takes effect, but its worker does not learn it and ends; the next continue."""
    names = [f"/old{n}" for n in range(12)]
    pages = [f"/page{n}" for n in range(6)]
    routes: dict[str, Any] = {"/": [*names, *pages], **{page: [] for page in pages}}
    routes |= {name: (302, pages[n % 6]) for n, name in enumerate(names[:10])}
    routes |= {"/old10": (302, "/hidden"), "/old11": (302, "/hidden"), "/hidden": []}
    crawl.pages(follow=True, timeout=5.0)
    async with MovingSite(routes) as site:
        await crawl.start(site, "/")
        visit: Callable[..., Any] = crawl.ledger.commits.visit_redirect
        failing = Counter[str]()

        async def fails(worker: str, what: Any) -> Any:
            failing[what.target.url] += 1
            if failing[what.target.url] == 1:
                await visit(worker, what)
                raise InjectedFault("the answer was lost")
            return await visit(worker, what)

        monkeypatch.setattr(crawl.ledger.commits, "visit_redirect", fails)
        for _ in range(len(routes)):
            try:
                await crawl.work()
            except InjectedFault:
                continue
            break
    assert len(failing) == 7
    assert await crawl.stored() == sorted(["/", *pages, "/hidden"])
    await crawl.check()
