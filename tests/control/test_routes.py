"""Paths that a project adds to the server: they are used by whom Shoal's own are, and leave the same traces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from shoal.control.access import ControlOptions
from shoal.control.routes import install
from shoal.errors import InvalidScraper, NotFound
from shoal.model.access import Role
from tests.support.control import LOCAL, REMOTE, bearer, client_of, running_app, settings_in, token_of

ROUTES = """
from fastapi import APIRouter
from pydantic import BaseModel

from shoal.errors import WrongState
from shoal.serve import Preview, ServedFleet

router = APIRouter(tags=["shelves"])


class Shelf(BaseModel):
    name: str


@router.get("/shelves")
async def shelves(fleet: ServedFleet) -> list[str]:
    return [each.run.scraper for each in (await fleet.runs()).rows]


@router.post("/shelves")
async def add(fleet: ServedFleet, body: Shelf, preview: Preview = False) -> Shelf:
    if body.name == "full":
        raise WrongState("The shelf is full.", remedy="Empty it.")
    return body
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf_routes.py").write_text(ROUTES)
    return tmp_path


@pytest.fixture
async def app(folder: Path) -> AsyncIterator[FastAPI]:
    settings = settings_in(folder, serve_routes="shelf_routes.py")
    async with running_app(settings, ControlOptions(host="0.0.0.0")) as app:
        yield app


async def test_routes_obey_the_rules_of_shoals_own(app: FastAPI) -> None:
    async with client_of(app, REMOTE) as remote:
        assert (await remote.get("/shelves")).status_code == 401
        viewer = bearer(await token_of(app, "viewer", Role.VIEWER))
        assert (await remote.get("/shelves", headers=viewer)).json() == []
        refused = await remote.post("/shelves", json={"name": "a"}, headers=viewer)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        operator = bearer(await token_of(app, "ann"))
        assert (await remote.post("/shelves", json={"name": "a"}, headers=operator)).json() == {"name": "a"}
    async with client_of(app, LOCAL) as local:
        other_site = {"Origin": "http://evil.example"}
        assert (await local.post("/shelves", json={"name": "a"}, headers=other_site)).status_code == 403
        assert (await local.get("/shelves", headers={"Host": "evil.example"})).status_code == 421
        too_large = b'{"name": "' + b"a" * (2 << 20) + b'"}'
        sent = {"Content-Type": "application/json"}
        assert (await local.post("/shelves", content=too_large, headers=sent)).status_code == 413


async def test_errors_writes_and_keys_are_as_everywhere(app: FastAPI) -> None:
    async with client_of(app) as local:
        full = await local.post("/shelves", json={"name": "full"})
        assert (full.status_code, full.json()["error"]["hint"]) == (409, "Empty it.")
        assert (await local.post("/shelves", json={})).json()["error"]["code"] == "invalid_request"
        await local.post("/shelves", json={"name": "b"}, params={"preview": "true"})
        for _ in range(2):
            again = await local.post("/shelves", json={"name": "c"}, headers={"Idempotency-Key": "once"})
            assert again.json() == {"name": "c"}
        assert "content-security-policy" in again.headers
        events = (await local.get("/api/v1/events")).json()["rows"]
        called = [event for event in events if event["action"] == "route.called"]
        assert [(event["actor"], event["subject"]) for event in called] == [("local@127.0.0.1", "/shelves")]
        described = (await local.get("/api/v1/openapi.json")).json()["paths"]["/shelves"]
        assert set(described) == {"get", "post"}
        assert {"401", "403", "409"} <= set(described["post"]["responses"])
        assert (await local.get("/api/v1/me")).json()["pages"] == ["shelves"]


def test_routes_that_cannot_be_added_are_refused_at_the_start(folder: Path) -> None:
    route = "from fastapi import APIRouter\nrouter = APIRouter()\n@router.get('{}')\ndef read(): ..."
    for code, says in {
        "router = None": "has no routes",
        route.format("/settings"): "GET /settings, which Shoal has already",
        route.format("/api/v2/shelves"): "GET /api/v2/shelves, which Shoal has already",
        "import nothing_like_this": "nothing_like_this",
    }.items():
        (folder / "shelf_routes.py").write_text(code)
        with pytest.raises(InvalidScraper, match=says):
            install(FastAPI(), settings_in(folder, serve_routes="shelf_routes.py"))


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(NotFound, match="no_such"):
        install(FastAPI(), settings_in(folder, serve_routes="no_such.py"))
