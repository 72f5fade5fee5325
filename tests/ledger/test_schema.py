"""Migrations, versions, and the views for people."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from shoal.errors import InvalidScraper, LedgerError, LedgerNotMigrated, LedgerTooNew
from shoal.ledger.postgres import schema as postgres_schema
from shoal.ledger.postgres.ledger import named_queries as postgres_queries
from shoal.ledger.postgres.ledger import open_postgres
from shoal.ledger.protocols import Ledger
from shoal.ledger.schema import SqlView, load_scripts, parse_views
from shoal.ledger.sqlite.ledger import named_queries as sqlite_queries
from shoal.ledger.sqlite.ledger import open_sqlite
from shoal.model.egress import ExitReport, ExitSpec, HealthRules, HostReport
from shoal.model.item import NewItem
from shoal.model.lane import LanePolicy
from shoal.model.run import RunSpec, StageSpec
from shoal.model.worker import Scope, WorkerSpec
from shoal.testing.harness import dead, done

VIEWS = ("active_claims", "stale_claims", "status_counts", "completed_by_worker", "failed_items", "queue_depth")


@pytest.fixture
def postgres_template() -> None:
    """Here the databases start empty."""


async def open_at(place: Path | str) -> Ledger:
    return await open_sqlite(place) if isinstance(place, Path) else await open_postgres(place)


@pytest.fixture
async def ledger(place: Path | str) -> AsyncIterator[Ledger]:
    ledger = await open_at(place)
    yield ledger
    await ledger.close()


async def rows(place: Path | str, sql: str) -> list[dict[str, object]]:
    """What a person with psql or sqlite3 sees."""
    if isinstance(place, Path):
        with sqlite3.connect(place) as connection:
            connection.row_factory = sqlite3.Row
            found = [dict(row) for row in connection.execute(sql)]
            connection.commit()
        connection.close()
        return found
    person = await asyncpg.connect(place)
    try:
        return [dict(row) for row in await person.fetch(sql)]
    finally:
        await person.close()


def table(place: Path | str, name: str) -> str:
    return name if isinstance(place, Path) else f"shoal.{name}"


async def test_an_empty_database_is_refused_with_the_remedy(ledger: Ledger) -> None:
    assert await ledger.schema.version() is None
    with pytest.raises(LedgerNotMigrated, match="shoal db migrate"):
        await ledger.schema.require_current()
    with pytest.raises(LedgerNotMigrated, match="shoal db migrate"):
        await ledger.runs.get("20260101_000000")
    with pytest.raises(LedgerNotMigrated):
        await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),)))


async def test_migrating_twice_is_once(ledger: Ledger) -> None:  # S0.27
    before, after = await ledger.schema.migrate()
    assert before == 0
    assert await ledger.schema.version() == after
    assert await ledger.schema.migrate() == (after, after)
    await ledger.schema.require_current()


async def test_two_machines_may_migrate_at_once(place: Path | str) -> None:
    ledgers = [await open_at(place) for _ in range(4)]
    results = await asyncio.gather(*(ledger.schema.migrate() for ledger in ledgers))
    assert len({after for _, after in results}) == 1
    for ledger in ledgers:
        await ledger.schema.require_current()
        await ledger.close()


@pytest.mark.parametrize("other", ["older", "newer"])
async def test_another_version_migrates_between_the_look_and_the_change(
    postgres_url: str, person: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The rest is upgraded, or the newer schema is refused as ever."""
    older = postgres_schema.migrations()
    own = [*older, (older[-1][0] + 1, "next", "comment on schema shoal is 'the next one'")]
    monkeypatch.setattr(postgres_schema, "migrations", lambda: own)
    monkeypatch.setattr(postgres_schema, "code_version", lambda: own[-1][0])
    looked, version = False, postgres_schema.PostgresSchema.version

    async def look_too_early(self: postgres_schema.PostgresSchema) -> int | None:
        nonlocal looked
        found = await version(self)
        if not looked:
            looked = True
            await person.execute(
                "create schema shoal; create table shoal.migration "
                "(version int primary key, name text not null, applied_at timestamptz not null default now())"
            )
            for number, name, text in [*own, (99, "future", "select 1")] if other == "newer" else older:
                await person.execute("insert into shoal.migration (version, name) values ($1, $2)", number, name)
                await person.execute(f"{text}\n;select 1")
        return found

    monkeypatch.setattr(postgres_schema.PostgresSchema, "version", look_too_early)
    ledger = await open_postgres(postgres_url)
    try:
        if other == "newer":
            with pytest.raises(LedgerTooNew, match="99"):
                await ledger.schema.migrate()
        else:
            assert await ledger.schema.migrate() == (0, own[-1][0])
            assert await person.fetchval("select obj_description('shoal'::regnamespace)") == "the next one"
            await ledger.schema.require_current()
            await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),)))
    finally:
        await ledger.close()


