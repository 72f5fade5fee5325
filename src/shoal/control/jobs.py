"""The paths of the subtitle workers: `/jobs/...`, `/settings`, `/logs`, `/cleanup` (docs/howto/jobs-api.md).

They render `service/jobs.py`. A recipe adds paths of its own with another router on the same application.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, WebSocket, WebSocketDisconnect
from fastapi.requests import HTTPConnection
from pydantic import Field

from shoal.config import Settings
from shoal.control.access import Operator, Viewer
from shoal.control.answers import Preview, error_code
from shoal.control.live import End, connected, ignore_messages, run_until_first
from shoal.control.schemas import Answer, Body, ErrorAnswer, Text
from shoal.errors import ShoalError
from shoal.ledger.protocols import Ledger
from shoal.model.redaction import redacted
from shoal.observe.formatting import pluralize
from shoal.service.commands import Commands
from shoal.service.jobs import MAX_RETRIES, MAX_WORKERS, Jobs
from shoal.service.local_pools import STOP_SECONDS, LocalPools, find_target
from shoal.service.records import without_secrets

FRAME_SECONDS = 1.0
# A ledger that is slower than this is reported to the clients instead of being waited for.
READ_SECONDS = 5.0
MAX_LOGS = 1_000
MAX_DAYS = 3_650
MAX_DRAIN = 300.0
# The default of a field that may be left out but not be null.
NOT_GIVEN: Any = None


def _error(description: str) -> dict[str, Any]:
    return {"model": ErrorAnswer, "description": description}


router = APIRouter(
    tags=["jobs"],
    responses={
        400: _error("The body cannot be read."),
        401: _error("A log-in or a token is needed."),
        403: _error("Not allowed: the role is viewer, or the request comes from another site."),
        404: _error("The project has no such scraper."),
        409: _error("It cannot be done now, or it is not clear which scraper is meant."),
        413: _error("The body is too large."),
        422: _error("A parameter or a field is wrong."),
        429: _error("Too many requests."),
        503: _error("The ledger does not answer."),
    },
)

JobState = Literal["idle", "running", "paused", "completed", "failed"]
LogLevel = Literal["INFO", "WARN", "ERROR"]
Drain = Annotated[
    float, Query(ge=0, le=MAX_DRAIN, description="Seconds that running items get before they go back to the queue.")
]


class WorkersBody(Body):
    """How many workers; without a number as many as the setting `max_workers` says."""

    num_workers: int | None = Field(None, ge=1, le=MAX_WORKERS, strict=True, examples=[3])


class JobSettingsBody(Body):
    """The values to change, at least one; the others stay."""

    max_workers: int = Field(NOT_GIVEN, ge=1, le=MAX_WORKERS, strict=True)
    max_retries: int = Field(NOT_GIVEN, ge=0, le=MAX_RETRIES, strict=True)
    backoff_factor: float = Field(NOT_GIVEN, ge=1, le=10)
    output_dir: Text = Field(NOT_GIVEN, min_length=1, max_length=1_000)


class CleanupBody(Body):
    days: int = Field(ge=1, le=MAX_DAYS, strict=True, examples=[30])


class JobSettingsAnswer(Answer):
    max_workers: int
    max_retries: int
    backoff_factor: float
    output_dir: str


class QueueAnswer(Answer):
    run_id: str | None
    pending: int
    delayed: int
    processing: int
    completed: int
    failed: int
    skipped: int
    cancelled: int
    remaining: int
    total: int


class WorkerStatusAnswer(Answer):
    running: bool
    num_workers: int
    active_workers: int
    total_processed: int
    total_failed: int
    startup_recovery_done: bool


class PerformanceMetrics(Answer):
    processing_rate_per_hour: float
    success_rate: float | None
    estimated_completion_time: str | None = Field(examples=["~2h 15m"])


class FeaturesAnswer(Answer):
    """What the workers always have."""

    parallel_processing: bool = True
    atomic_job_claiming: bool = True
    exponential_backoff: bool = True
    graceful_shutdown: bool = True
    real_time_monitoring: bool = True


class StartupRecoveryAnswer(Answer):
    """How many items of how many dead workers the server gave back when it started."""

    done: bool
    at: dt.datetime | None
    items: int
    workers: int


class WorkersAnswer(Answer):
    """S4.16: exactly these three."""

    worker_status: WorkerStatusAnswer
    performance_metrics: PerformanceMetrics
    features: FeaturesAnswer


class JobStatusAnswer(Answer):
    status: JobState
    scraper: str
    run_id: str | None
    pool_id: str | None
    pool: str | None = Field(description="running, stopping, ended, or gone: its process is no longer there")
    worker_status: WorkerStatusAnswer
    performance_metrics: PerformanceMetrics
    features: FeaturesAnswer
    startup_recovery: StartupRecoveryAnswer


class JobChangeAnswer(JobStatusAnswer):
    text: str
    preview: bool = False
    command: str


class WorkerPerformanceAnswer(Answer):
    name: str
    status: Literal["processing", "idle", "draining"]
    item: str | None
    started_at: dt.datetime | None
    processed: int
    failed: int
    attempts: int
    average_runtime_seconds: float | None


class PerformanceAnswer(Answer):
    items_per_hour: float
    throughput_per_min: float
    success_rate: float | None
    average_runtime_seconds: float | None
    estimated_completion_time: str | None
    eta_seconds: tuple[float, float] | None
    queue: QueueAnswer
    workers: list[WorkerPerformanceAnswer]


class ReconcileAnswer(Answer):
    text: str
    preview: bool = False
    items: int | None
    workers: list[str]
    pools: list[str]
    startup_recovery_done: bool


class LogLineAnswer(Answer):
    at: dt.datetime
    level: LogLevel
    message: str = Field(max_length=4_000)
    item: str | None
    worker: str | None


class LogsAnswer(Answer):
    rows: list[LogLineAnswer]


class CleanupAnswer(Answer):
    text: str
    preview: bool = False
    days: int
    runs: list[str]
    items: int
    log_files: int
    complete: bool


class JobsPart:
    """What the paths share: the job, the pools of this machine, and one reader for all WebSockets."""

    def __init__(self, ledger: Callable[[], Ledger], settings: Settings, scraper: str | None) -> None:
        self.settings = settings
        self.pools = LocalPools(ledger, settings)
        self.jobs = Jobs(ledger, settings, self.pools, scraper)
        self.feed = FrameFeed(self.jobs, settings)
        self.commands = Commands(settings)

    def start_command(self, workers: int) -> str:
        return self.commands.start_pool(find_target(self.settings, self.jobs.scraper), workers)

    async def close(self) -> None:
        await self.feed.close()
        await self.jobs.close()
        await self.pools.close()


class FrameFeed:
    """Reads a frame per second for all clients together, as long as there is one. A slow client gets the newest."""

    def __init__(self, jobs: Jobs, settings: Settings) -> None:
        self._jobs = jobs
        self._settings = settings
        self._clients = 0
        self._reader: asyncio.Task[None] | None = None
        self._frame: dict[str, Any] = {}
        self._number = self._too_old = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[int]:
        """For the length of a block frames are read. Yields the number of the last one that is too old to be sent."""
        self._clients += 1
        if self._reader is None or self._reader.done():
            self._too_old = self._number  # nobody has watched since: it may be hours old
            self._reader = asyncio.create_task(self._read())
        try:
            yield max(self._too_old, self._number - 1)
        finally:
            self._clients -= 1
            if not self._clients and self._reader is not None:
                self._reader.cancel()
                self._reader = None

    async def next(self, after: int) -> tuple[int, dict[str, Any]]:
        """The newest frame that is not number `after`, and its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._number > after)
            return self._number, self._frame

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    frame = shown(await self._jobs.frame(), self._settings)
            except TimeoutError:
                frame = error_frame("slow", f"The ledger has not answered for {READ_SECONDS:g} s.", "Wait for it.")
            except ShoalError as error:
                frame = error_frame(error_code(error), error.message, error.remedy)
            except Exception as error:  # the clients are told, and the reader goes on
                frame = error_frame("internal_error", f"The status cannot be read: {type(error).__name__}.", "")
            async with self._changed:
                self._number, self._frame = self._number + 1, frame
                self._changed.notify_all()
            due = max(due + FRAME_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())


