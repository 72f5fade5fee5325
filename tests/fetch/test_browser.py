"""Pages in a real Chromium: rendering, navigation, politeness, identities, and pages that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from shoal.errors import ExitFailed, Permanent, Skipped, Throttled, Transient
from shoal.fetch.browser import BrowserFetcher
from shoal.fetch.download import Downloads
from shoal.fetch.page import BrowserOptions, Page, Request
from shoal.model.egress import ProxyAddress
from tests.support.browsers import FixedIdentity, RecordingGate, children, close_browser, make_browser
from tests.support.proxies import MicroSocks, TinyProxy
from tests.support.raw_site import Seen, Site, redirect, reply

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]
OTHER = "127.0.0.2"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrowserFetcher]:
    """One for all tests: each uses a jar of its own."""
    browser = make_browser(targets=10_000, downloads=Downloads(str(tmp_path_factory.mktemp("files"))))
    yield browser
    await close_browser(browser)


@pytest_asyncio.fixture(loop_scope="module")
async def site() -> AsyncIterator[Site]:
    site = Site(OTHER, "127.0.0.3")
    await site.start()
    yield site
    await site.stop()


def script(code: str, body: str = "") -> bytes:
    return reply(f"<!doctype html><title>t</title><body>{body}<script>{code}</script></body>")


def json(text: str) -> bytes:
    return reply(text, content_type="application/json")


async def fetch(browser: BrowserFetcher, url: str, jar: str | None = "jar", **options: object) -> Page:
    async with browser.open_tab(jar=jar, options=BrowserOptions(**options)) as tab:  # type: ignore[arg-type]
        return await tab.fetch(Request(url=url))


async def test_a_page_is_rendered_and_its_calls_are_kept(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/"] = script(
        "fetch('/api').then(r => r.json()).then(d => { document.querySelector('h1').textContent = d.name })",
        "<h1>empty</h1>",
    )
    site.answers["/api"] = json('{"name": "Ümläut"}')
    async with browser.open_tab(jar="a", options=BrowserOptions(wait_for="h1:text('Ümläut')")) as tab:
        page = await tab.fetch(Request(url=site.url("/")))
        assert await tab.title() == "t"
    assert page.css("h1::text").get() == "Ümläut"
    assert (page.status, page.url, page.history) == (200, site.url("/"), ())
    assert [(call.url, call.method, call.status, call.json()) for call in page.calls] == [
        (site.url("/api"), "GET", 200, {"name": "Ümläut"})
    ]


async def test_what_is_no_html_is_given_as_it_was_sent(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/data"] = json('{"a": 1}')
    site.answers["/latin"] = reply("<p>\xe4".encode("latin-1"), content_type="text/html; charset=iso-8859-1")
    site.answers["/none"] = reply(status=404)
    site.answers["/empty"] = reply(status=204, content_type=None)
    assert (await fetch(browser, site.url("/data"))).json() == {"a": 1}
    assert (await fetch(browser, site.url("/latin"))).css("p::text").get() == "ä"
    for path, status in (("/none", 404), ("/empty", 204)):
        page = await fetch(browser, site.url(path))
        assert (page.status, page.body, page.url) == (status, b"", site.url(path))


async def test_every_document_passes_the_gate(browser: BrowserFetcher, site: Site) -> None:
    """Redirects of the site and of a script, frames, and clicks; what the page loads from its own host does not."""
    site.answers["/a"] = redirect("/b")
    site.answers["/b"] = script("location.href = '/c'")
    site.answers["/c"] = reply("<img src=/i.png><a href=/d>go</a><iframe src=/frame></iframe>")
    site.answers["/d"] = reply("<p>end", status=429, Retry_After="7")
    gate = RecordingGate()
    async with browser.open_tab(jar="gate", gate=gate) as tab:
        page = await tab.fetch(Request(url=site.url("/a")), gate=gate)
        assert page.url == site.url("/c")
        assert page.history == (site.url("/a"), site.url("/b"))
        assert gate.redirects == [site.url("/b"), site.url("/c")]
        await tab.click("a")
        with pytest.raises(Throttled):
            await tab.page(wait_for="p")
    assert gate.asked == [site.url(path) for path in ("/a", "/b", "/c", "/frame", "/d")]
    assert gate.throttled in ([f"127.0.0.1:{site.port}"] * 2, [f"127.0.0.1:{site.port}"])
    assert gate.sent == 5
    await asyncio.sleep(0)
    assert gate.open == 0
    assert "/i.png" in site.targets


async def test_what_the_gate_refuses_is_not_sent(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/"] = reply("<iframe src=/private></iframe><p>here")
    site.answers["/moved"] = redirect("/private/2")
    gate = RecordingGate(refused={"/private": Skipped("robots.txt forbids it")})
    page = await browser.fetch(Request(url=site.url("/")), gate=gate, jar="refused")
    assert page.css("p::text").get() == "here"
    for path in ("/private", "/moved"):
        with pytest.raises(Skipped):
            await browser.fetch(Request(url=site.url(path)), gate=gate, jar="refused")
    assert not [target for target in site.targets if "private" in target]


async def test_requests_to_other_hosts_pass_their_lane_if_they_have_one(browser: BrowserFetcher, site: Site) -> None:
    paced, free = (f"http://{host}:{site.port}" for host in (OTHER, "127.0.0.3"))
    site.answers["/"] = script(f"fetch('{paced}/api')", f"<img src={free}/i.png><img src={paced}/j.png>")
    gate = RecordingGate(lanes=(OTHER,))
    await browser.fetch(Request(url=site.url("/")), gate=gate, jar="lanes")
    assert sorted(gate.asked) == sorted([site.url("/"), f"{paced}/api", f"{paced}/j.png"])
    assert {"/i.png", "/j.png", "/api"} <= set(site.targets)
    gate = RecordingGate(lanes=(OTHER,), refused={"/api": Throttled("wait", retry_after=5.0)})
    with pytest.raises(Throttled):
        await browser.fetch(Request(url=site.url("/")), gate=gate, jar="lanes")
    gate = RecordingGate(lanes=(OTHER,), refused={"/j.png": Throttled("wait", retry_after=5.0)})
    assert (await browser.fetch(Request(url=site.url("/")), gate=gate, jar="lanes")).status == 200


class LateGate(RecordingGate):
    """A gate that admits requests of the page and refuses them when it is their turn. `own`: their gates."""

    def __init__(self) -> None:
        super().__init__(lanes=(OTHER,))
        self.own: list[RecordingGate] = []

    async def for_page_request(self, url: str, *, navigation: bool) -> RecordingGate | None:
        if await super().for_page_request(url, navigation=navigation) is None:
            return None
        self.own.append(gate := RefusingGate())
        return gate


class RefusingGate(RecordingGate):
    async def before_send(self, hop: int) -> None:
        raise Throttled("the host has answered 429 meanwhile", retry_after=5.0)


@pytest.mark.parametrize("part", ["<img src={}>", "<script>fetch('{}')</script>", "<iframe src={}></iframe>"])
async def test_what_is_refused_when_its_turn_has_come_keeps_no_place_at_its_host(
    browser: BrowserFetcher, site: Site, part: str
) -> None:
    site.answers["/"] = reply("<p>here" + part.format(f"http://{OTHER}:{site.port}/part"))
    gate = LateGate()
    async with browser.open_tab(jar="late", gate=gate) as tab:
        with suppress(Throttled):  # without a picture or a frame the page is complete
            await tab.fetch(Request(url=site.url("/")), gate=gate)
        assert [(own.asked, own.sent, own.open) for own in gate.own] == [([f"http://{OTHER}:{site.port}/part"], 0, 0)]
    assert [own.open for own in gate.own] == [0]
    assert "/part" not in site.targets


async def test_an_error_page_is_not_waited_for_until_the_timeout(
    browser: BrowserFetcher, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the stage waits for never appears on a 404; on a challenge it may appear a moment later."""
    site.answers["/gone"] = reply("<h1>gone</h1>", status=404)
    began = time.monotonic()
    assert (await fetch(browser, site.url("/gone"), wait_for="b.never")).status == 404
    assert time.monotonic() - began < 45  # of the 60 seconds of an attempt
    site.answers["/challenge"] = reply(
        "<script>setTimeout(() => document.body.innerHTML = '<b>in</b>', 300)</script>", status=403
    )
    monkeypatch.setattr("shoal.fetch.tab._ERROR_PAGE_SECONDS", 30.0)
    page = await fetch(browser, site.url("/challenge"), wait_for="b")
    assert (page.status, page.css("b::text").get()) == (403, "in")


