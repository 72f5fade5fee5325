"""Projects of the recipe, and the stand-in that they scrape."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from shoal.demo.stand_in import RunningStandIn
from shoal.recipes.github import PROJECT
from shoal.recipes.github.stand_in import GitHubStandIn
from shoal.templates import write_project
from tests.support.project import Project

Site = RunningStandIn[GitHubStandIn]
Serve = Callable[..., Site]
# Seconds, for a machine that is very busy.
PATIENCE = 300.0
TOKENS = ("token-aaaa", "token-bbbb", "token-cccc")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve a stand-in with these options until the end of the test."""
    running: list[Any] = []

    def start(**options: Any) -> Site:
        serving = GitHubStandIn(**options).serving()
        running.append(serving)
        return serving.__enter__()

    yield start
    for serving in running:
        serving.__exit__(None, None, None)


def set_up(project: Project, site: Site, *, tokens: tuple[str, ...] = TOKENS, **variables: str) -> None:
    """Write the project of the recipe with an `.env` for this site."""
    write_project(project.folder, dict(PROJECT.files()))
    values = {f"GITHUB_TOKEN_{number}": token for number, token in enumerate(tokens, start=1)}
    values |= {"GITHUB_API": site.url, "RATE_LIMIT_DELAY": "0", "RETRY_DELAY": "1", **variables}
    (project.folder / ".env").write_text("".join(f'{name}="{value}"\n' for name, value in values.items()))


def query(project: Project, sql: str) -> list[dict[str, Any]]:
    """What somebody with psql or sqlite3 gets."""
    if project.on_postgres:
        return asyncio.run(_query_postgres(project.ledger, sql))
    with closing(sqlite3.connect(project.ledger)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


async def _query_postgres(url: str, sql: str) -> list[dict[str, Any]]:
    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def statuses(project: Project) -> dict[str, int]:
    """S0.19, as the earlier system asked for it."""
    rows = query(project, "SELECT enrichment_status, COUNT(*) AS count FROM developers GROUP BY enrichment_status")
    return {row["enrichment_status"]: row["count"] for row in rows}
