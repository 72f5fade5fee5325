"""The cloud function through the programs that the platforms run it with: Amazon's and Google's own."""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from tests.deploy.test_serverless import function, pages, site  # noqa: F401
from tests.support.deployments import DEPLOY
from tests.support.project import Project, clean_environment
from tests.support.server import free_port
from tests.support.site import Site

INVOCATION = "/2018-06-01/runtime/invocation/"
PATIENCE = 90.0


class Call(NamedTuple):
    """A call as the runtime gets it: its id, the event and the seconds until it would be cut off."""

    id: str
    event: Any
    seconds: float


class Response(NamedTuple):
    """What the runtime sent back: `kind` is `response` or `error`; `spare` the seconds that were left."""

    kind: str
    body: Any
    spare: float


class RuntimeApi:
    """The HTTP API from which a Lambda runtime gets its calls, as Amazon documents it. Use it as a context."""

    def __init__(self) -> None:
        self._calls: queue.Queue[Call] = queue.Queue()
        self._responses: queue.Queue[Response] = queue.Queue()
        self._deadlines: dict[str, float] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                call = api._calls.get()
                deadline = time.time() + call.seconds
                api._deadlines[call.id] = deadline
                body = json.dumps(call.event).encode()
                self.send_response(200)
                self.send_header("Lambda-Runtime-Aws-Request-Id", call.id)
                self.send_header("Lambda-Runtime-Deadline-Ms", str(int(deadline * 1000)))
                self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:eu-central-1:1:function:shoal")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                id, _, kind = self.path.removeprefix(INVOCATION).partition("/")
                spare = api._deadlines.get(id, 0.0) - time.time()
                api._responses.put(Response(kind or self.path, json.loads(body), spare))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """The runtime is killed while it waits for a call: its connection breaks."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> RuntimeApi:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def call(self, event: Any, seconds: float) -> Response:
        self._calls.put(Call(f"call-{len(self._deadlines)}", event, seconds))
        return self._responses.get(timeout=PATIENCE)


@contextmanager
def program(folder: Path, *command: str, **variables: str) -> Iterator[None]:
    """A runtime with the function in its folder, as a package has it."""
    shutil.copy(DEPLOY / "serverless" / "handler.py", folder)
    names = ("SHOAL_LEDGER", "SCRAPER")
    environment = clean_environment(folder, **{name: os.environ[name] for name in names}, **variables)
    with (folder / "runtime.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_lambda_stops_before_its_limit_and_the_next_call_resumes(
    site: Site,  # noqa: F811
    function: Callable[[str], Project],  # noqa: F811
) -> None:
    """S2.27, by awslambdaric, which runs every Python function on AWS."""
    project = function(f"['{site.url}/page/1', '{site.url}/slow/5/a']")
    with (
        RuntimeApi() as api,
        program(
            project.folder,
            *(sys.executable, "-m", "awslambdaric", "handler.lambda_handler"),
            AWS_LAMBDA_RUNTIME_API=api.address,
            AWS_LAMBDA_FUNCTION_NAME="shoal",
            AWS_LAMBDA_FUNCTION_VERSION="1",
            AWS_LAMBDA_FUNCTION_MEMORY_SIZE="512",
            AWS_LAMBDA_LOG_GROUP_NAME="shoal",
            AWS_LAMBDA_LOG_STREAM_NAME="shoal",
        ),
    ):
        first = api.call({}, seconds=7)
        assert first.kind == "response", first.body
        assert first.spare > 0, "it would have been cut off"
        assert first.body["left"], "a page takes longer than the call"
        second = api.call({}, seconds=60)
        assert (second.kind, second.body["left"]) == ("response", False), second.body
        assert first.body["done"] + second.body["done"] == 2
        wrong = api.call({"limit": 0}, seconds=60)
        assert (wrong.kind, wrong.body["errorType"]) == ("error", "UsageError")
    assert len(project.export()) == 2
    assert project.is_sound()


def test_a_cloud_function_answers_by_http(
    site: Site,  # noqa: F811
    function: Callable[[str], Project],  # noqa: F811
) -> None:
    """S2.27, by functions-framework, which runs every Python function on Google Cloud."""
    project = function(pages(site, 3))
    port = free_port()
    framework = str(Path(sys.executable).with_name("functions-framework"))
    with program(
        project.folder,
        *(framework, "--target=cloud_function", "--source=handler.py", "--host=127.0.0.1", f"--port={port}"),
        SHOAL_BATCH_SIZE="2",
    ):
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            assert time.monotonic() < deadline, (project.folder / "runtime.log").read_text()
            time.sleep(0.05)
        answers = [_post(port, {}) for _ in range(2)]
        assert [(body["done"], body["left"]) for _, body in answers] == [(2, True), (1, False)]
        status, body = _post(port, {"limit": 0})
        assert (status, "limit" in body["error"]) == (400, True)
    assert len(project.export()) == 3


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _post(port: int, event: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/", json.dumps(event).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