async def test_block_viewport_and_wait_for(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/"] = script(
        "setTimeout(() => { document.body.insertAdjacentHTML('beforeend', `<b>${innerWidth}</b>`) }, 100)",
        "<img src=/i.png><link rel=stylesheet href=/c.css>",
    )
    page = await fetch(
        browser, site.url("/"), block=frozenset({"image", "stylesheet"}), viewport=(640, 480), wait_for="b"
    )
    assert page.css("b::text").get() == "640"
    assert not {"/i.png", "/c.css"} & set(site.targets)

    async def clicked(tab: object) -> None:
        await tab.wait_for_selector("b")  # type: ignore[attr-defined]

    assert (await fetch(browser, site.url("/"), wait_for=clicked)).css("b")
    async with asyncio.timeout(60) as deadline, browser.open_tab(jar="w", deadline=deadline) as tab:
        await tab.fetch(Request(url=site.url("/")))
        deadline.reschedule(asyncio.get_running_loop().time() + 3.0)
        with pytest.raises(Transient, match=r"'i\.never'"):
            await tab.page(wait_for="i.never")


async def test_requests_keep_method_body_and_headers_and_tokens_stay_with_navigations(
    browser: BrowserFetcher, site: Site
) -> None:
    site.answers["/form"] = redirect("/done", 307)
    site.answers["/done"] = reply("<img src=/i.png><p>ok")
    identity = FixedIdentity("token", headers={"Authorization": "Bearer secret"})
    request = Request(url=site.url("/form"), method="POST", body=b"a=1", headers={"X-Own": "1"})
    page = await browser.fetch(request, jar="post", identity=identity)
    first, second = site.log[0], site.log[1]
    assert (first.method, first.body, first.headers["x-own"]) == ("POST", b"a=1", "1")
    assert (second.method, second.body, second.headers["authorization"]) == ("POST", b"a=1", "Bearer secret")
    image = next(seen for seen in site.log if seen.path == "/i.png")
    assert "authorization" not in image.headers
    assert page.method == "POST"
    assert identity.answered == [(site.url("/form"), 307), (site.url("/done"), 200)]
    assert "Headless" not in first.headers["user-agent"] + first.headers.get("sec-ch-ua", "")