async def test_a_newer_database_is_refused_and_left_alone(ledger: Ledger, place: Path | str) -> None:
    await ledger.schema.migrate()
    run = await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),)))
    if isinstance(place, Path):
        await rows(place, "pragma user_version = 99")
    else:
        await rows(place, "insert into shoal.migration (version, name) values (99, 'future')")
    for call in (ledger.schema.require_current(), ledger.schema.migrate()):
        with pytest.raises(LedgerTooNew, match=r"99.*Upgrade Shoal"):
            await call
    assert (await ledger.runs.get(run.id)).id == run.id


async def test_a_ledger_that_lacks_a_column_may_be_of_an_earlier_build(ledger: Ledger, place: Path | str) -> None:
    """Builds before 0.2.0 had other tables under the same number: neither a migration nor a backup helps then."""
    _, after = await ledger.schema.migrate()
    await rows(place, f"alter table {table(place, 'run')} rename column settings to configuration")
    if isinstance(place, Path):
        await rows(place, "pragma wal_checkpoint(truncate)")  # the file's own header says then that it is a ledger
    await ledger.schema.require_current()
    assert await ledger.schema.migrate() == (after, after)
    with pytest.raises(LedgerError, match="settings") as caught:
        await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),)))
    assert "If a build before 0.2.0 made this ledger, it cannot be upgraded: make a new one" in caught.value.remedy
    if isinstance(place, Path):
        assert "is damaged, or a build before 0.2.0 made it: " in caught.value.message
        assert "restore the last backup" in caught.value.remedy
    else:
        assert caught.value.remedy.startswith("Run `shoal db migrate`.")


async def test_data_survives_a_migration(ledger: Ledger) -> None:
    await ledger.schema.migrate()
    run = await ledger.runs.create(RunSpec(scraper="s", stages=(StageSpec("a"),)))
    await ledger.intake.enqueue(run.id, [NewItem(key="k")])
    await ledger.schema.migrate()
    assert (await ledger.reads.stats(run.id)).ready == 1
    assert await ledger.upkeep.audit() == []


def test_a_changed_function_needs_a_new_migration() -> None:
    """The version of a database must tell which functions it has."""
    version, name, text = postgres_schema.migrations()[-1]
    noted = re.search(r"^-- functions: ([0-9a-f]+)$", text, re.MULTILINE)
    assert noted is not None, f"{name} names no fingerprint"
    assert noted[1] == postgres_schema.functions_fingerprint(), (
        f"A function or view changed. If version {version} has been released, add a migration; either way put "
        f"'-- functions: {postgres_schema.functions_fingerprint()}' at the top of the newest one."
    )


