"""What authors test their scrapers with: stages called by type, a fake Http, saved pages, a local site."""

import asyncio
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from http.client import RemoteDisconnected
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from multidict import CIMultiDict

import shoal.testing
from shoal import Follow, Http, Item, Log, Page, Permanent, Request, Scraper, Throttled, css
from shoal.errors import InvalidRecord, NotFound, UsageError
from shoal.model.item import NewItem
from shoal.testing import FakeHttp, LocalSite, RecordedLog, followed_by, load_page, save_page, yielded_by
from shoal.testing.fake_http import UnexpectedRequest
from shoal.testing.saved_pages import find_page

pytest_plugins = ["pytester"]

API = "http://api.example"


@dataclass
class Settings:
    base: str = API


class Database:
    pass


scraper = Scraper("rivers", settings=Settings)


@scraper.provide
def database() -> Database:
    raise AssertionError("no provider is called in a test of a stage")


@scraper.stage
async def listing(page: Page, item: Item, log: Log) -> AsyncIterator[Any]:
    log.bind(page=page.url).info("found", links=1)
    yield {"url": page.url, "key": item.key}
    yield [None, river.item(page.join("/a")), ({"n": 1}, {"n": 2})]


@dataclass
class Title:
    text: str = css("h1")


@scraper.stage(record=Title)
async def title(page: Page) -> None: ...


@scraper.stage
async def river(item: Item, http: Http, settings: Settings) -> list[Any]:
    page = await http.get(f"{settings.base}/{item.key}", params={"lang": "en"})
    return [page.json()]


@scraper.stage
def plain(page: Page, database: Database) -> Iterator[dict[str, Any]]:
    assert isinstance(database, Database)
    yield {"title": page.css("h1::text").get()}


@scraper.stage
async def wrong(page: Page) -> dict[str, Any]:
    return {"value": float("nan")}


PAGE = Page.of("http://shop.example/x", "<h1>X</h1>")


def test_a_stage_gets_values_by_their_types() -> None:
    log = RecordedLog()
    found = yielded_by(listing, log, PAGE)
    assert found == [
        {"url": PAGE.url, "key": PAGE.url},
        river.item("http://shop.example/a"),
        {"n": 1},
        {"n": 2},
    ]
    assert isinstance(found[1], NewItem)
    assert log.events == [("info", "found", {"page": PAGE.url, "links": 1})]
    assert yielded_by(listing, PAGE, Item(key="k"))[0]["key"] == "k"
    assert yielded_by(plain, PAGE, Database()) == yielded_by(plain, PAGE, database=Database()) == [{"title": "X"}]


def test_links_that_a_handler_follows_lead_to_its_stage() -> None:
    @scraper.stage(name="crawl")
    async def crawl(page: Page) -> list[NewItem]:
        return page.follow_links() + page.follow_links(to="listing", depth=2)

    page = Page.of("http://shop.example/", '<a href="/a">A</a>')
    assert yielded_by(crawl, page) == [crawl.item("http://shop.example/a"), listing.item("http://shop.example/a")]
    ruled = Scraper("ruled")

    @ruled.stage(follow=Follow(deny="/b", depth=3))
    async def visit(page: Page) -> None: ...

    assert followed_by(visit, page) == [visit.item("http://shop.example/a")]
    assert followed_by(visit, page, depth=3) == followed_by(listing, page) == []


async def test_it_works_inside_a_running_event_loop() -> None:
    http = FakeHttp({f"{API}/rhine?lang=en": {"km": 1230}})
    assert yielded_by(river, Item(key="rhine"), http) == [{"km": 1230}]
    with pytest.raises(UnexpectedRequest):
        yielded_by(river, Item(key="elbe"), http)


def test_what_is_missing_or_not_asked_for_is_said() -> None:
    with pytest.raises(TypeError, match=r"plain\(\) .* asks for 'database': give it a value, database="):
        yielded_by(plain, PAGE)
    with pytest.raises(TypeError, match=r"asks for 'page'"):
        yielded_by(listing)
    with pytest.raises(TypeError, match=r"has no parameter for Database.*|no parameter for <.*Database"):
        yielded_by(listing, PAGE, Database())
    with pytest.raises(TypeError, match="takes a stage"):
        yielded_by(database)  # type: ignore[arg-type]


def test_a_record_that_could_not_be_stored_fails_the_test() -> None:
    with pytest.raises(InvalidRecord):
        yielded_by(wrong, PAGE)


