"""A damaged file is called that, with what to do about it; what the deep check can find, it finds."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from shoal.errors import LedgerCorrupt
from shoal.ledger.sqlite import connection as connection_module
from shoal.ledger.sqlite import database as database_module
from shoal.ledger.sqlite.integrity import find_damage
from shoal.ledger.sqlite.ledger import SqliteLedger, open_sqlite
from shoal.model.item import NewItem
from shoal.model.run import Run, RunSpec, StageSpec
from shoal.model.views import Finding

PAGE = 4096
SPEC = RunSpec(scraper="s", stages=(StageSpec("a"),), settings={"region": "north"})


@asynccontextmanager
async def filled(path: Path) -> AsyncIterator[tuple[SqliteLedger, Run]]:
    ledger = await open_sqlite(path)
    try:
        await ledger.schema.migrate()
        run = await ledger.runs.create(SPEC)
        items = [NewItem(url=f"https://shop.example/{n}", payload={"n": n}) for n in range(200)]
        await ledger.intake.enqueue(run.id, items)
        yield ledger, run
    finally:
        await ledger.close()


def change(path: Path, *statements: str) -> None:
    """Behind the ledger's back, and against its rules."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("pragma ignore_check_constraints = on")
        connection.execute("pragma writable_schema = on")
        for statement in statements:
            connection.execute(statement)


async def look(ledger: SqliteLedger, run: Run) -> None:
    await ledger.runs.get(run.id)
    await ledger.reads.stats(run.id)


async def wait(ledger: SqliteLedger) -> None:
    for _ in range(3):
        await ledger.upkeep.wait(0.01)


async def findings(path: Path) -> list[Finding]:
    ledger = await open_sqlite(path)
    try:
        return await ledger.upkeep.audit(content=True)
    finally:
        await ledger.close()


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("update item set url = 'https://shop.example/other' where id = 3", "item 3: its URL or key is not the one"),
        ("update item set payload = '{\"n\":' where id = 4", "item 4: payload is no JSON"),
        ("update item set payload = cast(x'7b2261223a22ff227d' as text) where id = 5", "item: Could not decode"),
        ("update item set created_at = 9e17 where id = 6", "item 6: created_at is no time"),
        ("update item set queue = 99 where id = 7", "item 7: its queue is not there"),
        ("update run set state = 'actjve'", "CHECK constraint failed in run"),
        ("update sqlite_schema set sql = replace(sql, '= 0', '= 1') where name = 'lane_room'", "lane_room is not"),
        ("update queue_count set ready = ready + 1", "queue 1 ready: counted"),
    ],
)
async def test_the_deep_check_finds_it(sqlite_path: Path, statement: str, finding: str) -> None:
    async with filled(sqlite_path):
        pass
    assert await findings(sqlite_path) == []
    change(sqlite_path, statement)
    told = [found.detail for found in await findings(sqlite_path)]
    assert any(finding in detail for detail in told), told


@pytest.mark.parametrize(
    "statement",
    [
        "update run set settings = '{'",
        "update run set state = 'actjve'",
        "update run set created_at = 9e17",
        "update run set scraper = cast(x'ff' as text)",
        "drop table queue_count",
    ],
)
async def test_what_cannot_be_read_is_damage(sqlite_path: Path, statement: str) -> None:
    async with filled(sqlite_path) as (_, run):
        pass
    change(sqlite_path, statement)
    ledger = await open_sqlite(sqlite_path)
    try:
        with pytest.raises(LedgerCorrupt) as caught:
            await look(ledger, run)
    finally:
        await ledger.close()
    assert "backup" in caught.value.remedy
    assert caught.value.exit_code == 3


async def test_a_file_with_a_damaged_application_id(sqlite_path: Path) -> None:
    async with filled(sqlite_path):
        pass
    change(sqlite_path, "pragma application_id = 1")
    with pytest.raises(LedgerCorrupt, match="is damaged"):
        await open_sqlite(sqlite_path)


def lose_a_page(path: Path) -> None:
    """One in the middle, that an index of items is on."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("select rootpage from sqlite_schema where name = 'item_key'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(bytes(PAGE))


async def test_an_endless_statement_in_a_damaged_file_is_interrupted(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CHECK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(connection_module, "PROGRESS_STEPS", 1_000)
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n limit 300000) select count(*) from n"
    async with filled(sqlite_path) as (ledger, _):
        assert await ledger.db.value(endless) == 300_000, "a sound file may take as long as it likes"
    lose_a_page(sqlite_path)
    ledger = await open_sqlite(sqlite_path)
    try:
        with pytest.raises(LedgerCorrupt, match="is damaged"):
            await ledger.db.value(endless)
    finally:
        await ledger.close()


async def test_a_long_wait_checks_the_file_for_damage(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "CHECK_AFTER_SECONDS", 0.0)
    async with filled(sqlite_path) as (ledger, _):
        await wait(ledger)
    lose_a_page(sqlite_path)
    assert find_damage(sqlite_path) is not None
    ledger = await open_sqlite(sqlite_path)
    try:
        with pytest.raises(LedgerCorrupt, match="is damaged"):
            await wait(ledger)
    finally:
        await ledger.close()
