"""Lists of proxies: every format, bad lines without their secrets, and where lists come from."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.egress import EgressConfig
from shoal.egress.lists import ListFailed, ListSource, others_can_read, parse_list, parse_proxy
from shoal.model.egress import ProxyAddress
from shoal.model.redaction import redacted, without_sent_secrets


@pytest.mark.parametrize(
    ("line", "proxy"),
    [
        ("198.51.100.7:8080", ProxyAddress("http", "198.51.100.7", 8080)),
        ("Gate.Example:8080", ProxyAddress("http", "gate.example", 8080)),
        ("198.51.100.7:8080:ann:s3cret", ProxyAddress("http", "198.51.100.7", 8080, "ann", "s3cret")),
        ("198.51.100.7:8080:ann:a:b:c", ProxyAddress("http", "198.51.100.7", 8080, "ann", "a:b:c")),
        ("198.51.100.7:8080:token", ProxyAddress("http", "198.51.100.7", 8080, "token", "")),
        ("ann:s3cret@gate.example:8080", ProxyAddress("http", "gate.example", 8080, "ann", "s3cret")),
        ("ann:p@ss@gate.example:8080", ProxyAddress("http", "gate.example", 8080, "ann", "p@ss")),
        ("ann:50%25@gate.example:8080", ProxyAddress("http", "gate.example", 8080, "ann", "50%25")),
        ("http://gate.example", ProxyAddress("http", "gate.example", 80)),
        ("https://gate.example/", ProxyAddress("https", "gate.example", 443)),
        ("SOCKS5://gate.example", ProxyAddress("socks5", "gate.example", 1080)),
        ("socks5h://ann:p%40%2F%3A@gate.example:9050", ProxyAddress("socks5h", "gate.example", 9050, "ann", "p@/:")),
        ("http://token@gate.example:8080/", ProxyAddress("http", "gate.example", 8080, "token", "")),
        ("http://ann:a/b?c#d@gate.example:8080", ProxyAddress("http", "gate.example", 8080, "ann", "a/b?c#d")),
        ("[2001:db8::7]:8080", ProxyAddress("http", "2001:db8::7", 8080)),
        ("[2001:DB8:0::7]:8080:ann:s3cret", ProxyAddress("http", "2001:db8::7", 8080, "ann", "s3cret")),
        ("socks5://ann:s3cret@[2001:db8::7]", ProxyAddress("socks5", "2001:db8::7", 1080, "ann", "s3cret")),
    ],
)
def test_every_format_of_a_proxy(line: str, proxy: ProxyAddress) -> None:
    assert parse_proxy(line) == proxy


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("socks4://ann:hunter22@gate.example:1080", "socks4 is no kind of proxy"),
        ("ann-hunter22://gate.example:1080", "that is no kind of proxy"),
        ("gate.example", "no port"),
        ("gate.example:hunter22", "no port from 1 to 65535"),
        ("gate.example:99999:ann:hunter22", "no port from 1 to 65535"),
        ("gate.example:0", "no port from 1 to 65535"),
        ("gate.example:8080ann:hunter22", "no port"),
        ("2001:db8::7", "in brackets"),
        ("2001:db8:0:0:0:0:0:7", "in brackets"),
        ("[hunter22]:8080", "no IPv6 address"),
        ("[2001:db8::7]8080", "no port"),
        ("ann:hunter22@", "host name"),
        ("hunter22 :8080", "host name"),
        ("http://gate.example:8080:ann:hunter22", "before the host"),
        ("ann:hunter22@gate.example:8080:ann:hunter22", "login twice"),
        ("http://:hunter22@gate.example:8080", "no user name"),
        ("http://a%3Ann:hunter22@gate.example:8080", "with a colon"),
        ("http://ann:hunter22%0d%0a@gate.example:8080", "control character"),
        (f"socks5://ann:{'hunter22' * 40}@gate.example:1080", "255 bytes"),
        ("http://gate.example:8080/hunter22", "no port"),
    ],
)
def test_a_bad_line_is_reported_by_its_number_and_never_by_what_it_says(line: str, why: str) -> None:
    found = parse_list("homes", f"# a comment\n\n{line}\n192.0.2.1:80\n")
    assert [bad.line for bad in found.bad] == [3]
    assert why in found.bad[0].why
    assert "hunter22" not in found.bad[0].why
    assert [exit_.label for exit_ in found.exits] == ["http://192.0.2.1:80"]


def test_comments_blank_lines_line_ends_and_a_byte_order_mark_are_no_proxies() -> None:
    text = "\ufeff192.0.2.1:80 # fast\r\n\r\n   \r\n#192.0.2.2:80\r\n\t192.0.2.3:80:ann:a#b\r\n192.0.2.1:80"
    found = parse_list("homes", text)
    assert found.bad == ()
    assert [exit_.proxy for exit_ in found.exits] == [
        ProxyAddress("http", "192.0.2.1", 80),
        ProxyAddress("http", "192.0.2.3", 80, "ann", "a#b"),
    ]


def test_exits_with_one_address_are_told_apart_without_their_logins() -> None:
    lines = ["gate.example:7000:ann-1:pw", "gate.example:7000:ann-2:pw", "gate.example:7000:ann-2:pw-session-9"]
    found = parse_list("homes", "\n".join([*lines, "gate.example:7001:ann-1:pw", *lines]))
    assert len({exit_.key for exit_ in found.exits}) == len(found.exits) == 4
    assert len({exit_.label for exit_ in found.exits}) == 4
    assert found.exits[3].label == "http://gate.example:7001"
    shown = repr(found) + "".join(exit_.name for exit_ in found.exits)
    assert "ann" not in shown
    assert "pw" not in shown


def test_a_new_password_does_not_make_a_new_exit() -> None:
    old, new = (parse_list("homes", f"gate.example:7000:ann:{word}").exits[0] for word in ("old-word", "new-word"))
    assert old.key == new.key
    assert old.proxy != new.proxy


@given(st.text(max_size=200))
def test_any_text_is_read_or_reported(text: str) -> None:
    found = parse_list("homes", text)
    assert len({exit_.key for exit_ in found.exits}) == len(found.exits)
    for bad in found.bad:
        assert 1 <= bad.line <= len(text.splitlines())


logins = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=20
)


@given(user=logins.filter(lambda text: ":" not in text), password=logins)
def test_a_login_survives_the_way_through_a_url(user: str, password: str) -> None:
    line = f"socks5h://{quote(user, safe='')}:{quote(password, safe='')}@gate.example:1080"
    found = parse_list("homes", line)
    assert [exit_.proxy for exit_ in found.exits] == [ProxyAddress("socks5h", "gate.example", 1080, user, password)]


def test_passwords_of_a_list_are_redacted_everywhere() -> None:
    words = [f"wOrd-{number:05}-x" for number in range(3_000)]
    parse_list("homes", "\n".join(f"gate.example:7000:ann{number}:{word}" for number, word in enumerate(words)))
    for word in (words[0], words[2_999]):
        assert word not in redacted(f"cannot connect with {word}!")
        assert word not in without_sent_secrets(f"http://shop.example/{word}")
    assert redacted("wOrd-nothing of these") == "wOrd-nothing of these"


@asynccontextmanager
async def list_server(text: str) -> AsyncIterator[str]:
    """A provider's server: /list has the text, /endless never ends."""

    async def answer_list(_: web.Request) -> web.Response:
        return web.Response(text=text)

    async def answer_endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b"#" * 1_000_000)
        return response

    app = web.Application()
    app.add_routes([web.get("/list", answer_list), web.get("/endless", answer_endless)])
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        server = web.TCPSite(runner, "127.0.0.1", 0)
        await server.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def config(**options: object) -> EgressConfig:
    return EgressConfig(name="homes", kind="proxies", **options)  # type: ignore[arg-type]


