"""The built files of the dashboard are served: pages for every view, under a sub-path, compressed, kept by browsers."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from shoal.control import dashboard
from shoal.control.dashboard import NOT_BUILT

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
INDEX = '<!doctype html><head><base href="/"><script src="assets/app-1a2b.js"></script></head>'
SCRIPT = "console.log('shoal')\n" * 50


@pytest.fixture
def static(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(INDEX)
    (folder / "assets/app-1a2b.js").write_text(SCRIPT)
    (folder / "assets/app-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT.encode()))
    (folder / "favicon.svg").write_text("<svg/>")
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def client_for(folder: Path, root_path: str = "") -> httpx.AsyncClient:
    app = FastAPI()
    dashboard.install(app, root_path, folder)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8642")


async def test_every_view_is_the_page(static: Path) -> None:  # S2.29
    client = client_for(static)
    for path in ("/", "/index.html", "/runs", "/runs/20260102_030405/items/7", "/runs?state=active"):
        answer = await client.get(path, headers=HTML)
        assert (answer.status_code, answer.text) == (200, INDEX)
        assert answer.headers["content-type"].startswith("text/html")
        assert answer.headers["cache-control"] == "no-cache"
    again = await client.get("/", headers={**HTML, "If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    assert (await client.head("/")).status_code == 200


async def test_what_is_no_page_is_an_error(static: Path) -> None:
    client = client_for(static)
    for path in ("/api/v1/nothing", "/jobs/nothing", "/assets/gone.js", "/metrics/x"):
        answer = await client.get(path, headers=HTML)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (await client.get("/runs")).status_code == 404  # a program that asks for JSON
    assert (await client.post("/runs", headers=HTML)).status_code == 404


async def test_files_are_compressed_and_kept(static: Path) -> None:
    client = client_for(static)
    plain = await client.get("/assets/app-1a2b.js", headers={"Accept-Encoding": "identity"})
    assert plain.text == SCRIPT
    assert plain.headers["content-type"].startswith("text/javascript")
    assert "immutable" in plain.headers["cache-control"]
    packed = await client.get("/assets/app-1a2b.js", headers={"Accept-Encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert packed.text == SCRIPT
    icon = await client.get("/favicon.svg")
    assert (icon.headers["content-type"], icon.headers["cache-control"]) == ("image/svg+xml", "no-cache")


async def test_no_path_leads_out_of_the_folder(static: Path) -> None:
    client = client_for(static)
    for path in (
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/assets/../../secret.txt",
        "/..%2fsecret.txt",
        "//secret.txt",
    ):
        assert "secret" not in (await client.get(path, headers=HTML)).text


async def test_under_a_sub_path_links_begin_there(static: Path) -> None:
    client = client_for(static, "/shoal")
    for path in ("/shoal/", "/shoal/runs", "/runs"):  # the proxy removes the sub-path or not
        answer = await client.get(path, headers=HTML)
        assert '<base href="/shoal/">' in answer.text
    assert (await client.get("/shoal/assets/app-1a2b.js")).text == SCRIPT


async def test_a_new_build_is_served_without_a_restart(static: Path) -> None:
    client = client_for(static)
    assert (await client.get("/", headers=HTML)).text == INDEX
    (static / "assets/app-3c4d.js").write_text("new")
    (static / "index.html").write_text(INDEX + "2")
    os.utime(static / "index.html", (1, 1))
    assert (await client.get("/", headers=HTML)).text == INDEX + "2"
    assert (await client.get("/assets/app-3c4d.js")).text == "new"


async def test_a_checkout_says_how_to_build_it(tmp_path: Path) -> None:
    answer = await client_for(tmp_path / "nothing").get("/", headers=HTML)
    assert (answer.status_code, answer.content) == (404, NOT_BUILT)
    assert "make setup" in answer.text
