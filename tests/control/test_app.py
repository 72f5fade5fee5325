"""The application answers, and every error has one form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from shoal.config import load_settings
from shoal.control.app import build_app


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app(load_settings({"ledger": str(tmp_path / "ledger.db")}, environ={}, folder=tmp_path))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8642") as client,
    ):
        yield client


async def test_an_unknown_path_is_one_typed_error(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/v1/nothing")
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"code", "message", "hint"}