async def test_the_views_show_the_state_of_a_run(ledger: Ledger, place: Path | str) -> None:  # S0.16-S0.19, S1.20
    await ledger.schema.migrate()
    run = await ledger.runs.create(RunSpec(scraper="shop", stages=(StageSpec("page", lane=LanePolicy(limit=1)),)))
    urls = [f"https://example.com/{n}" for n in range(4)]
    await ledger.intake.enqueue(run.id, urls)
    await ledger.intake.enqueue(run.id, [NewItem(key=key, lane="host") for key in ("w1", "w2")])
    await ledger.workers.register(WorkerSpec(id="node-1-abc", node="node", pid=1))
    first, second, third = await ledger.claims.claim("node-1-abc", Scope(), 3)
    await ledger.commits.commit("node-1-abc", [done(first), dead(second, "404 Not Found")])

    seen = {view: await rows(place, f"select * from {table(place, view)}") for view in VIEWS}
    (claims,) = seen["active_claims"]
    assert (claims["claimed_by"], claims["records"]) == ("node-1-abc", 1)
    assert str(claims["first_start"]).startswith("20")
    assert seen["stale_claims"] == []
    for view in ("active_claims", "status_counts", "completed_by_worker", "failed_items", "queue_depth"):
        place_of = {(row["run_id"], row["scraper"], row["stage"]) for row in seen[view]}
        assert place_of == {(run.id, "shop", "page")}, view
    assert {row["status"]: row["items"] for row in seen["status_counts"]} == {
        "ready": 2,
        "waiting": 1,
        "leased": 1,
        "done": 1,
        "dead": 1,
    }
    (completed,) = seen["completed_by_worker"]
    assert (completed["completed_by"], completed["done"], completed["dead"]) == ("node-1-abc", 1, 1)
    (failed,) = seen["failed_items"]
    assert (failed["url"], failed["error_message"], failed["retry_count"]) == (second.url, "404 Not Found", 0)
    (depth,) = seen["queue_depth"]
    assert (depth["run_id"], depth["stage"], depth["ready"]) == (run.id, "page", 2)
    (job,) = await rows(place, f"select * from {table(place, 'jobs')}")  # S4.14
    assert (job["run_id"], job["scraper"], job["status"], job["active_workers"]) == (run.id, "shop", "running", 1)
    assert (job["pending"], job["processing"], job["completed"], job["failed"]) == (3, 1, 1, 1)
    await ledger.runs.pause(run.id)
    assert [job["status"] for job in await rows(place, f"select * from {table(place, 'jobs')}")] == ["paused"]
    await ledger.runs.resume(run.id)
    await ledger.workers.stop("node-1-abc")
    (job,) = await rows(place, f"select * from {table(place, 'jobs')}")
    assert (job["status"], job["active_workers"]) == ("idle", 0)
    assert third.url == urls[2]


async def test_a_person_sees_the_health_of_exits(ledger: Ledger, place: Path | str) -> None:
    await ledger.schema.migrate()
    await ledger.workers.register(WorkerSpec(id="w", node="n", pid=1))
    await ledger.exits.register("w", "homes", "proxies", [ExitSpec(key, f"proxy {key}") for key in "abcd"])
    blocked = (HostReport(host="shop.example", blocked=5, blocks_in_row=5),)
    reports = [ExitReport(key="a", failed=9, failures_in_row=9, error="reset"), ExitReport(key="b", hosts=blocked)]
    await ledger.exits.report("w", "homes", reports, HealthRules(ban_after=9))
    await ledger.exits.ban("homes", "c", 0.0, "it lies", by="ann")
    seen = await rows(place, f"select * from {table(place, 'egress_health')} order by key")
    assert [(row["pool"], row["exit"], row["state"], row["blocked_at_hosts"]) for row in seen] == [
        ("homes", "proxy a", "banned", 0),
        ("homes", "proxy b", "good", 1),
        ("homes", "proxy c", "trial", 0),
        ("homes", "proxy d", "good", 0),
    ]
    assert (seen[0]["why"], seen[0]["error"]) == ("9 failures in a row: reset", "reset")
    assert str(seen[0]["until"]) > str(seen[0]["last_used"])
    assert {row["kind"] for row in seen} == {"proxies"}
    assert all(row["listed"] for row in seen)


