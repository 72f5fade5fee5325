"""Fetching over HTTP: what is sent, and the calls of the gate."""

import asyncio
import base64
import socket

import pytest
import uvloop

from shoal.errors import Permanent, Throttled, Transient
from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from shoal.fetch.page import Request
from tests.fetch.conftest import both_clients
from tests.support.raw_site import Seen, Site, redirect, reply

pytestmark = both_clients
STEPS = [(what, hop) for hop in (0, 1) for what in ("before", "before_send", "sent", "done")]


class Witness:
    """A gate that records its calls, and what the server had received at that time."""

    def __init__(self, site: Site) -> None:
        self.events: list[tuple[str, int, int]] = []
        self.urls: list[str] = []
        self._site = site

    async def before_request(self, url: str, hop: int) -> None:
        self.urls.append(url)
        self.events.append(("before", hop, len(self._site.log)))

    async def before_send(self, hop: int) -> None:
        self.events.append(("before_send", hop, len(self._site.log)))

    def after_send(self, hop: int) -> None:
        self.events.append(("sent", hop, len(self._site.log)))

    def request_done(self, hop: int) -> None:
        self.events.append(("done", hop, len(self._site.log)))

    async def on_redirect(self, url: str, method: str) -> None:
        pass

    async def on_throttled(self, ended: Throttled) -> None:
        raise AssertionError("that is up to whoever reads the answer")


async def test_a_page_has_its_request_and_its_response(
    site: Site, fetcher: HttpFetcher, client: type[HttpFetcher]
) -> None:
    site.answers["/a"] = reply("<h1>Hi</h1>", content_type="text/html; charset=utf-8", X_Shop="open")
    page = await fetcher.fetch(Request(url=site.url("/a"), headers={"X-Mine": "1"}))
    assert (page.status, page.text) == (200, "<h1>Hi</h1>")
    assert (page.url, page.requested_url) == (site.url("/a"), site.url("/a"))
    assert page.headers["x-shop"] == "open"
    assert page.history == ()
    assert 0 < page.seconds < 60
    [seen] = site.log
    as_chrome = client is ImpersonatingFetcher
    assert ("Chrome/" if as_chrome else "shoal/0.1") in seen.headers["user-agent"]
    assert seen.headers["accept-encoding"] == "gzip, deflate"
    assert seen.headers["x-mine"] == "1"