def error_frame(code: str, message: str, hint: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": redacted(message), "hint": redacted(hint)}}


def shown(found: msgspec.Struct, settings: Settings) -> dict[str, Any]:
    """What the service found, as JSON-like values without secrets."""
    fields: dict[str, Any] = without_secrets(found, settings.secrets())
    return fields


def part_of(connection: HTTPConnection) -> JobsPart:
    found: JobsPart = connection.app.state.jobs
    return found


async def _part(request: Request) -> JobsPart:
    return part_of(request)


PartDep = Annotated[JobsPart, Depends(_part)]


@asynccontextmanager
async def run_jobs(
    app: FastAPI, ledger: Callable[[], Ledger], settings: Settings, scraper: str | None
) -> AsyncIterator[None]:
    """For the length of a block: the job of the server, with what its start recovers (S4.10)."""
    part = app.state.jobs = JobsPart(ledger, settings, scraper)
    recovering = asyncio.create_task(part.jobs.recover_at_start())
    try:
        yield
    finally:
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)
        await part.close()


# Workers


@router.post("/jobs/workers/start")
async def start_workers(
    part: PartDep, who: Operator, preview: Preview = False, body: WorkersBody | None = None
) -> JobChangeAnswer:
    """Start so many workers of this machine; when some run already, there will be that many."""
    wanted = None if body is None else body.num_workers
    number = await part.jobs.wanted_workers(wanted)
    command = part.start_command(number)
    if preview:
        return await _changed(part, f"To be started: {pluralize(number, 'worker')}.", command, preview=True)
    await part.jobs.start(by=who.actor, workers=wanted)
    return await _changed(part, f"{pluralize(number, 'worker')} of {part.jobs.scraper}.", command)