def test_requests_are_answered_by_url_and_kept() -> None:
    asked: list[Request] = []

    def answer(request: Request) -> object:
        asked.append(request)
        return [1, 2]

    http = FakeHttp(
        {
            f"POST {API}/login": {"token": "t"},
            f"{API}/page": "<h1>Page</h1>",
            f"{API}/raw": b"\x00",
            f"{API}/made": answer,
            f"{API}/twice": iter(["one", 404]),
            f"{API}/busy": Page.of(f"{API}/busy", status=429, headers={"Retry-After": "7"}),
            f"{API}/down": Permanent("no such host"),
        },
        headers={"X-Own": "1"},
    )

    async def use() -> None:
        assert (await http.post(f"{API}/login", json={"user": "me"})).json() == {"token": "t"}
        assert (await http.get(f"{API}/page")).css("h1::text").get() == "Page"
        assert (await http.get(f"{API}/raw")).body == b"\x00"
        assert (await http.get(f"{API}/made", headers={"X-A": "2"})).json() == [1, 2]
        assert (await http.get(f"{API}/twice")).text == "one"
        with pytest.raises(Permanent, match="404 Not Found"):
            await http.get(f"{API}/twice")
        with pytest.raises(UnexpectedRequest, match="No further answer"):
            await http.get(f"{API}/twice")
        with pytest.raises(Throttled) as throttled:
            await http.get(f"{API}/busy")
        assert throttled.value.retry_after == 7
        assert (await http.get(f"{API}/busy", check=False)).status == 429
        with pytest.raises(Permanent, match="no such host"):
            await http.get(f"{API}/down")
        with pytest.raises(UnexpectedRequest, match=f"(?s)No answer for GET {API}/login.*POST {API}/login"):
            await http.get(f"{API}/login")

    asyncio.run(use())
    assert http.requests[0].body == b'{"user":"me"}'
    assert asked[0].headers == {"X-Own": "1", "X-A": "2"}
    assert http.urls[:2] == [f"{API}/login", f"{API}/page"]


def test_a_download_goes_to_the_folder_that_the_test_names(tmp_path: Path) -> None:
    @scraper.stage(name="files")
    async def file(item: Item, http: Http) -> AsyncIterator[dict[str, Any]]:
        saved = await http.download(f"{API}/cover.jpg", name="{name}")
        yield {"path": saved.path, "size": saved.bytes}

    http = FakeHttp({f"{API}/cover.jpg": b"jpeg" * 1_000}, files=tmp_path)
    [record] = yielded_by(file, Item(key="k"), http)
    assert record["size"] == 4_000
    assert (tmp_path / "cover.jpg").read_bytes() == b"jpeg" * 1_000
    with pytest.raises(Permanent, match=r"FakeHttp\(answers, files=folder\)"):
        yielded_by(file, Item(key="k"), FakeHttp({}))


def page(url: str, body: bytes = b"<h1>caf\xc3\xa9</h1>\n\nend\r\n\r\n", **more: Any) -> Page:
    headers = CIMultiDict([("Content-Type", "text/html"), ("Link", "<a>"), ("Link", "<b>")])
    return Page(url, **{"status": 200, "headers": headers, "body": body, **more})


def test_a_saved_page_comes_back_as_it_was(tmp_path: Path) -> None:
    first = page("http://shop.example/category/garden?page=2")
    file = save_page(first, tmp_path)
    assert file.name == "category-garden-page-2.http"
    assert file.read_bytes().startswith(
        b"GET http://shop.example/category/garden?page=2\n200\nContent-Type: text/html\n"
    )
    loaded = load_page(file)
    assert (loaded.url, loaded.status, loaded.body, loaded.method) == (first.url, 200, first.body, "GET")
    assert list(loaded.headers.items()) == list(first.headers.items())
    moved = page(
        "http://a.example/c", requested_url="http://a.example/", history=("http://a.example/", "http://a.example/b")
    )
    loaded = load_page(save_page(moved, tmp_path, "moved"))
    assert (loaded.url, loaded.requested_url, loaded.history) == (moved.url, moved.requested_url, moved.history)
    binary = page("http://a.example/x.png", body=bytes(range(256)) * 10, status=404)
    loaded = load_page(save_page(binary, tmp_path))
    assert (loaded.body, loaded.status) == (binary.body, 404)


def test_a_page_is_replaced_by_a_newer_one_of_its_url_only(tmp_path: Path) -> None:
    first = save_page(page("http://a.example/x"), tmp_path)
    other = save_page(page("http://b.example/x"), tmp_path)
    again = save_page(page("http://a.example/x", body=b"new"), tmp_path)
    assert (first, other.name) == (again, "x-2.http")
    assert load_page(first).body == b"new"


