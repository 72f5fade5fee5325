"""The ledger harness of tests/ledger, with a client of the API on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from shoal.testing.harness import LedgerHarness
from tests.ledger.conftest import either_harness, place, postgres_template
from tests.support.small_ledger import api_on

__all__ = ["either_harness", "place", "postgres_template"]


@pytest.fixture
async def api(either_harness: LedgerHarness, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API on both backends, one after the other."""
    async with api_on(either_harness.ledger, tmp_path) as client:
        yield client
