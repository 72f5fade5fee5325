"""deploy/nginx/shoal.conf with a real nginx: `shoal serve` behind it below a sub-path, a client on another address."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from websockets.sync.client import connect
from websockets.typing import Origin

from shoal.control.dashboard import STATIC
from tests.support import MissingPartError, missing
from tests.support.certificates import Certificate
from tests.support.deployments import ROOT
from tests.support.doc_reader import blocks_of
from tests.support.nginx import SHOAL_CONFIG as CONFIG
from tests.support.nginx import SHOAL_NAME as NAME
from tests.support.nginx import shoal_proxy
from tests.support.project import Project
from tests.support.served import PATIENCE, ServedProject

# Somebody else's machine: all of 127.0.0.0/8 is loopback, but only 127.0.0.1 is the proxy.
ADDRESS = "127.0.0.2"


class Site(NamedTuple):
    """The server as its users reach it."""

    port: int
    trust: ssl.SSLContext
    token: str

    def client(self, **headers: str) -> httpx.Client:
        transport = httpx.HTTPTransport(verify=self.trust, local_address=ADDRESS)
        given = {"Host": NAME, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return httpx.Client(
            transport=transport, base_url=f"https://127.0.0.1:{self.port}", headers=given, timeout=PATIENCE
        )

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@pytest.fixture
def site(project: Project, tmp_path: Path) -> Iterator[Site]:
    token = project.shoal("serve", "token", "add", "anna", "--role", "operator").stdout.strip()
    options = re.search(r"shoal serve (.*)", CONFIG)
    assert options
    certificate = Certificate(tmp_path, (NAME, "127.0.0.1"))
    trust = ssl.create_default_context()
    certificate.trust(trust)
    with ServedProject(project, *options[1].split()) as served:
        try:
            with shoal_proxy(served.url.removesuffix("/shoal"), certificate) as port:
                yield Site(port, trust, token)
        except MissingPartError as error:
            missing(str(error))


def test_the_dashboard_is_whole_below_the_sub_path(site: Site) -> None:
    if not (STATIC / "index.html").is_file():
        missing("the dashboard is not built: make setup")
    with site.client(Accept="text/html") as browser:
        assert httpx.URL(browser.get("/shoal").headers["location"]).path == "/shoal/"
        for page in ("/shoal/", "/shoal/runs/latest/items?state=dead"):
            answer = browser.get(page)
            assert answer.status_code == 200
            assert '<base href="/shoal/">' in answer.text
        scripts = re.findall(r'src="([^"]+)"', answer.text)
        assert scripts
        for name in scripts:
            script = browser.get(f"/shoal/{name.removeprefix('./')}")
            assert script.status_code == 200
            assert script.headers["content-type"].startswith("text/javascript")


def test_whoever_comes_through_the_proxy_needs_a_token_and_is_named_in_events(site: Site) -> None:
    with site.client() as client:
        assert client.get("/shoal/api/v1/me").status_code == 401
        me = client.get("/shoal/api/v1/me", headers=site.authorization).json()
        assert (me["name"], me["by"], me["role"]) == ("anna", "token", "operator")
        logged_in = client.post(
            "/shoal/api/v1/session", json={"token": site.token}, headers={"Origin": f"https://{NAME}"}
        )
        assert logged_in.status_code == 200
        cookie = logged_in.headers["set-cookie"]
        assert {"Secure", "HttpOnly", "Path=/shoal/", "SameSite=strict"} <= set(cookie.split("; "))
        session = {"Cookie": cookie.partition(";")[0]}
        assert client.get("/shoal/api/v1/me", headers=session).json()["by"] == "session"
        events = client.get("/shoal/api/v1/events", headers=session).json()["rows"]
        assert f"anna@{ADDRESS}" in {event["actor"] for event in events}


def test_other_sites_and_other_names_are_refused(site: Site) -> None:
    with site.client() as client:
        session = {"token": site.token}
        elsewhere = client.post("/shoal/api/v1/session", json=session, headers={"Origin": "https://other.example"})
        assert elsewhere.status_code == 403
        rebound = client.get("/shoal/api/v1/me", headers={"Host": "other.example", **site.authorization})
        assert rebound.status_code == 421


def test_live_updates_pass_it(site: Site) -> None:
    with (
        socket.create_connection(("127.0.0.1", site.port), PATIENCE, (ADDRESS, 0)) as connection,
        connect(
            f"wss://{NAME}/shoal/api/v1/live",
            sock=connection,
            ssl=site.trust,
            additional_headers=site.authorization,
            origin=Origin(f"https://{NAME}"),
        ) as websocket,
    ):
        websocket.send(json.dumps({"subscribe": ["overview"]}))
        assert "overview" in json.loads(websocket.recv(PATIENCE))["changes"]
    with (
        site.client(**site.authorization) as client,
        client.stream("GET", "/shoal/api/v1/live", params={"topics": "overview"}) as stream,
    ):
        assert stream.status_code == 200
        # It arrives although the answer never ends.
        first = next(line for line in stream.iter_lines() if line.startswith("data: "))
        assert "overview" in json.loads(first.removeprefix("data: "))["changes"]


def test_the_guide_shows_what_the_file_has() -> None:
    shown = [block.text for block in blocks_of(ROOT / "docs/howto/serve.md") if block.text.startswith("location")]
    assert len(shown) == 1
    lines = [line.strip() for line in CONFIG.splitlines()]
    assert [line for line in shown[0].splitlines() if line.strip() not in lines] == []
