"""Pools of this machine that another program steers: the server starts, scales, stops and finds them again.

A pool is a process of its own, `shoal pool start` in its own session: it goes on when the server ends, however it ends.
Its row in the ledger names the process, so a server that starts later steers it as the one before did. A pool of
another machine is shown and refused.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from shoal.config import Settings
from shoal.config.settings import ENV_PREFIX, NAMES
from shoal.config.sources import Origin
from shoal.define.yaml_scraper import read_yaml_header
from shoal.errors import NotAllowed, NotFound, ShoalError, UsageError, WrongState
from shoal.fleet.autoscale import set_desired_size
from shoal.fleet.process import EXIT_SECONDS, DetachedProcess, machine_identity, process_identity, start_detached
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.model.views import UpkeepReport
from shoal.model.worker import POOL_LOST_SECONDS, WorkerPoolView, WorkerView
from shoal.service.begin import is_local_dead_worker
from shoal.service.lookup import find_run_of, suggest
from shoal.service.work_logs import pool_output
from shoal.wiring import sqlite_path

MAX_WORKERS = 1_000
START_SECONDS = 60.0
POLL_SECONDS = 0.05
# A pool that was told to stop gets this long for running items, unless somebody says otherwise.
STOP_SECONDS = 10.0
MAX_STOP_SECONDS = 3_600.0
STOPS_REMEMBERED = 100
_PYTHON_SCRAPER = re.compile(r"""^(\w+)[^=\n]*=\s*Scraper\(\s*["']([\w.-]+)["']""", re.MULTILINE)
_MAX_SOURCE_BYTES = 1 << 20


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pool. `state`: running, stopping, gone (it did not sign off), or ended. `steerable`: by this process."""

    pool: WorkerPoolView
    state: str
    steerable: bool

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "stopping")


class RecoveredItems(msgspec.Struct, frozen=True, kw_only=True):
    """What dead workers and pools of this machine left: the items that were made ready again."""

    items: int = 0
    workers: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()


def project_scrapers(settings: Settings) -> dict[str, str]:
    """The scrapers that may be started by name: those of the configuration, and those of files in the project's folder.

    Values are targets as commands take them. No code is run. Folders of a collection are no scrapers.
    """
    tables = {name: table.target for name, table in settings.scrapers.items() if table.target is not None}
    found = {name: name for name, target in tables.items() if not target.endswith("/")}
    registered = {os.path.normpath(target.partition(":")[0]) for target in tables.values()}
    with suppress(OSError):
        for file in sorted(Path(settings.project or ".").iterdir()):
            if file.name not in registered:
                for name, target in _scrapers_in(file).items():
                    found.setdefault(name, settings.in_project(target))
    return found


def find_target(settings: Settings, name: str) -> str:
    """The target of one of the project's scrapers. Raises NotFound: a path is never taken."""
    known = project_scrapers(settings)
    if name in known:
        return known[name]
    listed = f"It has {', '.join(sorted(known))}." if known else "It has none."
    raise NotFound(
        f"The project has no scraper {name[:200]!r}.",
        remedy=f"{suggest(name[:200], known)}{listed} A server starts scrapers of its project only, by name.",
    )


class LocalPools:
    """Starts and steers pools of this machine on one ledger.

    `ledger` returns the open ledger; a server may have to open it again. It raises LedgerError while it is away.
    """

    def __init__(self, ledger: Callable[[], Ledger], settings: Settings) -> None:
        self._current_ledger = ledger
        self._settings = settings
        self._node = socket.gethostname()
        self._machine = machine_identity()
        self._started: dict[int, DetachedProcess] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._starting = asyncio.Lock()
        self._rescuing = asyncio.Lock()
        # What was given back before the first recovery, which reports it.
        self._rescued_before: list[UpkeepReport] | None = []

    @property
    def _ledger(self) -> Ledger:
        return self._current_ledger()

    async def close(self) -> None:
        """Forget the pools; they go on."""
        for task in self._stops.values():
            task.cancel()
        await asyncio.gather(*self._stops.values(), return_exceptions=True)

    async def list(self, *, scraper: str | None = None, ended: bool = False, limit: int = 100) -> list[PoolStatus]:
        """The pools of the ledger, newest first. Those of this machine whose process is gone are ended."""
        pools = await self._ledger.pools.list(scraper=scraper, ended=ended, limit=limit)
        return [await self._status(pool) for pool in pools]

    async def get(self, pool_id: str) -> PoolStatus:
        """One pool. Raises NotFound."""
        pool = await self._ledger.pools.get(pool_id)
        if pool is None:
            raise NotFound(f"There is no pool {pool_id[:200]!r}.", remedy="`GET /api/v1/pools` lists them.")
        return await self._status(pool)

    async def start(
        self, name: str, *, workers: int, by: str, run_id: str | None = None, variables: Mapping[str, str] | None = None
    ) -> PoolStatus:
        """Start a pool of one of the project's scrapers, and return when it is known in the ledger.

        `run_id`: the run to work on; otherwise the unfinished one, or a new one. `variables`: of its environment.
        Raises NotFound for another scraper, and WrongState with what the pool said when it could not start.
        """
        target = find_target(self._settings, name)
        _check_workers(workers)
        if run_id is not None:
            run_id = (await find_run_of(self._ledger, name, run_id)).id
        logs = self.log_folder
        logs.mkdir(parents=True, exist_ok=True)
        output = logs / pool_output(name)
        run = () if run_id is None else (f"--run-id={run_id}",)
        async with self._starting:
            said = output.stat().st_size if output.exists() else 0
            how = ("--yes", "--json", "--stagger=0", f"--workers={workers}", f"--log-dir={logs}")
            environment = self._environment(variables or {})
            process = await start_detached(("pool", "start", target, *how, *run), environment, output)
            self._started[process.pid] = process
        pool = await self._wait_until_known(process, output, said)
        await self._record(pool, "pool.started", by, {"workers": workers})
        return await self._status(pool)

    async def scale(self, pool_id: str, workers: int, *, by: str) -> PoolStatus:
        """Ask for so many workers, without a restart. Raises WrongState for a pool that no longer runs."""
        _check_workers(workers)
        status = await self.get(pool_id)
        self.check_steerable(status)
        _check_running(status)
        # The size belongs to the scraper: all its pools on this ledger follow, as with `shoal pool scale`.
        await set_desired_size(self._ledger, status.pool.scraper, workers, by=by)
        await self._record(status.pool, "pool.scaled", by, {"from": status.pool.wanted, "to": workers})
        return status

    async def stop(self, pool_id: str, *, by: str, drain: float = STOP_SECONDS, wait: float = 0.0) -> PoolStatus:
        """Stop a pool: running items get `drain` seconds, then they are given back. Waits up to `wait` seconds.

        A pool that does not end is killed; its items are then rescued. Stopping one that has ended changes nothing.
        """
        status = await self.get(pool_id)
        self.check_steerable(status)
        if status.is_running:
            task = self._stops.get(pool_id)
            if task is None or task.done():
                await self._record(status.pool, "pool.stopped", by, {"drain": drain})
                task = self._stops[pool_id] = asyncio.create_task(self._stop(status.pool, drain))
                for old in [key for key, done in self._stops.items() if done.done()][:-STOPS_REMEMBERED]:
                    del self._stops[old]
            await asyncio.wait((task,), timeout=max(wait, POLL_SECONDS))
            status = await self.get(pool_id)
            if status.is_running:
                status = msgspec.structs.replace(status, state="stopping")
        return status

    async def restart(
        self,
        pool_id: str,
        *,
        by: str,
        workers: int | None = None,
        drain: float = STOP_SECONDS,
        name: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> PoolStatus:
        """Stop a pool and start one with the settings and the code of now, on the same run.

        It finishes also when the caller is cancelled meanwhile. `name`: of the scraper in the project.
        """
        before = await self.get(pool_id)
        self.check_steerable(before)
        find_target(self._settings, name or before.pool.scraper)

        async def again() -> PoolStatus:
            stopped = await self.stop(pool_id, by=by, drain=drain, wait=drain + 2 * EXIT_SECONDS)
            if stopped.is_running:
                raise WrongState(
                    f"The pool {pool_id} does not end.", remedy=f"Look at process {before.pool.pid} on {self._node}."
                )
            return await self.start(
                name or before.pool.scraper,
                workers=workers or before.pool.wanted or 1,
                by=by,
                run_id=before.pool.run_id,
                variables=variables,
            )

        return await asyncio.shield(asyncio.ensure_future(again()))

    async def recover(self) -> RecoveredItems:
        """Give back what dead workers of this machine hold, and end the rows of its pools whose process is gone.

        Live work is never touched: a worker counts as dead when its process is gone, or its heartbeat is overdue.
        """
        async with self._rescuing:
            return await self._recover()

    async def _recover(self) -> RecoveredItems:
        before = await self._ledger.pools.list()
        gone = [pool for pool in before if self._is_here(pool) and not self._is_alive(pool)]
        workers = await self._ledger.workers.list()
        if sqlite_path(self._settings.ledger) is not None:
            dead = [worker.id for worker in workers if is_local_dead_worker(worker)]
        else:
            # Another machine may have the same name, so only workers of pools that certainly ran here are judged.
            here = [pool for pool in await self._ledger.pools.list(ended=True) if self._is_here(pool)]
            dead = [worker.id for worker in workers if self._is_dead_worker(worker, here)]
        reports = [await self._ledger.workers.mark_dead(worker) for worker in dead]
        for pool in gone:
            await self._ledger.pools.end(pool.id, "its process is gone")
        reports.append(await self._ledger.upkeep.run_once())
        reports += self._rescued_before or ()
        self._rescued_before = None
        # Of several servers that start at once, each reports what it did itself.
        return RecoveredItems(
            items=sum(report.rescued for report in reports),
            workers=tuple(dict.fromkeys(worker for report in reports for worker in report.lost_workers)),
            pools=tuple(pool.id for pool in gone),
        )

    @property
    def log_folder(self) -> Path:
        """Where the pools that this process starts write their logs."""
        return Path(self._settings.in_project("logs")).absolute()

    async def _status(self, pool: WorkerPoolView) -> PoolStatus:
        here = self._is_here(pool)
        if pool.ended_at is not None:
            state = "gone" if pool.why == "its process is gone" else "ended"
        elif here and not self._is_alive(pool):
            await self._ledger.pools.end(pool.id, "its process is gone")
            await self._rescue(pool)
            state, pool = "gone", msgspec.structs.replace(pool, workers=0, why="its process is gone")
        elif not here and pool.silent_seconds > POOL_LOST_SECONDS:
            state = "gone"
        else:
            is_stopping = pool.id in self._stops and not self._stops[pool.id].done()
            state = "stopping" if pool.stopping or is_stopping else "running"
        return PoolStatus(pool=pool, state=state, steerable=here and state in ("running", "stopping"))

    async def _rescue(self, pool: WorkerPoolView) -> None:
        """Give back what the workers of a pool hold that died with it; those that still drain are let alone."""
        async with self._rescuing:
            for worker in await self._ledger.workers.list():
                if self._is_dead_worker(worker, [pool]):
                    report = await self._ledger.workers.mark_dead(worker.id)
                    if self._rescued_before is not None:
                        self._rescued_before.append(report)

    def _is_dead_worker(self, worker: WorkerView, pools: Sequence[WorkerPoolView]) -> bool:
        belongs = any(
            worker.node == pool.node and worker.scope.run_ids == (pool.run_id,) and worker.started_at >= pool.started_at
            for pool in pools
        )
        return belongs and process_identity(worker.pid) is None

    def _is_here(self, pool: WorkerPoolView) -> bool:
        return pool.node == self._node and pool.process.startswith(f"{self._machine}:")

    def _is_alive(self, pool: WorkerPoolView) -> bool:
        return process_identity(pool.pid) == pool.process

    def check_steerable(self, status: PoolStatus) -> None:
        """Raises NotAllowed for a pool of another machine."""
        pool = status.pool
        if not self._is_here(pool):
            raise NotAllowed(
                f"The pool {pool.id} runs on {pool.node}, not on {self._node}.",
                remedy=f"Steer it there, or scale it with `shoal pool scale {pool.scraper} N`.",
            )

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """This process's environment with the settings that its flags gave, and the ledger that it uses."""
        settings = self._settings
        flags = {
            ENV_PREFIX + name.upper(): _as_variable(getattr(settings, name))
            for name in NAMES
            if not name.startswith("serve_") and settings.origins.get(name, Origin("default")).kind == "flag"
        }
        file = sqlite_path(settings.ledger)
        ledger = settings.ledger if file is None else str(file.absolute())
        return {**os.environ, **flags, f"{ENV_PREFIX}LEDGER": ledger, "PYTHONUNBUFFERED": "1", **variables}

    async def _wait_until_known(self, process: DetachedProcess, output: Path, said: int) -> WorkerPoolView:
        deadline = time.monotonic() + START_SECONDS
        identity = process_identity(process.pid)
        while True:
            has_ended = process.exit_code is not None  # looked up before its row: a short run may end between the two
            pools = await self._ledger.pools.list(ended=True, limit=20)
            found = next((pool for pool in pools if pool.pid == process.pid and pool.process == identity), None)
            if found is not None:
                return found
            if has_ended:
                del self._started[process.pid]
                raise _start_error(output, said, self._settings.secrets())
            if time.monotonic() > deadline:
                raise WrongState(
                    f"The pool (process {process.pid}) has not begun within {START_SECONDS:g} s.",
                    remedy=f"Look into {output}.",
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _stop(self, pool: WorkerPoolView, drain: float) -> None:
        """SIGTERM drains, SIGINT gives back what runs, SIGKILL ends it; each only to the process of the row.

        A pool that drains already, because another server said so, is not told again: that would end its items.
        """
        steps = ((signal.SIGTERM, drain), (signal.SIGINT, EXIT_SECONDS), (signal.SIGKILL, EXIT_SECONDS))
        for number, seconds in steps:
            if not self._is_alive(pool):
                break
            if number != signal.SIGTERM or not pool.stopping:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pool.pid, number)
            await _wait_while(lambda: self._is_alive(pool), seconds)
        await self._ledger.pools.end(pool.id, "its process is gone")  # unless it signed off itself
        await self._rescue(pool)

    async def _record(self, pool: WorkerPoolView, action: str, by: str, detail: Mapping[str, object]) -> None:
        """Leave an event with the run; the run may have been removed meanwhile."""
        with suppress(NotFound):
            await self._ledger.runs.record_event(
                pool.run_id, action, pool.id, {"node": pool.node, "pid": pool.pid, **detail}, by=by
            )


def _as_variable(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _wait_while(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - a process of another parent ends without an event
        await asyncio.sleep(POLL_SECONDS)


def _scrapers_in(file: Path) -> dict[str, str]:
    """The scrapers that a file declares, by name; its code is not run."""
    if file.suffix not in (".py", ".yaml", ".yml") or file.name.startswith("-") or not file.is_file():
        return {}
    try:
        if file.suffix != ".py":
            return {read_yaml_header(file).scraper_name: file.name}
        with file.open("rb") as source:
            declared = _PYTHON_SCRAPER.findall(source.read(_MAX_SOURCE_BYTES).decode(errors="replace"))
    except (OSError, ShoalError):
        return {}
    return {name: file.name if len(declared) == 1 else f"{file.name}:{variable}" for variable, name in declared}


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"{workers} workers: it must be from 1 to {MAX_WORKERS}.")


def _check_running(status: PoolStatus) -> None:
    if not status.is_running:
        raise WrongState(
            f"The pool {status.pool.id} has ended: {status.pool.why or 'its process is gone'}.",
            remedy="Start another one.",
        )


def _start_error(output: Path, said: int, secrets: Iterable[str]) -> WrongState:
    """What a pool said that did not start: its failed check, or its last line."""
    with output.open("rb") as file:
        file.seek(said)
        lines = file.read(_MAX_SOURCE_BYTES).decode(errors="replace").splitlines()
    for line in reversed(lines):
        with suppress(msgspec.DecodeError):
            record = msgspec.json.decode(line, type=dict)
            if record.get("ok") is False:
                text, fix = (redacted(str(record.get(name) or ""), secrets) for name in ("text", "fix"))
                return WrongState(text, remedy=fix)
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    return WrongState(
        f"The pool did not start: {redacted(last.removeprefix('Error: '), secrets)}", remedy=f"Look into {output}."
    )
