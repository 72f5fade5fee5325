"""A user's project: a folder with a scraper, the commands typed in it, and what its ledger says afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

from shoal.config import Settings
from shoal.ledger.protocols import Ledger
from shoal.model.run import Run
from shoal.model.views import AttemptView, Counts, ItemFilter, ItemView
from shoal.wiring import ledger_context
from tests.support import fork_server

_PATIENCE = 60.0
T = TypeVar("T")
Finished = subprocess.CompletedProcess[str]
Shoal = Callable[..., Finished]


def clean_environment(home: Path, **variables: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), **variables}


def migrate(ledger: str) -> None:
    """Create Shoal's schema in a PostgreSQL database."""
    fork_server.run(("db", "migrate", "-q", "--ledger", ledger), Path("/"), {}).check_returncode()


class Command:
    """A `shoal` that runs beside the test."""

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        number: int,
        *,
        entry: tuple[str, ...] = (),
        fresh: bool = False,
    ) -> None:
        """`entry` is put before the command: it leads to another node. `fresh` starts a new interpreter."""
        self._said = (folder / f"command-{number}.out", folder / f"command-{number}.err")
        with self._said[0].open("wb") as out, self._said[1].open("wb") as err:
            self._process = fork_server.start(
                arguments, folder, environment, stdout=out.fileno(), stderr=err.fileno(), entry=entry, fresh=fresh
            )

    @property
    def stdout(self) -> str:
        return self._said[0].read_text()

    @property
    def stderr(self) -> str:
        return self._said[1].read_text()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def tell(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_until_received(self, number: signal.Signals, timeout: float = _PATIENCE) -> None:
        """Wait until a signal is no longer pending: a second one would be merged with it."""
        deadline = time.monotonic() + timeout
        while not self.is_over and _is_pending(self.pid, number):
            assert time.monotonic() < deadline, f"signal {number} is still pending"
            time.sleep(0.01)

    def wait(self, timeout: float = _PATIENCE) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s; it said:\n{self.stderr}") from None

    def wait_until_it_says(self, text: str, timeout: float = _PATIENCE) -> None:
        """Wait for a text on stderr."""
        deadline = time.monotonic() + timeout
        while text not in self.stderr:
            assert not self.is_over or text in self.stderr, f"it ended without saying {text!r}:\n{self.stderr}"
            assert time.monotonic() < deadline, f"it does not say {text!r}:\n{self.stderr}"
            time.sleep(0.01)

    def kill(self) -> None:
        """As `kill -9` does, and gone when this returns."""
        self._process.kill()
        self._process.wait()


class Project:
    """A folder, a ledger, and the commands that a user types there. Whatever still runs at its end is killed.

    `entry` leads to the node that the commands run on.
    """

    def __init__(self, folder: Path, ledger: str | None = None, entry: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.ledger = ledger or str(folder / "ledger.db")
        self.entry = entry
        self._commands: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for command in self._commands:
            command.kill()

    @property
    def on_postgres(self) -> bool:
        return self.ledger.startswith("postgresql")

    def write(self, code: str, name: str = "shop.py") -> None:
        """The scraper's file. The imports that every one of them needs are put in front."""
        imports = (
            "from __future__ import annotations\nimport asyncio, sys, time\n"
            "from shoal import Blocked, Counts, Follow, Http, Item, Log, Page, Permanent, Run, Scraper\n"
            "from shoal import Skipped, Throttled, Transient\n"
        )
        (self.folder / name).write_text(imports + textwrap.dedent(code))

    def urls(self, urls: Iterable[str], name: str = "urls.txt") -> str:
        """A file of URLs; its name, to be given to --urls-file."""
        (self.folder / name).write_text("".join(f"{url}\n" for url in urls))
        return name

    def start(self, *arguments: str, fresh: bool = False, **variables: str) -> Command:
        """Start `shoal` with these arguments; keywords are environment variables. `fresh`: in a new interpreter."""
        environment = clean_environment(self.folder, SHOAL_LEDGER=self.ledger, **variables)
        command = Command(self.folder, arguments, environment, len(self._commands), entry=self.entry, fresh=fresh)
        self._commands.append(command)
        return command

    def run_own_tests(self) -> str:
        """Run the tests that `shoal init` made, which must pass; their output."""
        tested = subprocess.run(
            [sys.executable, "-m", "pytest", "-q"],
            cwd=self.folder,
            env=clean_environment(self.folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert tested.returncode == 0, tested.stdout
        return tested.stdout

    def shoal(
        self, *arguments: str, code: int = 0, timeout: float = _PATIENCE, fresh: bool = False, **variables: str
    ) -> Command:
        """Run `shoal` to its end, which must be with this exit code."""
        command = self.start(*arguments, fresh=fresh, **variables)
        returned = command.wait(timeout)
        assert returned == code, f"exit {returned} instead of {code}:\n{command.stdout}\n{command.stderr}"
        return command

    def export(self, run: str = "latest") -> list[dict[str, Any]]:
        """The records of a run, as `shoal export` writes them."""
        self.shoal("export", run, "-o", "export.jsonl", "-q")
        return [json.loads(line) for line in (self.folder / "export.jsonl").read_text().splitlines()]

    # What the ledger says

    def items(self, run_id: str | None = None) -> list[ItemView]:
        return self._ask(_all_items, run_id)

    def attempts(self, run_id: str | None = None) -> dict[str, list[AttemptView]]:
        """The attempts on each item, by its path (or key)."""

        async def work(ledger: Ledger, run: Run) -> dict[str, list[AttemptView]]:
            items = await _all_items(ledger, run)
            return {_path(item): await ledger.reads.attempts(run.id, item.id) for item in items}

        return self._ask(work, run_id)

    def counts(self, run_id: str | None = None, stage: str | None = None) -> Counts:
        async def work(ledger: Ledger, run: Run) -> Counts:
            return await ledger.reads.stats(run.id, stage=stage)

        return self._ask(work, run_id)

    def run(self, run_id: str | None = None) -> Run:
        async def work(ledger: Ledger, run: Run) -> Run:
            return run

        return self._ask(work, run_id)

    def is_sound(self) -> bool:
        """Whether the audit of the ledger finds nothing."""
        return self._ask(lambda ledger, run: ledger.upkeep.audit(), None) == []

    def _ask(self, work: Callable[[Ledger, Run], Coroutine[Any, Any, T]], run_id: str | None) -> T:
        async def ask() -> T:
            async with ledger_context(Settings(ledger=self.ledger), migrate=False) as ledger:
                latest = (await ledger.runs.list(limit=1)).rows
                assert latest, "there is no run"
                return await work(ledger, latest[0] if run_id is None else await ledger.runs.get(run_id))

        return asyncio.run(ask())


def _is_pending(pid: int, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended, or this is not Linux
        return False
    return bool(int(status.partition("ShdPnd:")[2].split()[0], 16) & (1 << (number - 1)))


async def _all_items(ledger: Ledger, run: Run) -> list[ItemView]:
    found: list[ItemView] = []
    cursor = None
    while True:
        page = await ledger.reads.items(run.id, ItemFilter(), cursor=cursor, limit=1_000)
        found += page.rows
        cursor = page.cursor
        if cursor is None:
            return found


def _path(item: ItemView) -> str:
    if item.key is not None or item.url is None:
        return item.key or ""
    return "/" + item.url.split("/", 3)[3]