def test_secrets_are_not_saved(tmp_path: Path) -> None:
    headers = {"Set-Cookie": "session=abcdefgh12345", "X-Auth-Token": "abcdefgh12345", "Content-Encoding": "gzip"}
    secret = page("http://me:hunter2hunter2@a.example/x?api_key=abcdefgh12345&page=2", headers=CIMultiDict(headers))
    text = save_page(secret, tmp_path).read_text()
    assert "abcdefgh12345" not in text
    assert "hunter2" not in text
    assert "gzip" not in text
    assert "page=2" in text


def test_a_file_that_an_editor_has_changed_is_still_read(tmp_path: Path) -> None:
    file = tmp_path / "x.http"
    file.write_bytes(b"GET http://a.example/\r\n200\r\nContent-Type: text/plain\r\n\r\nline\r\n")
    loaded = load_page(file)
    assert (loaded.status, loaded.content_type, loaded.body) == (200, "text/plain", b"line\r\n")


@pytest.mark.parametrize(
    "content", [b"", b"<html>\n\n<body>", b"GET\n200\n\nx", b"GET http://a.example/\nok\n\nx", b"\xff\xfe\n\n"]
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.http"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="is not a saved page"):
        load_page(file)


def test_a_page_is_found_by_name_or_url(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    save_page(page("http://a.example/x"), near)
    save_page(page("http://a.example/y"), far)
    (far / "raw.json").write_text('{"a": 1}')
    (far / "broken.http").write_text("nothing")
    folders = [near, far]
    assert find_page("x", folders).url == "http://a.example/x"
    assert find_page("y.http", folders).url == "http://a.example/y"
    assert find_page("HTTP://A.example/y", folders).url == "http://a.example/y"
    assert find_page("raw.json", folders, url=f"{API}/a").json() == {"a": 1}
    with pytest.raises(UsageError, match="Give its url="):
        find_page("raw.json", folders)
    with pytest.raises(NotFound, match=r"no saved page 'z' .* broken.http, raw.json, x.http, y.http"):
        find_page("z", folders)


@pytest.fixture
def site() -> Iterator[LocalSite]:
    with LocalSite() as site:
        yield site


def ask(site: LocalSite, path: str, data: bytes | None = None) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(site.url + path, data=data, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read()


def test_a_site_answers_its_routes_and_keeps_a_log(site: LocalSite) -> None:
    site.route("/", "<h1>Home</h1>")
    site.route("/api", {"page": 1})
    site.route("/api?page=2", {"page": 2})
    site.route("/made", lambda request: {"method": request.method, "sent": (request.body or b"").decode()})
    site.route("/tea", 418, headers={"X-Pot": "brown"})
    site.route("/saved", Page.of("http://other.example/", "text", headers={"Content-Type": "text/plain"}), status=203)
    site.route("/turns", iter(["a", "b"]))
    assert ask(site, "/") == (200, "text/html; charset=utf-8", b"<h1>Home</h1>")
    assert ask(site, "/api?q=1") == (200, "application/json", b'{"page":1}')
    assert ask(site, "/api?page=2")[2] == b'{"page":2}'
    assert ask(site, "/made", data=b"x=1")[2] == b'{"method":"POST","sent":"x=1"}'
    assert ask(site, "/tea")[0] == 418
    assert ask(site, "/saved") == (203, "text/plain", b"text")
    assert [ask(site, "/turns")[0] for _ in range(3)] == [200, 200, 500]
    assert ask(site, "/none")[0] == 404
    assert ask(site, "/robots.txt")[0] == 404
    assert site.paths[:4] == ["/", "/api?q=1", "/api?page=2", "/made"]
    assert "/robots.txt" not in site.paths
    posted = site.requests[3]
    assert (posted.method, posted.body, posted.status) == ("POST", b"x=1", 200)
    assert posted.headers["content-type"] == "application/x-www-form-urlencoded"
    assert site.requests[1].params == {"q": ["1"]}


def test_a_site_fails_on_demand(site: LocalSite) -> None:
    site.route("/x", "a" * 100_000)
    site.fail("/x", 503, times=2, headers={"Retry-After": "1"})
    site.fail("/x", "reset")
    site.fail("/x", "truncate")
    assert [ask(site, "/x")[0] for _ in range(2)] == [503, 503]
    with pytest.raises((RemoteDisconnected, ConnectionError)):
        ask(site, "/x")
    with pytest.raises(Exception, match="IncompleteRead"):
        ask(site, "/x")
    assert ask(site, "/x")[0] == 200
    assert [request.status for request in site.requests] == [503, 503, 0, 200, 200]
    with pytest.raises(UsageError, match="one of reset, stall, truncate"):
        site.fail("/x", "explode")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="begin with a slash"):
        site.route("x", "")


def test_a_request_that_stalls_does_not_keep_the_site_open() -> None:
    with LocalSite() as site:
        site.fail("/x", "stall")
        port = int(site.url.rpartition(":")[2])
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
        while not site.requests:
            pass
    connection.close()


def test_saved_pages_are_served_at_their_paths(site: LocalSite, tmp_path: Path) -> None:
    save_page(page("http://shop.example/garden?page=2", body=b"two"), tmp_path)
    (tmp_path / "data.json").write_text("{}")
    site.pages(tmp_path)
    assert ask(site, "/garden?page=2")[2] == b"two"
    assert ask(site, "/garden")[0] == 404
    assert ask(site, "/data.json")[1] == "application/json"


def test_a_scraper_runs_on_the_site(site: LocalSite, tmp_path: Path) -> None:
    site.route("/list", '<a href="/p/1">1</a>')
    site.route("/p/1", "<h1>One</h1>")
    site.fail("/p/1", "reset")
    shop = Scraper("shop")

    @shop.stage(backoff_factor=1)
    async def titles(page: Page) -> AsyncIterator[Any]:
        for link in page.links():
            yield titles.item(link)
        if title := page.css("h1::text").get():
            yield {"title": title}

    shop.start(f"{site.url}/list")
    report = shop.run(quiet=True, ledger=str(tmp_path / "ledger.db"))
    assert [record["title"] for record in report.records()] == ["One"]
    assert site.paths.count("/p/1") == 2


def test_the_fixtures_are_found_and_load_pages_beside_the_test(pytester: pytest.Pytester) -> None:
    save_page(page("http://shop.example/near"), pytester.path / "tests" / "unit" / "pages")
    save_page(page("http://shop.example/far"), pytester.path / "tests" / "pages")
    (pytester.path / "tests" / "unit" / "test_pages.py").write_text(
        """
import urllib.request

def test_pages(shoal_page):
    assert shoal_page("near").url == "http://shop.example/near"
    assert shoal_page("http://shop.example/far").status == 200

def test_missing(shoal_page):
    shoal_page("gone")

def test_site(shoal_site):
    shoal_site.route("/", "home")
    assert urllib.request.urlopen(shoal_site.url).read() == b"home"
"""
    )
    result = pytester.runpytest_inprocess("-p", "shoal.pytest_plugin", "-p", "no:asyncio", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*There is no saved page 'gone' in *near.http*"])


def test_the_plugin_and_the_helpers_need_no_extra_and_nothing_heavy() -> None:
    """Every pytest of the environment imports the plugin; an author need not have the testing extra."""
    code = """
import sys
import shoal.pytest_plugin
assert {"aiohttp", "lxml", "asyncpg", "msgspec", "parsel"}.isdisjoint(sys.modules)
assert [name for name in sys.modules if name.startswith("shoal")] == ["shoal", "shoal.pytest_plugin"]
for name in ("hypothesis", "pytest_asyncio"):
    sys.modules[name] = None
import shoal.testing
for name in shoal.testing.__all__:
    getattr(shoal.testing, name)
sys.modules["pytest"] = None
assert "shoal.testing.conformance" not in sys.modules and "shoal.testing.machine" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'yielded'"):
        shoal.testing.yielded  # noqa: B018


async def test_a_fake_http_downloads_into_a_folder(tmp_path: Path) -> None:
    http = FakeHttp({f"{API}/data.csv": b"a,b"}, files=tmp_path)
    done = await http.download(f"{API}/data.csv", name="{name}")
    assert (done.path, Path(done.path).read_bytes()) == (str(tmp_path / "data.csv"), b"a,b")
    assert http.urls == [f"{API}/data.csv"]
    with pytest.raises(Permanent, match="no folder for downloads"):
        await FakeHttp({f"{API}/data.csv": b"a,b"}).download(f"{API}/data.csv")


def test_a_stage_without_a_body_yields_the_record_of_its_page() -> None:
    found = yielded_by(title, Page.of(f"{API}/", "<h1>Rhine</h1>"))
    assert found == [Title("Rhine")]
