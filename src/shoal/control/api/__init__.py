"""`/api/v1`, a file per subject. Every answer is JSON, made from the records of `service/`."""

from fastapi import APIRouter

from shoal.control.api import (
    activity,
    egress,
    failures,
    fleet,
    items,
    lanes,
    overview,
    plans,
    pools,
    results,
    runs,
    settings,
)

PREFIX = "/api/v1"


def api_router() -> APIRouter:
    """All routes of `/api/v1` that are here."""
    router = APIRouter(prefix=PREFIX)
    for module in (overview, runs, items, failures, lanes, fleet, pools, egress, results, plans, settings, activity):
        router.include_router(module.router)
    return router
