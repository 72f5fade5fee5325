"""Sessions as they are kept: cookie jars exported and loaded again, and what their values print."""

import time
from email.utils import formatdate

from yarl import URL

from shoal.fetch.redirects import CookieJars
from shoal.fetch.session import Cookie, SessionState, decode_session

SHOP = URL("https://www.shop.example/account/login")


async def test_a_loaded_jar_sends_what_the_exported_one_sent() -> None:
    jars = CookieJars()
    soon = formatdate(time.time() + 3600, usegmt=True)
    jars.store(
        "a",
        SHOP,
        [
            "session=s%20e=c; Path=/; HttpOnly; SameSite=Strict",
            f"all=1; Domain=shop.example; Path=/; Expires={soon}",
            "week=2; Max-Age=604800; Secure; Path=/",
            'quoted="x y"; Path=/account',
            "gone=1; Max-Age=0",
        ],
    )
    cookies = jars.export("a")
    assert {cookie.name for cookie in cookies} == {"session", "all", "week", "quoted"}
    copy = CookieJars()
    copy.load("b", cookies)
    for url in (
        "https://www.shop.example/account/orders",
        "https://www.shop.example/",
        "http://www.shop.example/",
        "https://shop.example/account/",
        "https://other.shop.example/",
        "https://www.shop.example.org/",
    ):
        assert copy.header("b", URL(url)) == jars.header("a", URL(url)), url
    assert set(copy.export("b")) == set(cookies)


async def test_what_a_jar_knows_about_a_cookie_is_exported() -> None:
    jars = CookieJars()
    jars.store("a", SHOP, ["own=1; Path=/", "all=1; Domain=shop.example; Max-Age=60; Secure; HttpOnly"])
    found = {cookie.name: cookie for cookie in jars.export("a")}
    assert found["own"] == Cookie(name="own", value="1", domain="www.shop.example")
    every = found["all"]
    assert (every.domain, every.path, every.secure, every.httpOnly) == (".shop.example", "/account", True, True)
    assert 0 < every.expires - time.time() <= 60


async def test_cookies_of_an_address_and_port_are_kept() -> None:
    jars = CookieJars()
    jars.store("a", URL("http://127.0.0.1:8001/login"), ["session=1; Path=/"])
    copy = CookieJars()
    copy.load("a", jars.export("a"))
    assert copy.header("a", URL("http://127.0.0.1:8001/x")) == "session=1"


async def test_an_expired_cookie_is_not_loaded_and_a_broken_one_is_left_out() -> None:
    jars = CookieJars()
    cookies = [
        Cookie(name="old", value="1", domain="shop.example", expires=time.time() - 10),
        Cookie(name="broken", value="1", domain="exa mple\n", expires=-1),
        Cookie(name="good", value="1", domain="shop.example"),
    ]
    jars.load("a", cookies)
    assert jars.header("a", URL("https://shop.example/")) == "good=1"


async def test_a_loaded_jar_replaces_what_was_there_and_a_dropped_one_is_empty() -> None:
    jars = CookieJars()
    jars.store("a", SHOP, ["before=1; Path=/"])
    jars.load("a", [Cookie(name="after", value="1", domain="www.shop.example")])
    assert jars.header("a", SHOP) == "after=1"
    jars.drop("a")
    assert (jars.header("a", SHOP), jars.export("a")) == ("", ())


def test_a_session_is_encoded_and_prints_no_secret() -> None:
    cookie = Cookie(name="session", value="tok3n-of-a-user", domain="shop.example")
    state = SessionState(at=5.0, cookies=(cookie,), headers={"Authorization": "Bearer tok3n-of-a-user"})
    assert decode_session(state.encode()) == state
    assert "tok3n" not in repr(state) + repr(cookie) + repr([cookie])


def test_what_is_no_session_is_not_decoded() -> None:
    for content in (b"", b"{", b"\xff\xfe", b"[]", b'{"shoal_session": 2}', b'{"shoal_session": 1, "cookies": 3}'):
        assert decode_session(content) is None
