"""A server and a fetcher for each test."""

from collections.abc import AsyncIterator

import pytest

from shoal.fetch.client import HttpFetcher
from tests.fetch.site import Site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    yield site
    await site.stop()


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpFetcher]:
    fetcher = HttpFetcher(connections=4, user_agent="shoal/0.1", max_body=1 << 20, idle_timeout=5.0)
    yield fetcher
    await fetcher.close()
