"""The base of stand-in sites: they log every visit; their faults are switched by name, also from another process."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import ClassVar

import pytest

from shoal.demo.stand_in import TEXT, StandIn, StandInRequest, StandInResponse, close_servers, main
from shoal.errors import InvalidSetting


class Echo(StandIn):
    name = "echo"
    FAULTS: ClassVar[Mapping[str, str]] = {"errors": "every page answers 503", "resets": "connections are reset"}

    async def answer(self, request: StandInRequest) -> StandInResponse:
        if "resets" in self.faults:
            return StandInResponse(reset=True)
        status = 503 if "errors" in self.faults else 200
        text = f"{request.method} {request.host} {request.path} {dict(request.query)} {request.body.decode()}"
        return StandInResponse(body=text, status=status, content_type=TEXT, note=request.headers.get("x-token", ""))


def fetch(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_every_visit_is_logged_with_its_host_and_note() -> None:
    with Echo(latency=(0.01, 0.02)).serving(hosts=("127.0.0.1", "127.0.0.3")) as site:
        assert fetch(f"{site.url}/a%20b?x=1&x=2&y=") == (200, "GET 127.0.0.1 /a b {'x': '1', 'y': ''} ")
        assert fetch(f"{site.urls['127.0.0.3']}/", "POST", b"body", **{"X-Token": "t1"})[1].endswith("{} body")
        first, second = site.log()
    assert (first.method, first.path, first.status, first.note) == ("GET", "/a%20b?x=1&x=2&y=", 200, "")
    assert (second.method, second.host, second.note) == ("POST", "127.0.0.3", "t1")
    assert first.ended - first.at >= 0.01


def test_faults_are_switched_by_name() -> None:
    with Echo(faults=["errors"]).serving() as site:
        assert fetch(f"{site.url}/")[0] == 503
        site.switch("errors", False)
        assert fetch(f"{site.url}/")[0] == 200
        assert fetch(f"{site.url}/_stand_in/faults/resets", "POST")[0] == 200
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            fetch(f"{site.url}/")
        answer = json.loads(fetch(f"{site.url}/_stand_in/faults/resets", "DELETE")[1])
        assert answer == {"faults": [], "known": dict(Echo.FAULTS)}
        assert fetch(f"{site.url}/_stand_in/faults/other", "POST")[0] == 404
        lines = [json.loads(line) for line in fetch(f"{site.url}/_stand_in/log")[1].splitlines()]
    assert [line["status"] for line in lines] == [503, 200, 0]
    with pytest.raises(InvalidSetting, match="echo has no fault 'fire'"):
        Echo(faults=["fire"])


def test_a_command_switches_faults_on_in_a_site_that_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    with Echo().serving() as site:
        assert main(Echo, ["--fault", "errors", "--running", f"{site.url}/"]) == 0
        assert fetch(f"{site.url}/")[0] == 503
    assert main(Echo, ["--fault", "errors", "--running", site.url]) == 1
    assert f"errors was not switched on at {site.url}" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused() -> None:
    with Echo().serving() as site:
        port = int(site.url.rpartition(":")[2])
        with pytest.raises(InvalidSetting, match=f"cannot open 127.0.0.1:{port}"), Echo().serving(port=port):
            pass


async def test_a_connection_that_was_just_accepted_is_closed_with_its_server() -> None:
    """Its task has not begun then; one that is cancelled before it begins leaves its connection open."""
    began: list[bool] = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            writer.transport.abort()

    async def serve_and_close() -> None:
        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(1_000):
                if any("hold" in str(task.get_coro()) for task in asyncio.all_tasks()):
                    break
                await asyncio.sleep(0)
            assert began == []
            await close_servers(server)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    # Warnings are errors: a transport that was not closed fails this test.
    await asyncio.to_thread(asyncio.run, serve_and_close())
    gc.collect()
    assert began == [True]
