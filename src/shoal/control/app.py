"""The application of `shoal serve`: its parts put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.requests import HTTPConnection
from starlette.datastructures import Headers
from starlette.types import Scope

from shoal import __version__
from shoal.config import Settings
from shoal.control import answers, dashboard, jobs, live, metrics, routes, session
from shoal.control.access import AccessMiddleware, ControlOptions, Gate, guard
from shoal.control.connection import LedgerConnection
from shoal.control.openapi import openapi_document
from shoal.ledger.protocols import Ledger
from shoal.model.log import Log
from shoal.observe.logs import open_logs

__all__ = ["Control", "ControlDep", "ControlOptions", "build_app", "control_of"]


class Control:
    """What requests use: the settings, the options, and the ledger. `log` is the log of the server.

    `exports`: how many are being sent. `pages`: what the project's own routes are for, by their tags: the dashboard has
    pages for some.
    """

    def __init__(self, settings: Settings, options: ControlOptions, connection: LedgerConnection, log: Log) -> None:
        self.settings = settings
        self.options = options
        self.connection = connection
        self.log = log
        self.exports = 0
        self.pages: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The open ledger. Raises LedgerError while it is away; it may be another object later, so do not keep it."""
        return self.connection.ledger


def control_of(connection: HTTPConnection) -> Control:
    found: Control = connection.app.state.control
    return found


async def _control(request: Request) -> Control:
    return control_of(request)


# What routes ask for.
ControlDep = Annotated[Control, Depends(_control)]


def build_app(
    settings: Settings,
    options: ControlOptions | None = None,
    *,
    opened: Callable[[], Ledger] | None = None,
    log: Log | None = None,
    on_change: Callable[[str], object] = str,
) -> FastAPI:
    """The application. It opens the ledger of the settings when it starts, or uses the one that `opened` returns.

    `on_change` gets one sentence when the ledger is lost and when it is back.
    """
    options = options or ControlOptions()
    log = log or open_logs(format="console", level="info", file=None, stream=None).log
    connection = LedgerConnection(settings, log, opened=opened, on_change=on_change)
    gate = Gate(options, connection, log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await connection.start()
        try:
            async with (
                live.live_updates(app, connection, settings, log),
                jobs.run_jobs(app, lambda: connection.ledger, settings, options.jobs),
            ):
                yield
        finally:
            await connection.close()

    app = FastAPI(
        title="Shoal",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(guard)],
    )
    app.state.control = Control(settings, options, connection, log)
    app.state.gate = gate
    answers.install(app)
    app.include_router(session.router)
    app.include_router(live.router)
    from shoal.control.api import api_router  # it imports this module

    app.include_router(api_router())
    app.openapi = partial(openapi_document, app)  # type: ignore[method-assign]
    app.include_router(metrics.router)
    app.include_router(jobs.router)
    app.state.control.pages = routes.install(app, settings)
    dashboard.install(app, options.root_path)

    async def owner_of_keys(scope: Scope, headers: Headers) -> str | None:
        if gate.is_login(scope):
            return None
        principal = await gate.authenticate(scope, headers)
        return f"{principal.token_id or principal.name}"

    # From the inside out.
    app.add_middleware(answers.AnswerMiddleware, connection=connection, owner_of=owner_of_keys)
    app.add_middleware(AccessMiddleware, gate=gate)
    app.add_middleware(answers.FrameMiddleware, connection=connection, log=log)
    metrics.measure_requests(app)
    return app
