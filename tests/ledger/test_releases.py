"""Released migrations are frozen, and every ledger that a release wrote is upgraded with its data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from shoal.ledger.postgres import schema as postgres_schema
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.sqlite import schema as sqlite_schema
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.egress import ExitState
from tests.support import releases as releases_module
from tests.support.project import Project
from tests.support.releases import (
    BACKENDS,
    Backend,
    Release,
    current_version,
    edited_migrations,
    freeze,
    is_released,
    migration_checksums,
    releases,
    run_counts,
)

RELEASES = releases()
LEDGERS = [
    pytest.param((release, backend), id=f"{release.version}-{backend}") for release in RELEASES for backend in BACKENDS
]
# The scraper of the ledgers' open runs, in today's code.
SHOP = """
    shop = Scraper("shop")

    @shop.stage
    async def listing(item: Item):
        yield {"listing": item.key or item.url}

    @shop.stage
    async def product(item: Item):
        yield {"product": item.key or item.url}
"""


@pytest.fixture
def postgres_template() -> None:
    """Here the databases start empty."""


@pytest.fixture(params=LEDGERS)
async def released(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Release, Backend, str]:
    """A ledger as a release wrote it: the release, the backend, and where the ledger is."""
    release, backend = request.param
    if backend == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        await release.put_postgres(url)
        return release, backend, url
    path = tmp_path / "released.sqlite3"
    release.put_sqlite(path)
    return release, backend, str(path)


@pytest.fixture
async def ledger(released: tuple[Release, Backend, str]) -> AsyncIterator[Ledger]:
    _, backend, place = released
    ledger: Ledger = await (open_postgres(place) if backend == "postgres" else open_sqlite(Path(place)))
    yield ledger
    await ledger.close()


@pytest.fixture
def project(released: tuple[Release, Backend, str], tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path, released[2]) as project:
        yield project


def test_a_released_migration_is_never_edited() -> None:
    found: dict[str, dict[str, str]] = {backend: migration_checksums(backend) for backend in BACKENDS}
    fingerprint, schema = postgres_schema.functions_fingerprint(), postgres_schema.code_version()
    for release in RELEASES:
        edited = list(edited_migrations(release, found, fingerprint, schema))
        hint = "" if is_released(release.version) else " It is unreleased still: `make freeze` writes it anew."
        assert not edited, edited[0] + hint


def test_an_edit_is_reported_in_one_sentence() -> None:
    migrations: dict[str, dict[str, str]] = {"sqlite": {"0001_initial.sql": "a"}, "postgres": {"0001_initial.sql": "b"}}
    release = Release(version="1.0.0", schema=1, migrations=migrations, functions="f", runs={})
    assert list(edited_migrations(release, migrations, "f", 1)) == []
    later = {backend: {**known, "0002_more.sql": "c"} for backend, known in migrations.items()}
    assert list(edited_migrations(release, later, "g", 2)) == []
    assert list(edited_migrations(release, {**migrations, "sqlite": {"0001_initial.sql": "x"}}, "f", 1)) == [
        "sqlite/migrations/0001_initial.sql is not as Shoal 1.0.0 released it: "
        "undo the change and write a new migration."
    ]
    assert list(edited_migrations(release, {**later, "sqlite": {"0002_more.sql": "c"}}, "g", 2)) == [
        "sqlite/migrations/0001_initial.sql is not as Shoal 1.0.0 released it: "
        "undo the change and write a new migration."
    ]
    assert list(edited_migrations(release, migrations, "g", 1)) == [
        "A PostgreSQL function or view is not as Shoal 1.0.0 released it in schema version 1: add a migration, "
        "which may contain only a comment with the reason."
    ]


def test_what_was_released_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases_module, "is_released", lambda version: True)
    monkeypatch.setattr(releases_module, "current_version", lambda: RELEASES[-1].version)
    before = (RELEASES[-1].folder / "release.json").read_bytes()
    with pytest.raises(SystemExit, match="has been released and stays as it is: raise the version"):
        freeze()
    assert (RELEASES[-1].folder / "release.json").read_bytes() == before


def test_the_changelog_has_the_version_of_the_code() -> None:
    text = (releases_module.ROOT / "CHANGELOG.md").read_text()
    first = next(line for line in text.splitlines() if line.startswith("## "))
    assert first.startswith(f"## {current_version()} (")
    assert [release.version for release in RELEASES if not is_released(release.version)] in ([], [current_version()])


async def test_a_released_ledger_is_upgraded_with_its_data(
    released: tuple[Release, Backend, str], ledger: Ledger
) -> None:
    release, backend, place = released
    assert await ledger.schema.version() == release.schema
    functions = await _functions(place) if backend == "postgres" else set()
    assert await ledger.schema.migrate() == (release.schema, ledger.schema.known_version)
    await ledger.schema.require_current()
    assert await ledger.upkeep.audit(content=True) == []
    assert await run_counts(ledger) == release.runs[backend]
    if backend == "postgres":
        assert functions <= await _functions(place), "workers of the release call these until they stop"

    (banned,) = (await ledger.exits.list("homes")).rows
    assert (banned.state, banned.by) in {(ExitState.BANNED, "ann@desk"), (ExitState.TRIAL, "ann@desk")}
    session = await ledger.sessions.get("members", "ann")
    assert session is not None
    assert session.content == b"encrypted"
    stored = await ledger.settings.get("global")
    assert stored is not None
    assert stored[1] == {"retries": 5}
    lock = await ledger.locks.get("schedule:shop")
    assert lock is not None
    assert [token.name for token in await ledger.access.tokens()] == ["ann"]
    assert [budget.resource for _, budget in await ledger.budgets.list("api")] == ["search"]
    cursor = await ledger.changes.cursor("sink:archive")
    assert cursor is not None
    assert len((await ledger.changes.dead_letters("sink:archive")).rows) == 1
    books = (await ledger.runs.list(scraper="books")).rows
    keyed = [row.record_key for run in books for row in (await ledger.reads.results(run.id)).rows]
    assert sorted(key for key in keyed if key) == ["1", "2", "x", "x", "y", "y"]
    assert (await ledger.reads.events(action="run.")).rows


def test_a_worker_of_today_runs_a_released_ledger_to_the_end(
    released: tuple[Release, Backend, str], project: Project
) -> None:
    release, backend, _ = released
    project.write(SHOP)
    project.shoal("db", "migrate")
    before = release.runs[backend]
    open_runs = [run for run, counts in before.items() if counts.keys() & {"ready", "leased"}]
    assert len(open_runs) == 2
    project.shoal("worker", "shop.py")
    for run in open_runs:
        counts, was = project.counts(run), before[run]
        ended = sum(was.get(state, 0) for state in ("ready", "waiting", "delayed", "leased"))
        assert (counts.remaining, counts.done) == (0, was.get("done", 0) + ended)
        assert (counts.dead, counts.skipped) == (was.get("dead", 0), was.get("skipped", 0))
        assert counts.results == was.get("results", 0) + ended
        assert len(project.export(run)) == counts.results
    project.shoal("db", "check", "--deep")
    assert "finished" in project.shoal("status", open_runs[0]).stdout


async def _functions(url: str) -> set[str]:
    """Functions and views of the ledger, with their arguments."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "select p.oid::regprocedure::text as name from pg_proc p where p.pronamespace = 'shoal'::regnamespace "
            "union all select c.oid::regclass::text from pg_class c "
            "where c.relnamespace = 'shoal'::regnamespace and c.relkind in ('v', 'r')"
        )
        return {row["name"] for row in rows}
    finally:
        await connection.close()


def test_both_backends_have_the_same_migrations_without_a_gap() -> None:
    versions = [version for version, _, _ in postgres_schema.migrations()]
    assert versions == list(range(1, len(versions) + 1))
    assert [version for version, _, _ in sqlite_schema.migrations()] == versions


def test_a_last_statement_without_a_semicolon_is_not_left_out() -> None:
    script = "create table a (x);\n-- a remark\n"
    assert list(sqlite_schema.statements(script)) == ["create table a (x);\n"]
    with pytest.raises(ValueError, match="create table b"):
        list(sqlite_schema.statements(script + "create table b (x)\n"))