@router.post("/jobs/workers/stop")
async def stop_workers(
    part: PartDep, who: Operator, preview: Preview = False, drain: Drain = STOP_SECONDS
) -> JobChangeAnswer:
    """Stop the workers: what runs may end, then it goes back to the queue."""
    if preview:
        return await _changed(part, "The workers are to be stopped.", _drain_command(part), preview=True)
    await part.jobs.stop(by=who.actor, drain=drain)
    return await _changed(part, "The workers are stopped.", _drain_command(part))


@router.post("/jobs/workers/restart")
async def restart_workers(
    part: PartDep,
    who: Operator,
    preview: Preview = False,
    drain: Drain = STOP_SECONDS,
    body: WorkersBody | None = None,
) -> JobChangeAnswer:
    """Stop the workers and start them with the settings and the code of now."""
    wanted = None if body is None else body.num_workers
    number = await part.jobs.wanted_workers(wanted)
    command = part.start_command(number)
    if preview:
        return await _changed(part, f"To be restarted, with {pluralize(number, 'worker')}.", command, preview=True)
    await part.jobs.restart(by=who.actor, workers=wanted, drain=drain)
    return await _changed(part, f"Restarted with {pluralize(number, 'worker')}.", command)


@router.get("/jobs/workers/status")
async def worker_status(part: PartDep, who: Viewer) -> WorkersAnswer:
    """Whether the workers run, how many are active, what they have done, and how long it will take."""
    found = await _status(part)
    return WorkersAnswer(**{name: found[name] for name in WorkersAnswer.model_fields})


@router.get("/jobs/workers/performance")
async def worker_performance(part: PartDep, who: Viewer) -> PerformanceAnswer:
    """Rates, success, the expected end, the queue, and each worker with its average runtime in the last 10 minutes."""
    return PerformanceAnswer(**shown(await part.jobs.performance(), part.settings))


@router.get("/jobs/queue/stats")
async def queue_stats(part: PartDep, who: Viewer) -> QueueAnswer:
    """Items by what happens to them."""
    return QueueAnswer(**shown(await part.jobs.queue(), part.settings))


# Jobs


@router.get("/jobs")
async def read_job(part: PartDep, who: Viewer) -> JobStatusAnswer:
    """The job: its status, scraper, run and pool, the workers, and what the start of the server gave back."""
    return JobStatusAnswer(**await _status(part))


@router.post("/jobs/start")
async def start_job(part: PartDep, who: Operator, preview: Preview = False) -> JobChangeAnswer:
    """Start the workers that the setting `max_workers` asks for, on the unfinished run or a new one."""
    number = await part.jobs.wanted_workers()
    command = part.start_command(number)
    if preview:
        return await _changed(part, f"To be started: {pluralize(number, 'worker')}.", command, preview=True)
    await part.jobs.start(by=who.actor)
    return await _changed(part, f"Started with {pluralize(number, 'worker')}.", command)


@router.post("/jobs/pause")
async def pause_job(part: PartDep, who: Operator, preview: Preview = False) -> JobChangeAnswer:
    """Start no further item, within a second. The workers stay, and items that run may end."""
    command = part.commands.runs("pause", f"latest:{part.jobs.scraper}")
    if preview:
        return await _changed(part, "To be paused.", command, preview=True)
    await part.jobs.pause(by=who.actor)
    return await _changed(part, "Paused: no further item starts.", command)


@router.post("/jobs/resume")
async def resume_job(part: PartDep, who: Operator, preview: Preview = False) -> JobChangeAnswer:
    """Go on after a pause; workers are started when none run."""
    command = part.commands.runs("resume", f"latest:{part.jobs.scraper}")
    if preview:
        return await _changed(part, "To be resumed.", command, preview=True)
    await part.jobs.resume(by=who.actor)
    return await _changed(part, "Resumed.", command)


