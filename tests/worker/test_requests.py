"""Items with requests of their own, accepted statuses, items that die, and errors of the author's code.

The site's own log is the witness for what was sent.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, quote_plus

import msgspec
import pytest
from aiohttp import web

from shoal import Counters, Failure, Http, Item, Log, Page, RunReport, Scraper, connect, secret
from shoal.errors import InvalidRecord, InvalidScraper, Permanent, SecretMissing, Transient


class Sent(msgspec.Struct):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: str
    at: float


class EchoSite:
    """A site on loopback that answers /status/N with that status, and everything else with what it was sent."""

    def __init__(self) -> None:
        self.log: list[Sent] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = self._do(self._start())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return self._runner.addresses[0] and f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            return web.Response(status=404)
        body = (await request.read()).decode()
        headers = {name.lower(): value for name, value in request.headers.items()}
        now = asyncio.get_running_loop().time()
        self.log.append(Sent(request.method, request.path, request.query_string, headers, body, now))
        if request.path == "/moved":
            raise web.HTTPFound(f"/here?{request.query_string}")
        if request.path == "/elsewhere":
            raise web.HTTPFound(f"http://localhost:{request.url.port}/here")
        if request.path == "/team":
            if "if-modified-since" in headers:
                return web.Response(status=304)
            changed = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
            return web.json_response({"team": headers["x-team"]}, headers=changed)
        if request.path == "/file":
            return web.Response(text="a file")
        if request.path.startswith("/status/"):
            return web.Response(status=int(request.path.split("/")[2]), text="<h1>gone</h1>", content_type="text/html")
        return web.json_response({"method": request.method, "body": body, "query": request.query_string})

    def close(self) -> None:
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def echo_site() -> Iterator[EchoSite]:
    with contextlib.closing(EchoSite()) as site:
        yield site


@pytest.fixture
def site(echo_site: EchoSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EchoSite:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHOAL_LEDGER", raising=False)
    echo_site.log.clear()
    return echo_site


def run(scraper: Scraper, **options: Any) -> RunReport:
    return scraper.run(quiet=True, log_level="error", **options)


def search_scraper(site: EchoSite) -> Scraper:
    api = Scraper("api")

    @api.stage(headers={"X-Team": "shoal"})
    async def search(page: Page, item: Item):  # type: ignore[no-untyped-def]
        yield {"sent": page.json(), "key": item.key}
        if item.depth == 0:
            yield search.item(page.requested_url, json={"page": 2}, headers={"Authorization": secret("API_KEY")})

    api.start(search.item(f"{site.url}/search", params={"lang": "pl"}, json={"page": 1}))
    return api


def test_a_post_is_sent_as_stored_also_by_a_resumed_run(site: EchoSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "k3y-of-the-api")
    first = run(search_scraper(site), limit=1, concurrency=1)
    assert not first.finished
    second = run(search_scraper(site))
    assert (second.run_id, second.finished) == (first.run_id, True)
    assert [(sent.method, sent.path, sent.query, sent.body) for sent in site.log] == [
        ("POST", "/search", "lang=pl", '{"page":1}'),
        ("POST", "/search", "lang=pl", '{"page":2}'),
    ]
    assert site.log[0].headers["content-type"] == "application/json"
    assert [sent.headers["x-team"] for sent in site.log] == ["shoal", "shoal"]
    assert [sent.headers.get("authorization") for sent in site.log] == [None, "k3y-of-the-api"]
    assert len({record["key"] for record in second.records()}) == 2
    assert b"k3y-of-the-api" not in b"".join(file.read_bytes() for file in Path(".shoal").rglob("*") if file.is_file())


def test_a_secret_is_read_from_dotenv(site: EchoSite) -> None:
    Path(".env").write_text("API_KEY=from-the-file\n")
    run(search_scraper(site))
    assert site.log[1].headers["authorization"] == "from-the-file"


@pytest.mark.parametrize("value", ["k3yInTheQuery", "k3y+in/the=query"])
def test_a_secret_in_a_query_is_written_nowhere(site: EchoSite, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Its name says nothing, a redirect repeats it, code logs and raises the URL, files and pages are stored."""
    monkeypatch.setenv("QUERY_KEY", value)
    api, params = Scraper("api"), {"q": secret("QUERY_KEY")}

    @api.stage(retries=0)
    async def moved(page: Page, log: Log):  # type: ignore[no-untyped-def]
        log.error("fetched", url=page.url)
        yield {"n": 1}

    @api.stage(retries=0)
    async def broken(page: Page):  # type: ignore[no-untyped-def]
        raise ValueError(page.url)

    @api.stage(retries=0)
    async def saved(item: Item, http: Http):  # type: ignore[no-untyped-def]
        yield await http.download(f"{site.url}/file", params=params)

    api.start(moved.item(f"{site.url}/moved", params=params), broken.item(f"{site.url}/b", params=params))
    api.start(saved.item(key="file"))
    for _ in range(2):  # the second time with stored copies
        report = run(api, store="pages", fresh=True)
        assert (report.counts.done, report.counts.dead) == (2, 1)
        assert next(record["url"] for record in report.records() if "url" in record) == f"{site.url}/file?q=***"
    assert {tuple(parse_qs(sent.query)["q"]) for sent in site.log} == {(value,)}
    written = b"".join(file.read_bytes() for file in Path().rglob("*") if file.is_file())
    assert sum(file.is_file() for file in Path("pages").rglob("*")) == 2
    assert not any(form.encode() in written for form in (value, quote(value), quote_plus(value)))


