"""A server and a fetcher for each test."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator

import pytest

from shoal.fetch.http import HttpFetcher
from shoal.fetch.impersonate import ImpersonatingFetcher
from tests.support import missing
from tests.support.raw_site import Site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    yield site
    await site.stop()


# For tests that hold for every client: `pytestmark = both_clients`.
both_clients = pytest.mark.parametrize("client", [HttpFetcher, ImpersonatingFetcher])


@pytest.fixture
def client() -> type[HttpFetcher]:
    return HttpFetcher


@pytest.fixture
async def fetcher(client: type[HttpFetcher]) -> AsyncIterator[HttpFetcher]:
    fetcher = client(connections=4, user_agent="shoal/0.1", max_body=1 << 20, idle_timeout=5.0)
    yield fetcher
    await fetcher.close()


@pytest.fixture(scope="session")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """The server side of TLS with a self-signed certificate."""
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl is not installed")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
