"""A project of the recipe on a PostgreSQL that its `.env` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from shoal.demo.recipe import write_environment
from shoal.recipes import find_project
from shoal.recipes.countries.stand_in import ADDRESS_PATH
from shoal.templates import write_project
from tests.support.project import Command, Project, clean_environment


class Countries(Project):
    """The recipe's project. Its commands find the database as users of the old system name it."""

    def __init__(self, folder: Path, ledger: str, entry: tuple[str, ...] = ()) -> None:
        super().__init__(folder, ledger, entry)
        write_project(folder, dict(find_project("countries").files()))

    def configure(self, site_url: str, **variables: str) -> None:
        """Write `.env`."""
        at = urlsplit(self.ledger)
        options = parse_qs(at.query)
        database = {
            "POSTGRES_HOST": at.hostname or options["host"][0],
            "POSTGRES_PORT": str(at.port or options["port"][0]),
            "POSTGRES_DB": at.path.removeprefix("/"),
            "POSTGRES_USER": at.username or "",
            "POSTGRES_PASSWORD": unquote(at.password or ""),
        }
        write_environment(self.folder, {**database, "ADDRESS_URL": site_url + ADDRESS_PATH, **variables})

    def start(self, *arguments: str, fresh: bool = False, **variables: str) -> Command:
        environment = clean_environment(self.folder, **variables)
        command = Command(self.folder, arguments, environment, len(self._commands), entry=self.entry, fresh=fresh)
        self._commands.append(command)
        return command


@pytest.fixture
def countries(tmp_path: Path, migrated_postgres: str) -> Iterator[Countries]:
    with Countries(tmp_path, migrated_postgres) as project:
        yield project