def test_a_redirect_to_another_host_does_not_take_secrets_along(
    site: EchoSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADER_KEY", "k3y-for-one-host")
    api = Scraper("api")

    @api.stage
    async def page(page: Page) -> dict[str, str]:
        return {"url": page.url}

    headers: dict[str, Any] = {"X-Api-Key": secret("HEADER_KEY"), "X-Who": secret("HEADER_KEY"), "X-Plain": "1"}
    api.start(page.item(f"{site.url}/elsewhere", headers=headers))
    assert run(api).counts.done == 1
    first, second = (sent.headers for sent in site.log)
    assert first["x-api-key"] == first["x-who"] == "k3y-for-one-host"
    assert "x-api-key" not in second
    assert "x-who" not in second
    assert second["x-plain"] == "1"


def test_stored_pages_of_one_url_with_different_headers_are_not_mixed_up(site: EchoSite) -> None:
    api = Scraper("api")

    @api.stage
    async def page(page: Page, item: Item) -> dict[str, str]:
        return {"asked": item.key, "got": page.json()["team"]}

    api.start([page.item(f"{site.url}/team", key=team, headers={"X-Team": team}) for team in ("red", "blue")])
    for _ in range(2):  # the second time with stored copies
        records = list(run(api, store="pages", fresh=True, concurrency=1).records())
        assert sorted(record["got"] for record in records) == ["blue", "red"]
        assert all(record["asked"] == record["got"] for record in records)


def test_a_missing_secret_stops_the_run_and_loses_nothing(site: EchoSite, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecretMissing, match=r"needs the secret API_KEY, which is not set\. Set the env"):
        run(search_scraper(site))
    monkeypatch.setenv("API_KEY", "later")
    report = run(search_scraper(site))
    assert (report.resumed, report.counts.done, report.counts.dead) == (True, 2, 0)
    assert len(site.log) == 2


def test_the_same_requests_of_a_handler(site: EchoSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIN", "12345678")
    shop = Scraper("shop")

    @shop.stage
    async def visit(item: Item, http: Http):  # type: ignore[no-untyped-def]
        url = f"{site.url}/form"
        yield (await http.post(url, form=[("a", "1"), ("a", "2")], params={"q": "x y"})).json()
        yield (await http.request("PUT", url, body=b"raw", headers={"Authorization": "literal"})).json()
        yield (await http.get(url, params={"pin": secret("PIN")})).json()

    shop.start(visit.item(key="one"))
    records = list(run(shop).records())
    assert [(record["method"], record["body"], record["query"]) for record in records] == [
        ("POST", "a=1&a=2", "q=x y"),
        ("PUT", "raw", ""),
        ("GET", "", "pin=12345678"),
    ]
    assert site.log[1].headers["authorization"] == "literal"


def test_accepted_statuses_reach_the_handler(site: EchoSite) -> None:
    shop = Scraper("shop")

    @shop.stage(accept=(404, 500), retries=0)
    async def product(page: Page):  # type: ignore[no-untyped-def]
        yield {"status": page.status, "title": page.css("h1::text").get()}

    shop.start(f"{site.url}/status/{status}" for status in (404, 410, 500))
    report = run(shop)
    assert sorted(record["status"] for record in report.records()) == [404, 500]
    assert (report.counts.done, report.counts.dead) == (2, 1)


def test_further_pages_are_opened_as_the_items_own_page(site: EchoSite) -> None:
    shop = Scraper("shop")

    @shop.stage(accept=(404,), retries=0, concurrency=1, blocked=lambda page: "captcha" in page.url)
    async def product(page: Page, http: Http, item: Item):  # type: ignore[no-untyped-def]
        further = await http.open(f"{site.url}/{item.payload['then']}")
        yield {"first": page.status, "then": further.status}

    thens = ("status/404", "ok", "captcha", "status/410")
    shop.start(product.item(f"{site.url}/ok?{n}", payload={"then": then}) for n, then in enumerate(thens))
    report = run(shop)
    assert [record["then"] for record in report.records()] == [404, 200]
    assert {group.outcome: "soft block" in group.message for group in report.failures.groups} == {
        "blocked": True,
        "permanent": False,
    }


def test_what_a_handler_counts_is_in_the_report(site: EchoSite) -> None:  # S3.14
    shop = Scraper("shop")

    @shop.stage(retries=1, backoff_cap=0.01)
    async def product(item: Item, counters: Counters) -> None:
        counters.add("seen")
        counters.add("accepted", int(item.key))
        if item.key == "2" and not item.tries:
            raise Transient("not yet")

    shop.start(product.item(key=str(n)) for n in range(4))
    report = run(shop)
    assert report.counters == {"seen": 4, "accepted": 6}
    for name, number in (("no name", 1), ("x", -1), ("x", True)):
        with pytest.raises(InvalidRecord):
            Counters().add(name, number)


@pytest.mark.parametrize("accept", [(429,), (99,), "404", (404.0,), object()])
def test_statuses_that_cannot_be_accepted(accept: Any) -> None:
    shop = Scraper("shop")
    with pytest.raises(InvalidScraper, match="accept of the stage"):

        @shop.stage(accept=accept)
        async def product(page: Page) -> None: ...


def dying_scraper(site: EchoSite) -> Scraper:
    shop = Scraper("shop")

    @shop.stage(retries=1, backoff_cap=0.01)
    async def product(page: Page):  # type: ignore[no-untyped-def]
        yield {"url": page.url}

    @shop.stage
    async def archive(page: Page):  # type: ignore[no-untyped-def]
        yield {"archived": page.url}

    @product.on_error
    async def lost(item: Item, failure: Failure):  # type: ignore[no-untyped-def]
        yield {"lost": item.url, "why": failure.message, "status": failure.status, "attempts": failure.attempts}
        if failure.outcome == "permanent":
            yield archive.item(f"{site.url}/archive")

    shop.start(f"{site.url}/{path}" for path in ("ok", "status/404", "status/500"))
    return shop


def test_what_an_error_function_yields_is_stored_with_the_end_of_the_item(site: EchoSite) -> None:
    report = run(dying_scraper(site))
    assert (report.counts.done, report.counts.dead) == (2, 2)
    records = list(report.records())
    lost = {record["lost"]: record for record in records if "lost" in record}
    assert lost[f"{site.url}/status/404"]["why"] == "404 Not Found"
    assert lost[f"{site.url}/status/500"] == {
        "lost": f"{site.url}/status/500",
        "why": "Exceeded retries: 500 Internal Server Error",
        "status": 500,
        "attempts": 2,
    }
    assert {"archived": f"{site.url}/archive"} in records
    assert len(records) == 4
    assert report.counts.results == 4


async def test_retried_items_replace_what_was_stored_when_they_died(site: EchoSite) -> None:
    first = await asyncio.to_thread(run, dying_scraper(site))
    async with connect() as fleet:
        await fleet.retry(first.run_id)
        assert (await fleet.stats()).results == 2
    report = await asyncio.to_thread(run, dying_scraper(site))
    assert report.run_id == first.run_id
    records = [json.dumps(record, sort_keys=True) for record in report.records()]
    assert len(records) == len(set(records)) == report.counts.results == 4


def test_an_error_function_that_fails_changes_nothing_else(site: EchoSite) -> None:
    shop = Scraper("shop")

    @shop.stage(retries=0)
    async def product(page: Page) -> None: ...

    @product.on_error
    def lost(item: Item) -> None:
        raise RuntimeError("broken")

    shop.start(f"{site.url}/status/404")
    report = run(shop)
    assert (report.counts.dead, report.failures.groups[0].message) == (1, "404 Not Found")


def test_an_error_function_sends_no_requests() -> None:
    shop = Scraper("shop")

    @shop.stage
    async def product(page: Page) -> None: ...

    @product.on_error
    async def lost(http: Http) -> None: ...

    with pytest.raises(InvalidScraper, match="an item that died sends no more requests"):
        shop.check()
    with pytest.raises(InvalidScraper, match="two functions for on_error"):
        product.on_error(lost)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("undefined_name", "NameError"),
        ("page.css('h2::text').get().strip()", "AttributeError"),
        ("'a' + 1", "TypeError"),
    ],
)
def test_a_programming_error_is_not_retried(site: EchoSite, body: str, error: str) -> None:
    shop = Scraper("shop")

    @shop.stage(retries=3, accept=(404,))
    async def product(page: Page) -> None:
        exec(compile(body, __file__, "exec"), {"page": page})

    shop.start(f"{site.url}/status/404")
    report = run(shop)
    assert report.counts.dead == 1
    assert error in report.failures.groups[0].message
    assert len(site.log) == 1