@router.post("/jobs/stop")
async def stop_job(
    part: PartDep, who: Operator, preview: Preview = False, drain: Drain = STOP_SECONDS
) -> JobChangeAnswer:
    """The same as `/jobs/workers/stop`: the queue stays as it is."""
    return await stop_workers(part, who, preview, drain)


@router.post("/jobs/reconcile")
async def reconcile_job(part: PartDep, who: Operator, preview: Preview = False) -> ReconcileAnswer:
    """Give back now what dead workers of this machine hold. Live workers are not touched."""
    done = part.jobs.recovery.done
    if preview:
        text = "What dead workers of this machine hold is to be given back."
        return ReconcileAnswer(text=text, preview=True, items=None, workers=[], pools=[], startup_recovery_done=done)
    found = await part.jobs.reconcile(by=who.actor)
    return ReconcileAnswer(
        text=f"{pluralize(found.items, 'item')} of {pluralize(len(found.workers), 'dead worker')} given back.",
        items=found.items,
        workers=list(found.workers),
        pools=list(found.pools),
        startup_recovery_done=done,
    )


# Settings, logs, clean-up


@router.get("/settings")
async def get_settings(part: PartDep, who: Viewer) -> JobSettingsAnswer:
    """The settings of the job."""
    return JobSettingsAnswer(**shown(await part.jobs.settings(), part.settings))


@router.post("/settings")
async def post_settings(
    part: PartDep, who: Operator, body: JobSettingsBody, preview: Preview = False
) -> JobSettingsAnswer:
    """Change settings. Workers and retries of new attempts follow at once, `output_dir` with the next restart."""
    given = body.model_dump(exclude_unset=True)
    jobs = part.jobs
    found = await (jobs.preview_settings(given) if preview else jobs.put_settings(given, by=who.actor))
    return JobSettingsAnswer(**shown(found, part.settings))


@router.get("/logs")
async def get_logs(
    part: PartDep,
    who: Viewer,
    limit: Annotated[int, Query(ge=1, le=MAX_LOGS)] = 100,
    level: Annotated[LogLevel | None, Query(description="This level and above.")] = None,
    item: Annotated[Text | None, Query(max_length=2_000, description="The id, the key or the URL of an item.")] = None,
    video: Annotated[Text | None, Query(max_length=2_000, description="The same as `item`.")] = None,
) -> LogsAnswer:
    """The newest lines first: failed attempts, and what the pool and the workers of this machine logged."""
    lines = await part.jobs.logs(limit=limit, level=level, item=item if item is not None else video)
    return LogsAnswer(rows=[LogLineAnswer(**shown(line, part.settings)) for line in lines])


@router.post("/cleanup")
async def clean_up(part: PartDep, who: Operator, body: CleanupBody, preview: Preview = False) -> CleanupAnswer:
    """Remove runs that ended so many days ago, with their records, and log files of that age. The newest run stays."""
    found = await (part.jobs.preview_cleanup(body.days) if preview else part.jobs.cleanup(body.days, by=who.actor))
    what = f"{pluralize(len(found.runs), 'run')} with {pluralize(found.items, 'item')}, "
    what += f"{pluralize(found.log_files, 'log file')}, older than {pluralize(body.days, 'day')}"
    text = f"To be removed: {what}." if preview else f"Removed: {what}."
    return CleanupAnswer(text=text, preview=preview, **shown(found, part.settings))


@router.websocket("/jobs/status")
async def watch_job(websocket: WebSocket) -> None:
    """A frame each second: status, active workers with their items, counts, throughput, the last errors."""
    async with connected(websocket) as client:
        if client is not None:
            await run_until_first(websocket, client, ignore_messages(websocket), _send_frames(websocket))


async def _send_frames(websocket: WebSocket) -> End:
    feed = part_of(websocket).feed
    async with feed.client() as too_old:
        seen = too_old
        while True:
            seen, frame = await feed.next(seen)
            try:
                await websocket.send_json(frame)
            except (WebSocketDisconnect, RuntimeError):
                return None, ""


async def _status(part: JobsPart) -> dict[str, Any]:
    return {**shown(await part.jobs.status(), part.settings), "features": FeaturesAnswer()}


async def _changed(part: JobsPart, text: str, command: str, *, preview: bool = False) -> JobChangeAnswer:
    return JobChangeAnswer(**await _status(part), text=text, command=command, preview=preview)


def _drain_command(part: JobsPart) -> str:
    return part.commands.stop_workers(f"latest:{part.jobs.scraper}")
