"""A pool at a terminal: it asks before it starts, and leaves when the terminal is closed."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fork_server import COMMAND
from tests.support.pools import GATED, PATIENCE, all_done_once, busy, is_alive, open_gate, until, workers
from tests.support.project import Project, clean_environment

ARGUMENTS = ("pool", "gated.py", "--workers", "1", "--stagger", "0", "--set", "drain=0.2", "--set", "lease=300")


class Terminal:
    """The user's end of it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._master = master
        self._seen = b""

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self._seen
            self._seen += os.read(self._master, 4096)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


@contextmanager
def at_terminal(project: Project) -> Iterator[Terminal]:
    project.write(GATED, "gated.py")
    master, slave = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, *ARGUMENTS],
        cwd=project.folder,
        env=clean_environment(project.folder, SHOAL_LEDGER=project.ledger, TERM="dumb"),
        preexec_fn=lambda: os.login_tty(slave),  # noqa: PLW1509 - the test has no other threads
    )
    os.close(slave)
    terminal = Terminal(master, process)
    try:
        yield terminal
    finally:
        terminal.close()
        process.kill()
        process.wait()


def test_it_asks_before_it_starts(project: Project) -> None:
    """S3.7: no is the default; then nothing runs, and nothing is left behind."""
    with at_terminal(project) as terminal:
        terminal.wait_for(b"1 worker will work on run")
        terminal.type("\n")
        terminal.wait_for(b"Nothing was started.")
        assert terminal.process.wait(PATIENCE) == 1
    assert workers(project) == []
    assert project.shoal("runs", "ls", "--json").stdout == ""
    open_gate(project)
    with at_terminal(project) as terminal:
        terminal.wait_for(b"Continue? [y/N]")
        terminal.type("y\n")
        terminal.wait_for(b"is finished")
        assert terminal.process.wait(PATIENCE) == 0
    assert all_done_once(project)


def test_a_pool_stops_with_its_terminal(project: Project) -> None:
    with at_terminal(project) as terminal:
        terminal.wait_for(b"Continue? [y/N]")
        terminal.type("y\n")
        (worker,) = busy(project, 1)
        terminal.close()
        until(lambda: is_alive(worker.pid), lambda alive: not alive, "the worker lives on")
        terminal.process.wait(PATIENCE)
    assert project.counts().ready == 30
