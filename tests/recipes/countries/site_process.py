"""The stand-in in a process of its own, so that it can be in a network of its own; asked through its pipes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from shoal.demo.stand_in import Visit
from shoal.recipes.countries.stand_in import PriceRegisters

_REPOSITORY = Path(__file__).parents[3]
_END = b"\n"


class SiteProcess:
    """Use it as a context. `truth` has the same data as the site that is served."""

    def __init__(self, host: str, entry: tuple[str, ...], *faults: str) -> None:
        self._command = [*entry, sys.executable, "-m", __name__, host, *faults]
        self.truth = PriceRegisters()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=_REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.url = self.truth.url = self._read_line().decode().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def log(self) -> list[Visit]:
        assert self._process.stdin is not None
        self._process.stdin.write(b"log\n")
        self._process.stdin.flush()
        visits = []
        while (line := self._read_line()) != _END:
            visits.append(msgspec.json.decode(line, type=Visit))
        return visits

    def wait_until(self, condition: Callable[[list[Visit]], bool], timeout: float = 120.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition(self.log()):
            assert time.monotonic() < deadline, "the site was not visited as expected"
            time.sleep(0.05)

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the site has ended"
        return line


def main(host: str, *faults: str) -> None:
    with PriceRegisters(latency=(0.01, 0.05), faults=faults).serving(hosts=(host,)) as running:
        print(running.url, flush=True)
        for _ in sys.stdin:
            lines = b"".join(msgspec.json.encode(visit) + b"\n" for visit in running.log())
            sys.stdout.buffer.write(lines + _END)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