async def test_the_views_distinguish_runs_and_stages(ledger: Ledger, place: Path | str) -> None:  # S0.16-S0.19
    """One worker on two runs with two stages each: every view says which of them a row is about."""
    await ledger.schema.migrate()
    await ledger.workers.register(WorkerSpec(id="w", node="node", pid=1))
    expected = set()
    for scraper in ("shop", "books"):
        run = await ledger.runs.create(RunSpec(scraper=scraper, stages=(StageSpec("list"), StageSpec("page"))))
        for stage in ("list", "page"):
            await ledger.intake.enqueue(run.id, [NewItem(key=key) for key in ("done", "dead", "held")], stage=stage)
            first, second, _ = await ledger.claims.claim("w", Scope(run_ids=(run.id,), stages=(stage,)), 3)
            await ledger.commits.commit("w", [done(first), dead(second)])
            expected.add((run.id, scraper, stage))
    if isinstance(place, Path):
        await rows(place, "update lease set claimed_at = claimed_at - 7200 * 1000000")
    else:
        await rows(place, "update shoal.lease set claimed_at = claimed_at - interval '2 hours'")
    for view in VIEWS:
        seen = await rows(place, f"select run_id, scraper, stage from {table(place, view)}")
        assert {(row["run_id"], row["scraper"], row["stage"]) for row in seen} == expected, view
    for view, column in (("active_claims", "records"), ("completed_by_worker", "done"), ("queue_depth", "dead")):
        assert [row[column] for row in await rows(place, f"select {column} from {table(place, view)}")] == [1] * 4


def test_shared_queries_are_translated_for_sqlite_and_left_as_they_are_for_postgresql() -> None:
    shared = re.findall(r"^-- name: (\w+)$", "".join(text for _, text in load_scripts("shoal.ledger", "queries")), re.M)
    assert len(shared) > 20
    for name in shared:
        # Numbered parameters keep their number; `$1` would be a name for SQLite, numbered by first use.
        assert re.findall(r"\$(\d+)", postgres_queries()[name]) == re.findall(r"\?(\d+)", sqlite_queries()[name])
        assert "$" not in sqlite_queries()[name]
        assert "shoal." not in sqlite_queries()[name]


async def test_a_server_accepts_every_query(postgres_url: str) -> None:
    ledger = await open_postgres(postgres_url)
    await ledger.schema.migrate()
    await ledger.close()
    person = await asyncpg.connect(postgres_url)
    try:
        for sql in postgres_queries().values():
            await person.prepare(sql)
    finally:
        await person.close()


async def test_views_of_a_scraper_are_found_without_a_schema_and_replace_nothing_of_others(
    ledger: Ledger, place: Path | str
) -> None:
    await ledger.schema.migrate()
    await rows(place, "create table numbers (number integer)")
    mine = SqlView("developers", "select 'ann' as username, 1 as followers")
    with pytest.raises(InvalidScraper, match="a table or view numbers that is not Shoal's"):
        await ledger.schema.put_views([mine, SqlView("numbers", "select 1 as number")])
    assert await rows(place, "select * from numbers") == []
    assert await ledger.schema.put_views([mine])
    assert await rows(place, "SELECT username, COUNT(*) AS n FROM developers GROUP BY username") == [
        {"username": "ann", "n": 1}
    ]
    if isinstance(place, Path):
        assert await ledger.upkeep.audit() == []


async def test_a_user_named_like_the_schema_has_views_too(ledger: Ledger, place: Path | str) -> None:
    """Its default schema is the ledger's own, where a view of the same name may be: S1.20."""
    if isinstance(place, Path):
        return
    await ledger.schema.migrate()
    view = SqlView("url_work_queue", "select * from shoal.url_work_queue")
    assert await ledger.schema.put_views([view])
    assert not await ledger.schema.put_views([view])
    person = await asyncpg.connect(place)
    try:
        assert await person.fetchval("select current_schema()") == "shoal"
        assert await person.fetch("select * from public.url_work_queue") == []
    finally:
        await person.close()


def test_a_file_of_views_has_one_select_for_each_name() -> None:
    text = "-- Views.\n-- name: a\n-- why; really\nselect 1;\n\n-- name: b\nwith x as (select 2) select * from x"
    assert [(view.name, view.select[-8:]) for view in parse_views(text, "views.sql")] == [
        ("a", "select 1"),
        ("b", "* from x"),
    ]
    for wrong in ("select 1", "-- name: a\ndrop table item", "-- name: a\nselect 1; drop table item"):
        with pytest.raises(InvalidScraper):
            parse_views(wrong, "views.sql")
    assert parse_views("-- This kind of ledger needs none.\n", "views.sql") == []
    with pytest.raises(InvalidScraper, match="twice"):
        parse_views("-- name: a\nselect 1\n-- name: A\nselect 2", "views.sql")
