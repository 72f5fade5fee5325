"""`/api/v1`, a file per subject. Every answer is JSON, made from the records of `service/`."""

from fastapi import APIRouter

from shoal.control.api import egress, failures, fleet, items, lanes, overview, pools, project, results, runs

PREFIX = "/api/v1"


def api_router() -> APIRouter:
    """All routes of `/api/v1` that are here."""
    router = APIRouter(prefix=PREFIX)
    for module in (overview, runs, items, failures, lanes, fleet, pools, egress, results, project):
        router.include_router(module.router)
    return router
