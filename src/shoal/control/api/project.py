"""What the server's project declares: collections of scrapers that run as one, schedules, and settings."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from shoal.control.api.common import READ, WRITE, ActingDep, Api, ApiDep, NamePath
from shoal.control.schemas import (
    CollectionDetailRecord,
    CollectionList,
    PreviewAnswer,
    ScheduleList,
    SettingsAnswer,
    SettingsBody,
    SettingsRecord,
)
from shoal.errors import EXIT_INTERRUPTED
from shoal.service import records
from shoal.service.collection import CollectionView, list_collections, read_collection
from shoal.service.schedule import list_schedules
from shoal.service.stored_settings import effective_settings, list_stored

router = APIRouter()
PLANS = "collections and schedules"


@router.get("/collections", response_model=CollectionList, responses=READ, tags=[PLANS])
async def collections(api: ApiDep) -> Response:
    """The collections that have run lately, with their last run, the newest first; 50 at most."""
    return api.answer({"rows": [_record(api, each) for each in await list_collections(api.ledger, api.settings)]})


@router.get("/collections/{collection}", response_model=CollectionDetailRecord, responses=READ, tags=[PLANS])
async def collection(api: ApiDep, collection: NamePath) -> Response:
    """One collection with the groups and members of its last run."""
    view = await read_collection(api.ledger, api.settings, collection)
    return api.answer({**_record(api, view), **records.collection_detail_record(view, EXIT_INTERRUPTED)})


def _record(api: Api, view: CollectionView) -> records.Record:
    command = api.commands.run_collection(view.target) if view.target else ""
    return {**records.collection_record(view), "command": command}


@router.get("/schedules", response_model=ScheduleList, responses=READ, tags=[PLANS])
async def schedules(api: ApiDep) -> Response:
    """The schedules of the server's project: last and next slots."""
    commands = api.commands
    found = await list_schedules(api.ledger, api.settings)
    rows = [{**records.schedule_record(each), "command": commands.schedule("now", each.name)} for each in found]
    return api.answer({"rows": rows})


@router.get("/settings", response_model=SettingsRecord, responses=READ, tags=["settings"])
async def read_settings(api: ApiDep) -> Response:
    """Stored settings with their versions, and effective ones with their origins, all without secrets."""
    stored = await list_stored(api.ledger)
    effective = list(effective_settings(api.settings))
    return api.answer({"stored": stored, "effective": effective, "command": api.commands.show_config()})


@router.put("/settings/{scope}", response_model=PreviewAnswer | SettingsAnswer, responses=WRITE, tags=["settings"])
async def put_settings(acting: ActingDep, scope: NamePath, body: SettingsBody) -> Response:
    """Store the retry options of a scraper (scope `scraper:NAME`): its workers follow with their next heartbeat."""
    return await acting.act(lambda actions: actions.put_settings(scope, body.value.model_dump(), version=body.version))
