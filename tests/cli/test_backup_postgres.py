"""A PostgreSQL ledger, dumped in the middle of a run by the command that Shoal prints, goes on in another database."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support import missing
from tests.support.binaries import wheel_installs
from tests.support.postgres import PostgresDatabases, unique_name
from tests.support.project import Project

CODE = """
    from pathlib import Path

    people = Scraper("people")

    @people.stage
    async def profile(item: Item):
        while int(item.key) >= 5 and not Path("go").exists():
            await asyncio.sleep(0.01)
        yield {"user": item.key}

    people.start(profile.item(key=str(n)) for n in range(10))
"""


@pytest.fixture
def other_database(postgres_server: PostgresDatabases) -> Iterator[str]:
    name = unique_name()
    postgres_server.create_database(name)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


def tool(command: list[str], ledger: str) -> None:
    """One of PostgreSQL's own programs, with the password where they look for it."""
    installs = wheel_installs()
    if not installs:
        missing("pg_dump comes with the wheel of requirements/dev.txt")
    subprocess.run(
        [str(installs[0] / "bin" / command[0]), *command[1:]],
        env={**os.environ, "PGPASSWORD": urlsplit(ledger).password or ""},
        check=True,
        timeout=60,
    )


def test_a_dump_goes_on_where_it_was(fleet: Project, other_database: str) -> None:
    fleet.write(CODE, "people.py")
    fleet.shoal("enqueue", "people.py")
    worker = fleet.start("worker", "people.py", "-j", "3", "--batch-size", "3", "--set", "lease=1")
    while (counts := fleet.counts()).done < 5 or not counts.leased:
        assert not worker.is_over
    told = fleet.shoal("db", "backup", "ledger.dump", code=2).stderr
    dump = shlex.split(told.partition("Run: ")[2])
    assert str(urlsplit(fleet.ledger).password) not in told
    tool([part.replace("ledger.dump", str(fleet.folder / "ledger.dump")) for part in dump], fleet.ledger)
    worker.kill()

    tool(["pg_restore", "--no-owner", f"--dbname={other_database}", str(fleet.folder / "ledger.dump")], other_database)
    (fleet.folder / "go").touch()
    copy = Project(fleet.folder, ledger=other_database)
    with copy:
        assert copy.counts().leased, "it was dumped in the middle of the work"
        copy.shoal("worker", "people.py")
        assert sorted(record["user"] for record in copy.export()) == [str(n) for n in range(10)]
        copy.shoal("db", "check", "--deep")
