"""HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

import pytest
from yarl import URL

from shoal.errors import UsageError
from shoal.fetch.environment import environment_proxies, parse_proxy_url
from shoal.model.egress import ProxyAddress


def chosen(url: str, **environment: str) -> str | None:
    proxies = environment_proxies(environment)
    proxy = None if proxies is None else proxies.proxy(URL(url))
    return None if proxy is None else proxy.address


def test_no_variable_means_no_proxy() -> None:
    assert environment_proxies({"PATH": "/bin", "NO_PROXY": "*", "HTTP_PROXY": " "}) is None


@pytest.mark.parametrize(
    ("environment", "url", "expected"),
    [
        ({"HTTP_PROXY": "http://p:1"}, "http://shop/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://shop/", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://shop/", "http://p:1"),
        ({"ALL_PROXY": "socks5h://p:1"}, "https://shop/", "socks5h://p:1"),
        ({"ALL_PROXY": "socks://p:1", "http_proxy": "http://q:2"}, "http://shop/", "http://q:2"),
        ({"HTTP_PROXY": "http://p:1", "http_proxy": "http://q:2"}, "http://shop/", "http://q:2"),
        ({"HTTP_PROXY": "p:8080"}, "http://shop/", "http://p:8080"),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "http://shop/", None),
        ({"http_proxy": "http://p:1", "REQUEST_METHOD": "GET"}, "http://shop/", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1/", "http://p:1"),
    ],
)
def test_which_variable_counts(environment: dict[str, str], url: str, expected: str | None) -> None:
    assert chosen(url, **environment) == expected


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "https://shop.test/", True),
        ("shop.test", "https://shop.test/", True),
        ("shop.test", "https://www.shop.test/", True),
        ("shop.test", "https://bookshop.test/", False),
        (".shop.test", "https://www.shop.test/", True),
        (".shop.test", "https://shop.test/", True),
        ("*.shop.test", "https://www.shop.test/", True),
        ("SHOP.test", "https://Shop.Test./", True),
        ("other.test, shop.test", "https://shop.test/", True),
        ("other.test shop.test", "https://shop.test/", True),
        ("shop.test:8443", "https://shop.test/", False),
        ("shop.test:8443", "https://shop.test:8443/", True),
        ("shop.test:443", "https://shop.test/", True),
        ("https://shop.test", "https://shop.test/", True),
        ("10.0.0.0/8", "https://10.1.2.3/", True),
        ("10.0.0.0/8", "https://11.1.2.3/", False),
        ("10.0.0.0/8", "https://shop.test/", False),
        ("10.1.2.3", "https://10.1.2.3:444/", True),
        ("10.1.2.3:444", "https://10.1.2.3:444/", True),
        ("10.1.2.3:444", "https://10.1.2.3/", False),
        ("::1", "https://[::1]/", True),
        ("[::1]", "https://[::1]:8443/", True),
        ("[::1]:8443", "https://[::1]:8443/", True),
        ("2001:db8::/32", "https://[2001:db8::7]/", True),
        ("2001:db8::/32", "https://10.1.2.3/", False),
        ("", "https://shop.test/", False),
        (",", "https://shop.test/", False),
        (".", "https://shop.test/", False),
    ],
)
def test_no_proxy(no_proxy: str, url: str, direct: bool) -> None:
    for _ in range(2):  # the second answer is remembered
        assert (chosen(url, HTTPS_PROXY="http://p:1", NO_PROXY=no_proxy) is None) == direct


def test_lower_case_no_proxy_comes_first() -> None:
    assert chosen("https://shop.test/", HTTPS_PROXY="http://p:1", no_proxy="shop.test", NO_PROXY="other") is None


def test_credentials_are_decoded_and_never_shown() -> None:
    proxies = environment_proxies({"https_proxy": "socks5://fi%40sh:p%3Aw@[2001:db8::1]:1081"})
    assert proxies is not None
    assert proxies.proxy(URL("https://shop.test")) == ProxyAddress("socks5", "2001:db8::1", 1081, "fi@sh", "p:w")
    assert proxies.named() == {"https_proxy": "socks5://[2001:db8::1]:1081"}


def test_default_ports() -> None:
    ports = [parse_proxy_url(f"{scheme}://p", "X").port for scheme in ("http", "https", "socks5")]
    assert ports == [80, 443, 1080]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("socks4://secret@p:1", "no proxies of the kind 'socks4'"),
        ("http://secret@p:99999", "port"),
        ("http://secret@p:x", "port"),
        ("http://secret@[::1:1", "brackets"),
        ("http://secret@:1", "no host"),
    ],
)
def test_an_invalid_proxy_is_named_by_its_variable_only(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        environment_proxies({"ALL_PROXY": text})
    assert "ALL_PROXY is not the address of a proxy" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