@pytest.mark.parametrize("in_hook", [False, True])
def test_items_that_died_of_broken_code_are_open_again_when_the_worker_stops_for_it(
    site: EchoSite, in_hook: bool
) -> None:
    shop = Scraper("shop")

    @shop.stage
    async def product(item: Item) -> dict[str, str]:
        return {"key": item.key if in_hook else undefined_name}  # type: ignore[name-defined] # noqa: F821

    if in_hook:

        @shop.on_record
        def shortened(record: dict[str, str]) -> None:
            record["key"] = undefined_name  # type: ignore[name-defined] # noqa: F821

    shop.start([product.item(key=str(number)) for number in range(30)])
    report = run(shop, concurrency=1)
    assert not report.finished
    assert (report.counts.dead, report.counts.remaining) == (0, 30)


def test_a_broken_on_error_function_does_not_stop_the_worker(site: EchoSite) -> None:
    shop = Scraper("shop")

    @shop.stage
    async def product(item: Item) -> dict[str, str]:
        if int(item.key) < 25:
            raise Permanent("sold out")
        return {"key": item.key}

    @product.on_error
    def lost(failure: Failure) -> None:
        raise KeyError(failure.message)

    shop.start([product.item(key=str(number)) for number in range(30)])
    report = run(shop, concurrency=1)
    assert (report.counts.dead, report.counts.done) == (25, 5)


def test_an_error_inside_a_library_may_be_the_page_and_is_retried(site: EchoSite) -> None:
    shop = Scraper("shop")

    @shop.stage(retries=1, backoff_cap=0.01)
    async def product(page: Page) -> None:
        json.loads(None)  # type: ignore[arg-type]

    shop.start(f"{site.url}/ok")
    run(shop)
    assert len(site.log) == 2


def test_the_default_pace_is_gentle_and_announced_once(site: EchoSite, capfd: pytest.CaptureFixture[str]) -> None:
    """0.0.0.0 leads to this machine, but is not one of the names that say so."""
    pages = Scraper("pages")

    @pages.stage
    async def page(page: Page):  # type: ignore[no-untyped-def]
        yield {"url": page.url}

    far = site.url.replace("127.0.0.1", "0.0.0.0")
    pages.start(f"{far}/1", f"{far}/2", f"{site.url}/3")
    report = pages.run(log_level="info")
    assert report.counts.done == 3
    first, second = (sent.at for sent in site.log if sent.headers["host"].startswith("0.0.0.0"))
    assert second - first > 0.9
    said = capfd.readouterr().err
    assert said.count("no pace is set: the default is gentle") == 1
    assert "seconds_between=1.0" in said