async def test_variables_have_one_or_many_proxies() -> None:
    given = {"A": "192.0.2.1:80,192.0.2.2:80", "B": "192.0.2.3:80:ann:s3cret\n  http://192.0.2.4 "}
    found = await ListSource(config(env=("A", "B"), given=given)).read()
    assert [exit_.label[7:] for exit_ in found.exits] == [f"192.0.2.{n}:80" for n in (1, 2, 3, 4)]


async def test_a_list_without_a_usable_line_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "proxies.txt"
    path.write_text("# nothing\ngate.example:hunter22\n")
    with pytest.raises(ListFailed) as failed:
        await ListSource(config(file=str(path))).read()
    assert str(failed.value) == (
        f"egress.homes: {path} has no usable proxy. Line 2: behind the host there is no port from 1 to 65535. Give one "
        "proxy per line: host:port, host:port:user:password, or a URL (http, https, socks5, "
        "socks5h)."
    )
    with pytest.raises(ListFailed, match="cannot be read: No such file"):
        await ListSource(config(file=str(tmp_path / "none.txt"))).read()
    with pytest.raises(ListFailed, match="the environment variable HOMES is not set"):
        await ListSource(config(env=("HOMES",), missing=("HOMES",))).read()


async def test_a_file_is_read_again_when_it_changed_and_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "proxies.txt"
    path.write_text("192.0.2.1:80\n")
    source = ListSource(config(file=str(path)))
    await source.read()
    assert not await source.is_due()
    path.write_text("192.0.2.1:80\n192.0.2.2:80\n")
    soon = time.time() + 60  # it is being written: its time of change is now, whenever one looks
    os.utime(path, (soon, soon))
    assert not await source.is_due()
    assert await source.is_due()
    assert len((await source.read()).exits) == 2
    assert not await source.is_due()
    path.unlink()
    assert await source.is_due()


async def test_a_url_is_fetched_every_so_often_and_its_secret_is_never_shown() -> None:
    clock = [100.0]
    async with list_server("192.0.2.1:80\r\n192.0.2.2:80\r\n") as address:
        source = ListSource(config(url=f"{address}/list?key=hunter22", refresh=300.0), now=lambda: clock[0])
        assert len((await source.read()).exits) == 2
        clock[0] += 299
        assert not await source.is_due()
        clock[0] += 1
        assert await source.is_due()
        with pytest.raises(ListFailed) as failed:
            await ListSource(config(url=f"{address}/gone?key=hunter22")).read()
        assert "answered 404" in str(failed.value)
        assert "hunter22" not in str(failed.value)
        with pytest.raises(ListFailed, match="larger than 32 MB"):
            await ListSource(config(url=f"{address}/endless")).read()
    with pytest.raises(ListFailed) as failed:
        await ListSource(config(url="http://127.0.0.1:1/list?key=hunter22")).read()
    assert failed.value.may_recover
    assert "hunter22" not in str(failed.value)


def test_a_file_that_others_can_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "proxies.txt"
    path.write_text("192.0.2.1:80:ann:s3cret\n")
    path.chmod(0o600)
    assert others_can_read(config(file=str(path))) is None
    path.chmod(0o644)
    assert others_can_read(config(file=str(path))) == (
        f"{path} of egress.homes has passwords and can be read by every user: chmod 600 {path}"
    )
    path.chmod(0o640)
    assert "its group" in (others_can_read(config(file=str(path))) or "")
