"""A migrated template database, copied for each test."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.ledger.labs import prepare_template
from tests.parts.postgres import PostgresDatabases, unique_name


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresDatabases) -> Iterator[str]:
    name = unique_name()
    postgres_server.create_database(name)
    asyncio.run(prepare_template(postgres_server.url(name)))
    yield name
    postgres_server.drop_database(name)