async def test_a_body_is_sent(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/form"] = reply("ok")
    await fetcher.fetch(Request(url=site.url("/form"), method="post", body=b"a=1", headers={"Content-Type": "x/y"}))
    [seen] = site.log
    assert (seen.method, seen.body, seen.headers["content-type"]) == ("POST", b"a=1", "x/y")


@pytest.mark.parametrize(
    ("asked", "on_the_wire"),
    [
        ("/%7e/x?a=b%20c&&x", "/%7e/x?a=b%20c&&x"),
        ("/a//b/;p=1?q='x'&%zz", "/a//b/;p=1?q='x'&%zz"),
        ("/A%2fb%2Fc?B=1&a=2&B=1", "/A%2fb%2Fc?B=1&a=2&B=1"),
        ("/a/../b", "/a/../b"),
        ("/empty?", "/empty?"),
        ("/x?y#part", "/x?y"),
        ("?q=1", "/?q=1"),
        ("", "/"),
        ("/café/日本?q=ü", "/caf%C3%A9/%E6%97%A5%E6%9C%AC?q=%C3%BC"),
        ("/a b?c d", "/a%20b?c%20d"),
    ],
)
async def test_the_url_is_sent_unchanged(site: Site, fetcher: HttpFetcher, asked: str, on_the_wire: str) -> None:
    page = await fetcher.fetch(Request(url=site.url(asked)))
    assert site.targets == [on_the_wire]
    assert page.url == site.url(asked)


@pytest.mark.parametrize("url", ["http://", "/path", "http://a b/", "http://x:99999/", "ftp://host/x", "mailto:a@b"])
async def test_a_url_that_is_not_http_is_permanent(fetcher: HttpFetcher, url: str) -> None:
    with pytest.raises(Permanent, match=r"not a valid absolute URL|only http and https|cannot|can be fetched"):
        await fetcher.fetch(Request(url=url))


async def test_credentials_of_a_url_become_a_header_and_stay_out_of_messages(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/big"] = reply(b"x" * 100)
    url = f"http://user:p%40ss@127.0.0.1:{site.port}/big"
    with pytest.raises(Permanent) as caught:
        await fetcher.fetch(Request(url=url), max_body=10)
    assert site.log[0].headers["authorization"] == "Basic " + base64.b64encode(b"user:p@ss").decode()
    assert "ss@" not in str(caught.value)


async def test_a_header_with_a_line_break_is_permanent(site: Site, fetcher: HttpFetcher) -> None:
    with pytest.raises(Permanent, match="cannot be sent"):
        await fetcher.fetch(Request(url=site.url("/"), headers={"X-A": "b\r\nX-C: d"}))
    assert site.log == []


async def test_redirects_are_followed_and_recorded(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {
        "/1": redirect("/deep/2", 301),
        "/deep/2": redirect("3?x=1#part", 308),
        "/deep/3": reply("there"),
    }
    page = await fetcher.fetch(Request(url=site.url("/1")))
    assert (page.url, page.requested_url, page.text) == (site.url("/deep/3?x=1"), site.url("/1"), "there")
    assert page.history == (site.url("/1"), site.url("/deep/2"))
    assert {seen.connection for seen in site.log} == {1}, "the connection was not kept"


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", ("GET", b"")),
        (302, "POST", ("GET", b"")),
        (303, "PUT", ("GET", b"")),
        (307, "POST", ("POST", b"data")),
        (308, "POST", ("POST", b"data")),
        (302, "PUT", ("PUT", b"data")),
    ],
)
async def test_redirects_change_the_method_as_browsers_do(
    site: Site, fetcher: HttpFetcher, status: int, method: str, then: tuple[str, bytes]
) -> None:
    site.answers |= {"/from": redirect("/to", status), "/to": reply("ok")}
    headers = {"Content-Type": "x/y"}
    page = await fetcher.fetch(Request(url=site.url("/from"), method=method, body=b"data", headers=headers))
    assert (site.log[1].method, site.log[1].body) == then
    assert ("content-type" in site.log[1].headers) == (then[1] != b"")
    assert page.method == then[0]


async def test_head_stays_head(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {
        "/from": redirect("/to", 303),
        "/to": reply(Content_Length="4000000"),
    }
    page = await fetcher.fetch(Request(url=site.url("/from"), method="HEAD"))
    assert [seen.method for seen in site.log] == ["HEAD", "HEAD"]
    assert (page.status, page.body) == (200, b"")


async def test_a_redirect_loop_is_permanent(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {"/a": redirect("/b"), "/b": redirect("/a")}
    with pytest.raises(Permanent, match=r"/a redirects in a loop"):
        await fetcher.fetch(Request(url=site.url("/a")))
    assert site.targets == ["/a", "/b"]


async def test_too_many_redirects_are_permanent(site: Site, client: type[HttpFetcher]) -> None:
    site.answers |= {f"/{n}": redirect(f"/{n + 1}") for n in range(9)}
    fetcher = client(connections=1, user_agent="shoal/0.1", max_redirects=3)
    with pytest.raises(Permanent, match="more than 3 times"):
        await fetcher.fetch(Request(url=site.url("/0")))
    assert site.targets == ["/0", "/1", "/2", "/3"]
    await fetcher.close()


@pytest.mark.parametrize(
    ("location", "named"),
    [("ftp://x/y", "'ftp'"), ("javascript:alert(1)", "'javascript'"), ("file:///etc/passwd", "'file'")],
)
async def test_a_redirect_to_another_scheme_is_permanent(
    site: Site, fetcher: HttpFetcher, location: str, named: str
) -> None:
    site.answers["/a"] = redirect(location)
    with pytest.raises(Permanent, match=named):
        await fetcher.fetch(Request(url=site.url("/a")))


async def test_a_redirect_without_a_target_is_an_answer(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/a"] = reply("where?", status=302)
    assert (await fetcher.fetch(Request(url=site.url("/a")))).status == 302


async def test_a_redirect_target_in_raw_bytes_is_percent_encoded(site: Site, fetcher: HttpFetcher) -> None:
    # \xc3\xa9 is valid UTF-8, \xe9 alone is latin-1: both are sent back as the bytes they are.
    site.answers["/a"] = redirect("/caf\xc3\xa9/\xe9")
    await fetcher.fetch(Request(url=site.url("/a")))
    assert site.targets == ["/a", "/caf%C3%A9/%E9"]


async def test_credentials_do_not_follow_to_another_host(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {
        "/away": redirect(site.url("/secret", host="localhost")),
        "/near": redirect("/secret"),
        "/secret": reply("ok"),
    }
    headers = {"authorization": "Bearer x", "Cookie": "a=b", "X-Kept": "1"}
    await fetcher.fetch(Request(url=site.url("/near"), headers=headers))
    await fetcher.fetch(Request(url=site.url("/away"), headers=headers))
    near, away = site.log[1], site.log[3]
    assert (near.headers["authorization"], near.headers["cookie"]) == ("Bearer x", "a=b")
    assert "authorization" not in away.headers
    assert "cookie" not in away.headers
    assert away.headers["x-kept"] == "1"


async def test_the_gate_is_called_before_and_after_each_request(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {"/a": redirect("/b"), "/b": reply("ok")}
    gate = Witness(site)
    await fetcher.fetch(Request(url=site.url("/a")), gate=gate)
    assert gate.urls == [site.url("/a"), site.url("/b")]
    assert [(what, hop) for what, hop, _ in gate.events] == STEPS
    # The server, in the same loop, had not read the second request before the gate let it go.
    assert [seen for what, _, seen in gate.events if what == "before"] == [0, 1]


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_after_send_is_called_when_the_bytes_have_left(runner, client: type[HttpFetcher]) -> None:  # type: ignore[no-untyped-def]
    """The server is a plain socket: what it can read at that moment has been sent."""

    async def look() -> bytes:
        arrived = b""

        class Gate:
            async def before_request(self, url: str, hop: int) -> None:
                pass

            async def before_send(self, hop: int) -> None:
                pass

            def after_send(self, hop: int) -> None:
                nonlocal arrived
                connection, _ = listener.accept()
                with connection:
                    connection.setblocking(False)
                    arrived = connection.recv(65_536)

            def request_done(self, hop: int) -> None:
                pass

            async def on_redirect(self, url: str, method: str) -> None:
                pass

            async def on_throttled(self, ended: Throttled) -> None:
                pass

        fetcher = client(connections=1, user_agent="shoal/0.1")
        with pytest.raises(Transient):
            await fetcher.fetch(Request(url=f"http://127.0.0.1:{listener.getsockname()[1]}/x"), gate=Gate())
        await fetcher.close()
        return arrived

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert runner(look()).startswith(b"GET /x HTTP/1.1\r\n")


async def test_a_gate_may_end_the_fetch(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {"/a": redirect("/b"), "/b": reply("never seen")}

    class Closed:
        async def before_request(self, url: str, hop: int) -> None:
            if hop == 1:
                raise Throttled("the lane waits")

        async def before_send(self, hop: int) -> None:
            pass

        def after_send(self, hop: int) -> None:
            pass

        def request_done(self, hop: int) -> None:
            pass

        async def on_redirect(self, url: str, method: str) -> None:
            pass

        async def on_throttled(self, ended: Throttled) -> None:
            pass

    with pytest.raises(Throttled, match="the lane waits"):
        await fetcher.fetch(Request(url=site.url("/a")), gate=Closed())
    assert site.targets == ["/a"]


async def test_an_error_of_the_gate_is_not_an_error_of_the_site(site: Site, fetcher: HttpFetcher) -> None:
    class Broken:
        async def before_request(self, url: str, hop: int) -> None:
            raise ConnectionResetError("the ledger's connection")

        async def before_send(self, hop: int) -> None:
            pass

        def after_send(self, hop: int) -> None:
            pass

        def request_done(self, hop: int) -> None:
            pass

        async def on_redirect(self, url: str, method: str) -> None:
            pass

        async def on_throttled(self, ended: Throttled) -> None:
            pass

    with pytest.raises(ConnectionResetError, match="the ledger's connection"):
        await fetcher.fetch(Request(url=site.url("/a")), gate=Broken())


async def test_cookies_stay_in_their_jar(site: Site, fetcher: HttpFetcher) -> None:
    site.answers |= {
        "/login": reply("hi", Set_Cookie=["who=me; Path=/", "deep=1; Path=/deep", "gone=1; Max-Age=0"]),
        "/deep/page": reply("ok"),
    }
    await fetcher.fetch(Request(url=site.url("/login")), jar="a")
    await fetcher.fetch(Request(url=site.url("/login")))
    for jar in ("a", "b", None):
        await fetcher.fetch(Request(url=site.url("/page")), jar=jar)
    await fetcher.fetch(Request(url=site.url("/deep/page"), headers={"Cookie": "own=2"}), jar="a")
    await fetcher.fetch(Request(url=site.url("/page", host="localhost")), jar="a")
    assert [seen.headers.get("cookie") for seen in site.log[2:5]] == ["who=me", None, None]
    assert set(site.log[5].headers["cookie"].split("; ")) == {"own=2", "who=me", "deep=1"}
    assert "cookie" not in site.log[6].headers, "another host got the cookie"


async def test_a_redirect_to_itself_with_a_new_cookie_is_no_loop(site: Site, fetcher: HttpFetcher) -> None:
    async def once(seen: Seen, writer: asyncio.StreamWriter) -> None:
        welcome = "in=1" in seen.headers.get("cookie", "")
        writer.write(reply("welcome") if welcome else redirect("/", set_cookie="in=1; Path=/"))

    site.answers["/"] = once
    assert (await fetcher.fetch(Request(url=site.url("/")), jar="a")).text == "welcome"
    with pytest.raises(Permanent, match="loop"):
        await fetcher.fetch(Request(url=site.url("/")))


async def test_cancelling_gives_the_connection_back(site: Site, client: type[HttpFetcher]) -> None:
    fetcher = client(connections=1, user_agent="shoal/0.1")

    async def half(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"half", Content_Length="100"))
        await asyncio.Event().wait()

    async def never(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    site.answers |= {"/half": half, "/never": never, "/ok": reply("ok")}
    for path in ("/half", "/never"):
        fetching = asyncio.create_task(fetcher.fetch(Request(url=site.url(path))))
        await site.until(lambda path=path: site.targets[-1:] == [path])  # type: ignore[misc]
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    async with asyncio.timeout(60):
        assert (await fetcher.fetch(Request(url=site.url("/ok")))).text == "ok"
    await fetcher.close()


async def test_a_kept_connection_that_closes_is_replaced_once(site: Site, fetcher: HttpFetcher) -> None:
    """The server reads the second request of a connection and closes it: sent again, through the gate."""
    dropped: list[int] = []

    async def drops_kept_connections(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.connection == 1:
            dropped.append(seen.connection)
        else:
            writer.write(reply("fresh", Connection="close"))

    site.answers |= {"/first": reply("kept"), "/second": drops_kept_connections}
    await fetcher.fetch(Request(url=site.url("/first")))
    gate = Witness(site)
    page = await fetcher.fetch(Request(url=site.url("/second")), gate=gate)
    assert (page.text, dropped) == ("fresh", [1])
    assert [(what, hop) for what, hop, _ in gate.events] == STEPS


async def test_a_post_is_never_sent_twice(site: Site, fetcher: HttpFetcher) -> None:
    async def drops(seen: Seen, writer: asyncio.StreamWriter) -> None:
        pass

    site.answers |= {"/first": reply("kept"), "/order": drops}
    await fetcher.fetch(Request(url=site.url("/first")))
    with pytest.raises(Transient, match="closed the connection"):
        await fetcher.fetch(Request(url=site.url("/order"), method="POST", body=b"x"))
    assert site.targets == ["/first", "/order"]


async def test_a_new_connection_that_closes_is_not_tried_again(site: Site, fetcher: HttpFetcher) -> None:
    async def drops(seen: Seen, writer: asyncio.StreamWriter) -> None:
        pass

    site.answers["/"] = drops
    with pytest.raises(Transient, match=f"127.0.0.1:{site.port}: the site closed the connection without an answer"):
        await fetcher.fetch(Request(url=site.url("/")))
    assert site.targets == ["/"]


async def test_a_connection_the_server_closed_meanwhile_is_not_used(site: Site, fetcher: HttpFetcher) -> None:
    site.answers["/"] = reply("bye", Connection="close")
    for _ in range(2):
        assert (await fetcher.fetch(Request(url=site.url("/")))).text == "bye"
        await site.until(lambda: site.open_connections == 0)
    assert [seen.connection for seen in site.log] == [1, 2]
