"""A migrated template database, copied for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.testing.harness import LedgerHarness
from tests.support.ledgers import postgres_harness, prepare_template, sqlite_harness
from tests.support.postgres import PostgresDatabases, unique_name


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresDatabases) -> Iterator[str]:
    name = unique_name()
    postgres_server.create_database(name)
    asyncio.run(prepare_template(postgres_server.url(name)))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, sqlite_path: Path) -> Path | str:
    """Where a ledger is: a path or the URL of a database. Tests that ask for it run on both backends."""
    return sqlite_path if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def either_harness(place: Path | str) -> AsyncIterator[LedgerHarness]:
    """A harness on both backends, one after the other."""
    async with sqlite_harness(place) if isinstance(place, Path) else postgres_harness(place) as harness:
        yield harness
