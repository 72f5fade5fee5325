"""Paths that the project itself adds to the server: the routers of the module that the setting `serve_routes` names.

They have the same rules as Shoal's own: who may use them, Host and origin, the size of bodies, idempotency keys, the
form of errors, time-outs. docs/howto/routes.md is for authors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request

from shoal.config import Settings
from shoal.control import jobs, metrics
from shoal.control.access import SAFE_METHODS, Viewer
from shoal.control.schemas import ErrorAnswer
from shoal.errors import InvalidScraper
from shoal.service.client import Fleet
from shoal.service.lookup import load_routes

# The dashboard and the API own what is below these.
RESERVED = ("api", "jobs", "assets", "metrics", "healthz", "readyz")
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": text}
    for status, text in {
        401: "A log-in or a token is needed.",
        403: "Not allowed: the role is viewer, or the request comes from another site.",
        404: "There is no such thing.",
        409: "It cannot be done now.",
        422: "A parameter or a field is wrong.",
        503: "The ledger does not answer.",
    }.items()
}


async def _fleet(request: Request, who: Viewer) -> Fleet:
    control = request.app.state.control
    return Fleet(control.settings, operator=who.actor, opened=control.ledger)


# What routes of a project ask for: the ledger of the server, with changes recorded under the name of who asks.
ServedFleet = Annotated[Fleet, Depends(_fleet)]


async def _record_write(request: Request, who: Viewer) -> AsyncIterator[None]:
    """Leave an event of every write that succeeded, as Shoal's own writes do."""
    yield
    if request.method not in SAFE_METHODS and request.query_params.get("preview") not in ("true", "1"):
        template = getattr(request.scope.get("route"), "path", request.url.path)
        detail = {"method": request.method, "path": request.url.path[:500]}
        await request.app.state.control.ledger.runs.record_event(None, "route.called", template, detail, by=who.actor)


def install(app: FastAPI, settings: Settings) -> tuple[str, ...]:
    """Add the routes of the project, and return their tags. Raises InvalidScraper for paths that are taken."""
    module = load_routes(settings)
    if module is None:
        return ()
    routers = [value for value in vars(module).values() if isinstance(value, APIRouter)]
    if not routers:
        raise InvalidScraper(
            f"{settings.serve_routes} has no routes.",
            remedy="Write `router = APIRouter()` of fastapi, and functions below `@router.get(...)`.",
        )
    # Shoal's own come first, so they cannot be replaced; this says so before somebody wonders.
    taken = set(_addresses(jobs.router)) | set(_addresses(metrics.router))
    tags: dict[str, None] = {}
    for router in routers:
        for method, path in _addresses(router):
            if (method, path) in taken or path.strip("/").partition("/")[0] in RESERVED:
                raise InvalidScraper(
                    f"{settings.serve_routes} adds {method} {path}, which Shoal has already.",
                    remedy="Choose another path.",
                )
        app.include_router(router, dependencies=[Depends(_record_write)], responses=RESPONSES)
        tags.update(dict.fromkeys(str(tag) for tag in router.tags))
    return tuple(tags)


def _addresses(router: APIRouter) -> Iterator[tuple[str, str]]:
    for route in router.routes:
        for method in getattr(route, "methods", None) or ("WebSocket",):
            yield method, getattr(route, "path", "")