async def test_identities_share_nothing(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/set"] = reply("<script>localStorage.x = 'one'</script>", Set_Cookie="who=one")
    site.answers["/show"] = script(
        "document.querySelector('p').textContent = document.cookie + localStorage.x", "<p></p>"
    )
    one, two = FixedIdentity("one"), FixedIdentity("two")
    await browser.fetch(Request(url=site.url("/set")), jar="one", identity=one)

    async def shown(jar: str | None, identity: FixedIdentity | None) -> str | None:
        page = await browser.fetch(Request(url=site.url("/show")), jar=jar, identity=identity)
        return page.css("p::text").get()

    assert await shown("one", one) == "who=oneone"
    assert await shown("two", two) == "undefined"
    assert await shown("other", None) == "undefined"
    assert await shown(None, one) == "undefined"


async def test_plain_requests_and_the_browser_share_the_cookies_of_a_jar(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/set"] = reply("<p>", Set_Cookie="a=1")
    site.answers["/also"] = reply("<p>", Set_Cookie="b=2; HttpOnly")
    http = browser._http
    await http.fetch(Request(url=site.url("/set")), jar="both")
    await browser.fetch(Request(url=site.url("/also")), jar="both")
    assert site.log[-1].headers["cookie"] == "a=1"
    await http.fetch(Request(url=site.url("/show")), jar="both")
    assert sorted(site.log[-1].headers["cookie"].split("; ")) == ["a=1", "b=2"]


async def test_downloads(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/file"] = reply(b"x" * 100_000, content_type="application/pdf", Content_Disposition="attachment")
    site.answers["/"] = reply("<a id=b href='data:text/csv,a;b' download='t.csv'>save</a>", Set_Cookie="k=1")
    with pytest.raises(Permanent, match="save=True"):
        await fetch(browser, site.url("/file"))
    async with browser.open_tab(jar="files") as tab:
        await tab.fetch(Request(url=site.url("/")))
        saved = await tab.save("/file", name="{name}")
        assert (saved.bytes, Path(saved.path).stat().st_size) == (100_000, 100_000)
        assert site.log[-1].headers["cookie"] == "k=1"
        clicked = await tab.save(lambda: tab.click("#b"), name="{name}")
        assert (Path(clicked.path).name, Path(clicked.path).read_text()) == ("t.csv", "a;b")


async def test_failures_are_captured_on_request(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/"] = reply("<p>seen")
    with suppress(Permanent):
        async with browser.open_tab(jar="c", options=BrowserOptions(capture=True)) as tab:
            await tab.fetch(Request(url=site.url("/")))
            raise Permanent("no price")
    assert b"<p>seen" in Path(tab.captured["html"]).read_bytes()
    assert Path(tab.captured["screenshot"]).read_bytes().startswith(b"\x89PNG")


async def test_pages_that_misbehave(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/dialogs"] = script("alert(1); confirm(2); prompt(3); onbeforeunload = () => 'stay'", "<p>past")
    site.answers["/popups"] = script("for (let i = 0; i < 100; i++) window.open('/popup' + i)", "<p>past")
    site.answers["/refresh"] = reply("<meta http-equiv=refresh content='0'><p>x")
    site.answers["/unasked"] = script("location.href = '/big.bin'", "<p>past")
    site.answers["/big.bin"] = reply(b"x" * 1000, content_type="application/octet-stream")
    for path in ("/dialogs", "/popups", "/unasked"):
        page = await fetch(browser, site.url(path), "bad")
        assert page.css("p::text").get() == "past", path
    assert not [target for target in site.targets if target.startswith("/popup") and target != "/popups"]
    with pytest.raises(Transient):
        await fetch(browser, f"http://127.0.0.1:{_unused_port()}/", "bad")
    with suppress(Permanent):  # it may be read between two of its reloads
        assert (await fetch(browser, site.url("/refresh"), "bad")).status == 200
    assert site.targets.count("/refresh") <= 12
    for url in ("file:///etc/passwd", "chrome://version"):
        async with browser.open_tab(jar="bad") as tab:
            with pytest.raises(Permanent):
                await tab.goto(url)
            with pytest.raises(Permanent):
                await tab.fetch(Request(url=url))


async def test_a_page_without_end(browser: BrowserFetcher, site: Site) -> None:
    async def endless(_: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>begun</p>")
        with suppress(ConnectionError):
            while True:
                writer.write(b"<i>more</i>")
                await writer.drain()
                await asyncio.sleep(0.05)

    site.answers["/endless"] = endless
    site.answers["/loop"] = script("while (true) {}", "<p>never")
    site.answers["/huge"] = script("document.body.append(document.createComment('x'.repeat(200e3)))")
    site.answers["/ok"] = reply("<p>ok")
    page = await fetch(browser, site.url("/endless"), "endless", wait_for="p")
    assert page.css("p::text").get() == "begun"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await fetch(browser, site.url("/loop"), "endless")
    async with browser.open_tab(jar="huge") as tab:
        with pytest.raises(Permanent, match="larger than"):
            await tab.fetch(Request(url=site.url("/huge")), max_body=100_000)
        page = await tab.fetch(Request(url=site.url("/huge"), truncate=True), max_body=100_000)
        assert len(page.body) == 100_000
    assert (await fetch(browser, site.url("/ok"), "endless")).css("p::text").get() == "ok"


async def test_a_crash_ends_its_tab_only(browser: BrowserFetcher, site: Site) -> None:
    site.answers["/"] = reply("<p>ok")
    slow = asyncio.Event()

    async def wait(_: Seen, writer: asyncio.StreamWriter) -> None:
        await slow.wait()
        writer.write(reply("<p>late"))

    site.answers["/slow"] = wait
    other = asyncio.ensure_future(fetch(browser, site.url("/slow"), "other"))
    await site.until(lambda: "/slow" in site.targets)
    running = browser._browsers[-1].chromium
    before = set(await running.processes())

    async def crash() -> None:
        async with browser.open_tab(jar="crash") as tab:
            await tab.fetch(Request(url=site.url("/")))
            for process, kind in (await running.processes()).items():
                if process not in before and kind == "renderer":
                    os.kill(process, signal.SIGKILL)
            await tab.wait_for_selector("i")

    with pytest.raises(Transient, match="crashed"):
        await crash()
    slow.set()
    assert (await other).css("p::text").get() == "late"
    assert (await fetch(browser, site.url("/"), "crash")).status == 200


async def test_a_socks_proxy_with_a_password(browser: BrowserFetcher, site: Site, microsocks: MicroSocks) -> None:
    """The site sees the proxy's address, names are resolved there, and no command line has the password."""
    site.answers["/"] = script("fetch('/api')", f"<img src=http://shop.test:{site.port}/i.png>")
    identity = FixedIdentity("socks", microsocks.address)
    async with browser.open_tab(jar="s", identity=identity, options=BrowserOptions(wait_for="networkidle")) as tab:
        await tab.fetch(Request(url=f"http://shop.test:{site.port}/"))
    assert {seen.peer for seen in site.log} == {microsocks.source}
    assert {"/", "/i.png", "/api"} <= set(site.targets)
    lines = [line for line in children(os.getpid()).values() if "chrom" in line or "run-driver" in line]
    assert lines
    assert microsocks.password not in " ".join(lines)
    wrong = ProxyAddress("socks5", microsocks.source, microsocks.port, "fish", "wrong")
    with pytest.raises(ExitFailed, match="credentials"):
        await browser.fetch(Request(url=site.url("/")), jar="w", identity=FixedIdentity("wrong", wrong))


async def test_an_http_proxy_with_a_password(browser: BrowserFetcher, site: Site, tinyproxy: TinyProxy) -> None:
    site.answers["/"] = reply("<img src=/i.png><p>ok")
    identity = FixedIdentity("tiny", tinyproxy.address)
    page = await browser.fetch(Request(url=f"http://shop.test:{site.port}/"), jar="t", identity=identity)
    assert page.css("p::text").get() == "ok"
    assert {seen.peer for seen in site.log} == {tinyproxy.source}
    assert {"/", "/i.png"} == set(site.targets)


async def test_an_identity_with_a_proxy_keeps_its_storage(
    browser: BrowserFetcher, site: Site, tinyproxy: TinyProxy
) -> None:
    site.answers["/"] = script("document.title = localStorage.visits = 1 + Number(localStorage.visits || 0)")
    identity = FixedIdentity("kept", tinyproxy.address)
    pages = [await browser.fetch(Request(url=site.url("/")), jar="k", identity=identity) for _ in range(3)]
    assert [page.css("title::text").get() for page in pages] == ["1", "2", "3"]


async def test_nothing_goes_out_directly_when_the_proxy_is_dead(browser: BrowserFetcher, site: Site) -> None:
    """Not the page, not what it loads after the proxy has died, no packets of WebRTC."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    udp.setblocking(False)
    dead = FixedIdentity("dead", ProxyAddress("http", "127.0.0.1", _unused_port()))
    with pytest.raises(ExitFailed, match="refused"):
        await browser.fetch(Request(url=site.url("/")), jar="d", identity=dead)
    assert site.log == []
    with MicroSocks(login=True) as proxy:
        stun = f"stun:127.0.0.1:{udp.getsockname()[1]}"
        site.answers["/"] = script(
            f"const c = new RTCPeerConnection({{iceServers: [{{urls: '{stun}'}}]}}); c.createDataChannel('x');"
            "c.createOffer().then(o => c.setLocalDescription(o));"
        )
        identity = FixedIdentity("dies", proxy.address)
        async with browser.open_tab(jar="dies", identity=identity) as tab:
            await tab.fetch(Request(url=site.url("/")))
            proxy.stop()
            before = len(site.log)
            await tab.evaluate("fetch('/later').catch(() => 1)")
            with pytest.raises(ExitFailed):
                await tab.fetch(Request(url=site.url("/")))
        assert len(site.log) == before
    with pytest.raises(BlockingIOError):
        udp.recv(100)
    udp.close()


async def test_navigations_of_the_author_end_an_attempt_as_those_of_a_page_do(
    browser: BrowserFetcher, site: Site
) -> None:
    """Not with an error of Playwright, which would be charged to the item."""
    dead = FixedIdentity("dead goto", ProxyAddress("http", "127.0.0.1", _unused_port()))
    with pytest.raises(ExitFailed, match="refused"):
        async with browser.open_tab(jar="g", identity=dead) as tab:
            await tab.goto(site.url("/"))
    assert isinstance(tab.way_failure, ExitFailed)
    gate = RecordingGate(refused={"/private": Skipped("robots.txt forbids it")})
    with pytest.raises(Skipped):
        async with browser.open_tab(jar="g", gate=gate) as tab:
            await tab.goto(site.url("/private"))
    assert site.log == []


async def test_private_addresses_are_refused(site: Site) -> None:
    browser = make_browser(deny_private=True)
    try:
        with pytest.raises(Permanent, match="not public"):
            await browser.fetch(Request(url=site.url("/")), jar="p")
        assert site.log == []
    finally:
        await close_browser(browser)


async def test_the_browser_is_replaced_and_its_cookies_move(site: Site) -> None:
    """After a number of targets, above its memory bound, and after a crash. S3.16"""
    site.answers["/"] = reply("<p>x", Set_Cookie="k=1; Max-Age=1000")
    browser = make_browser(targets=2)
    try:
        async with browser.open_tab(jar="a") as tab:
            await tab.fetch(Request(url=site.url("/")))
            old = browser._browsers[0]
            await browser.fetch(Request(url=site.url("/")), jar="a")
            await browser.fetch(Request(url=site.url("/")), jar="a")
            assert old in browser._browsers, "a tab is open in it"
            assert browser._browsers[-1] is not old
            assert await tab.evaluate("1 + 1") == 2
        assert site.log[-1].headers["cookie"] == "k=1"
        os.kill(browser._browsers[-1].chromium.process, signal.SIGKILL)
        with suppress(Transient):  # a tab may be used before anybody knows that its browser has gone
            await browser.fetch(Request(url=site.url("/")), jar="a")
        await browser.fetch(Request(url=site.url("/")), jar="a")
        assert site.log[-1].headers["cookie"] == "k=1"
        async with asyncio.timeout(20):
            while old in browser._browsers:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        current = browser._browsers[-1]
        browser._memory = 1
        await browser._check_memory(current)
        assert not current.is_usable
    finally:
        await close_browser(browser)


async def test_a_tab_that_is_used_again_sends_nothing_for_the_page_before(browser: BrowserFetcher, site: Site) -> None:
    """Its page is left a little later, or by the next item; meanwhile its scripts still run."""
    delay = 0.4
    site.answers["/old"] = script(f"setTimeout(() => {{ fetch('/late'); location = '/elsewhere' }}, {delay * 1000})")
    site.answers["/new"] = script("fetch('/api')", "<p>new")
    site.answers["/api"] = json("[1]")
    for pause in (0.0, delay + 0.05, 1.0):
        for _ in range(20):
            began = time.monotonic()
            await fetch(browser, site.url("/old"), "again")
            if time.monotonic() - began < delay:
                break
            await asyncio.sleep(delay)  # a slow machine: the script ran before the page was complete
            site.log.clear()
        await asyncio.sleep(pause)
        page = await fetch(browser, site.url("/new"), "again", wait_for="networkidle")
        assert page.css("p::text").get() == "new"
        assert [call.url for call in page.calls] == [site.url("/api")]
    assert set(site.targets) == {"/old", "/new", "/api"}


async def test_many_pages_need_no_more_processes_and_frames(browser: BrowserFetcher, site: Site) -> None:
    """Tabs are used again, so many pages need no more than a few."""
    site.answers["/"] = reply("<p>x")
    pages = 1_000 if os.environ.get("SHOAL_CHAOS") == "long" else 30

    async def some(count: int) -> None:
        for _ in range(count):
            await fetch(browser, site.url("/"), "flat")

    await some(5)
    running = browser._browsers[-1]
    before = len(await running.chromium.processes())
    await asyncio.gather(*(some(pages // 2) for _ in range(2)))
    assert len(await running.chromium.processes()) <= before + 3
    assert len(running._frames) < 40


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
