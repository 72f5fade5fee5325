"""The command line as a user has it: a real process, a folder of its own, nothing inherited but the PATH."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.project import COMMAND, Project, clean_environment
from tests.parts.postgres import PostgresDatabases, unique_name

Finished = subprocess.CompletedProcess[str]
Shoal = Callable[..., Finished]

__all__ = ["COMMAND", "Finished", "Shoal", "clean_environment"]


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Run `shoal` with these arguments in `tmp_path`; keywords are environment variables."""

    def run(*arguments: str, **variables: str) -> Finished:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=clean_environment(tmp_path, **variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def migrated_template(postgres_server: PostgresDatabases) -> Iterator[str]:
    """A database with Shoal's schema, to be copied."""
    name = unique_name()
    postgres_server.create_database(name)
    subprocess.run([*COMMAND, "db", "migrate", "-q", "--ledger", postgres_server.url(name)], check=True)
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def migrated_postgres(postgres_server: PostgresDatabases, migrated_template: str) -> Iterator[str]:
    """The URL of a fresh ledger on PostgreSQL."""
    name = unique_name()
    postgres_server.create_database(name, migrated_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A folder with a scraper and a SQLite ledger."""
    with Project(tmp_path) as project:
        yield project


@pytest.fixture
def fleet(tmp_path: Path, migrated_postgres: str) -> Iterator[Project]:
    """A folder with a scraper and a ledger on PostgreSQL."""
    with Project(tmp_path, ledger=migrated_postgres) as project:
        yield project


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest) -> Project:
    """A project on either ledger, one after the other."""
    found: Project = request.getfixturevalue("project" if request.param == "sqlite" else "fleet")
    return found
