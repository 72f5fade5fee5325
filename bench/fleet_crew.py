"""Several real `shoal worker` processes on one ledger and one late site, and what they and the database cost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import asyncpg
import msgspec
import psutil

from bench.fleet_worker import Notes
from bench.places import open_ledger
from bench.scrape_trial import REPOSITORY
from shoal.ledger.protocols import Ledger

PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.2
INTERRUPTED = 130
_T = TypeVar("_T")
# The site is our own, so it needs no lane; a lane of one host would limit the fleet, as it should.
_SCRAPER = """\
from shoal import Page, Scraper

pages = Scraper("pages", robots=False)


@pages.stage(lane=None)
async def page(page: Page):
    yield {"url": page.url, "title": page.css("title::text").get()}
"""


class Desk:
    """A folder with the scraper, where `shoal` commands are typed. `ledger`: the address that they use."""

    def __init__(self, folder: Path, ledger: str, scraper: str = _SCRAPER) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SHOAL_LEDGER": ledger}
        (folder / "pages.py").write_text(scraper)

    def enqueue(self, urls: Sequence[str]) -> tuple[str, float]:
        """A new run of these URLs by `shoal enqueue`: its id, and the seconds that the command took."""
        (self.folder / "urls.txt").write_text("".join(f"{url}\n" for url in urls))
        began = time.monotonic()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("shoal")), "enqueue", "pages.py", "--urls-file", "urls.txt"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode != 0:
            raise RuntimeError(f"shoal enqueue ended with {done.returncode}:\n{done.stderr[-2_000:]}")
        answer = json.loads(done.stdout)
        if answer["enqueued"] != len(urls):
            raise RuntimeError(f"{answer['enqueued']} of {len(urls)} URLs were enqueued")
        return str(answer["run_id"]), seconds


@contextmanager
def desk(ledger: str, scraper: str = _SCRAPER) -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(prefix="shoal-fleet-") as folder:
        yield Desk(Path(folder), ledger, scraper)


class Crew:
    """Workers that stay until they are sent home. Use it as a context: whoever is left at its end is killed."""

    def __init__(self, at: Desk, workers: int, concurrency: int) -> None:
        self._desk = at
        self._count = workers
        self._concurrency = concurrency
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.started_at = time.monotonic()
        for number in range(self._count):
            with self._said(number).open("wb") as said:
                worker = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "bench.fleet_worker", str(self._notes(number)), "worker", "pages.py"),
                        *("--concurrency", str(self._concurrency), "--forever"),
                    ],
                    cwd=self._desk.folder,
                    env=self._desk.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            self._running.append(worker)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._running:
            if worker.poll() is None:
                worker.kill()
            worker.wait()

    def check(self) -> None:
        """Raise RuntimeError if one has left by itself."""
        for number, worker in enumerate(self._running):
            if worker.poll() is not None:
                end = self._said(number).read_text(errors="replace")[-2_000:]
                raise RuntimeError(f"worker {number} ended with {worker.returncode}:\n{end}")

    def seconds_used(self) -> float:
        """The processor time that those present have taken so far."""
        times = [psutil.Process(worker.pid).cpu_times() for worker in self._running]
        return float(sum(time.user + time.system for time in times))

    def memory_mb(self) -> float:
        """Resident memory of a worker, on average."""
        sizes = [psutil.Process(worker.pid).memory_info().rss for worker in self._running]
        return float(sum(sizes)) / len(sizes) / 2**20

    def send_home(self) -> list[Notes]:
        """Stop all of them as a supervisor does, and read their notes."""
        self.check()
        for worker in self._running:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(PATIENCE_SECONDS) for worker in self._running]
        if set(codes) != {INTERRUPTED}:
            raise RuntimeError(f"the workers ended with {codes}")
        return [msgspec.json.decode(self._notes(n).read_bytes(), type=Notes) for n in range(self._count)]

    def _notes(self, number: int) -> Path:
        return self._desk.folder / f"notes-{number}.json"

    def _said(self, number: int) -> Path:
        return self._desk.folder / f"said-{number}.log"


def wait_until(reached: Callable[[], bool], crew: Crew, patience: float = PATIENCE_SECONDS) -> None:
    """Look until it is so; raise RuntimeError when a worker leaves or nothing happens for too long."""
    deadline = time.monotonic() + patience
    while not reached():
        crew.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {patience:.0f} s in vain")
        time.sleep(POLL_SECONDS)


class Watcher:
    """Looks at a ledger from outside, by one connection that stays open, and at what its server costs."""

    def __init__(self, ledger: str) -> None:
        self._address = ledger

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._ledger: Ledger = self._runner.run(open_ledger(self._address))
        self._server = psutil.Process(self._runner.run(_server_pid(self._address)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self._ledger.close())
        self._runner.close()

    def ask(self, question: Callable[[Ledger], Coroutine[Any, Any, _T]]) -> _T:
        return self._runner.run(question(self._ledger))

    def seconds_used(self) -> float:
        """The processor time of all processes of the server, those that have ended included."""
        times = self._server.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in self._server.children():
            try:
                own = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += own.user + own.system
        return float(total)


async def _server_pid(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        session = psutil.Process(await connection.fetchval("select pg_backend_pid()"))
        return int(session.ppid())
    finally:
        await connection.close()
