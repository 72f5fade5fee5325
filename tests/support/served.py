"""`shoal serve` of a project as a process, and a client of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import httpx
from websockets.sync.client import connect

from shoal.config import Settings
from shoal.fleet.process import process_identity
from shoal.ledger.protocols import Ledger
from shoal.wiring import ledger_context
from tests.support.project import Command, Project

PATIENCE = 60.0
T = TypeVar("T")


class ServedProject:
    """A server that runs in a project's folder; `kill` and `start` restart it on the same port.

    Requests go out with `verify=False`: else httpx reads all certificates for each of them, 24 ms of processor time.

    At the end of its context the pools that it has started are killed.
    """

    def __init__(self, project: Project, *options: str) -> None:
        self.project = project
        self._options = options
        self._port = 0
        self.command = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        for pool in self.ask(lambda ledger: ledger.pools.list(ended=True)):
            if process_identity(pool.pid) == pool.process:
                os.kill(pool.pid, signal.SIGKILL)

    def kill(self) -> None:
        """As `kill -9` does."""
        self.command.kill()

    def start(self) -> None:
        self.command = self._start()

    def get(self, path: str, **params: Any) -> Any:
        return self._answer(httpx.get(self.url + path, params=params, timeout=PATIENCE, verify=False))

    def post(self, path: str, body: Any = None, *, status: int = 200, key: str | None = None, **params: Any) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        answer = httpx.post(self.url + path, json=body, params=params, headers=headers, timeout=PATIENCE, verify=False)
        return self._answer(answer, status)

    def until(self, look: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
        """Look until it is so; returns what was seen."""
        deadline = time.monotonic() + PATIENCE
        while not is_so(seen := look()):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        return seen

    def ask(self, work: Callable[[Ledger], Coroutine[Any, Any, T]]) -> T:
        """Ask the ledger itself."""

        async def ask() -> T:
            async with ledger_context(Settings(ledger=self.project.ledger), migrate=False) as ledger:
                return await work(ledger)

        return asyncio.run(ask())

    @contextmanager
    def frames(self, path: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The frames of a WebSocket, without those that say that the ledger was slow: on a busy machine it is."""
        with connect(self.url.replace("http", "ws", 1) + path) as connection:
            received = (json.loads(connection.recv(PATIENCE)) for _ in range(10_000))
            yield (frame for frame in received if "error" not in frame)

    def _start(self) -> Command:
        command = self.project.start("serve", "--port", str(self._port), "--json", *self._options)
        deadline = time.monotonic() + PATIENCE
        while "}" not in command.stdout:
            assert not command.is_over, command.stderr
            assert time.monotonic() < deadline, command.stderr
            time.sleep(0.02)
        listening = json.loads(command.stdout)
        self.url, self._port = listening["url"].rstrip("/"), listening["port"]
        return command

    def _answer(self, answer: httpx.Response, status: int = 200) -> Any:
        assert answer.status_code == status, answer.text
        return answer.json()
