"""Collections and schedules: folders of scrapers that run as one, and runs that start at set times."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from shoal.control.api.common import READ, Api, ApiDep, NamePath
from shoal.control.schemas import CollectionDetailRecord, CollectionList, ScheduleList
from shoal.errors import EXIT_INTERRUPTED
from shoal.service import records
from shoal.service.collection import CollectionView, list_collections, read_collection
from shoal.service.schedule import list_schedules

router = APIRouter(tags=["collections and schedules"])


@router.get("/collections", response_model=CollectionList, responses=READ)
async def collections(api: ApiDep) -> Response:
    """The collections that have run lately, with their last run, the newest first; 50 at most."""
    return api.answer({"rows": [_record(api, each) for each in await list_collections(api.ledger, api.settings)]})


@router.get("/collections/{collection}", response_model=CollectionDetailRecord, responses=READ)
async def collection(api: ApiDep, collection: NamePath) -> Response:
    """One collection with the groups and members of its last run."""
    view = await read_collection(api.ledger, api.settings, collection)
    return api.answer({**_record(api, view), **records.collection_detail_record(view, EXIT_INTERRUPTED)})


def _record(api: Api, view: CollectionView) -> records.Record:
    command = api.commands.run_collection(view.target) if view.target else ""
    return {**records.collection_record(view), "command": command}


@router.get("/schedules", response_model=ScheduleList, responses=READ)
async def schedules(api: ApiDep) -> Response:
    """The schedules of the server's project: last and next slots."""
    commands = api.commands
    found = await list_schedules(api.ledger, api.settings)
    rows = [{**records.schedule_record(each), "command": commands.schedule("now", each.name)} for each in found]
    return api.answer({"rows": rows})
