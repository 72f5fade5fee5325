"""A server process that cannot outlive us, and a port for it."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support import keeper
from tests.support.account import Account


@dataclass(frozen=True, slots=True)
class Host:
    """Where a server runs: on loopback, or on a node (tests/support/nodes.py).

    `entry` is put before a command to run it there, as a user that servers accept. Whoever is not on the node reaches
    the server by a socket file in the folder `sockets`.
    """

    address: str = "127.0.0.1"
    entry: tuple[str, ...] = ()
    sockets: Path | None = None


LOOPBACK = Host()


class ServerProcess:
    """A running server, in a session of its own so that Ctrl-C reaches only the tests."""

    def __init__(self, command: list[str], *, account: Account, folder: Path, farewell: signal.Signals) -> None:
        """Start the command, its output going to `folder`/server.log.

        Should our process vanish, the server gets the signal `farewell` and its folder is deleted.
        """
        uid = -1 if account.uid is None else account.uid
        gid = -1 if account.gid is None else account.gid
        self._log = folder / "server.log"
        with self._log.open("ab") as output:
            self._keeper = subprocess.Popen(
                [
                    *(sys.executable, "-I", keeper.__file__),
                    *(farewell.name, str(uid), str(gid), str(folder)),
                    *command,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        answer = self._keeper.stdout.readline()
        if not answer:
            self._release()
            raise RuntimeError(f"{command[0]} did not start:\n{self._end_of_log()}")
        self.pid = int(answer)

    def wait_until(self, ready: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait for the server to come up; if it ends or hangs instead, raise with the end of its log."""
        deadline = time.monotonic() + timeout
        while not ready():
            if self._keeper.poll() is not None:
                self._release()
                raise RuntimeError(f"the server ended while starting:\n{self._end_of_log()}")
            if time.monotonic() > deadline:
                self.stop(signal.SIGKILL)
                raise RuntimeError(f"the server was not ready within {timeout:g} s:\n{self._end_of_log()}")
            time.sleep(0.01)

    @property
    def has_ended(self) -> bool:
        return self._keeper.poll() is not None

    def stop(self, how: signal.Signals, timeout: float = 60.0) -> None:
        """Send the signal and wait until the server has ended."""
        if self._keeper.poll() is None:
            os.kill(self.pid, how)
            self._keeper.wait(timeout)
        self._release()

    def _release(self) -> None:
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        self._keeper.wait()

    def _end_of_log(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def free_port() -> int:
    """Find a free port on 127.0.0.1 below the range the kernel hands out to outgoing connections.

    So a port stays free for its server while that restarts. The choice must differ between test processes
    whatever seeds the shared generator.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 20000 and 32000 on 127.0.0.1")
