"""Hooks at work: they change requests, replace pages, change and drop records. The site's log is the witness."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Blocked, Dropped, Http, Item, Log, Page, Permanent, Request, Scraper, Throttled, Transient
from shoal.config import Settings
from shoal.errors import InvalidRecord
from shoal.model.item import ClaimedItem, NewItem, prepare
from shoal.model.outcome import FinishedAttempt
from shoal.model.worker import Scope
from shoal.observe.logs import open_logs
from shoal.wiring import build_attempts, build_fetcher, build_worker, ledger_context
from shoal.worker.attempt_runner import AttemptRunner
from shoal.worker.state import WorkerOptions
from tests.support.site import HOSTS, Site, Visit

LOG = open_logs(format="console", level="error", file=None, stream=None).log
SETTINGS = Settings(robots=False)


@dataclass
class Product:
    name: str
    price: float | None = None


@dataclass
class Api:
    token: str = "none"


class Pool:
    """Stands for a connection pool."""

    names = {"page 1": "Page One"}  # noqa: RUF012 - never changed


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    robots = "User-agent: *\nDisallow: /link/"
    with Site(robots={HOSTS[0]: robots, HOSTS[2]: robots}, extra={"/gone": "<h1>Sorry, sold out</h1>"}) as site:
        yield site


@pytest.fixture
def scraper() -> Scraper:
    scraper = Scraper("shop", settings=Api, headers={"X-Scraper": "shop"})
    scraper.configure(settings={"token": "t0"}, stages={})
    return scraper


@pytest.fixture
def visits(site: Site) -> Callable[[], list[Visit]]:
    """The requests since the test began."""
    before = len(site.visits())
    return lambda: site.visits()[before:]


@asynccontextmanager
async def attempts(scraper: Scraper, settings: Settings = SETTINGS, log: Log = LOG) -> AsyncIterator[AttemptRunner]:
    fetcher = build_fetcher(settings)
    runner = build_attempts(scraper.check(), fetcher, settings, log=log)
    try:
        yield runner
    finally:
        await runner.close()
        await fetcher.close()


def claimed(new: NewItem) -> ClaimedItem:
    item = prepare(new, new.stage or "")
    return ClaimedItem(0, 1, 0, "run", item.stage, "", 0, item.url, item.key, item.payload, item.lane, 0, 0, 3)


async def attempt(
    scraper: Scraper, target: str | NewItem, settings: Settings = SETTINGS, log: Log = LOG
) -> FinishedAttempt:
    """One attempt on one item, without a ledger."""
    new = scraper.first_stage.item(target) if isinstance(target, str) else target
    async with attempts(scraper, settings, log) as runner:
        finished, _ = await runner.run(claimed(new), time.monotonic())
        return finished


def records(finished: FinishedAttempt) -> list[Any]:
    assert finished.decision.error is None, finished.decision.error
    return [msgspec.json.decode(record) for record in finished.records]


def titles(scraper: Scraper) -> None:
    """A stage with one record for a page."""

    @scraper.stage
    async def title(page: Page) -> AsyncIterator[dict[str, Any]]:
        yield {"title": page.css("h1::text").get(), "status": page.status, "url": page.url}


def yields(scraper: Scraper, *values: Any, **options: Any) -> None:
    """A stage that yields these values."""

    @scraper.stage(**options)
    async def values_(item: Item) -> AsyncIterator[Any]:
        for value in values:
            yield value


KEY = NewItem(key="k", stage="values_")


async def test_a_request_goes_out_as_the_hooks_leave_it(scraper: Scraper, site: Site, visits: Any) -> None:
    @scraper.before_request
    def sign(request: Request, api: Api, item: Item) -> Request:
        assert request.headers["x-scraper"] == "shop"
        return request.with_headers({"X-Token": api.token, "X-Item": item.key})

    @scraper.before_request
    async def rewrite(request: Request) -> Request:
        return request.replace(
            url=request.url.replace("/page/1", "/page/2"), headers={**request.headers, "X-Last": "2"}
        )

    @scraper.before_request
    async def look(request: Request) -> None:
        assert request.url.endswith("/page/2")

    titles(scraper)
    [record] = records(await attempt(scraper, f"{site.url}/page/1"))
    assert record["url"] == f"{site.url}/page/2"
    [visit] = visits()
    assert visit.path == "/page/2"
    assert {visit.headers[name] for name in ("x-scraper", "x-token", "x-last")} == {"shop", "t0", "2"}
    assert visit.headers["x-item"] == f"{site.url}/page/1"


async def test_requests_of_handlers_pass_the_hooks_too_and_those_of_hooks_do_not(
    scraper: Scraper, site: Site, visits: Any
) -> None:
    seen: list[tuple[str, str, bytes | None]] = []

    @scraper.before_request
    async def log_in(request: Request, http: Http) -> Request:
        token = (await http.get(f"{site.url}/page/9")).status
        seen.append((request.method, request.url, request.body))
        return request.with_headers({"X-Token": str(token)})

    @scraper.after_response
    async def look(page: Page, request: Request) -> Page:
        return page.replace(headers={"X-Sent": request.headers["x-token"]})

    @scraper.stage
    async def call(item: Item, http: Http) -> AsyncIterator[dict[str, Any]]:
        first, second = await asyncio.gather(
            http.get(f"{site.url}/page/1"), http.post(f"{site.url}/page/2", json={"a": 1}, check=False)
        )
        yield {"sent": [first.headers["x-sent"], second.headers["X-Sent"]]}

    assert records(await attempt(scraper, NewItem(key="k", stage="call"))) == [{"sent": ["200", "200"]}]
    assert seen == [("GET", f"{site.url}/page/1", None), ("POST", f"{site.url}/page/2", b'{"a":1}')]
    assert [visit.path for visit in visits()] == ["/page/9", "/page/1", "/page/9", "/page/2"]


async def test_pages_that_hooks_open_pass_no_hooks(scraper: Scraper, site: Site, visits: Any) -> None:
    seen: list[str] = []

    @scraper.before_request
    async def look_before(request: Request, http: Http) -> None:
        assert (await http.open(f"{site.url}/page/8")).status == 200
        seen.append(request.url)

    @scraper.after_response
    async def look_after(page: Page, http: Http) -> None:
        assert (await http.open(f"{site.url}/page/9")).status == 200
        seen.append(page.url)

    @scraper.stage(timeout=10)
    async def call(page: Page, http: Http) -> AsyncIterator[dict[str, Any]]:
        further = await http.open(f"{site.url}/page/2")
        yield {"urls": [page.url, further.url]}

    urls = [f"{site.url}/page/1", f"{site.url}/page/2"]
    assert records(await attempt(scraper, urls[0])) == [{"urls": urls}]
    assert seen == [urls[0], urls[0], urls[1], urls[1]]
    assert [visit.path for visit in visits()] == ["/page/8", "/page/1", "/page/9", "/page/8", "/page/2", "/page/9"]


async def test_an_item_of_a_stage_that_the_code_no_longer_has(scraper: Scraper) -> None:
    yields(scraper)
    async with attempts(scraper) as runner:
        item = msgspec.structs.replace(claimed(KEY), stage="gone", lane="some")
        assert not runner.is_ordered(item)
        assert runner.lane_run_id(item) is None
        finished, _ = await runner.run(item, time.monotonic())
    assert finished.decision.error == "this code has no stage 'gone'"


async def test_redirects_and_robots_txt_are_not_hooked(scraper: Scraper, site: Site, visits: Any) -> None:
    called: list[str] = []

    @scraper.before_request
    def count(request: Request) -> Request:
        called.append(request.url)
        return request.with_headers({"X-Hook": "1"})

    @scraper.after_response
    def answer(page: Page) -> None:
        called.append(page.url)

    titles(scraper)
    records(await attempt(scraper, f"{site.url}/redirect/2", Settings(robots=True)))
    assert called[0] == f"{site.url}/redirect/2"
    assert len(called) == 2
    asked, *others = visits()
    assert (asked.path, "x-hook" in asked.headers) == ("/robots.txt", False)
    assert len(others) == 3
    assert all(visit.headers["x-hook"] == "1" for visit in others)


async def test_a_url_of_a_hook_obeys_robots_txt(scraper: Scraper, site: Site, visits: Any) -> None:
    @scraper.before_request
    def rewrite(request: Request) -> Request:
        return request.replace(url=f"{site.url_of(HOSTS[2])}/link/1")

    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1", Settings(robots=True))
    assert "robots.txt of 127.0.0.3" in str(finished.decision.error)
    assert [visit.path for visit in visits()] == ["/robots.txt"]


@pytest.mark.parametrize("url", ["ftp://a.example/x", "no url", "/page/2"])
async def test_a_url_of_a_hook_that_cannot_be_fetched_ends_the_item(scraper: Scraper, site: Site, url: str) -> None:
    @scraper.before_request
    def rewrite(request: Request) -> Request:
        return request.replace(url=url)

    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1")
    assert finished.decision.outcome.value == "permanent"
    assert "URL" in str(finished.decision.error) or "only http and https" in str(finished.decision.error)


async def test_a_url_of_a_hook_may_not_lead_to_private_addresses(scraper: Scraper, site: Site, visits: Any) -> None:
    @scraper.before_request
    def rewrite(request: Request) -> Request:
        return request.replace(url=f"{site.url}/page/1")

    titles(scraper)
    finished = await attempt(scraper, "http://shop.example/", Settings(robots=False, deny_private=True))
    assert "127.0.0.1" in str(finished.decision.error)
    assert visits() == []


async def test_a_response_is_judged_after_the_hooks(scraper: Scraper, site: Site) -> None:
    @scraper.after_response
    def sold_out(page: Page) -> None:
        if "sold out" in page.text:
            raise Permanent("sold out, with a 200")

    @scraper.after_response
    async def tolerate(page: Page) -> Page | None:
        return page.replace(status=200, body="<h1>none</h1>") if page.status == 403 else None

    titles(scraper)
    gone = await attempt(scraper, f"{site.url}/gone")
    assert (gone.decision.outcome.value, gone.decision.error) == ("permanent", "sold out, with a 200")
    assert gone.detail == {"status": 200, "bytes": 24}
    assert records(await attempt(scraper, f"{site.url}/status/403"))[0]["title"] == "none"
    assert (await attempt(scraper, f"{site.url}/status/404")).decision.outcome.value == "permanent"


async def test_links_of_a_page_that_a_hook_made_are_followed(scraper: Scraper, site: Site) -> None:
    @scraper.after_response
    async def other(page: Page) -> Page:
        return Page.of(page.url, '<a href="/page/7">Seven</a>')

    @scraper.stage
    async def links(page: Page) -> list[NewItem]:
        return page.follow_links()

    finished = await attempt(scraper, f"{site.url}/page/1")
    assert finished.decision.error is None
    assert [getattr(new, "url", None) for new in finished.follow_ups] == [f"{site.url}/page/7"]


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (Blocked("logged out"), "blocked"),
        (Transient("try again"), "transient"),
        (Throttled("slow down", retry_after=9), "throttled"),
    ],
)
async def test_a_hook_ends_an_attempt_as_a_handler_would(
    scraper: Scraper, site: Site, ended: Exception, outcome: str, visits: Any
) -> None:
    @scraper.before_request
    async def refuse(request: Request) -> None:
        raise ended

    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1")
    assert (finished.decision.outcome.value, finished.decision.error) == (outcome, str(ended))
    assert visits() == []


async def test_hooks_of_stages_are_called_for_these_only(scraper: Scraper, site: Site, visits: Any) -> None:
    @scraper.before_request(stages=["other"])
    def mark(request: Request) -> Request:
        return request.with_headers({"X-Other": "1"})

    titles(scraper)

    @scraper.stage
    async def other(page: Page) -> None: ...

    await attempt(scraper, f"{site.url}/page/1")
    await attempt(scraper, other.item(f"{site.url}/page/2"))
    assert ["x-other" in visit.headers for visit in visits()] == [False, True]


async def test_records_pass_the_hooks_in_their_order(scraper: Scraper) -> None:
    @scraper.provide
    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    @scraper.on_record
    def price(record: dict[str, Any]) -> None:
        record["price"] = float(record["price"])

    @scraper.on_record
    async def enrich(record: dict[str, Any], pool: Pool, item: Item) -> dict[str, Any]:
        assert isinstance(record["price"], float)
        return {**record, "name": pool.names[record["name"]], "item": item.key}

    @scraper.on_record
    def cheap(record: dict[str, Any]) -> None:
        if record["price"] < 1:
            raise Dropped(f"{record['name']} costs {record['price']}")

    @scraper.on_record
    async def last(record: dict[str, Any]) -> dict[str, Any]:
        assert record["price"] >= 1, "a dropped record goes no further"
        return record | {"last": True}

    yields(
        scraper,
        {"name": "page 1", "price": "2.5"},
        {"name": "page 1", "price": "0.5"},
        {"name": "page 1", "price": "3"},
    )
    finished = await attempt(scraper, KEY)
    assert [record["price"] for record in records(finished)] == [2.5, 3.0]
    assert records(finished)[0] == {"name": "Page One", "price": 2.5, "item": "k", "last": True}
    assert finished.detail is not None
    [(hook, dropped)] = finished.detail["dropped_records"].items()
    assert hook.startswith("cheap() (test_attempt_hooks.py:")
    assert dropped == {"count": 1, "first": "Page One costs 0.5"}


async def test_a_hook_is_called_for_records_of_its_type(scraper: Scraper) -> None:
    @scraper.on_record
    def product(record: Product) -> Product:
        return replace(record, name=record.name.upper())

    @scraper.on_record
    def plain(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, "plain": True}

    yields(scraper, Product("a"), {"name": "b"})
    assert records(await attempt(scraper, KEY)) == [{"name": "A", "price": None}, {"name": "b", "plain": True}]


async def test_a_hook_gets_the_record_type_of_the_stage_and_what_it_returns_is_checked(scraper: Scraper) -> None:
    @scraper.on_record
    def spoil(record: Product) -> Product | dict[str, Any]:
        assert isinstance(record, Product)
        return record if record.name == "good" else {"name": 7}

    yields(scraper, {"name": "good", "price": 1}, record=Product)
    assert records(await attempt(scraper, KEY)) == [{"name": "good", "price": 1.0}]
    scraper.stages.clear()
    yields(scraper, {"name": "bad", "price": 1}, record=Product)
    finished = await attempt(scraper, KEY)
    assert finished.decision.outcome.value == "permanent"
    assert "not a valid Product" in str(finished.decision.error)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_may_change_and_yield_the_same_record_again(scraper: Scraper, is_async: bool) -> None:
    @scraper.on_record
    def keep(record: dict[str, Any]) -> None: ...

    def numbers() -> Iterator[dict[str, Any]]:
        record: dict[str, Any] = {"tags": []}
        for number in range(3):
            record["number"] = number
            record["tags"].append(number)
            yield record

    async def numbers_async() -> AsyncIterator[dict[str, Any]]:
        for record in numbers():
            yield record

    scraper.stage(name="values_")(numbers_async if is_async else numbers)
    assert records(await attempt(scraper, KEY)) == [
        {"tags": list(range(number + 1)), "number": number} for number in range(3)
    ]


async def test_a_hook_that_forgets_to_return_drops_nothing(scraper: Scraper) -> None:
    @scraper.on_record
    def forgetful(record: dict[str, Any]):  # type: ignore[no-untyped-def]
        record["seen"] = True

    yields(scraper, {"n": 1}, {"n": 2})
    assert records(await attempt(scraper, KEY)) == [{"n": 1, "seen": True}, {"n": 2, "seen": True}]


async def test_a_hook_that_breaks_the_promise_of_its_annotation_fails(scraper: Scraper) -> None:
    @scraper.on_record
    def forgetful(record: dict[str, Any]) -> dict[str, Any]:  # type: ignore[return]
        {**record, "seen": True}  # noqa: B018

    yields(scraper, {"n": 1})
    finished = await attempt(scraper, KEY)
    assert "the on_record hook forgetful() (test_attempt_hooks.py:" in str(finished.decision.error)
    assert "is a `return` missing?" in str(finished.decision.error)


@pytest.mark.parametrize("answer", [True, "text", 7, [{"n": 1}]])
async def test_a_hook_that_returns_no_record_fails(scraper: Scraper, answer: object) -> None:
    @scraper.on_record
    def wrong(record: Any) -> Any:
        return answer

    yields(scraper, {"n": 1})
    finished = await attempt(scraper, KEY)
    assert "instead of a record" in str(finished.decision.error)
    assert (finished.records, finished.decision.outcome.value) == ((), "permanent")


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_error_names_the_hook_and_its_line(scraper: Scraper, site: Site, is_async: bool) -> None:
    def broken(page: Page) -> None:
        raise KeyError("price")

    async def broken_async(page: Page) -> None:
        broken(page)

    scraper.after_response(broken_async if is_async else broken)
    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1")
    error = str(finished.decision.error)
    assert f"the after_response hook broken{'_async' * is_async}() (test_attempt_hooks.py:" in error
    assert "failed: KeyError: 'price' (test_attempt_hooks.py:" in error
    assert finished.decision.outcome.value == "transient"


async def test_a_programming_error_in_a_hook_is_not_tried_again(scraper: Scraper, site: Site) -> None:
    @scraper.after_response
    def broken(page: Page) -> None:
        page.nothing_of_this_name  # type: ignore[attr-defined] # noqa: B018

    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1")
    assert finished.decision.outcome.value == "permanent"
    assert "the after_response hook broken()" in str(finished.decision.error)


async def test_headers_cannot_be_changed_in_place(scraper: Scraper, site: Site, visits: Any) -> None:
    @scraper.before_request
    def assign(request: Request) -> None:
        request.headers["X-Token"] = "1"  # type: ignore[index]

    titles(scraper)
    finished = await attempt(scraper, f"{site.url}/page/1")
    assert "assign()" in str(finished.decision.error)
    assert visits() == []


@pytest.mark.parametrize("kind", ["before_request", "after_response"])
async def test_a_hook_that_returns_something_else_fails(scraper: Scraper, site: Site, kind: str) -> None:
    async def before(request: Request) -> Any:
        return "http://other.example"

    async def after(page: Page) -> Any:
        return page.body

    getattr(scraper, kind)(before if kind == "before_request" else after)
    titles(scraper)
    error = str((await attempt(scraper, f"{site.url}/page/1")).decision.error)
    assert f"the {kind} hook" in error
    assert "it returned" in error


async def test_dropped_outside_of_record_hooks_is_a_mistake(scraper: Scraper, site: Site) -> None:
    @scraper.stage
    async def handler(page: Page) -> None:
        raise Dropped("misplaced")

    finished = await attempt(scraper, f"{site.url}/page/1")
    assert finished.decision.outcome.value == "permanent"
    assert "only an on_record hook can drop a record" in str(finished.decision.error)


async def test_an_invalid_record_ends_the_item(scraper: Scraper) -> None:
    @scraper.on_record
    def check(record: dict[str, Any]) -> None:
        raise InvalidRecord("The price is missing.")

    yields(scraper, {"n": 1})
    finished = await attempt(scraper, KEY)
    assert finished.decision.outcome.value == "permanent"
    assert "The price is missing." in str(finished.decision.error)


async def test_functions_that_block_run_in_threads_once_for_all_records(scraper: Scraper, site: Site) -> None:
    threads: dict[str, set[str]] = {"request": set(), "record": set(), "async": set()}

    @scraper.before_request
    def slow(request: Request) -> None:
        threads["request"].add(threading.current_thread().name)

    @scraper.on_record
    def record(record: Any) -> None:
        threads["record"].add(threading.current_thread().name)

    @scraper.on_record
    async def quick(record: Any) -> None:
        threads["async"].add(threading.current_thread().name)

    @scraper.stage
    async def many(page: Page) -> list[dict[str, int]]:
        return [{"n": n} for n in range(20)]

    assert len(records(await attempt(scraper, f"{site.url}/page/1"))) == 20
    here = threading.current_thread().name
    assert threads["async"] == {here}
    assert here not in threads["request"] | threads["record"]
    assert len(threads["record"]) == 1


async def test_a_hook_that_hangs_is_named_when_the_attempt_times_out(scraper: Scraper, site: Site) -> None:
    @scraper.after_response
    async def hang(page: Page) -> None:
        await asyncio.Event().wait()

    @scraper.stage(timeout=0.3)
    async def title(page: Page) -> None: ...

    error = str((await attempt(scraper, f"{site.url}/page/1")).decision.error)
    assert "timed out after 0.3 s while the after_response hook hang() (test_attempt_hooks.py:" in error


async def test_a_typed_hook_that_no_record_fits_is_reported(scraper: Scraper) -> None:
    @scraper.on_record
    def check(record: Product) -> None: ...

    yields(scraper, {"name": "a"}, {"name": "b"})
    stream = StringIO()
    logs = open_logs(format="json", level="info", file=None, stream=stream)
    assert len(records(await attempt(scraper, KEY, log=logs.log))) == 2
    logs.close()
    [line] = [msgspec.json.decode(line) for line in stream.getvalue().splitlines() if "never called" in line]
    assert line["hook"].startswith("check()")
    assert (line["type"], line["records"], line["level"]) == ("Product", 2, "warning")


async def test_values_of_an_attempt_are_shared_by_hooks_and_handler(scraper: Scraper, site: Site) -> None:
    journal: list[str] = []

    @scraper.provide(scope="attempt")
    async def pool(item: Item, http: Http) -> AsyncIterator[Pool]:
        journal.append("open")
        await http.get(f"{site.url}/page/3")
        yield Pool()
        journal.append("close")

    @scraper.before_request
    def before(request: Request, pool: Pool) -> None:
        journal.append("before")

    @scraper.on_record
    def record(record: Any, pool: Pool) -> None:
        journal.append("record")

    @scraper.stage
    async def title(page: Page, pool: Pool) -> AsyncIterator[dict[str, Any]]:
        journal.append("handler")
        yield {"n": 1}

    records(await attempt(scraper, f"{site.url}/page/1"))
    assert journal == ["open", "before", "handler", "record", "close"]


async def test_pages_are_freed_when_their_attempt_has_ended(scraper: Scraper, site: Site) -> None:
    """Without the garbage collector, which may be long in coming: pages are large."""
    alive: list[weakref.ref[Any]] = []

    @scraper.before_request
    def before(request: Request) -> None: ...

    @scraper.after_response
    async def after(page: Page, http: Http) -> Page:
        return page.replace(status=page.status)

    @scraper.on_record
    def record(record: Any, page: Page) -> None:
        if record["n"]:
            raise Dropped

    @scraper.stage
    async def title(page: Page, http: Http) -> AsyncIterator[dict[str, Any]]:
        alive.extend((weakref.ref(page.selector), weakref.ref((await http.get(f"{site.url}/page/2")).selector)))
        yield {"n": 0}
        yield {"n": 1}

    async with attempts(scraper) as runner:
        gc.disable()
        try:
            new = title.item(f"{site.url}/page/1")
            assert len(records((await runner.run(claimed(new), time.monotonic()))[0])) == 1
            async with asyncio.timeout(10):  # the thread of a hook lets its arguments go a little later
                while any(each() is not None for each in alive):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        finally:
            gc.enable()


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_settings(request: pytest.FixtureRequest, sqlite_path: Path) -> Settings:
    place = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return Settings(ledger=place, robots=False)


async def test_a_run_with_hooks_on_a_ledger(
    scraper: Scraper, site: Site, ledger_settings: Settings, visits: Any
) -> None:
    """A retry begins with the item's own request; a soft limit closes the host's lane; drops are counted."""
    tries: list[str] = []

    @scraper.before_request
    def number(request: Request) -> Request:
        tries.append(request.url)
        return request.replace(url=f"{request.url}?try={len(tries)}")

    @scraper.after_response
    def soft_limit(page: Page) -> None:
        if page.url.endswith("?try=1"):
            raise Throttled("a page that says: too fast", retry_after=0.2)
        if page.url.endswith("?try=2"):
            raise Transient("half a page", retry_after=0.1)

    @scraper.on_record
    def odd(record: dict[str, Any]) -> None:
        if record["n"] % 2:
            raise Dropped(f"{record['n']} is odd")

    @scraper.stage(backoff_factor=1, backoff_jitter=0)
    async def page(page: Page) -> list[dict[str, int]]:
        return [{"n": n} for n in range(5)]

    scraper.check()
    async with ledger_context(ledger_settings, migrate=True) as ledger:
        run = await ledger.runs.create(scraper.run_spec())
        await ledger.intake.enqueue(run.id, [page.item(f"{site.url}/page/1")])
        await ledger.runs.seal(run.id, by="test")
        fetcher = build_fetcher(ledger_settings)
        worker = build_worker(
            scraper, ledger_settings, ledger, fetcher, WorkerOptions(scope=Scope(scraper="shop")), log=LOG
        )
        async with asyncio.timeout(30):
            summary = await worker.work()
        await fetcher.close()
        assert (summary.done, summary.throttled, summary.retried) == (1, 1, 1)
        [dropped] = summary.dropped_by_hooks.values()
        assert (dropped.count, dropped.first) == (2, "1 is odd")
        stored = [msgspec.json.decode(each.record) for each in (await ledger.reads.results(run.id, limit=10)).rows]
        assert stored == [{"n": 0}, {"n": 2}, {"n": 4}]
    assert tries == [f"{site.url}/page/1"] * 3
    assert [visit.path for visit in visits()] == [f"/page/1?try={n}" for n in (1, 2, 3)]


async def test_a_url_of_a_hook_obeys_the_lane_of_its_host(
    scraper: Scraper, site: Site, ledger_settings: Settings, visits: Any
) -> None:
    """The host of the changed URL says that it is too fast: its lane is closed, and the next item does not go there."""
    other = HOSTS[1]

    @scraper.before_request
    def elsewhere(request: Request) -> Request:
        return request.replace(url=request.url.replace(HOSTS[0], other))

    @scraper.after_response
    def soft_limit(page: Page) -> None:
        raise Throttled("too fast", retry_after=60)

    titles(scraper)
    scraper.check()
    async with ledger_context(ledger_settings, migrate=True) as ledger:
        run = await ledger.runs.create(scraper.run_spec())
        await ledger.intake.enqueue(run.id, [scraper.first_stage.item(f"{site.url}/page/{n}") for n in (1, 2)])
        await ledger.runs.seal(run.id, by="test")
        fetcher = build_fetcher(ledger_settings)
        options = WorkerOptions(scope=Scope(scraper="shop"), concurrency=1, limit=2)
        worker = build_worker(scraper, ledger_settings, ledger, fetcher, options, log=LOG)
        async with asyncio.timeout(30):
            summary = await worker.work()
        await fetcher.close()
        assert summary.throttled == 2
        assert (await ledger.lanes.get(f"{other}:{site.port}")).blocked_seconds > 50
        assert (await ledger.lanes.get(f"{HOSTS[0]}:{site.port}")).blocked_seconds == 0
    assert [(visit.host, visit.path) for visit in visits()] == [(other, "/page/1")]
