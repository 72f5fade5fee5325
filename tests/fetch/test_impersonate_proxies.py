"""client="chrome" through proxies: the tests of the plain client that hold for both, and what it tells differently."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.errors import ExitFailed
from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from shoal.fetch.page import Request
from tests.fetch import test_proxy as plain
from tests.support.certificates import Certificate
from tests.support.faulty_proxy import Fault, FaultyProxy

either_site = plain.either_site
no_dns = plain.no_dns
proxy = plain.proxy
site = plain.site
tls_site = plain.tls_site
test_connections = plain.test_a_connection_belongs_to_one_identity
test_dead_site = plain.test_a_dead_site_is_not_the_fault_of_the_proxies
test_dying_proxy = plain.test_a_proxy_that_dies_in_mid_connection
test_a_proxy_that_fails_where_others_deliver_is_at_fault = (
    plain.test_a_proxy_that_fails_where_others_deliver_is_at_fault
)
test_a_refused_connection_names_the_proxy_and_nothing_goes_out_directly = (
    plain.test_a_refused_connection_names_the_proxy_and_nothing_goes_out_directly
)
test_a_silent_http_proxy_that_never_delivered_anything_is_at_fault = (
    plain.test_a_silent_http_proxy_that_never_delivered_anything_is_at_fault
)
test_not_allowed = plain.test_a_site_that_a_proxy_does_not_allow_is_a_block
test_a_site_that_cuts_connections_is_not_the_fault_of_the_proxy = (
    plain.test_a_site_that_cuts_connections_is_not_the_fault_of_the_proxy
)
test_an_identity_may_end_the_attempt_before_anything_is_sent = (
    plain.test_an_identity_may_end_the_attempt_before_anything_is_sent
)
test_every_request = plain.test_every_request_of_a_fetch_goes_through_the_proxy
test_credentials = plain.test_wrong_credentials


@pytest.fixture
def made(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> type[HttpFetcher]:
    """What makes fetchers that trust the certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
    return ImpersonatingFetcher


@pytest.fixture
async def fetcher(made: type[HttpFetcher]) -> AsyncIterator[HttpFetcher]:
    fetcher = made(connections=8, user_agent="shoal", max_body=1 << 20, idle_timeout=20.0)
    yield fetcher
    await fetcher.close()


@pytest.fixture
async def hasty(made: type[HttpFetcher]) -> AsyncIterator[HttpFetcher]:
    fetcher = made(connections=8, user_agent="shoal", idle_timeout=0.5, connect_timeout=0.5)
    yield fetcher
    await fetcher.close()


@pytest.mark.parametrize(
    ("fault", "values", "by_http", "by_socks"),
    [
        ("silent", {}, "did not answer CONNECT in time", "did not answer the SOCKS request in time"),
        (
            "reset",
            {},
            "(instead of answering CONNECT|cannot be reached)",
            "(instead of answering the SOCKS|cannot be reached)",
        ),
        ("close", {}, "instead of answering CONNECT", "instead of answering the SOCKS request"),
        ("garbage", {}, "instead of answering CONNECT", "does not speak SOCKS5"),
        ("status", {"status": 404}, "answered CONNECT with 404", None),
        ("reply", {"reply": 1}, None, "SOCKS: general failure"),
        ("reply", {"reply": 99}, None, "SOCKS: unknown reply 99"),
    ],
)
async def test_failures_of_the_way_are_exit_failures(
    tls_site: plain.TlsSite,
    fetcher: HttpFetcher,
    hasty: HttpFetcher,
    proxy: FaultyProxy,
    fault: Fault,
    values: dict[str, Any],
    by_http: str | None,
    by_socks: str | None,
) -> None:
    sender = hasty if fault == "silent" else fetcher
    proxy.fault = fault
    proxy.username, proxy.password = "fish", plain.PASSWORD
    for name, value in values.items():
        setattr(proxy, name, value)
    for address, sentence in zip(plain.addresses(proxy), (by_http, by_socks), strict=True):
        if sentence is None:
            continue
        with pytest.raises(ExitFailed, match=rf"proxy {address.host}:{address.port}.* {sentence}") as caught:
            await sender.fetch(Request(url=tls_site.url("/")), identity=plain.Witness(address))
        assert plain.PASSWORD not in str(caught.value)
    assert tls_site.log == []
