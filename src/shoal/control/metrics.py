"""`/metrics` for Prometheus, and `/healthz` and `/readyz` for whoever restarts processes and routes requests."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.control.access import gate_of, open_to_all
from shoal.control.connection import LedgerConnection
from shoal.control.live import LiveClients
from shoal.errors import LedgerError
from shoal.observe.exposition import SERVER_METRICS, HistogramValue, Samples, render, single
from shoal.service.metrics import MetricsReader
from shoal.service.overview import Kept

# However often it is scraped, the ledger is read once in this time.
KEPT_SECONDS = 5.0
# Less than Prometheus waits by default (10 s).
READ_SECONDS = 5.0
READY_SECONDS, READY_KEPT_SECONDS = 3.0, 1.0
LEDGER_AWAY: Samples = {"shoal_ledger_up": [((), 0)]}
REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
STREAMS = frozenset({"/api/v1/live"})
OTHER = "other"

router = APIRouter()


class RequestTimes:
    """Durations of requests by method, route and status: as many as there are routes, not as many as addresses.

    `since`: when the server began to measure them, by `time.monotonic`.
    """

    def __init__(self) -> None:
        self.since = time.monotonic()
        self._counts: dict[tuple[str, str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str, str], float] = {}

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        key = method if method in METHODS else OTHER, route, str(status)
        counts = self._counts.setdefault(key, [0] * (len(REQUEST_BOUNDS) + 1))
        counts[next((n for n, bound in enumerate(REQUEST_BOUNDS) if seconds <= bound), len(REQUEST_BOUNDS))] += 1
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    @property
    def samples(self) -> Samples:
        return {
            "shoal_api_request_seconds": [
                (key, HistogramValue(counts, self._seconds[key], REQUEST_BOUNDS))
                for key, counts in self._counts.items()
            ]
        }


class TimedRequests:
    """Middleware that measures requests. Streams that stay open are not requests."""

    def __init__(self, app: ASGIApp, times: RequestTimes) -> None:
        self._app = app
        self._times = times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            if route not in STREAMS:
                self._times.observe(scope["method"], route, status, time.perf_counter() - began)


class ServerMetrics:
    """What a server exports."""

    def __init__(self, clients: LiveClients, connection: LedgerConnection, times: RequestTimes) -> None:
        self._clients = clients
        self._connection = connection
        self._times = times
        self._reader = MetricsReader(lambda: clients.hub.shared, started=times.since)
        self._samples: Kept[Samples] = Kept(self._read_ledger, KEPT_SECONDS)
        self.ready: Kept[bool] = Kept(self._check_ready, READY_KEPT_SECONDS)

    async def samples(self) -> Samples:
        samples = {**await self._samples.get(), **self._times.samples}
        single(
            samples,
            {
                "shoal_live_clients": self._clients.count,
                "shoal_live_topics": len(self._clients.hub.topics),
                "shoal_live_reads_total": self._clients.hub.reads,
            },
        )
        return samples

    async def _read_ledger(self) -> Samples:
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await self._reader.read()
        except TimeoutError:
            return dict(LEDGER_AWAY)

    async def _check_ready(self) -> bool:
        await self._connection.ledger.schema.require_current()
        return True


def measure_requests(app: FastAPI) -> None:
    app.state.request_times = RequestTimes()
    app.add_middleware(TimedRequests, times=app.state.request_times)


def _metrics_of(request: Request) -> ServerMetrics:
    state = request.app.state
    if not hasattr(state, "metrics"):
        state.metrics = ServerMetrics(state.live, state.control.connection, state.request_times)
    found: ServerMetrics = state.metrics
    return found


@router.get("/metrics", include_in_schema=False)
@open_to_all
async def metrics(request: Request) -> Response:
    """Metrics for whoever may read the API. Without a ledger nobody can be known: then only that it is away."""
    try:
        await gate_of(request).authenticate(request.scope, request.headers)
        samples = await _metrics_of(request).samples()
    except LedgerError:
        samples = dict(LEDGER_AWAY)
    text, content_type = await asyncio.to_thread(render, SERVER_METRICS, samples, request.headers.get("accept", ""))
    return Response(text, media_type=content_type, headers={"Cache-Control": "no-store"})


@router.get("/healthz", include_in_schema=False)
@open_to_all
async def healthz() -> JSONResponse:
    """The process answers. The ledger is not asked: a process is not restarted because a database is away."""
    return JSONResponse({"ok": True}, headers={"Cache-Control": "no-store"})


@router.get("/readyz", include_in_schema=False)
@open_to_all
async def readyz(request: Request) -> JSONResponse:
    """The ledger answers, and its schema is this code's."""
    text = ""
    try:
        async with asyncio.timeout(READY_SECONDS):
            await _metrics_of(request).ready.get()
    except LedgerError as error:
        # Whoever asks may be a stranger: what kind of trouble it is, but no address.
        text = _READY_TEXTS.get(type(error).__name__, "The ledger does not answer.")
    except TimeoutError:
        text = f"The ledger has not answered for {READY_SECONDS:.0f} s."
    return JSONResponse({"ok": not text, "text": text}, 503 if text else 200, {"Cache-Control": "no-store"})


_READY_TEXTS = {
    "LedgerNotMigrated": "The ledger has no schema of this version. Run `shoal db migrate`.",
    "LedgerTooNew": "The ledger's schema is newer than this server. Upgrade the server.",
}
